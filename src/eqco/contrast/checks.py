"""What the loss refuses, said in the words of its arguments."""

import math
from numbers import Real
from types import FunctionType

import torch
from torch import Tensor, nn

from eqco.contrast.negatives import Negatives, check_device, has_values
from eqco.contrast.vectors import precision
from eqco.runtime.errors import InputError

__all__ = [
    "NonFiniteValuesError",
    "check_device",
    "check_embeddings",
    "check_finite_loss",
    "check_finite_values",
    "check_floating",
    "check_pool",
    "check_setting",
    "check_temperature",
    "check_transforms",
    "wants_finite_check",
]

FLOATING = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class NonFiniteValuesError(InputError):
    """Embeddings hold NaN or infinity or are too long to measure, or the loss is not finite; says
    in which argument and how many.
    """


def check_setting(
    temperature: float | Tensor,
    alpha: float | None,
    margin: float | None,
    similarity: str,
    reduction: str,
) -> None:
    """Refuse settings that no embeddings could make sense of."""
    for name, number in (("temperature", temperature), ("alpha", alpha), ("margin", margin)):
        if type(number) is float or number is None:
            continue
        if isinstance(number, Tensor) and name != "temperature":
            raise InputError(
                f"{name} is a tensor, but only the temperature can learn. Give a number, such as "
                f"float({name})."
            )
        if isinstance(number, nn.Module):
            raise InputError(
                f"{name} is the module {type(number).__name__}; call it, and pass the tensor that "
                f"it returns. EqCoLoss and NTXentLoss take an eqco.LearnableTemperature as it is."
            )
        if not isinstance(number, (Real, Tensor)):
            raise InputError(f"{name}={number!r} is a {type(number).__name__}; give a number.")
    if temperature is None:
        raise InputError("temperature=None; it must be a finite number greater than 0.")
    if isinstance(temperature, Tensor):
        if temperature.numel() != 1 or not temperature.is_floating_point():
            raise InputError(
                f"temperature is a tensor of shape {tuple(temperature.shape)} and type "
                f"{temperature.dtype}; it must hold one floating-point number."
            )
    elif not 0 < temperature < math.inf:
        raise InputError(
            f"temperature={temperature}; it must be a finite number greater than 0, "
            f"such as 0.07 (MoCo), 0.1 (SimCLR) or 0.2 (MoCo v2, SiMo)."
        )
    if alpha is not None and margin is not None:
        raise InputError(
            f"alpha={alpha} and margin={margin} were both given; alpha sets the margin "
            f"temperature·log(alpha/K). Give one of them."
        )
    if alpha is not None and not alpha > 0:
        raise InputError(
            f"alpha={alpha}; it says how many negatives those present stand in for, and must be "
            f"greater than 0. "
            f"Leave it None for plain InfoNCE, or math.inf for the decoupled loss."
        )
    if margin is not None and not -math.inf < margin < math.inf:
        raise InputError(f"margin={margin}; it must be a finite number.")
    for name, value, known in (
        ("similarity", similarity, ("cosine", "dot")),
        ("reduction", reduction, ("mean", "sum", "none")),
    ):
        if value not in known:
            raise InputError(f"{name}={value!r}; there are {', '.join(map(repr, known))}.")


def check_transforms() -> None:
    """Refuse what cannot see through the loss: torch.jit.trace and the transforms of torch.func."""
    if torch.compiler.is_compiling():
        return
    if torch._C._is_tracing():
        raise InputError(
            "the loss cannot be recorded by torch.jit.trace, which would keep the size of this "
            "batch. Use torch.compile, or trace the encoder alone."
        )
    if torch._C._are_functorch_transforms_active():
        raise InputError(
            "the loss has no rule for torch.func (vmap, grad, jacrev and the like). Use "
            "backward(); or eqco.info_nce on similarities, which works under all of them."
        )


def check_temperature(temperature: float | Tensor, check_finite: bool | None) -> None:
    """Refuse a learning temperature that has left the numbers > 0, on any device.

    An accelerator is waited for, unless `check_finite` is False: below 0 the loss would have its
    sign turned around and stay finite.
    """
    if not isinstance(temperature, Tensor) or check_finite is False or not has_values(temperature):
        return
    value = float(temperature.detach())
    if not 0 < value < math.inf:
        raise InputError(
            f"temperature={value:g}; it must be a finite number greater than 0. If it learned its "
            f"way there, use eqco.LearnableTemperature, which has limits."
        )


def check_embeddings(queries: Tensor, positives: Tensor) -> None:
    """Refuse queries and positives that are not one row each of the same instances."""
    check_floating("queries", queries)
    if isinstance(positives, Tensor) and not positives.is_floating_point():
        raise InputError(
            f"positives is of type {positives.dtype}, as labels are; no labels are needed. Give "
            f"the embeddings of the second views, one row for each query, floating-point."
        )
    check_floating("positives", positives)
    if queries.dim() != 2 or queries.shape != positives.shape:
        raise InputError(
            f"queries of shape {tuple(queries.shape)} and positives of shape "
            f"{tuple(positives.shape)}; both must be (N, D) with row n of one belonging to "
            f"row n of the other."
        )
    if queries.numel() == 0:
        raise InputError(
            f"queries of shape {tuple(queries.shape)} hold nothing; at least one query with at "
            f"least one dimension is needed."
        )
    check_device("positives", positives, queries)


