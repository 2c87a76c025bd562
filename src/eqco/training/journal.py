"""What a run writes down while it learns: lines of metrics, and numbers for its loggers.

Lines hold only what is a function of the recipe, so that a resumed run writes the same ones; speed
goes to the loggers and the display.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from eqco.runtime import processes
from eqco.runtime.run_directory import RunDirectory
from eqco.training.loggers import Logger, LoggerName, open_loggers

__all__ = ["Journal"]


class Journal:
    """The pen of one run; of several processes only the writer's leaves a trace.

    Args:
        run: its folder.
        start: the first step to come; what an earlier attempt wrote for it and later is dropped.
        loggers: that get the numbers too.
        settings: of the run, for the loggers that show them.
    """

    def __init__(
        self,
        run: RunDirectory,
        start: int,
        loggers: Sequence[LoggerName] = ("tensorboard",),
        settings: Mapping[str, Any] | None = None,
    ):
        self.run = run
        self.writes = processes.is_writer()
        self.loggers: list[Logger] = []
        if self.writes:
            run.drop_metrics_after(start)
            self.loggers = open_loggers(loggers, run, start, settings or {})

    def write(self, step: int, values: dict[str, Any], *, speed: float | None = None) -> None:
        """One line for the state after `step` steps; its numbers go to the loggers as well."""
        if not self.writes:
            return
        self.run.append_metrics({"step": step, **values})
        numbers = {name: float(value) for name, value in values.items() if is_number(value)}
        if speed is not None:
            numbers["images_per_second"] = speed
        for logger in self.loggers:
            logger.write(step, numbers)

    def write_once(self, step: int, values: dict[str, Any]) -> None:
        """The same, unless the line stands there already."""
        if self.writes and {"step": step, **values} not in self.run.read_metrics():
            self.write(step, values)

    def close(self) -> None:
        """Let the loggers send what is left."""
        for logger in self.loggers:
            logger.close()


def is_number(value: Any) -> bool:
    """Whether a logger can take it."""
    return isinstance(value, int | float) and not isinstance(value, bool)
