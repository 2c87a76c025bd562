"""Vectors of many images, in one file: in parts, so that a stop loses little.

Each part is a fixed number of images, computed on its own and kept in a folder beside the file. A
later call takes the parts that are there and computes the others; since no part depends on another,
the file is the same, byte for byte, as from a call that was never stopped.
"""

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from eqco.data import EvaluationLoader, Split
from eqco.data.albums import Album
from eqco.data.images import StoredImages
from eqco.encoders import Precision, autocast_to
from eqco.evaluation.features import fingerprint
from eqco.runtime.atomic_files import atomic_write, refuse_existing, write_text
from eqco.runtime.errors import InputError

__all__ = ["Embedded", "Embedding", "embed", "parts_folder"]

PART = 1024  # images


@dataclass(frozen=True, kw_only=True)
class Embedding:
    """How images become vectors."""

    backbone: nn.Module
    size: int
    batch_size: int = 256
    normalise: bool = False
    workers: int = 0
    device: torch.device | str = "cpu"
    on_unreadable: Literal["error", "skip"] = "error"
    precision: Precision = "float32"


@dataclass(frozen=True)
class Embedded:
    """What was written."""

    file: Path
    count: int
    feature_dim: int
    unreadable: list[str] = field(default_factory=list)  # NAME<tab>REASON


def embed(
    how: Embedding,
    albums: Sequence[Album],
    out: Path,
    *,
    overwrite: bool = False,
    show: Callable[[int], None] = lambda count: None,
) -> Embedded:
    """Write the vectors of all images to an .npz file, or resume it.

    The file has `features` (N, D) float32, `names` (N,), and where there are labels `labels` (N,)
    and `classes` (C,).

    Args:
        how: the network and its settings.
        albums: images with names.
        out: the file; its parts lie in `parts_folder(out)` until it is complete.
        overwrite: replace the file, and parts of another call.
        show: gets the number of images of each part that is done.
    """
    if out.suffix != ".npz":
        raise InputError(f"--out {out}; the vectors are written as .npz, so name it so.")
    refuse_existing(out, overwrite=overwrite)
    if how.batch_size < 1:
        raise InputError(f"batch_size={how.batch_size}; it must be at least 1.")
    folder = parts_folder(out)
    prepare_folder(folder, parts_plan(how, albums), overwrite=overwrite)
    how.backbone.to(how.device).eval()
    parts: list[tuple[Album, Path]] = []
    for album in albums:
        for start in range(0, len(album), PART):
            part = folder / f"{len(parts):06d}.npz"
            numbers = range(start, min(start + PART, len(album)))
            if not is_usable(part, how.on_unreadable):
                compute_part(how, album, numbers, part)
            parts.append((album, part))
            show(len(numbers))
    embedded = gather(parts, out)
    shutil.rmtree(folder)
    return embedded


def parts_folder(out: Path) -> Path:
    """Where the parts of an unfinished file lie."""
    return out.with_name(out.name + ".parts")


def parts_plan(how: Embedding, albums: Sequence[Album]) -> dict[str, Any]:
    """What decides the vectors: parts of a call with another one are not mixed in."""
    images = hashlib.sha256()
    for album in albums:
        for name in album.names:
            images.update(os.fsencode(name) + b"\0")
        if isinstance(album.images, StoredImages):
            images.update(album.images.digest().encode())
    return {
        "weights": fingerprint(how.backbone),
        "images": images.hexdigest(),
        "image_size": how.size,
        "batch_size": how.batch_size,
        "normalise": how.normalise,
        "precision": how.precision,
    }


def prepare_folder(folder: Path, ours: dict[str, Any], *, overwrite: bool) -> None:
    """Make the folder of parts, or check that those computed there belong to this call."""
    plan = folder / "plan.json"
    theirs = json.loads(plan.read_text()) if plan.exists() else None
    if theirs not in (None, ours) and any(folder.glob("*.npz")) and not overwrite:
        differing = ", ".join(name for name in ours if theirs.get(name) != ours[name])
        raise InputError(
            f"{folder} holds parts of another call ({differing} differ). Finish that one, pass "
            f"--overwrite to begin anew, or choose another --out."
        )
    if theirs is None and folder.exists() and any(folder.iterdir()):
        raise InputError(
            f"{folder} is in the way: parts of the result go there, and it holds other files. "
            f"Move it, or choose another --out."
        )
    if theirs != ours:
        shutil.rmtree(folder, ignore_errors=True)
        write_text(plan, json.dumps(ours, indent=1) + "\n")