def check_pool(queries: Tensor, negatives: Negatives | Tensor) -> int:
    """Refuse negatives that do not fit the queries; returns K, counted."""
    num_queries, dim = queries.shape
    keys = negatives.keys if isinstance(negatives, Negatives) else negatives
    check_floating("negatives", keys)
    fits = keys.dim() in (2, 3) and keys.shape[-1] == dim
    if not fits or (keys.dim() == 3 and len(keys) != num_queries):
        raise InputError(
            f"negatives of shape {tuple(keys.shape)} for queries of shape {tuple(queries.shape)}; "
            f"they must be (K, {dim}), shared by all queries, or ({num_queries}, K, {dim}), those "
            f"of each query."
        )
    check_device("negatives", keys, queries)
    if not isinstance(negatives, Negatives):
        num_negatives = keys.shape[1]
    else:
        for name in ("indices", "excluded", "mask"):
            places = getattr(negatives, name)
            if places is not None and len(places) != num_queries:
                raise InputError(
                    f"negatives.{name} has {len(places)} rows for {num_queries} queries; "
                    f"it needs one row per query."
                )
            if places is not None:
                check_device(f"negatives.{name}", places, queries)
        num_negatives = negatives.num_negatives
    if num_negatives < 1:
        raise InputError(
            f"num_queries={num_queries} and a pool of {len(keys)} keys leave K={num_negatives} "
            f"negatives per query, and at least 1 is needed. Use a larger batch (leave out a last "
            f"batch of one by DataLoader(drop_last=True)), or give negatives from a queue."
        )
    return num_negatives


def wants_finite_check(check_finite: bool | None, queries: Tensor) -> bool:
    """Whether to check the values: as the caller says, else where it does not wait for a device."""
    if check_finite is None:
        check_finite = queries.device.type == "cpu"
    return check_finite and has_values(queries)


def check_finite_values(named: dict[str, Tensor], similarity: str) -> None:
    """Refuse NaN, infinity and vectors too long to measure, saying in which argument and how
    many.
    """
    kind = precision(*named.values())  # that the loss is computed in
    for name, tensor in named.items():
        # the length of all is cheap, and finite unless a value is not, or squares overflow
        length = torch.linalg.vector_norm(tensor.detach().to(kind))
        if math.isfinite(length.item()):
            continue
        nan, infinite = int(torch.isnan(tensor).sum()), int(torch.isinf(tensor).sum())
        if nan or infinite:
            raise NonFiniteValuesError(
                f"{name} holds {nan} NaN and {infinite} infinite values among {tensor.numel()}; "
                f"all must be finite. Look for a diverged encoder, a learning rate that is too "
                f"high, or an input that was not normalised."
            )
        lengths = torch.linalg.vector_norm(tensor.detach(), dim=-1, dtype=kind)
        too_long = int(torch.isinf(lengths).sum())
        if too_long and similarity == "cosine":
            raise NonFiniteValuesError(
                f"{name} holds {too_long} vectors of {lengths.numel()} that are too long for "
                f"{kind} to measure (1.8e19 in float32). Look for a diverged encoder, or give "
                f"float64."
            )


def check_finite_loss(
    reduced: Tensor,
    loss: Tensor,
    similarity: str,
    temperature: float | Tensor,
    margin: float | None,
) -> None:
    """Refuse a loss, (N,), that is not finite although what it was made of is.

    Args:
        reduced: the loss as it is returned; if one number is finite, so is each that it sums up.
    """
    loss = loss.detach()
    if math.isfinite((reduced if reduced.dim() == 0 else loss.sum()).item()):
        return
    bad = int((~torch.isfinite(loss)).sum())
    if isinstance(temperature, Tensor):
        temperature = float(temperature.detach())
    handmade = "" if margin is None else f" and margin={margin:g}"
    cosine = "" if similarity == "cosine" else "use similarity='cosine', "
    if bad:
        raise NonFiniteValuesError(
            f"the loss of {bad} queries of {len(loss)} is not finite, though their vectors are: "
            f"{similarity} similarities{handmade} over temperature={temperature:g} are too large "
            f"for {loss.dtype}. Raise the temperature, {cosine}or give float64."
        )


def check_floating(name: str, tensor: Tensor) -> None:
    """Refuse what is no tensor, and integer and boolean ones."""
    if not isinstance(tensor, Tensor):
        raise InputError(f"{name} is {no_tensor(tensor)}")
    if tensor.dtype not in FLOATING:
        raise InputError(
            f"{name} is of type {tensor.dtype}; embeddings must be floating-point "
            f"(float16, bfloat16, float32 or float64). Others are converted by {name}.float()."
        )


def no_tensor(given: object) -> str:
    """What was given in place of a tensor, and what would work."""
    kind = type(given).__name__
    if hasattr(given, "negatives") and hasattr(given, "enqueue"):
        return (
            f"a {kind}; pass queue.negatives(), and call queue.enqueue(keys) after the step, so "
            f"that no query has its own key as a negative."
        )
    if isinstance(given, FunctionType):
        return f"the {kind} {given.__name__}; call it, and pass what it returns."
    return f"a {kind}; pass a torch tensor (torch.as_tensor makes one)."
