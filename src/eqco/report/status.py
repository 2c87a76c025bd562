"""The list of experiments: what each is, what is done, and the time the rest needs."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console

from eqco.experiments.experiment import Experiment
from eqco.experiments.status import Status, status

__all__ = ["duration", "print_status"]

PROFILES = ("desk", "few-images", "paper")
DAY = 86400.0
UNITS = (
    (60.0, 1.0, "s"),
    (3600.0, 60.0, "min"),
    (2 * DAY, 3600.0, "h"),
    (1000 * DAY, DAY, "days"),
)


def print_status(
    console: Console, experiments: Mapping[str, Experiment[Any]], results: Path
) -> None:
    """For each experiment its name and a column for each profile, and below them its title."""
    console.print(align("", PROFILES), style="bold", highlight=False)
    for name, experiment in experiments.items():
        cells = [
            status_text(status(experiment, profile, results))
            if profile in experiment.profiles
            else "–"
            for profile in PROFILES
        ]
        console.print(align(name, cells), markup=False, highlight=False)
        console.print(f"  {experiment.heading}", style="dim", markup=False, highlight=False)
    console.print(
        "\nRuns with a record / all runs, and processor time for the others on this machine: from "
        "the records of others like them, or ~ from a short timing. Trainings that experiments "
        "share are counted in each, and done once. Not listed: the profiles smoke, which takes "
        "seconds, and embedded, on the embedded photos, where CIFAR-10 is not at hand.",
        markup=False,
    )


def align(name: str, cells: Sequence[str]) -> str:
    """A line of the list: no wider than a narrow terminal."""
    return f"{name:<20}" + "".join(f"{cell:>17}" for cell in cells)


def status_text(found: Status) -> str:
    """One cell.

    >>> status_text(Status(done=2, total=8, seconds=5400.0, measured=False))
    '2/8, ~1.5 h'
    >>> status_text(Status(done=8, total=8, seconds=0.0, measured=True))
    '8/8'
    """
    text = f"{found.done}/{found.total}"
    if found.done == found.total:
        return text
    if found.seconds is None:
        return f"{text}, ?"
    return f"{text}, {'' if found.measured else '~'}{duration(found.seconds)}"


def duration(seconds: float) -> str:
    """A time in the unit that suits it.

    >>> duration(42), duration(600), duration(7200), duration(10 * DAY), duration(1e8)
    ('42 s', '10 min', '2 h', '10 days', '3 years')
    """
    for limit, unit, name in UNITS:
        if seconds < limit:
            return f"{float(f'{seconds / unit:.2g}'):g} {name}"
    return f"{seconds / 365 / DAY:.0f} years"
