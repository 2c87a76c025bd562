"""What a run writes down while it learns: lines of metrics and TensorBoard events.

Lines hold only what is a function of the recipe, so that a resumed run writes the same ones; speed
goes to TensorBoard and the display.
"""

from typing import Any

from torch.utils.tensorboard import SummaryWriter

from eqco.runtime import processes
from eqco.runtime.run_directory import RunDirectory

__all__ = ["Journal"]


class Journal:
    """The pen of one run; of several processes only the writer's leaves a trace.

    Args:
        run: its folder.
        start: the first step to come; what an earlier attempt wrote for it and later is dropped.
    """

    def __init__(self, run: RunDirectory, start: int):
        self.run = run
        self.events: SummaryWriter | None = None
        if not processes.is_writer():
            return
        run.drop_metrics_after(start)
        self.events = SummaryWriter(str(run.path / "tensorboard"), purge_step=start + 1)

    def write(self, step: int, values: dict[str, Any], *, speed: float | None = None) -> None:
        """One line for the state after `step` steps; numbers become events as well."""
        if self.events is None:
            return
        self.run.append_metrics({"step": step, **values})
        for name, value in values.items():
            if isinstance(value, int | float) and not isinstance(value, bool):
                self.events.add_scalar(name, value, step)
        if speed is not None:
            self.events.add_scalar("images_per_second", speed, step)

    def write_once(self, step: int, values: dict[str, Any]) -> None:
        """The same, unless the line stands there already."""
        if self.events is not None and {"step": step, **values} not in self.run.read_metrics():
            self.write(step, values)

    def close(self) -> None:
        """Flush the events."""
        if self.events is not None:
            self.events.close()
