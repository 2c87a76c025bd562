"""How training looks: a bar with numbers in a terminal, plain lines in a log file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from eqco.training.diagnostics import EmbeddingDiagnostics
from eqco.training.loop import StepReport

__all__ = ["training_display"]

LINES = 60  # lines of a log file for a whole training, about
WIDE = 100  # columns of a terminal with room for a bar beside the words


@contextmanager
def training_display(stream: TextIO | None) -> Iterator[Callable[[StepReport], None]]:
    """A function that shows reports on the stream, if there is one."""
    if stream is None:
        yield lambda report: None
        return
    console = Console(file=stream)
    if not console.is_terminal:
        yield LogLines(stream).show
        return
    columns = [
        TextColumn("{task.description}"),
        # where it would cut the words, the count of steps has to do
        *([BarColumn(bar_width=None)] if console.width >= WIDE else []),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
    ]
    with Progress(*columns, console=console) as bar:
        task = bar.add_task("starting", total=None)

        def show(report: StepReport) -> None:
            bar.update(task, total=report.total_steps, completed=report.step)
            bar.update(task, description=summary(report))
            for message in report.messages:
                console.print(f"step {report.step}: {message}", style="yellow", markup=False)

        yield show


class LogLines:
    """Every alarm, and about sixty lines for a whole training."""

    def __init__(self, stream: TextIO):
        self.stream = stream
        self.printed = -1  # the sixtieth of the training that has its line

    def show(self, report: StepReport) -> None:
        """Print the report if it is the first of its sixtieth."""
        for message in report.messages:
            print(f"step {report.step}: {message}", file=self.stream, flush=True)
        total = report.total_steps
        part = LINES * report.step // total
        if part > self.printed:
            self.printed = part
            left = f"{report.seconds_left:.0f} s left"
            words = summary(report, dated=True)
            print(f"{report.step}/{total} {words}, {left}", file=self.stream, flush=True)


def summary(report: StepReport, *, dated: bool = False) -> str:
    """Loss, f̂ (≥: a bound, ≈: an estimate) and, if `dated`, its step, learning rate and speed.

    Without cosines to negatives there is no f̂: the rank of the embeddings is in its place.
    """
    parts = [f"loss {report.loss:.3f}"]
    seen, at = report.diagnostics, report.diagnosed_at
    earlier = f" at step {at}" if dated and at != report.step else ""
    if isinstance(seen, EmbeddingDiagnostics):
        parts.append(f"embedding rank {seen.embedding_rank:.1f}{earlier}")
    elif seen is not None:
        sign = "≥" if seen.information_kind == "bound" else "≈"
        parts.append(f"info {sign} {seen.information:.2f} nats{earlier}")
    parts.append(f"lr {report.learning_rate:.4g}")
    parts.append(f"{report.images_per_second:.0f} images/s")
    return ", ".join(parts)
