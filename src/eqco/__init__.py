"""Contrastive learning that depends less on how many negatives you can afford.

The rule: with the margin m = τ·log(α/K), the information bound and the gradient scale of InfoNCE
hardly depend on the number of negatives K. Names are resolved when first used, so that importing
this package costs nothing, and the theory and the loss need torch alone.
"""

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:  # what type checkers and editors see
    from eqco.assembly import load, open_index, open_weights, push_to_hub  # noqa: F401
    from eqco.contrast import *  # noqa: F403
    from eqco.recipes import Recipe, named_recipe, read_recipe  # noqa: F401
    from eqco.report.training import resume, train  # noqa: F401
    from eqco.runtime.errors import InputError  # noqa: F401
    from eqco.theory import *  # noqa: F403

_TRAINER, _ENDED = "eqco.assembly", "eqco.report.training"
# public name -> where it lives
_HOMES: dict[str, str] = {
    **dict.fromkeys(
        (
            "approximate_gaussian_bound",
            "best_critic_scale",
            "effective_alpha",
            "eqco_margin",
            "exact_gaussian_bound",
            "expected_gradient_bound",
            "gaussian_correlation",
            "gaussian_information",
            "gaussian_log_ratio",
            "gaussian_pairs",
            "gradient_bound",
            "info_nce",
            "info_nce_gradient",
            "information_bound",
            "is_guaranteed_bound",
            "largest_overshoot",
            "positive_prior",
            "posterior",
            "scaled_learning_rate",
        ),
        "eqco.theory",
    ),
    **dict.fromkeys(
        (
            "Contrast",
            "Diagnostics",
            "EqCoLoss",
            "KeyQueue",
            "LearnableTemperature",
            "MemoryBank",
            "NTXentLoss",
            "Negatives",
            "Objective",
            "RunningNormaliser",
            "SlowCopy",
            "TwoTowerLoss",
            "cached_backward",
            "combine_negatives",
            "contrastive_loss",
            "diagnose",
            "in_batch_negatives",
            "sampled_negatives",
        ),
        "eqco.contrast",
    ),
    "InputError": "eqco.runtime.errors",
    **dict.fromkeys(("Recipe", "named_recipe", "read_recipe"), "eqco.recipes"),
    **dict.fromkeys(("load", "open_index", "open_weights", "push_to_hub"), _TRAINER),
    **dict.fromkeys(("resume", "train"), _ENDED),
}

# `from eqco import *` takes what torch alone can import
__all__ = [name for name, home in _HOMES.items() if home not in ("eqco.recipes", _TRAINER, _ENDED)]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'eqco' has no attribute {name!r}")
    try:
        home = importlib.import_module(_HOMES[name])
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("eqco"):
            raise
        from eqco.runtime.errors import MissingExtraError

        raise MissingExtraError(error.name, "train") from error
    value = getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
