"""Where a number stands in a table: values, of which words and axes are made at the very end."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, TypeVar

__all__ = [
    "Coordinates",
    "Difference",
    "Loss",
    "Place",
    "axis_of",
    "distinct",
    "group_by",
    "in_order",
]

Item = TypeVar("Item")
Loss = Literal["infonce", "eqco", "decoupled", "dual temperature", "ml-cpc", "remembered", "sogclr"]


@dataclass(frozen=True, kw_only=True)
class Coordinates:
    """The values that tell one cell from others; None: not a coordinate of this table."""

    source: Literal["batch", "batch and queue", "cached batch"] | None = None
    framework: str | None = None
    network: str | None = None
    width: int | None = None
    loss: Loss | None = None
    alpha: float | None = None
    history_kept: float | None = None
    num_negatives: int | None = None
    num_queries: int | None = None
    ema_decay: float | None = None
    learning_rate: float | None = None
    rate_rule: Literal["square-root"] | None = None
    equal: Literal["steps"] | None = None
    batch_norm: Literal["shuffling", "sync"] | None = None
    precision: Literal["float32", "bfloat16"] | None = None
    epochs: int | None = None
    warmup_epochs: int | None = None
    after_epochs: float | None = None
    information: float | None = None
    weights: str | None = None
    metric: str | None = None
    category: str | None = None
    data: str | None = None

    @property
    def values(self) -> dict[str, Any]:
        """The coordinates that are there, by name.

        >>> Coordinates(loss="eqco", alpha=256).values
        {'loss': 'eqco', 'alpha': 256}
        """
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None}

    def only(self, *names: str) -> "Coordinates":
        """Some of the coordinates."""
        return Coordinates(**{name: v for name, v in self.values.items() if name in names})

    def without(self, *names: str) -> "Coordinates":
        """All but some of the coordinates.

        >>> Coordinates(framework="SiMo", num_negatives=16).without("num_negatives").values
        {'framework': 'SiMo'}
        """
        return replace(self, **dict.fromkeys(names))


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One cell less another."""

    of: Coordinates
    less: Coordinates


# a row or a column: values, or a title where nothing is counted
Place = Coordinates | Difference | str


def axis_of(places: Sequence[Place]) -> tuple[str, dict[Place, float]]:
    """The one coordinate that the columns count, and its values; nothing where there is none.

    >>> name, values = axis_of([Coordinates(num_negatives=k) for k in (4, 16)])
    >>> name, list(values.values())
    ('num_negatives', [4, 16])
    >>> axis_of(["AP", "AP50"])
    ('', {})
    """
    given = [place.values for place in places if isinstance(place, Coordinates)]
    names = {name for each in given for name in each}
    if len(given) < len(places) or len(names) != 1:
        return "", {}
    (name,) = names
    values = {place: each[name] for place, each in zip(places, given, strict=True)}
    counts = all(isinstance(value, int | float) for value in values.values())
    return (name, values) if counts else ("", {})


def distinct(places: Iterable[Any]) -> list[Any]:
    """Each once, in the order of their first places."""
    return list(dict.fromkeys(places))


def group_by(items: Iterable[Item], key: Callable[[Item], Any]) -> dict[Any, list[Item]]:
    """Items by their key, the groups in the order of their first items.

    >>> group_by([3, 4, 5], key=lambda number: number % 2)
    {1: [3, 5], 0: [4]}
    """
    groups: dict[Any, list[Item]] = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups


def in_order(columns: Iterable[Place]) -> list[Place]:
    """Each column once, by its number where they count one thing.

    >>> columns = [Coordinates(num_negatives=k) for k in (16, 4, 16)]
    >>> [column.num_negatives for column in in_order(columns)]
    [4, 16]
    """
    once = distinct(columns)
    values = axis_of(once)[1]
    return sorted(once, key=lambda column: values.get(column, 0.0))
