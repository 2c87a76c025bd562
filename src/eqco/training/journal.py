"""What a run writes down while it learns: lines of metrics and TensorBoard events.

Lines hold only what is a function of the recipe, so that a resumed run writes the same ones; speed
goes to TensorBoard and the display.
"""

from typing import Any

from torch.utils.tensorboard import SummaryWriter

from eqco.runtime.run_directory import RunDirectory

__all__ = ["Journal"]


class Journal:
    """The pen of one run.

    Args:
        run: its folder.
        start: the first step to come; what an earlier attempt wrote for it and later is dropped.
    """

    def __init__(self, run: RunDirectory, start: int):
        self.run = run
        run.forget_metrics_after(start)
        self.events = SummaryWriter(str(run.path / "tensorboard"), purge_step=start + 1)

    def write(self, step: int, values: dict[str, Any], *, speed: float | None = None) -> None:
        """One line for the state after `step` steps; numbers become events as well."""
        self.run.append_metrics({"step": step, **values})
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self.events.add_scalar(name, value, step)
        if speed is not None:
            self.events.add_scalar("images_per_second", speed, step)

    def close(self) -> None:
        """Flush the events."""
        self.events.close()
