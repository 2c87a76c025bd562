"""What goes wrong in a training, reported clearly: collapse, saturation, NaN."""

import math
from typing import Any, Literal

from eqco.runtime.errors import InputError
from eqco.training.diagnostics import Diagnostics, EmbeddingDiagnostics

__all__ = ["Alarms", "NonFiniteLossError", "checkpoint_hint", "require_finite"]

# Below this f̂, in nats, the embeddings tell images apart hardly better than chance.
COLLAPSE_BELOW = 0.05
# Without f̂: embeddings that fill fewer dimensions, or that are all but the same.
COLLAPSED_RANK = 2.0
COLLAPSED_UNIFORMITY = -0.05
# From this share of its ceiling on, f̂ has nothing left to gain.
SATURATION_FROM = 0.99
# Steps in a row that a condition must hold before it is reported.
PATIENCE = 100


class NonFiniteLossError(InputError):
    """The loss is no number any more; says at which step, what to look at and what is left."""


def require_finite(
    step: int, value: float, last_good: str | None = None, *, what: str = "the loss"
) -> float:
    """Stop at a number that is NaN or infinite; returns any other.

    `last_good` is the checkpoint written before, if there is one.

    >>> require_finite(3, 0.5)
    0.5
    """
    if math.isfinite(value):
        return value
    raise NonFiniteLossError(
        f"stopped at step {step}: {what} is {value}. Look for a learning rate that is too high or "
        f"a warm-up that is too short, for float16 where bfloat16 or float32 would hold the "
        f"numbers, and for images that hold NaN. {checkpoint_hint(last_good)}"
    )


def checkpoint_hint(last_good: str | None) -> str:
    """A sentence on the checkpoint that a stopped run can be resumed from."""
    if last_good is None:
        return "No checkpoint was written yet; start anew."
    return (
        f"The last good checkpoint is kept: {last_good}. A resumed run keeps its settings; to "
        f"change them, start a new one from its recipe.json."
    )


class Alarms:
    """Watches f̂ and speaks up once when it stays where it should not.

    Collapse: f̂ below 0.05 nats for 100 steps in a row; where no cosines with negatives are
    compared, embeddings that fill fewer than 2 dimensions or point the same way. Saturation: f̂
    within 1 % of its ceiling log(1+α) for 100 steps in a row. Both count after the warm-up only. An
    alarm is reported once, and again only after its condition has ended. Between two looks the
    condition is taken to hold if it held at both.

    Args:
        similarity: what the loss compares embeddings by. Dot products of a query with all its keys
            change alike when one vector is added to all keys, which leaves the loss as it is: all
            may point the same way then, and collapse is judged by the dimensions alone.

    >>> alarms = Alarms()
    >>> alarms.state_dict()
    {'collapse': {'since': -1, 'reported': 0}, 'saturation': {'since': -1, 'reported': 0}}
    """

    def __init__(self, similarity: Literal["cosine", "dot"] = "cosine") -> None:
        self.similarity = similarity
        # since: the step at which the condition began to hold, -1 when it does not
        self.collapse = {"since": -1, "reported": 0}
        self.saturation = {"since": -1, "reported": 0}

    def check(
        self,
        step: int,
        loss: float,
        diagnostics: Diagnostics | EmbeddingDiagnostics | None,
        warmup_steps: int,
    ) -> list[str]:
        """The alarms of this step, mostly none; a loss that is no number is `require_finite`'s."""
        if diagnostics is None or step < warmup_steps or not math.isfinite(loss):
            return []
        seen, messages = diagnostics, []
        if isinstance(seen, EmbeddingDiagnostics):
            return self.check_embeddings(step, seen)
        if has_lasted(self.collapse, step, seen.information < COLLAPSE_BELOW):
            messages.append(
                f"collapse at step {step}: since step {self.collapse['since']} the embeddings tell "
                f"images apart hardly better than chance (information {seen.information:.3f} nats; "
                f"accuracy {seen.accuracy:.1%} where chance is {seen.accuracy_chance:.1%}; "
                f"embeddings fill {seen.embedding_rank:.1f} dimensions). Lower the learning rate "
                f"or lengthen the warm-up; check that both views show the same image, and that "
                f"batch norm sees enough images."
            )
        if has_lasted(self.saturation, step, seen.information >= SATURATION_FROM * seen.ceiling):
            messages.append(
                f"saturation at step {step}: since step {self.saturation['since']} the task is too "
                f"easy (information {seen.information:.3f} nats is within 1 % of the most it can "
                f"be, log(1+alpha) = {seen.ceiling:.3f}), so there is little gradient left. Raise "
                f"alpha or the number of negatives K={seen.num_negatives}, or use stronger "
                f"augmentation."
            )
        return messages

    def check_embeddings(self, step: int, seen: EmbeddingDiagnostics) -> list[str]:
        """The alarm of a method without cosines to negatives, and hence without f̂."""
        rank, uniformity = seen.embedding_rank, seen.uniformity
        same_direction = self.similarity == "cosine" and uniformity > COLLAPSED_UNIFORMITY
        collapsed = rank < COLLAPSED_RANK or same_direction
        if not has_lasted(self.collapse, step, collapsed):
            return []
        return [
            f"collapse at step {step}: since step {self.collapse['since']} the embeddings fill "
            f"{rank:.1f} dimensions (uniformity {uniformity:.3f}; 0 where all are the same). "
            f"Lower the learning rate or lengthen the warm-up; check that batch norm sees enough "
            f"images and, where no negatives keep embeddings apart, the decay of a momentum "
            f"encoder or the number of prototypes."
        ]

    def state_dict(self) -> dict[str, Any]:
        """Plain numbers, for the checkpoint."""
        return {"collapse": dict(self.collapse), "saturation": dict(self.saturation)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what `state_dict` gave."""
        self.collapse, self.saturation = dict(state["collapse"]), dict(state["saturation"])


def has_lasted(run: dict[str, int], step: int, holds: bool) -> bool:
    """Note whether a condition holds at this step; True once, when it has for long enough."""
    if not holds:
        run["since"], run["reported"] = -1, 0
        return False
    if run["since"] < 0:
        run["since"] = step
    if run["reported"] or step - run["since"] + 1 < PATIENCE:
        return False
    run["reported"] = 1
    return True
