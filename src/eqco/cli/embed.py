"""`eqco embed`: vectors for a folder of images."""

import sys
from pathlib import Path
from typing import Annotated, Literal

import torch
import tyro
from rich.console import Console

from eqco.assembly.parts import check_device
from eqco.cli.progress import progress_bar
from eqco.cli.weights import (
    AS_IN_WEIGHTS,
    Network,
    bands_of,
    list_unreadable,
    refuse_several_processes,
)
from eqco.data.albums import open_album
from eqco.data.opening import DEFAULT_ROOT
from eqco.encoders import choose_precision
from eqco.evaluation.embedding import Embedding, embed, parts_folder
from eqco.runtime.atomic_files import refuse_unwritable


def run(
    weights: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="WEIGHTS")],
    images: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="IMAGES")],
    /,
    *,
    out: Path = Path("features.npz"),
    normalise: bool = False,
    on_unreadable: Literal["error", "skip"] = "error",
    overwrite: bool = False,
    network: Network = AS_IN_WEIGHTS,
    channels: int = 3,
    batch_size: int = 256,
    workers: int = 0,
    device: str = "cuda" if torch.cuda.is_available() else "cpu",
    precision: Literal["float32", "bfloat16", "auto"] = "float32",
    root: Path = DEFAULT_ROOT,
) -> None:
    """Write a vector for every image in a folder and below, with its name, to an .npz file.

    No labels are needed; where the folders are classes, labels are written too. Stopped at any
    moment, the same command resumes, and the file is the same as if it had never been stopped.

    In Python: f = numpy.load("features.npz"); f["features"], f["names"]

    Args:
        weights: a run directory, a checkpoint, a file of weights of torchvision, timm or MoCo,
            torchvision:resnet50 for torchvision's own, random, or pixels.
        images: a folder of any layout, or a data set by name.
        out: the file.
        normalise: give every vector the length 1.
        on_unreadable: stop at an image that cannot be read, or leave it out and list it beside OUT.
        overwrite: replace the file, or what was left of another call.
        channels: bands of the images, of random and pixels; all other weights tell it themselves.
        batch_size: images at a time.
        workers: processes that decode images.
        device: where to compute: cpu, cuda, mps.
        precision: to compute in; auto: bfloat16 where the machine computes it natively. It is
            faster, and the second digit of a vector's numbers may differ; in float32 they agree to
            1e-5 with exported weights.
        root: where data sets by name are downloaded to.

    Examples:
        eqco embed runs/simo photos/
        eqco embed runs/simo photos/ --out photos.npz --normalise --workers 2
        eqco embed moco_v2_800ep_pretrain.pth.tar photos/ --on-unreadable skip
        eqco embed pixels photos/ --image-size 16
    """
    refuse_several_processes("eqco embed", "embedding")
    check_device(device)
    refuse_unwritable(out)
    encoder = network.open(weights, in_channels=channels)
    with bands_of(encoder):
        albums = open_album(images, root=root, channels=encoder.in_channels)
    how = Embedding(
        backbone=encoder.backbone,
        size=encoder.image_size,
        batch_size=batch_size,
        normalise=normalise,
        workers=workers,
        device=device,
        on_unreadable=on_unreadable,
        precision=choose_precision(precision, torch.device(device)),
    )
    for note in (album.note for album in albums if album.note):
        print(f"without labels: {note}", file=sys.stderr)
    console = Console(stderr=True)
    total = sum(map(len, albums))
    try:
        with progress_bar(console, f"embedding {total} images", total) as show:
            done = embed(how, albums, out, overwrite=overwrite, show=show)
    except KeyboardInterrupt:
        print(f"what is done is kept in {parts_folder(out)}; the same command resumes")
        raise
    print(f"written: {done.file}: features ({done.count}, {done.feature_dim}) of {weights}")
    if note := list_unreadable(out.with_suffix(".unreadable.txt"), done.unreadable):
        print(note)
