"""Ctrl-C and SIGTERM as a request that a training loop meets at the end of its step."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["StopRequest", "stop_on_signals"]


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
