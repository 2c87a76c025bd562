"""Diagnostics in the trainers of transformers and sentence-transformers."""

from typing import Any

from torch import nn

from eqco.integrations.packages import needs
from eqco.integrations.watching import LossWatch, check_every, metrics_of
from eqco.runtime.errors import InputError

with needs("transformers"):
    from transformers import TrainerCallback

__all__ = ["ContrastiveDiagnostics"]


class ContrastiveDiagnostics(TrainerCallback):
    """Logs f̂, p₊ and effective negatives of a contrastive loss, as contrast/information and so on.

        trainer.add_callback(ContrastiveDiagnostics(trainer, every=50))

    Args:
        trainer: a Trainer; of sentence-transformers its own loss is watched.
        loss: the loss module called with queries and positives, where the trainer has none.
        temperature: τ of the loss; None: its attribute.
        alpha: α of the loss; None: its attribute, or plain InfoNCE.
        every: steps between two looks; the first step is one.
    """

    def __init__(
        self,
        trainer: Any,
        loss: nn.Module | None = None,
        *,
        temperature: float | None = None,
        alpha: float | None = None,
        every: int = 50,
    ):
        self.trainer, self.every = trainer, check_every(every)
        loss = getattr(trainer, "loss", None) if loss is None else loss
        if not isinstance(loss, nn.Module):
            raise InputError(
                f"the trainer's loss is a {type(loss).__name__}; give the module that is called "
                f"with queries and positives as loss=."
            )
        self.watch = LossWatch(loss, temperature=temperature, alpha=alpha)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Have the next call of the loss read, if it is its turn."""
        self.watch.wanted = state.global_step % self.every == 0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Log what was read."""
        seen = self.watch.take()
        if seen is not None:
            self.trainer.log(metrics_of(seen))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the loss alone."""
        self.watch.stop()
