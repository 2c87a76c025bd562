"""What the methods with a memory bank share: their settings, the bank, and the published loss."""

from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch

from eqco.contrast import Contrast, MemoryBank, NCEObjective, Objective
from eqco.contrast.normaliser import RememberingObjective
from eqco.data import Batch
from eqco.methods.base import Method, MethodParts, MethodSettings, StepOutput
from eqco.runtime.errors import InputError

__all__ = ["BankMethod", "BankSettings"]


@dataclass(frozen=True, kw_only=True)
class BankSettings(MethodSettings):
    """Of a method whose positives and negatives are rows of a memory bank."""

    num_banks = 1

    count: int = 16384
    """K: rows of other images that each query is scored against."""
    shared: bool = True
    """One draw for all queries; otherwise one for each, as published, which costs far more time."""
    bank_decay: float = 0.5
    """How much of its row an image keeps at each visit."""
    loss: Literal["softmax", "nce"] = "softmax"
    """softmax: InfoNCE, with α; nce: as published, with a fixed normaliser and without α."""

    @property
    def num_contrasts(self) -> int:
        """Two banks, or image and patches."""
        return 2

    @property
    def takes_alpha(self) -> bool:
        """NCE has no margin."""
        return self.loss == "softmax"

    def num_negatives(self, num_queries: int) -> int:
        """K: what is drawn, whatever the batch is."""
        return self.count

    def check(self, *, num_queries: int) -> None:
        """Refuse a draw of nothing, and a bank that never changes."""
        if self.count < 1:
            raise InputError(f"method.count={self.count}; at least 1 negative is needed.")
        if not 0 <= self.bank_decay < 1:
            raise InputError(
                f"method.bank_decay={self.bank_decay}; it must be at least 0 and less than 1."
            )

    def build_bank(self, dim: int, parts: MethodParts) -> MemoryBank:
        """A row for each image, and for each bank."""
        if self.count >= parts.num_images:
            raise InputError(
                f"method.count={self.count}, but a bank of {parts.num_images} images offers "
                f"{parts.num_images - 1} negatives per query. Give --method.count "
                f"{parts.num_images - 1} or less; with EqCo few stand in for many "
                f"(--objective.alpha {self.count})."
            )
        return MemoryBank(
            parts.num_images, dim, num_views=self.num_banks, decay=self.bank_decay, seed=parts.seed
        )

    def build_objective(
        self, parts: MethodParts
    ) -> Objective | RememberingObjective | NCEObjective:
        """The recipe's objective, or the published one at its temperature."""
        if self.loss == "softmax":
            return parts.objective
        return NCEObjective(
            parts.num_images, self.num_contrasts, temperature=parts.objective.temperature
        )


class BankMethod(Method):
    """A method that ends at contrasts with a bank, which it updates after the step."""

    bank: MemoryBank
    objective: Objective | RememberingObjective | NCEObjective

    @abstractmethod
    def contrasts(self, batch: Batch, step: int) -> tuple[Contrast, ...]:
        """What the loss of this batch is made of."""

    def after_step(self, output: StepOutput) -> None:
        """Move the rows of the batch's images: never before the loss."""
        if output.new_keys is not None and output.new_index is not None:
            self.bank.update(output.new_keys, output.new_index, gather=False)

    @torch.no_grad()
    def warm_up(self, batch: Batch, number: int = 0) -> None:
        """Fix the normaliser of NCE, if that is the loss, from the first micro-batch."""
        if isinstance(self.objective, NCEObjective) and number == 0:
            self.objective.fix_normaliser(self.contrasts(batch, number))
