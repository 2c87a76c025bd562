"""`eqco index`: the photos of a folder, searchable by an encoder."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.console import Console

from eqco.assembly.parts import check_device
from eqco.assembly.search import FACTS, UNREADABLE, build_index
from eqco.cli.progress import progress_bar
from eqco.cli.weights import AS_IN_WEIGHTS, Network, bands_of, refuse_several_processes
from eqco.data.albums import open_album
from eqco.data.opening import DEFAULT_ROOT
from eqco.encoders import choose_precision
from eqco.runtime.atomic_files import refuse_unwritable

NAMED = 5  # unreadable photos that are printed; all are in the list


def run(
    weights: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN_OR_WEIGHTS")],
    photos: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="PHOTOS")],
    /,
    *,
    out: Path = Path("index"),
    on_unreadable: Literal["skip", "error"] = "skip",
    overwrite: bool = False,
    network: Network = AS_IN_WEIGHTS,
    batch_size: int = 256,
    workers: int = 0,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
    precision: Literal["float32", "bfloat16", "auto"] = "float32",
    root: Path = DEFAULT_ROOT,
) -> None:
    """Make the photos of a folder and below searchable: `eqco search` finds similar ones.

    The index remembers its encoder and refuses another. Stopped at any moment, the same command
    resumes.

    Args:
        weights: a run directory, a checkpoint, a file of weights of torchvision, timm or MoCo, or
            torchvision:resnet50 for torchvision's own.
        photos: a folder of any layout, or a data set by name.
        out: folder of the index.
        on_unreadable: leave out photos that cannot be read and list them, or stop at the first.
        overwrite: replace an index.
        batch_size: photos at a time.
        workers: processes that decode photos.
        device: where to compute: cpu, cuda, mps.
        precision: to compute in; auto: bfloat16 where the machine computes it natively.
        root: where data sets by name are downloaded to.

    Examples:
        eqco index runs/photos photos/
        eqco index torchvision:resnet50 photos/ --out resnet50-index --workers 2
    """
    refuse_several_processes("eqco index", "indexing")
    check_device(device)
    refuse_unwritable(out / FACTS)
    encoder = network.open(weights)
    with bands_of(encoder):
        total = sum(map(len, open_album(photos, root=root, channels=encoder.in_channels)))
    local = Path(weights).expanduser()
    with progress_bar(Console(stderr=True), f"indexing {total} photos", total) as show:
        index = build_index(
            encoder.backbone,
            encoder.image_size,
            photos,
            out,
            weights=str(local.resolve()) if local.exists() else weights,
            network=asdict(network),
            overwrite=overwrite,
            on_unreadable=on_unreadable,
            batch_size=batch_size,
            workers=workers,
            device=device,
            precision=choose_precision(precision, torch.device(device)),
            root=root,
            show=show,
        )
    print(f"written: {out}: {len(index):,} photos of {index.photos}, seen by {weights}")
    listed = (out / UNREADABLE).read_text(encoding="utf-8", errors="surrogateescape")
    lines = listed.splitlines()
    for line in lines[:NAMED]:
        print(f"cannot be read: {line.replace(chr(9), ': ')}", file=sys.stderr)
    if len(lines) > NAMED:
        print(f"and {len(lines) - NAMED} more, listed in {out / UNREADABLE}", file=sys.stderr)
    print(f"search it with: eqco search {out} PHOTO, or eqco search {out} --duplicates")
