"""What features must be before anything is said about them."""

from eqco.evaluation.features import Features
from eqco.runtime.errors import InputError

__all__ = ["check_pair"]


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
    unknown = sorted(set(test.labels.tolist()) - set(train.labels.tolist()))
    if unknown:
        names = ", ".join(class_name(test, number) for number in unknown[:5])
        raise InputError(
            f"test images are of classes that train has no image of ({names}"
            f"{' …' if len(unknown) > 5 else ''}), which nothing could learn. Test on the classes "
            f"of train."
        )
    return int(train.labels.max()) + 1


def class_name(features: Features, number: int) -> str:
    """What to call a class in front of the user.

    >>> import torch
    >>> class_name(Features(torch.zeros(1, 2), torch.tensor([1]), ("cat", "dog")), 1)
    'dog'
    """
    known = number < len(features.classes)
    return features.classes[number] if known else f"number {number}"
