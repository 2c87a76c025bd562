"""Any recipe as a LightningModule, and diagnostics for anyone's."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from eqco.assembly import build_components
from eqco.contrast.diagnostics import diagnose_contrasts
from eqco.data import Batch, open_source
from eqco.data.sources import Source
from eqco.encoders import Encoder
from eqco.integrations.packages import needs
from eqco.integrations.watching import LossWatch, check_every, metrics_of
from eqco.methods import StepOutput
from eqco.recipes import Recipe, recipe_from_dict, recipe_to_dict
from eqco.runtime import processes
from eqco.runtime.errors import InputError
from eqco.training.loop import TrainerComponents, gather_contrasts, warm_up

with needs("lightning"):
    from lightning.pytorch import Callback, LightningModule, Trainer

__all__ = ["ContrastiveDiagnostics", "EqCoModule"]


class EqCoModule(LightningModule):
    """A recipe that Lightning trains: `Trainer(max_epochs=recipe.training.epochs).fit(module)`.

    A step is that of `eqco train`: same views, loss, learning rate, momentum encoder and queue; and
    a fit resumed from Lightning's checkpoint, also from the middle of an epoch, is one never
    stopped. Lightning has its checkpoints, precision, devices, processes and loggers; the recipe's
    own settings of these are not used. Accumulation over A micro-batches is
    `Trainer(accumulate_grad_batches=A)` with the recipe's `accumulation_steps=A`. Logs `loss`, and
    every `training.diagnose_every` steps what `ContrastiveDiagnostics` does.

    Args:
        recipe: what to train, as `eqco.named_recipe` gives it; or the same as a dict.
        data: anything that `eqco.train` takes.
        encoder: a backbone of your own with `feature_dim`, in place of the recipe's.
    """

    def __init__(
        self, recipe: Recipe | dict[str, Any], data: Any = "groceries", encoder: Any = None
    ):
        super().__init__()
        self.recipe = recipe if isinstance(recipe, Recipe) else recipe_from_dict(recipe)
        if self.recipe.training.accumulation == "cached":
            raise InputError(
                "training.accumulation=cached, which Lightning's steps cannot do. Give "
                "accumulation='independent', or train with eqco.train."
            )
        # plain values, so that checkpoints are read without running code from them
        named = {"data": str(data)} if isinstance(data, str | Path) else {}
        self.save_hyperparameters({"recipe": recipe_to_dict(self.recipe), **named})
        self.data = data
        self.own_backbone = (encoder,)  # in a tuple: it becomes a part of the method alone
        self.root_device = torch.device("cpu")
        self.components: TrainerComponents | None = None
        self.built_for = 1
        self.new_keys: list[Tensor] = []
        self.last_output: StepOutput | None = None

    def setup(self, stage: str) -> None:
        """Take note of the device; refuse a trainer that cuts batches otherwise than the recipe."""
        self.root_device = self.trainer.strategy.root_device
        count = processes.world_size()
        if self.components is not None and self.built_for != count:
            raise InputError(
                f"the module was built for {self.built_for} processes and is trained by {count}. "
                f"Give trainer.fit a new EqCoModule, and the checkpoint as ckpt_path."
            )
        wanted, given = self.pieces, self.trainer.accumulate_grad_batches
        if stage == "fit" and given != wanted:
            raise InputError(
                f"Trainer(accumulate_grad_batches={given}), but the recipe has "
                f"training.accumulation_steps={wanted}. Give both the same number."
            )

    def configure_model(self) -> None:
        """Build the method, once the processes are known."""
        if self.components is not None:
            return
        # precision and compilation are Lightning's
        training = replace(self.recipe.training, precision="float32", compile=False)
        self.built_for = processes.world_size()
        source = self.data
        if not isinstance(source, Source):
            source = open_source(source, on_unreadable=self.recipe.data.on_unreadable)
        with torch.device("cpu"):  # first weights are the same on every device
            self.components = build_components(
                replace(self.recipe, training=training),
                source,
                backbone=self.own_backbone[0],
                device=self.root_device,
                distributed=False,
            )
        self.method = self.components.method

    @property
    def pieces(self) -> int:
        """Micro-batches of a step."""
        return self.recipe.training.accumulation_steps

    @property
    def encoder(self) -> Encoder:
        """What is trained, for use after `fit`."""
        return self.parts.method.encoder

    @property
    def parts(self) -> TrainerComponents:
        """What was built."""
        if self.components is None:
            raise InputError("the module is not built yet. Call trainer.fit, or configure_model().")
        return self.components

    def train_dataloader(self) -> "StepBatches":
        """Micro-batches of this process, in the recipe's order."""
        return StepBatches(self)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """The recipe's; its learning rate is set before every step."""
        return self.parts.optimiser

    def transfer_batch_to_device(
        self, batch: Batch, device: torch.device, dataloader_idx: int
    ) -> Batch:
        """Batches are made on the device, unless the module was built before it was known."""
        return Batch(tuple(view.to(device) for view in batch.views), batch.index.to(device))

    def on_train_start(self) -> None:
        """Fill the queue, if there is one, as `eqco train` does."""
        if self.trainer.global_step == 0:
            warm_up(self.parts)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        """Set the learning rate of this step."""
        rate = self.parts.learning_rate(self.trainer.global_step)
        for group in self.parts.optimiser.param_groups:
            group["lr"] = rate

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        """The loss of a micro-batch."""
        step, objective = self.trainer.global_step, self.parts.objective
        number = batch_idx % self.pieces
        output: StepOutput = self.method(batch, step * self.pieces + number)
        if output.new_keys is not None:
            self.new_keys.append(output.new_keys)
        self.last_output = output
        size = len(batch.index)
        self.log("loss", output.loss.detach(), batch_size=size, sync_dist=True, prog_bar=True)
        due = (step + 1) % self.recipe.training.diagnose_every == 0
        if due and number == self.pieces - 1 and output.contrasts:
            seen = diagnose_contrasts(
                gather_contrasts(output.contrasts),
                temperature=objective.temperature,
                alpha=objective.alpha,
            )
            self.log_dict(metrics_of(seen), batch_size=size)
        return output.loss

    def optimizer_step(
        self,
        epoch: int,
        batch_idx: int,
        optimizer: Any,
        optimizer_closure: Callable[[], Any] | None = None,
    ) -> None:
        """Step, then move the momentum encoder and the queue, before callbacks save anything."""
        super().optimizer_step(epoch, batch_idx, optimizer, optimizer_closure)
        assert self.last_output is not None
        joined = torch.cat(self.new_keys) if self.new_keys else None
        self.method.after_step(replace(self.last_output, new_keys=joined))
        self.new_keys, self.last_output = [], None


