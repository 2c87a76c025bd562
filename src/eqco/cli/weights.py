"""What the commands with pre-trained weights share."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import tyro

from eqco.assembly import Weights, open_weights
from eqco.data.bands import WrongBandsError
from eqco.encoders import Stem
from eqco.runtime import processes
from eqco.runtime.atomic_files import write_text
from eqco.runtime.errors import InputError

__all__ = ["AS_IN_WEIGHTS", "Network", "bands_of", "list_unreadable", "refuse_several_processes"]


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """The network, where the weights do not tell."""

    backbone: str | None = None
    """resnet18, resnet34, resnet50, light or timm:NAME."""
    width: int = 1
    """Of that ResNet."""
    stem: Stem | None = None
    """Of that ResNet."""
    image_size: int | None = None
    """Pixels along each side; by default what the network was trained on."""

    def open(self, weights: str, *, in_channels: int = 3, seed: int = 0) -> Weights:
        """The weights; says where the size of image is a guess."""
        opened = open_weights(weights, **asdict(self), in_channels=in_channels, seed=seed)
        if opened.size_note:
            print(opened.size_note, file=sys.stderr)
        return opened


Network = Annotated[NetworkOptions, tyro.conf.OmitArgPrefixes]  # a group of options
AS_IN_WEIGHTS = NetworkOptions()


@contextmanager
def bands_of(weights: Weights) -> Iterator[None]:
    """Open images for these weights: of other bands, the error says that the weights decide."""
    try:
        yield
    except WrongBandsError as error:
        if weights.origin in ("random", "pixels"):  # whose bands are --channels
            raise
        raise error.of_network(weights.name) from error


def refuse_several_processes(command: str, work: str) -> None:
    """Refuse to run under torchrun what one process does."""
    if processes.under_torchrun():
        raise InputError(
            f"torchrun has started several processes, but {work} is the work of one. Start it "
            f"without torchrun: {command} …"
        )


def list_unreadable(path: Path, lines: Sequence[str]) -> str:
    """List the images that were left out, and say so; no list of an earlier result stays."""
    if not lines:
        path.unlink(missing_ok=True)
        return ""
    write_text(path, "".join(f"{line}\n" for line in lines))
    return f"left out, since they cannot be read: {len(lines)}, listed in {path}"
