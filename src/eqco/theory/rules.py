"""The equivalent rules: the margin for K (Eq. 5), the learning rate for N (Eq. 8), the prior."""

import math
import sys
from typing import Literal

from eqco.runtime.errors import InputError

__all__ = ["effective_alpha", "eqco_margin", "positive_prior", "scaled_learning_rate"]


def eqco_margin(alpha: float, num_negatives: int, temperature: float) -> float:
    r"""The equivalent condition: the margin that makes K negatives act like α (Eq. 5).

    .. math:: m = \tau \log \frac{\alpha}{K}

    Args:
        alpha: α > 0, the number of negatives imitated.
        num_negatives: K ≥ 1, the negatives that each query really has.
        temperature: τ > 0.

    >>> round(eqco_margin(65536, 16, temperature=0.2), 4)
    1.6636
    >>> eqco_margin(256, 256, temperature=0.2)
    0.0
    """
    require_positive("alpha", alpha)
    require_negatives(num_negatives)
    require_positive("temperature", temperature)
    return temperature * (math.log(alpha) - math.log(num_negatives))


def effective_alpha(margin: float, num_negatives: int, temperature: float) -> float:
    r"""The α that a handmade margin imitates: the inverse of `eqco_margin` (Eq. 5).

    .. math:: \alpha = K e^{m/\tau}

    >>> effective_alpha(0.0, 255, temperature=0.2)
    255.0
    >>> round(effective_alpha(eqco_margin(4096, 16, 0.1), 16, 0.1), 6)
    4096.0
    """
    require_negatives(num_negatives)
    require_positive("temperature", temperature)
    if not math.isfinite(margin):
        raise InputError(f"margin={margin}; it must be a finite number.")
    exponent = margin / temperature + math.log(num_negatives)
    if exponent > math.log(sys.float_info.max):
        raise InputError(
            f"margin={margin} at temperature={temperature} imitates more negatives than a number "
            f"can hold. Lower the margin; temperature·log(alpha/K) is that of alpha."
        )
    return num_negatives * math.exp(margin / temperature)


def scaled_learning_rate(
    base: float,
    num_queries: int,
    reference: int | None = None,
    *,
    rule: Literal["linear", "square-root"] = "linear",
) -> float:
    r"""The learning rate for N queries per batch over all processes (Eq. 8).

    .. math:: \text{lr} = \text{base} \cdot \frac{N}{N_{\text{ref}}}

    The batch loss is a mean over N (almost) independent queries, hence the linear scaling rule, in
    N and never in K. SimCLR's authors prefer the square root with LARS, which has a base of its
    own, for one query: 0.075·√N where the linear rule has 0.3·N/256. The two agree at N = 4096.

    Args:
        base: the learning rate published for `reference` queries.
        num_queries: N ≥ 1; for symmetric losses the number of pairs.
        reference: the N of the published rate; None: 256 with the linear rule, 1 with the root.
        rule: "linear", or "square-root" for LARS.

    >>> scaled_learning_rate(0.03, 1024)
    0.12
    >>> scaled_learning_rate(0.3, 4096), scaled_learning_rate(0.075, 4096, rule="square-root")
    (4.8, 4.8)
    """
    if rule not in ("linear", "square-root"):
        raise InputError(f"rule={rule!r}; there are 'linear' and 'square-root'.")
    if reference is None:
        reference = 256 if rule == "linear" else 1
    require_positive("base", base)
    for name, count in (("num_queries", num_queries), ("reference", reference)):
        if count < 1:
            raise InputError(f"{name}={count}; it must be at least 1.")
    ratio = num_queries / reference
    return base * (ratio if rule == "linear" else math.sqrt(ratio))


def positive_prior(alpha: float) -> float:
    r"""Prior probability of H_0, that the key in the positive's place is the positive (Remark 1).

    .. math:: P^+ = \frac{1}{1 + \alpha}

    >>> positive_prior(255)
    0.00390625
    """
    require_positive("alpha", alpha)
    return 1.0 / (1.0 + alpha)


def require_positive(name: str, value: float) -> None:
    """Refuse zero, negative numbers, NaN and infinity."""
    if not (value > 0 and math.isfinite(value)):
        raise InputError(f"{name}={value}; it must be a finite number greater than 0.")


def require_negatives(num_negatives: int) -> None:
    """Refuse to speak of a contrast without negatives."""
    if num_negatives < 1:
        raise InputError(
            f"num_negatives={num_negatives}; a query needs at least 1 negative. "
            f"Use a larger batch or add a queue."
        )
