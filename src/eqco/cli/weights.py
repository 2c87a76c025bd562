"""Options that the commands with pre-trained weights share."""

import sys
from dataclasses import asdict, dataclass
from typing import Annotated

import tyro

from eqco.assembly import Weights, open_weights
from eqco.encoders import Stem
from eqco.runtime import processes
from eqco.runtime.errors import InputError

__all__ = ["AS_IN_WEIGHTS", "Network", "refuse_several_processes"]


@dataclass(frozen=True, kw_only=True)
class NetworkOptions:
    """The network, where the weights do not tell."""

    backbone: str | None = None
    """The network, where the weights do not tell: resnet18, resnet34, resnet50, light or
    timm:NAME."""
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


Network = Annotated[NetworkOptions, tyro.conf.arg(name="")]  # options without a prefix
AS_IN_WEIGHTS = NetworkOptions()


def refuse_several_processes(command: str, work: str) -> None:
    """Refuse to run under torchrun what one process does."""
    if processes.launched():
        raise InputError(
            f"torchrun has started several processes, but {work} is the work of one. Start it "
            f"without torchrun: {command} …"
        )
