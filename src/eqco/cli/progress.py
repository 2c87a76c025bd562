"""A progress bar in a terminal, and a line now and then in a log file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from eqco.report.status import duration

__all__ = ["progress_bar", "show_stage"]


EVERY = 20.0  # seconds between two lines of a log file


class LinesNowAndThen:
    """A line every so often: work that takes less leaves none."""

    def __init__(self, console: Console, title: str, total: int):
        self.console, self.title, self.total = console, title, total
        self.done = 0
        self.begun = self.printed = time.monotonic()

    def advance(self, count: int) -> None:
        """Count the units, and print them if it is time."""
        self.done += count
        now = time.monotonic()
        if now - self.printed >= EVERY:
            self.printed = now
            share, spent = self.done / self.total, now - self.begun
            left = f", about {duration(spent * (1 - share) / share)} left" if share else ""
            line = f"{self.title}: {share:.0%} after {duration(spent)}{left}"
            self.console.print(line, markup=False, highlight=False)


@contextmanager
def progress_bar(console: Console, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """Gives a function to call with the units done."""
    if total == 0:
        yield lambda count: None
        return
    if not console.is_terminal:
        yield LinesNowAndThen(console, title, total).advance
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
    )
    with bar:
        task = bar.add_task(title, total=total)
        yield lambda count: bar.advance(task, count)


@contextmanager
def show_stage(console: Console, title: str, total: int) -> Iterator[Callable[[int], None]]:
    """A bar where the length of a stretch of work is known, its title where it is not."""
    if total:
        with progress_bar(console, title, total) as advance:
            yield advance
    else:
        with console.status(title):
            yield lambda count: None
