"""When a training saves its state, and when it stops: what all training loops share."""

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from types import FrameType
from typing import NoReturn

from eqco.runtime import processes
from eqco.runtime.errors import InputError

__all__ = ["StopRequest", "checkpointing", "stop_by", "stop_on_signals"]


class StopRequest:
    """Whether someone asked to stop, and how."""

    def __init__(self) -> None:
        self.signal: str | None = None


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Within this block the first Ctrl-C or SIGTERM is noted; a second Ctrl-C interrupts at once.

    Signals reach the main thread only; elsewhere nothing is noted.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return

    def note(number: int, frame: FrameType | None) -> None:
        if request.signal is not None and number == signal.SIGINT:
            raise KeyboardInterrupt
        request.signal = signal.Signals(number).name

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class Checkpointing:
    """Asked after every step; `checkpointing` makes it."""

    def __init__(
        self,
        save: Callable[[int], None] | None,
        total_steps: int,
        every: Sequence[int],
        request: StopRequest,
    ):
        self.save, self.total_steps, self.every, self.request = save, total_steps, every, request
        self.stopped_by: str | None = None
        """The signal that cut the training short, or None when it was not."""

    def after_step(self, step: int) -> bool:
        """Save after this many steps if it is time to; whether to stop here."""
        # all processes stop at one step, whichever of them got the signal
        stopping = processes.any_of(self.request.signal is not None)
        due = stopping or step == self.total_steps or any(n and step % n == 0 for n in self.every)
        if due and self.save is not None:
            self.save(step)
        if stopping and step < self.total_steps:
            self.stopped_by = self.request.signal or "SIGTERM"
        return stopping


@contextmanager
def checkpointing(
    save: Callable[[int], None] | None, *, total_steps: int, every: Sequence[int]
) -> Iterator[Checkpointing]:
    """Save at intervals, at the end and after a signal, at which the training stops.

    Within the block a signal waits for the end of the step. Several processes take the same
    branches: all call `after_step` after every step, and all call `save`.

    Args:
        save: saves the state after so many steps; None: nothing is saved, and signals do not wait.
        total_steps: of the whole training.
        every: intervals in steps, each of which makes a save due; 0: never.
    """
    with nullcontext(StopRequest()) if save is None else stop_on_signals() as request:
        yield Checkpointing(save, total_steps, every, request)


def stop_by(name: str) -> NoReturn:
    """End as the signal would have ended this process, had it not waited for the step."""
    signal.raise_signal(signal.Signals[name])
    raise InputError(f"stopped by {name}; run the same command to resume.")