class StepBatches:
    """Micro-batches of an epoch, from the trainer's step on; that step is all there is to save."""

    def __init__(self, module: EqCoModule):
        self.module = module

    def __len__(self) -> int:
        return self.module.parts.loader.steps_per_epoch * self.module.pieces

    def __iter__(self) -> Iterator[Batch]:
        loader, start = self.module.parts.loader, self.module.trainer.global_step
        per_epoch = loader.steps_per_epoch
        for micro_batches in loader.iterate(start, (start // per_epoch + 1) * per_epoch):
            yield from micro_batches

    def state_dict(self) -> dict[str, Any]:
        """Nothing: tells Lightning that it can resume in the middle of an epoch."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing to take over."""


class ContrastiveDiagnostics(Callback):
    """Logs f̂, p₊ and effective negatives of a contrastive loss, as contrast/information and so on.

        Trainer(callbacks=[ContrastiveDiagnostics("criterion", every=50)])

    Args:
        loss: name of the loss module in the LightningModule, which is called with queries and
            positives.
        temperature: τ of the loss; None: its attribute.
        alpha: α of the loss; None: its attribute, or plain InfoNCE.
        every: steps between two looks; the first step is one.
    """

    def __init__(
        self,
        loss: str,
        *,
        temperature: float | None = None,
        alpha: float | None = None,
        every: int = 50,
    ):
        self.loss, self.every = loss, check_every(every)
        self.temperature, self.alpha = temperature, alpha
        self.watch: LossWatch | None = None

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Find the loss."""
        try:
            loss: nn.Module = pl_module.get_submodule(self.loss)
        except AttributeError as error:
            names = ", ".join(name for name, _ in pl_module.named_children())
            raise InputError(
                f"loss={self.loss!r}, but {type(pl_module).__name__} has the modules {names}. Give "
                f"the name of its loss, which must be a module."
            ) from error
        self.watch = LossWatch(loss, temperature=self.temperature, alpha=self.alpha)

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Have the next call of the loss read, if it is its turn."""
        if self.watch is not None:
            self.watch.wanted = trainer.global_step % self.every == 0

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Log what was read."""
        seen = None if self.watch is None else self.watch.take()
        if seen is not None:
            pl_module.log_dict(metrics_of(seen), batch_size=1)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the loss alone."""
        if self.watch is not None:
            self.watch.stop()
