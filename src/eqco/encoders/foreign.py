"""Weights that others have saved: prefixes taken off, heads left out, the rest filled in strictly.

Training code wraps its networks: torch's data parallel adds `module.`, MoCo `encoder_q.`, SimSiam
`encoder.`, others `backbone.`. What stands before the backbone's own names is found by a name that
the backbone has once, so that no wrapper has to be known by name.
"""

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from eqco.encoders.architecture import ANCHORS
from eqco.runtime.errors import InputError

__all__ = ["Unwrapped", "fill", "state_dict_in", "unwrap"]

# where training code keeps its state dict in a checkpoint
PLACES = ("state_dict", "model_state_dict", "model")
# classifiers and projections, which follow a backbone
HEADS = (
    "fc.",
    "head.",
    "classifier.",
    "last_linear.",
    "projector.",
    "projection_head.",
    "predictor.",
    "prediction_head.",
    "prototypes.",
)
# encoders that follow another one; the leader is what is evaluated
FOLLOWERS = ("encoder_k", "key_encoder", "momentum", "target", "teacher", "_ema", "ema_")
SHOWN = 4  # names of a list in an error


@dataclass(frozen=True)
class Unwrapped:
    """Weights under their backbone's own names, and what was not part of it."""

    weights: dict[str, Tensor]
    prefix: str
    others: tuple[str, ...]  # the other parts of the file, by the beginnings of their names


def state_dict_in(content: Any, file: str) -> dict[str, Tensor]:
    """The state dict of a checkpoint: what it keeps under a usual name, or itself."""
    if isinstance(content, Mapping):
        for inner in (*(content.get(place) for place in PLACES), content):
            tensors = inner if isinstance(inner, Mapping) else {}
            found = {str(k): v for k, v in tensors.items() if isinstance(v, Tensor)}
            if found:
                return found
    kept = f"It holds {', '.join(map(str, content))}." if isinstance(content, Mapping) else ""
    raise InputError(
        f"{file} holds no state dict; looked for names with tensors, directly or under "
        f"{', '.join(PLACES)}. {kept}".rstrip()
    )


def unwrap(state: Mapping[str, Tensor], file: str, backbone: nn.Module | None = None) -> Unwrapped:
    """The part of a state dict that is the backbone, under the backbone's own names.

    `file` is what an error calls it; `backbone` the network to look for, if it is known.
    """
    own = list(backbone.state_dict()) if backbone is not None else []
    anchors = [*sorted(own, key=lambda name: -name.count("."))[:1], *ANCHORS]
    found = (leading_prefix(prefixes_before(anchor, state), own, state, file) for anchor in anchors)
    prefix = next((prefix for prefix in found if prefix is not None), "")
    weights = {n.removeprefix(prefix): v for n, v in state.items() if n.startswith(prefix)}
    depth = prefix.count(".") or 1
    others = [".".join(n.split(".")[:depth]) for n in state if not n.startswith(prefix)]
    return Unwrapped(weights, prefix, tuple(dict.fromkeys(others)))


def prefixes_before(anchor: str, names: Iterable[str]) -> list[str]:
    """What stands before a name that a backbone has once, for each network in the file.

    >>> prefixes_before("a.b", ["module.encoder_q.a.b", "module.encoder_k.a.b", "queue"])
    ['module.encoder_q.', 'module.encoder_k.']
    """
    return [n.removesuffix(anchor) for n in names if n == anchor or n.endswith("." + anchor)]


def leading_prefix(
    prefixes: list[str], own: Sequence[str], names: Container[str], file: str
) -> str | None:
    """The one prefix that has most of the backbone's names and follows no other; None of none."""
    matches = {prefix: sum(prefix + name in names for name in own) for prefix in prefixes}
    best = [prefix for prefix in prefixes if matches[prefix] == max(matches.values())]
    best = [p for p in best if not any(word in p for word in FOLLOWERS)] or best
    if len(best) > 1:
        raise InputError(
            f"{file} holds {len(best)} networks ({', '.join(best)}) and does not say which one "
            f"is meant. Save the one you want in a file of its own."
        )
    return best[0] if best else None


def fill(
    backbone: nn.Module, weights: Mapping[str, Tensor], *, file: str, called: str, remedy: str
) -> list[str]:
    """Load weights under the backbone's own names into it, all of them and nothing else.

    Heads are left out, and their names returned. An error calls the weights `file` and the backbone
    `called`, and advises `remedy`.
    """
    own = backbone.state_dict()
    heads = [name for name in weights if name not in own and name.startswith(HEADS)]
    # files of early versions of torch have no counters, and torch fills these in itself
    needed = [name for name in own if not name.endswith("num_batches_tracked")]
    complaints = [
        name_list("missing", [name for name in needed if name not in weights]),
        name_list(
            "unexpected", [name for name in weights if name not in own and name not in heads]
        ),
        name_list(
            "of another shape",
            [
                f"{name} {tuple(weights[name].shape)} instead of {tuple(own[name].shape)}"
                for name in own
                if name in weights and weights[name].shape != own[name].shape
            ],
        ),
    ]
    if any(complaints):
        raise InputError(
            f"{file} does not fit {called}: {'; '.join(filter(None, complaints))}. {remedy}"
        )
    backbone.load_state_dict({name: weights[name] for name in own if name in weights})
    return heads


def name_list(what: str, names: Sequence[str]) -> str:
    """How many there are and the first of them; empty for none.

    >>> name_list("missing", ["a", "b", "c", "d", "e", "f"])
    '6 missing (a, b, c, d and 2 more)'
    """
    if not names:
        return ""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{len(names)} {what} ({', '.join(names[:SHOWN])}{more})"
