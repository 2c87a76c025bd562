"""Queries with their nearest neighbours."""

from pathlib import Path

import torch
from PIL import Image, ImageOps

from eqco.data import Split
from eqco.data.bands import to_picture
from eqco.data.pictures import GAP, fit, grid, save_picture
from eqco.evaluation.features import Features
from eqco.evaluation.knn import nearest
from eqco.runtime.seeds import generator_for

__all__ = ["draw_gallery", "draw_neighbours", "neighbours_of_its_class"]

TILE, FRAME = 72, 3
RIGHT, WRONG, QUERY, UNKNOWN = "#55935c", "#c44e52", "#ffffff", "#dddddd"


def draw_gallery(
    test: tuple[Split, Features],
    train: tuple[Split, Features],
    path: Path,
    *,
    title: str,
    queries: int = 10,
    neighbours: int = 10,
    seed: int = 0,
) -> Path:
    """Test images in the first column, the train images nearest to them beside them.

    A green frame: of the query's class; a red one: of another. Queries are drawn by the seed, one
    of each class and no second one before every class has its first: nobody chose them.
    """
    (queried, query_features), (known, known_features) = test, train
    chosen = spread_choice(query_features.labels, queries, seed)
    count = min(neighbours, len(known_features.values))
    _, places = nearest(query_features.values[chosen], known_features.values, count)
    rows = []
    for number, found in zip(chosen.tolist(), places.tolist(), strict=True):
        label = int(query_features.labels[number])
        same = [int(known_features.labels[place]) == label for place in found]
        tiles = [frame(to_picture(queried.images.read(number)), QUERY)]
        tiles += [
            frame(to_picture(known.images.read(place)), RIGHT if hit else WRONG)
            for place, hit in zip(found, same, strict=True)
        ]
        rows.append((f"{queried.classes[label]}: {sum(same)} of {count}", tiles))
    save_picture(grid(title, rows, TILE, after_first=4 * GAP), path)
    return path


def draw_neighbours(
    split: Split,
    values: torch.Tensor,
    path: Path,
    *,
    title: str,
    queries: int = 10,
    neighbours: int = 10,
    seed: int = 0,
) -> Path:
    """Images drawn by the seed in the first column, the others nearest to them beside them.

    Args:
        values: the features of the split's images, (N, D); there need be no labels.
    """
    order = torch.randperm(len(values), generator=generator_for("gallery", seed))
    chosen = order[:queries].sort().values
    count = min(neighbours + 1, len(values))  # the image itself among them
    _, places = nearest(values[chosen], values, count)
    rows = []
    for number, found in zip(chosen.tolist(), places.tolist(), strict=True):
        others = [place for place in found if place != number][: count - 1]
        tiles = [frame(to_picture(split.images.read(number)), QUERY)]
        tiles += [frame(to_picture(split.images.read(place)), UNKNOWN) for place in others]
        rows.append(("", tiles))
    save_picture(grid(title, rows, TILE, after_first=4 * GAP), path)
    return path


def spread_choice(labels: torch.Tensor, count: int, seed: int) -> torch.Tensor:
    """Numbers of `count` images, spread over the classes, drawn by the seed.

    >>> labels = torch.tensor([2, 0, 0, 1, 0, 2])
    >>> labels[spread_choice(labels, 3, seed=0)]
    tensor([0, 1, 2])
    """
    order = torch.randperm(len(labels), generator=generator_for("gallery", seed))
    turn: dict[int, int] = {}
    keys = []
    for number in order.tolist():
        label = int(labels[number])
        turn[label] = turn.get(label, 0) + 1
        keys.append((turn[label], number))
    first = [number for _, number in sorted(keys, key=lambda key: key[0])[:count]]
    return torch.tensor(sorted(first, key=lambda number: int(labels[number])))


def frame(image: Image.Image, colour: str) -> Image.Image:
    """The image inside a square frame."""
    inner = fit(image, TILE - 2 * FRAME)
    square = Image.new("RGB", (TILE - 2 * FRAME, TILE - 2 * FRAME), "white")
    square.paste(inner, ((square.width - inner.width) // 2, (square.height - inner.height) // 2))
    return ImageOps.expand(square, FRAME, colour)


def neighbours_of_its_class(test: Features, train: Features, count: int = 10) -> float:
    """How many of the nearest train images are of the test image's class, as a share of all.

    >>> one_hot = Features(torch.eye(3), torch.tensor([0, 1, 1]))
    >>> neighbours_of_its_class(one_hot, one_hot, count=1)
    1.0
    """
    _, places = nearest(test.values, train.values, count)
    return float((train.labels[places] == test.labels[:, None]).double().mean())
