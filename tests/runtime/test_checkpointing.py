"""A training saves at its intervals, at its end and at a signal, after which it stops."""

import signal

import pytest

from eqco.runtime.checkpointing import checkpointing, stop_by
from eqco.runtime.errors import InputError


def run(total, every, interrupt_at=None, number=signal.SIGTERM):
    """The steps that were saved, the last step, and the signal that stopped it."""
    saves, step = [], 0
    with checkpointing(saves.append, total_steps=total, every=every) as checkpoints:
        for _ in range(total):
            if step == interrupt_at:
                signal.raise_signal(number)
            step += 1
            if checkpoints.after_step(step):
                break
    return saves, step, checkpoints.stopped_by


@pytest.mark.parametrize(
    ("every", "saves"),
    [((3,), [3, 6, 7]), ((2, 3), [2, 3, 4, 6, 7]), ((0,), [7]), ((7,), [7])],
)
def test_every_interval_and_the_end_are_saved_once(every, saves):
    assert run(7, every) == (saves, 7, None)


def test_a_signal_waits_for_the_step_saves_it_and_stops():
    before = signal.getsignal(signal.SIGTERM)
    assert run(7, (3,), interrupt_at=4) == ([3, 5], 5, "SIGTERM")
    assert run(7, (3,), interrupt_at=4, number=signal.SIGINT) == ([3, 5], 5, "SIGINT")
    assert signal.getsignal(signal.SIGTERM) is before


def test_a_signal_in_the_last_step_leaves_the_training_complete():
    assert run(7, (3,), interrupt_at=6) == ([3, 6, 7], 7, None)


def test_without_a_place_to_save_a_signal_does_not_wait():
    with pytest.raises(KeyboardInterrupt), checkpointing(None, total_steps=2, every=(1,)):
        signal.raise_signal(signal.SIGINT)


def test_a_stop_is_passed_on_as_the_signal_it_was():
    with pytest.raises(KeyboardInterrupt):
        stop_by("SIGINT")
    received = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    try:
        # a handler that returns does not make an unfinished training look finished
        with pytest.raises(InputError, match="stopped by SIGTERM; run the same command"):
            stop_by("SIGTERM")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert received == [signal.SIGTERM]
