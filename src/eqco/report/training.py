"""`eqco.train` and `eqco.resume`: trainings that end as those of the command do."""

import functools
from collections.abc import Callable
from typing import Any, ParamSpec

from rich.console import Console

from eqco import assembly
from eqco.assembly.runs import RunInfo
from eqco.training.loop import Outcome

__all__ = ["resume", "train"]

P = ParamSpec("P")


def assessed(begin: Callable[P, Outcome]) -> Callable[P, Outcome]:
    """The call, with an assessment at its end where the caller has nothing else to do there.

    It prints where the training shows its progress, and leaves its files in any case.
    """

    @functools.wraps(begin)
    def call(*args: P.args, **kwargs: P.kwargs) -> Outcome:
        options: dict[str, Any] = kwargs
        if options.get("on_end") is None:
            options["on_end"] = functools.partial(assess, quiet=options.get("show") is not None)
        return begin(*args, **kwargs)

    return call


def assess(begun: RunInfo, outcome: Outcome, *, quiet: bool) -> None:
    """What `eqco train` ends with, unless it is there already."""
    # pictures need matplotlib, which takes a while to load
    from eqco.report.assessment import assess_run, is_assessed

    if begun.step < outcome.step or not is_assessed(outcome.path):
        assess_run(begun, outcome.path, Console(quiet=quiet))


train, resume = assessed(assembly.train), assessed(assembly.resume)
