"""The exact gradient of a large batch with the memory of a small one.

A contrastive loss needs all embeddings of the batch at once, the encoder does not. So embeddings
are made first, without what backward needs; the loss gives the gradient at each of them; and every
micro-batch is encoded once more and given its part of that gradient (Gao et al., 2021).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from eqco.contrast.negatives import has_values
from eqco.contrast.vectors import without_autocast
from eqco.runtime.errors import InputError

__all__ = ["cached_backward"]

Encode = Callable[..., Tensor]
Input = Tensor | Mapping[str, Tensor]

# How far the two passes may differ, in lengths of an embedding: kernels with and without a graph
# round differently.
TOLERANCES = {torch.float64: 1e-9, torch.float32: 1e-3}


def cached_backward(
    encoder: Encode | Sequence[Encode],
    inputs: Sequence[Input],
    loss_fn: Callable[..., Tensor],
    *,
    micro_batch: int = 8,
    scaler: Any = None,
    check: bool | None = None,
) -> Tensor:
    """Add to the gradients what `loss_fn(encoder(inputs[0]), …).backward()` of the whole batch
    would, with the memory of one micro-batch; returns the loss, detached.

    The gradient is that of the whole batch to rounding, dropout included: the second pass draws
    the same random numbers. With batch norm it cannot be, since statistics are those of the
    micro-batch; they are updated once, if the encoder is a module or a method of one, whose buffers
    are known. Works under autocast and inside DDP (its gradients are
    exchanged once, with the last micro-batch); parameters of `loss_fn` itself get their gradient,
    which DDP does not see. Costs one forward pass more than accumulating independent losses.

    Args:
        encoder: a module or function from inputs to embeddings (n, D); or a tuple of them, one for
            each of `inputs`.
        inputs: tensors of N rows each, such as two views or images and texts; in place of one a
            dict of tensors, which the encoder gets as keyword arguments.
        loss_fn: from all embeddings, in the order of `inputs`, to one number.
        micro_batch: rows that are encoded at once.
        scaler: a torch.amp.GradScaler for float16.
        check: refuse an encoder whose embeddings differ between the passes. None: on the CPU; on
            accelerators the check would wait for the device.

    >>> encoder, loss_fn = nn.Linear(6, 4), __import__("eqco").NTXentLoss(alpha=4096)
    >>> views = torch.randn(2, 32, 6)
    >>> loss = cached_backward(encoder, (views[0], views[1]), loss_fn, micro_batch=8)
    >>> loss.requires_grad, encoder.weight.grad.shape
    (False, torch.Size([4, 6]))
    """
    encoders = check_given(encoder, inputs, micro_batch)
    pieces = [list(split(each, micro_batch)) for each in inputs]
    devices = accelerators(inputs, encoders)
    states: list[list[Any]] = []
    embeddings: list[Tensor] = []
    with torch.no_grad(), kept_buffers(encoders):
        for encode, chunks in zip(encoders, pieces, strict=True):
            states.append([])
            found = []
            for chunk in chunks:
                states[-1].append(random_states(devices))
                found.append(embedding(encode, chunk))
            embeddings.append(torch.cat(found))
            check_place(embeddings[-1], devices, len(embeddings) - 1)
    leaves = [each.detach().requires_grad_() for each in embeddings]
    # what autocast has cast without a graph must not be used again with one
    torch.clear_autocast_cache()
    loss = loss_fn(*leaves)
    check_loss(loss)
    with without_autocast(leaves[0]):
        torch.autograd.backward(loss if scaler is None else scaler.scale(loss))
    for number, leaf in enumerate(leaves):
        if leaf.grad is None:
            raise InputError(
                f"the loss does not depend on the embeddings of inputs[{number}], so their encoder "
                f"would get no gradient. Leave them out of inputs."
            )
    afterwards = random_states(devices)
    checked = leaves[0].device.type == "cpu" if check is None else check
    remaining = list(encoders)
    for number, chunks in enumerate(pieces):
        gradient = leaves[number].grad
        assert gradient is not None
        remaining = remaining[1:]
        start = 0
        for place, chunk in enumerate(chunks):
            encode = encoders[number]
            last = place == len(chunks) - 1 and not any(each is encode for each in remaining)
            set_random_states(states[number][place])
            with nullcontext() if last else without_exchange(encode):
                again = embedding(encode, chunk)
                here = slice(start, start + len(again))
                if checked and has_values(again):
                    check_same(again, leaves[number][here], number, place)
                if not again.requires_grad:
                    raise InputError(
                        f"the embeddings of inputs[{number}] carry no gradient: no parameter of "
                        f"their encoder requires one, or it runs without gradient. Embed them "
                        f"before, and let loss_fn use them."
                    )
                with without_autocast(again):
                    torch.autograd.backward(again, gradient[here])
            torch.clear_autocast_cache()
            start += len(again)
    set_random_states(afterwards)
    return loss.detach()


def check_given(
    encoder: Encode | Sequence[Encode], inputs: Sequence[Input], micro_batch: int
) -> list[Encode]:
    """One encoder for each of the inputs; what cannot be cut into micro-batches is refused."""
    if not isinstance(inputs, tuple | list) or not inputs:
        raise InputError(
            f"inputs is a {type(inputs).__name__}; give a tuple of tensors, such as (first, second)"
        )
    lengths = []
    for number, each in enumerate(inputs):
        tensors = list(each.values()) if isinstance(each, Mapping) else [each]
        if not tensors or not all(isinstance(x, Tensor) and x.dim() >= 1 for x in tensors):
            raise InputError(
                f"inputs[{number}] is a {type(each).__name__}; it must be a tensor of N rows, or a "
                f"dict of such tensors."
            )
        lengths += [len(x) for x in tensors]
    if len(set(lengths)) > 1 or not lengths[0]:
        raise InputError(
            f"inputs of {', '.join(map(str, lengths))} rows; all must have the same, at least 1."
        )
    if isinstance(micro_batch, bool) or not isinstance(micro_batch, int) or micro_batch < 1:
        raise InputError(f"micro_batch={micro_batch!r}; it must be a whole number of at least 1.")
    if isinstance(encoder, tuple | list | nn.ModuleList):
        encoders: list[Encode] = list(encoder)
    else:
        encoders = [encoder] * len(inputs)  # type: ignore[list-item]
    for each in encoders:
        if not callable(each):
            raise InputError(
                f"encoder is a {type(each).__name__}; give a module or function from inputs to "
                f"embeddings, or a tuple of them."
            )
    if len(encoders) != len(inputs):
        raise InputError(
            f"{len(encoders)} encoders for {len(inputs)} inputs; give one for all, or one for each."
        )
    return encoders


def modules(encoders: Sequence[Encode]) -> list[nn.Module]:
    """The encoders that are modules, and those whose methods are encoders, each once."""
    owners = [getattr(each, "__self__", each) for each in encoders]
    return list({id(each): each for each in owners if isinstance(each, nn.Module)}.values())


def split(given: Input, size: int) -> Iterator[Input]:
    """Micro-batches of a tensor, or of a dict of tensors."""
    if isinstance(given, Tensor):
        yield from torch.split(given, size)
        return
    parts = [torch.split(each, size) for each in given.values()]
    for part in zip(*parts, strict=True):
        yield dict(zip(given, part, strict=True))


def embedding(encode: Encode, chunk: Input) -> Tensor:
    """What the encoder makes of a micro-batch, which must be one row for each of its rows."""
    if isinstance(chunk, Tensor):
        rows, found = len(chunk), encode(chunk)
    else:
        rows, found = len(next(iter(chunk.values()))), encode(**chunk)
    if not isinstance(found, Tensor) or found.dim() < 2 or len(found) != rows:
        shape = f"a tensor {tuple(found.shape)}" if isinstance(found, Tensor) else type(found)
        raise InputError(
            f"the encoder returned {shape} for a micro-batch of {rows}; it must return their "
            f"embeddings, a tensor ({rows}, D). Wrap it in a function that does."
        )
    return found


def check_loss(loss: Tensor) -> None:
    """Refuse what is no single number with a gradient."""
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        kind = f"shape {tuple(loss.shape)}" if isinstance(loss, Tensor) else type(loss).__name__
        raise InputError(
            f"loss_fn returned a loss of {kind}; it must be one number, such as the mean over "
            f"queries."
        )
    if not loss.requires_grad:
        raise InputError("loss_fn returned a loss without gradient; it must use the embeddings.")


def check_same(again: Tensor, before: Tensor, number: int, place: int) -> None:
    """Refuse an encoder that has changed between the two passes."""
    again, before = again.detach(), before.detach()
    limit = TOLERANCES.get(again.dtype, 3e-2)
    difference = float(torch.linalg.vector_norm((again - before).double()))
    length = float(torch.linalg.vector_norm(before.double()))
    if not difference <= limit * max(length, 1e-12):
        raise InputError(
            f"the encoder of inputs[{number}] changed between the two passes: its embeddings of "
            f"micro-batch {place} differ by {difference / max(length, 1e-12):.2g} of their length. "
            f"Look for random numbers that are not torch's (numpy, random), a state that forward "
            f"changes, or weights that loss_fn changes."
        )


def accelerators(inputs: Sequence[Input], encoders: Sequence[Encode]) -> list[torch.device]:
    """The devices beside the CPU that draw random numbers: of inputs and of parameters."""
    devices = {x.device for module in modules(encoders) for x in module.parameters()}
    for each in inputs:
        devices |= {x.device for x in ([each] if isinstance(each, Tensor) else each.values())}
    return [device for device in devices if device.type not in ("cpu", "meta")]


def check_place(embeddings: Tensor, devices: Sequence[torch.device], number: int) -> None:
    """Refuse embeddings of a device whose random numbers could not be drawn again."""
    device = embeddings.device
    if device.type not in ("cpu", "meta") and device not in devices:
        raise InputError(
            f"the embeddings of inputs[{number}] are on {device}, and neither inputs nor a module "
            f"given as encoder is, so that dropout there would not repeat. Move inputs to {device} "
            f"first."
        )


def random_states(devices: Sequence[torch.device]) -> list[tuple[torch.device | None, Tensor]]:
    """The state of torch's generators, the CPU's first."""
    states: list[tuple[torch.device | None, Tensor]] = [(None, torch.get_rng_state())]
    for device in devices:
        states.append((device, torch.get_device_module(device).get_rng_state(device)))
    return states


def set_random_states(states: Sequence[tuple[torch.device | None, Tensor]]) -> None:
    """Go back to the state of torch's generators."""
    for device, state in states:
        if device is None:
            torch.set_rng_state(state)
        else:
            torch.get_device_module(device).set_rng_state(state, device)


@contextmanager
def kept_buffers(encoders: Sequence[Encode]) -> Iterator[None]:
    """Put buffers, such as running statistics, back at the end: the second pass updates them."""
    buffers = [buffer for module in modules(encoders) for buffer in module.buffers()]
    copies = [buffer.clone() for buffer in buffers]
    try:
        yield
    finally:
        for buffer, copy in zip(buffers, copies, strict=True):
            buffer.copy_(copy)


def without_exchange(encode: Encode) -> AbstractContextManager[Any]:
    """DDP's no_sync where the encoder is one."""
    no_sync: Callable[[], AbstractContextManager[Any]] | None = getattr(encode, "no_sync", None)
    return nullcontext() if no_sync is None else no_sync()