def is_usable(part: Path, on_unreadable: Literal["error", "skip"]) -> bool:
    """Whether a part is there; one that left images out is not for a call that must not."""
    if not part.exists():
        return False
    if on_unreadable == "skip":
        return True
    with np.load(part) as content:
        return not len(content["unreadable"])


@torch.no_grad()
def compute_part(how: Embedding, album: Album, numbers: range, part: Path) -> None:
    """Vectors of a few images; what cannot be read is named or left out."""
    # the label of an image is its number: the loader returns the labels of those it could read
    split = Split("images", album.images.subset(numbers), torch.arange(numbers.start, numbers.stop))
    loader = EvaluationLoader(
        split,
        size=how.size,
        batch_size=how.batch_size,
        workers=how.workers,
        device=how.device,
        on_unreadable=how.on_unreadable,
    )
    features: list[Tensor] = []
    read: list[Tensor] = []
    for images, seen in loader:
        with autocast_to(how.precision, images.device):
            values = how.backbone(images)
        values = values.float()
        finite = torch.isfinite(values).all(dim=1)
        if not finite.all():
            first = album.names[int(seen[~finite][0])]
            raise InputError(
                f"the features of {first} are not finite: the weights are damaged or their "
                f"training has diverged. Choose an earlier checkpoint."
            )
        features.append((F.normalize(values, dim=1) if how.normalise else values).cpu())
        read.append(seen.cpu())
    reasons = [f"{error.name}\t{error.reason}" for error in loader.unreadable]
    with atomic_write(part) as partial, open(partial, "wb") as file:
        np.savez(
            file,
            features=torch.cat(features).numpy() if features else np.empty((0, 0), np.float32),
            numbers=torch.cat(read).numpy() if read else np.empty(0, np.int64),
            unreadable=np.array(reasons, dtype=np.str_),
        )


def gather(parts: Sequence[tuple[Album, Path]], out: Path) -> Embedded:
    """One file out of the parts, of which one is in memory at a time."""
    count, dim = 0, 0
    names: list[str] = []
    labels: list[int] = []
    classes: tuple[str, ...] = ()
    unreadable: list[str] = []
    for album, path in parts:
        with np.load(path) as part:
            count += len(part["features"])
            dim = max(dim, part["features"].shape[1])
            numbers = part["numbers"].tolist()
            unreadable += part["unreadable"].tolist()
        names += [album.names[number] for number in numbers]
        if album.labels is None:
            labels += [-1] * len(numbers)
        else:
            labels += album.labels[numbers].tolist()
            classes = classes or album.classes
    if count == 0:
        raise InputError(f"none of the images could be read, the first being {unreadable[0]}.")
    arrays = {"names": np.array(names, dtype=np.str_)}
    if any(label >= 0 for label in labels):
        arrays["labels"] = np.array(labels, dtype=np.int64)
        arrays["classes"] = np.array(classes, dtype=np.str_)
    with atomic_write(out) as partial, zipfile.ZipFile(partial, "w") as archive:
        with open_entry(archive, "features") as file:
            header = {"descr": "<f4", "fortran_order": False, "shape": (count, dim)}
            np.lib.format.write_array_header_1_0(file, header)
            for _, path in parts:
                with np.load(path) as part:
                    file.write(np.ascontiguousarray(part["features"], dtype="<f4").tobytes())
        for name, array in arrays.items():
            with open_entry(archive, name) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)
    return Embedded(out, count, dim, unreadable)


def open_entry(archive: zipfile.ZipFile, name: str) -> IO[bytes]:
    """An array's place in the file, without the time of writing: equal content is equal bytes."""
    info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
    return archive.open(info, "w", force_zip64=True)
