"""Words for coordinates and records: rows, columns, axes and sources are named here alone."""

import math
from collections.abc import Sequence

from eqco.experiments.coordinates import Difference, Place
from eqco.runtime.records import Record

__all__ = [
    "LOSSES",
    "axis_words",
    "machine",
    "plural",
    "provenance",
    "seeds_of",
    "signed_number",
    "words",
]

LOSSES = {
    "infonce": "InfoNCE",
    "eqco": "EqCo",
    "decoupled": "decoupled",
    "dual temperature": "dual temperature",
    "ml-cpc": "multi-label CPC",
    "remembered": "remembered normalisers",
    "sogclr": "SogCLR",
}
RATE_RULES = {"square-root": "rate ∝ √N"}
BATCH_NORMS = {"shuffling": "shuffling BN", "sync": "Sync BN"}
SYMBOLS = {
    **{"num_negatives": "K", "num_queries": "N", "alpha": "α", "ema_decay": "β"},
    "learning_rate": "rate",
}


def words(place: Place) -> str:
    """A row or a column as a table names it.

    >>> from eqco.experiments.coordinates import Coordinates
    >>> words(Coordinates(framework="MoCo", loss="eqco", alpha=256.0))
    'MoCo, EqCo, α=256'
    >>> words(Coordinates(source="batch", loss="infonce")), words(Coordinates(epochs=12))
    ('batch: InfoNCE', '12 epochs')
    >>> words(Coordinates(framework="SiMo", num_negatives=16, alpha=256)), words("raw pixels")
    ('SiMo, K=16, α=256', 'raw pixels')
    """
    if isinstance(place, str):
        return place
    if isinstance(place, Difference):
        return f"{words(place.of)} less {words(place.less)}"
    given = place.values
    parts = [given[name] for name in ("framework", "network") if name in given]
    if place.width is not None:
        parts[-1] += f" ({place.width}x)"
    symbols = list(SYMBOLS)
    if place.loss is not None:  # α belongs to its loss, and the limit has none
        imitates = place.alpha is not None and math.isfinite(place.alpha)
        parts.append(LOSSES[place.loss] + (f", α={place.alpha:g}" if imitates else ""))
        symbols.remove("alpha")
    parts += [f"{SYMBOLS[name]}={given[name]:g}" for name in symbols if name in given]
    parts += [f"memory {place.history_kept:g}"] if place.history_kept is not None else []
    parts += [RATE_RULES[place.rate_rule]] if place.rate_rule else []
    parts += [f"equal {place.equal}"] if place.equal else []
    parts += [BATCH_NORMS[place.batch_norm]] if place.batch_norm else []
    parts += [f"{place.epochs} epochs"] if place.epochs is not None else []
    parts += [f"{place.warmup_epochs} of warm-up"] if place.warmup_epochs is not None else []
    parts += [f"after {place.after_epochs:g} epochs"] if place.after_epochs is not None else []
    parts += [f"information {place.information:g}"] if place.information is not None else []
    plain = ("precision", "weights", "metric", "category", "data")
    parts += [given[name] for name in plain if name in given]
    return ": ".join(filter(None, (place.source, ", ".join(parts))))


def axis_words(name: str) -> str:
    """A coordinate as an axis names it.

    >>> axis_words("num_negatives"), axis_words("epochs")
    ('K', 'epochs')
    """
    return SYMBOLS.get(name, name)


def plural(count: int, noun: str) -> str:
    """A number of things.

    >>> plural(1, "seed"), plural(3, "seed")
    ('1 seed', '3 seeds')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def signed_number(value: float) -> str:
    """A change with its sign; none for what rounds to nothing.

    >>> signed_number(-1.26), signed_number(0.04), signed_number(2.0)
    ('−1.3', '0.0', '+2.0')
    """
    rounded = round(value, 1)
    return f"{rounded:+.1f}".replace("-", "−") if rounded else "0.0"


def seeds_of(records: Sequence[Record]) -> list[int]:
    """The seeds among the records, in order."""
    return sorted({record.seed for record in records})


def machine(record: Record) -> str:
    """Where it ran."""
    used = record.hardware
    return f"{used['processor']}, {used['cores']} cores, torch {used['torch']}"


def provenance(records: Sequence[Record]) -> str:
    """Profile, seeds, machine and code of the records."""
    seeds = ", ".join(map(str, seeds_of(records)))
    machines = "; ".join(sorted(set(map(machine, records))))
    codes = ", ".join(sorted({record.code for record in records}))
    day = max(record.finished for record in records)[:10]
    return f"Profile {records[0].profile}, seeds {seeds}; {machines}; {day}, code {codes}."
