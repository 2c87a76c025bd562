"""A batch in micro-batches that share one loss: its whole gradient, with a micro-batch's memory.

The method computes its step as ever, on the whole batch; only its encoders are replaced, for the
length of the step, by ones that take the batch in pieces. What the loss gives back to embeddings is
then carried through the encoder, piece by piece (see `eqco.cached_backward`).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from eqco.contrast.caching import kept_buffers, random_states, set_random_states
from eqco.contrast.vectors import without_autocast
from eqco.encoders import Encoder
from eqco.methods import Method

__all__ = ["InPieces", "in_pieces"]

Encode = Callable[[Tensor], Tensor]


class InPieces(nn.Module):
    """An encoder that takes a batch in pieces and keeps what backward needs of none.

    Args:
        encoder: what encodes each piece.
        size: rows of a piece.
    """

    def __init__(self, encoder: Encoder, size: int):
        super().__init__()
        self.encoder, self.size = encoder, size
        self.calls: list[tuple[Encode, tuple[Tensor, ...], list[list[tuple]], Tensor]] = []

    def forward(self, images: Tensor) -> Tensor:
        """Embeddings; with gradient wanted, as a leaf that collects theirs."""
        return self.in_pieces(self.encoder, images)

    def features(self, images: Tensor) -> Tensor:
        """The same of the backbone's features."""
        return self.in_pieces(self.encoder.features, images)

    def in_pieces(self, encode: Encode, images: Tensor) -> Tensor:
        """What `encode` makes of the images, piece by piece."""
        pieces = torch.split(images, self.size)
        if not torch.is_grad_enabled():
            return torch.cat([encode(piece) for piece in pieces])
        devices = [] if images.device.type == "cpu" else [images.device]
        states, found = [], []
        with torch.no_grad(), kept_buffers([self.encoder]):
            for piece in pieces:
                states.append(random_states(devices))
                found.append(encode(piece))
        torch.clear_autocast_cache()
        leaf = torch.cat(found).requires_grad_()
        self.calls.append((encode, pieces, states, leaf))
        return leaf

    def carry_back(self) -> None:
        """Encode every piece again, and give it its part of the gradient."""
        for encode, pieces, states, leaf in self.calls:
            assert leaf.grad is not None
            devices = [] if leaf.device.type == "cpu" else [leaf.device]
            afterwards = random_states(devices)
            parts = torch.split(leaf.grad, self.size)
            for piece, state, gradient in zip(pieces, states, parts, strict=True):
                set_random_states(state)
                found = encode(piece)
                with without_autocast(leaf):  # as a backward pass is elsewhere
                    torch.autograd.backward(found, gradient)
                torch.clear_autocast_cache()
            set_random_states(afterwards)


@contextmanager
def in_pieces(method: Method, size: int) -> Iterator[list[InPieces]]:
    """Put `InPieces` in the place of every encoder of a method, for the length of this block."""
    owners = [
        (owner, name, child)
        for owner in list(method.modules())
        for name, child in owner.named_children()
        if isinstance(child, Encoder)
    ]
    wrappers = [InPieces(child, size) for _, _, child in owners]
    for (owner, name, _), wrapper in zip(owners, wrappers, strict=True):
        setattr(owner, name, wrapper)
    try:
        yield wrappers
    finally:
        for owner, name, child in owners:
            setattr(owner, name, child)
