"""How far many runs have come: one table in a terminal, a line for each that ends in a log file."""

import time
from collections.abc import Sequence
from types import TracebackType

from rich.console import Console, RenderableType
from rich.live import Live
from rich.table import Table

from eqco.cli.progress import EVERY

__all__ = ["RunsBoard"]

ROWS = 20  # of the table; those that run come first
WAITING, DONE, FAILED = "waiting", "done", "failed"


class RunsBoard:
    """Shows runs by their titles while the block lasts.

    Args:
        console: where.
        titles: of the runs.
        sizes: units of progress that each of them reports.
    """

    def __init__(self, console: Console, titles: Sequence[str], sizes: Sequence[int]):
        self.console, self.titles, self.sizes = console, titles, sizes
        self.states = [WAITING] * len(titles)
        self.done = [0] * len(titles)
        self.begun = self.printed = time.monotonic()
        self.live = Live(get_renderable=self.table, console=console, transient=True)

    def __enter__(self) -> "RunsBoard":
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self.console.is_terminal:
            self.live.stop()

    def show(self, number: int, state: str, done: int) -> None:
        """Where a run is and how many units it has done; one that has ended stays as it is."""
        if self.states[number] not in (DONE, FAILED):
            self.states[number], self.done[number] = state, done
        now = time.monotonic()
        if not self.console.is_terminal and now - self.printed >= EVERY:
            self.printed = now
            share = sum(self.done) / max(1, sum(self.sizes))
            self.print(f"{share:.0%} after {(now - self.begun) / 60:.0f} min")

    def end(self, number: int, *, failed: bool = False) -> None:
        """A run has ended."""
        self.states[number] = FAILED if failed else DONE
        self.done[number] = self.done[number] if failed else self.sizes[number]
        if not self.console.is_terminal:
            ended = sum(state in (DONE, FAILED) for state in self.states)
            self.print(f"{ended}/{len(self.titles)} {self.states[number]}: {self.titles[number]}")

    def print(self, line: str) -> None:
        """A line as it is."""
        self.console.print(line, markup=False, highlight=False)

    def table(self) -> RenderableType:
        """The runs: those that run first, then those that wait, then those that have ended."""
        counts = {name: self.states.count(name) for name in (DONE, FAILED, WAITING)}
        running = len(self.states) - sum(counts.values())
        title = ", ".join(
            f"{count} {name}" for name, count in (("running", running), *counts.items()) if count
        )
        table = Table("run", "", "progress", box=None, pad_edge=False, title=title)
        order = (WAITING, DONE, FAILED)
        numbers = sorted(
            range(len(self.titles)),
            key=lambda number: (
                order.index(self.states[number]) if self.states[number] in order else -1
            ),
        )
        for number in numbers[:ROWS]:
            share = self.done[number] / max(1, self.sizes[number])
            table.add_row(self.titles[number], self.states[number], f"{min(1, share):.0%}")
        if len(numbers) > ROWS:
            table.add_row(f"and {len(numbers) - ROWS} more", "", "")
        return table
