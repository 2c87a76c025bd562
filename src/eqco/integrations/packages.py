"""Packages that are not installed are answered with their install line."""

from collections.abc import Iterator
from contextlib import contextmanager

from eqco.runtime.errors import MissingExtraError

__all__ = ["needs"]


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around the imports of another package: says which extra of this one installs it.

    >>> with needs("lightly"):
    ...     import lightlyy
    Traceback (most recent call last):
    eqco.runtime.errors.MissingExtraError: this needs the package 'lightlyy', which is not
    installed. Install it from the folder of eqco: pip install ".[lightly]"
    """
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError((error.name or extra).split(".")[0], extra) from error
