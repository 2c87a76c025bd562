"""Features of a frozen encoder, in the order of the images."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from eqco.data import EvaluationLoader, Split
from eqco.encoders import Precision, autocast_to
from eqco.runtime import processes
from eqco.runtime.errors import InputError

__all__ = [
    "Features",
    "check_pair",
    "extract_features",
    "extract_several",
    "fingerprint",
    "refuse_unknown_classes",
]


@dataclass(frozen=True)
class Features:
    """Features and labels of a split: values (N, D), labels (N,), and the classes' names."""

    values: Tensor
    labels: Tensor
    classes: tuple[str, ...] = ()  # empty where they are not known


@torch.no_grad()
def extract_features(
    encode: Callable[[Tensor], Tensor],
    split: Split,
    *,
    size: int,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    workers: int = 0,
    on_unreadable: Literal["error", "skip"] = "error",
    precision: Precision = "float32",
    advance: Callable[[int], None] = lambda count: None,
) -> Features:
    """What `encode` makes of every image, seen through the evaluation pipeline.

    Each image counts for itself: the features of `split.subset(…)` are those rows. Several
    processes see a share of the images each, and all get the features of all.

    Args:
        encode: images (n, C, size, size) to features (n, D); an encoder in eval mode.
        split: labelled images.
        size: pixels along each side.
        workers: processes that decode images on disk.
        on_unreadable: stop at an image that cannot be read, or leave it out.
        precision: that `encode` computes in; features are float32 in any case.
        advance: takes the number of images done since it was called last.
    """
    (found,) = extract_several(
        [(encode, size)],
        split,
        batch_size=batch_size,
        device=device,
        workers=workers,
        on_unreadable=on_unreadable,
        precision=precision,
        advance=advance,
    )
    return found


@torch.no_grad()
def extract_several(
    encoders: Sequence[tuple[Callable[[Tensor], Tensor], int]],
    split: Split,
    *,
    batch_size: int = 256,
    device: torch.device | str = "cpu",
    workers: int = 0,
    on_unreadable: Literal["error", "skip"] = "error",
    precision: Precision = "float32",
    advance: Callable[[int], None] = lambda count: None,
) -> list[Features]:
    """The same of several encoders, each with its size of image: every image is read once."""
    require_labels(split)
    sizes = list(dict.fromkeys(size for _, size in encoders))
    loader = EvaluationLoader(
        own_share(split),
        size=sizes[0],
        batch_size=batch_size,
        device=device,
        workers=workers,
        on_unreadable=on_unreadable,
    )
    seen: list[list[tuple[Tensor, Tensor]]] = [[] for _ in encoders]
    for images, truth in loader.in_sizes(sizes):
        for (encode, size), own in zip(encoders, seen, strict=True):
            with autocast_to(precision, truth.device):
                values = encode(images[size])
            own.append((values.float().cpu(), truth.cpu()))
        advance(len(truth))
    return [gather_features(own, split) for own in seen]


def gather_features(seen: Sequence[tuple[Tensor, Tensor]], split: Split) -> Features:
    """Features of all processes, from the batches of this one."""
    # a process whose images are all left out learns the size of a feature from the others
    size_of_one = seen[0][0].shape[1] if seen else 0
    size_of_one = int(processes.gather(torch.tensor([size_of_one], device="cpu")).max())
    if size_of_one == 0:
        raise InputError(f"none of the {len(split)} images of {split.name!r} can be read.")
    values = torch.cat([torch.empty(0, size_of_one, device="cpu"), *(each for each, _ in seen)])
    labels = torch.cat(
        [torch.empty(0, dtype=torch.long, device="cpu"), *(each for _, each in seen)]
    )
    if len(split) < processes.world_size():
        return Features(values, labels, split.classes)
    values, labels = processes.gather_uneven(values), processes.gather_uneven(labels)
    return Features(values, labels, split.classes)


def require_labels(split: Split) -> None:
    """Refuse a split without labels."""
    if split.labels is None:
        raise InputError(
            f"the split {split.name!r} has no labels, so that nothing can be tested. Give a folder "
            f"with a subfolder for each class."
        )


def own_share(split: Split) -> Split:
    """The images of this process: as many as the others', or all if there are fewer than those."""
    count, number = processes.world_size(), processes.rank()
    if count == 1 or len(split) < count:
        return split
    first, last = (len(split) * place // count for place in (number, number + 1))
    return split.subset(range(first, last))


def check_pair(test: Features, train: Features) -> int:
    """Refuse features that cannot be compared; returns the number of classes."""
    for name, features in (("train", train), ("test", test)):
        count = len(features.values)
        if features.values.dim() != 2 or len(features.labels) != count:
            raise InputError(
                f"{name} features of shape {tuple(features.values.shape)} with "
                f"{len(features.labels)} labels; they must be (N, D) with N labels."
            )
        if not count:
            raise InputError(f"there are no {name} images; give at least one.")
        if features.labels.min() < 0:
            raise InputError(f"the {name} images have no labels; give a split that has classes.")
        broken = int((~features.values.isfinite()).any(dim=1).sum())
        if broken:
            raise InputError(
                f"the features of {broken} of {count} {name} images are NaN or infinite, so that "
                f"nothing can be compared. The weights are damaged, or the training had diverged."
            )
    if test.values.shape[1] != train.values.shape[1]:
        raise InputError(
            f"test features have {test.values.shape[1]} numbers each and train features "
            f"{train.values.shape[1]}; extract both with the same encoder."
        )
    refuse_unknown_classes(test.labels, train.labels, test.classes)
    return int(train.labels.max()) + 1


def refuse_unknown_classes(test: Tensor, train: Tensor, classes: Sequence[str]) -> None:
    """Refuse labels of test images that train has no image of; `classes` are their names."""
    unknown = sorted(set(test.tolist()) - set(train.tolist()))
    if unknown:
        names = [classes[n] if n < len(classes) else f"number {n}" for n in unknown[:5]]
        raise InputError(
            f"test images are of classes that train has no image of ({', '.join(names)}"
            f"{' …' if len(unknown) > 5 else ''}), which nothing could learn. Test on the classes "
            f"of train."
        )


def fingerprint(module: nn.Module) -> str:
    """A hash of every parameter and buffer: the same before and after, to the bit, or changed."""
    digest = hashlib.sha256()
    for name, value in sorted(module.state_dict().items()):
        plain = value.detach().cpu().contiguous()
        digest.update(f"{name} {plain.dtype} {tuple(plain.shape)};".encode())
        digest.update(plain.flatten().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()[:16]
