"""A study of ours: search for functions by their docstrings, with small batches.

Pairs of a docstring's first paragraph and the rest of its function, from the installed Python
library, numpy and torch, so that nothing is downloaded. A small encoder of bags of words is trained
on some files and searches among the functions of others. How much do α, a queue of keys by a slow
copy, and a larger batch by caching add to the plain ranking loss with batches of 8 and 32?
"""

import functools
import math
import platform
import zlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.metadata import version
from typing import Any, Literal

import torch
from torch import Tensor, nn

from eqco.contrast import (
    KeyQueue,
    SlowCopy,
    cached_backward,
    combine_negatives,
    contrastive_loss,
    in_batch_negatives,
)
from eqco.data.docstrings import DOCSTRING_WORDS, FUNCTION_WORDS, Pair, digest, read_pairs
from eqco.experiments.coordinates import Coordinates, distinct
from eqco.experiments.experiment import (
    Comparison,
    Experiment,
    RunContext,
    RunResult,
    heading_of_differences,
)
from eqco.runtime.records import Record, as_read
from eqco.runtime.seeds import generator_for

__all__ = ["STUDY_TEXT", "reciprocal_ranks"]

BUCKETS = 2**14  # of words by their hash; 0 is padding
TEST_SHARE = 5  # one file in so many is searched, the others are trained on

Source = Literal["batch", "queue", "cached"]


@dataclass(frozen=True, kw_only=True)
class TextTask:
    """One training: pairs, batch size N, where negatives come from, and α.

    Sources of negatives: the batch; the batch and a queue that fills it up to `filled`; a batch of
    `pieces` · N by caching, with the memory of N.
    """

    packages: tuple[str, ...]
    pairs: int
    tests: int
    num_queries: int
    source: Source = "batch"
    alpha: float | None = None
    epochs: int = 4
    temperature: float = 0.05
    learning_rate: float = 0.002
    dim: int = 64
    filled: int = 256
    decay: float = 0.99
    pieces: int = 8

    @property
    def batch(self) -> int:
        """Pairs of a step."""
        return self.num_queries * (self.pieces if self.source == "cached" else 1)

    @property
    def steps(self) -> int:
        """Of the training, at most: where there are as many pairs."""
        return self.epochs * (self.pairs // self.batch)

    def to_dict(self) -> dict[str, Any]:
        """As a record holds it."""
        return as_read(asdict(self))


def split(task: TextTask) -> tuple[list[Pair], list[Pair]]:
    """Pairs to train on, and pairs of other files to search."""
    pairs = read_pairs(task.packages)
    tested = [pair for pair in pairs if digest(pair.file) % TEST_SHARE == 0]
    trained = [pair for pair in pairs if digest(pair.file) % TEST_SHARE]
    return trained[: task.pairs], tested[: task.tests]


def bags(texts: Sequence[tuple[str, ...]], width: int) -> Tensor:
    """Each text as the buckets of its words, 0 where it ends, (N, width)."""
    rows = torch.zeros(len(texts), width, dtype=torch.int64)
    for row, text in zip(rows, texts, strict=True):
        numbers = [zlib.crc32(word.encode()) % (BUCKETS - 1) + 1 for word in text[:width]]
        row[: len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
    return rows


class BagEncoder(nn.Module):
    """The mean of word vectors, then two layers; the same for docstrings and functions."""

    def __init__(self, dim: int):
        super().__init__()
        self.words = nn.EmbeddingBag(BUCKETS, dim, mode="mean", padding_idx=0)
        self.layers = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim)
        )

    def forward(self, texts: Tensor) -> Tensor:
        """Embeddings of bags of words, (N, D)."""
        words: Tensor = self.words(texts)
        return words + self.layers(words)


def train_encoder(
    task: TextTask, docstrings: Tensor, functions: Tensor, seed: int, context: RunContext
) -> BagEncoder:
    """The encoder after its training; Adam, with a rate that falls to zero.

    The rate grows with the root of the batch, as is usual for Adam.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(generator_for("text encoder", seed).initial_seed())
        encoder = BagEncoder(task.dim)
    peak = task.learning_rate * math.sqrt(task.batch / 32)
    optimiser = torch.optim.Adam(encoder.parameters(), lr=peak)
    slow = SlowCopy(encoder, decay=task.decay) if task.source == "queue" else None
    queue = KeyQueue(task.filled - task.num_queries, task.dim) if slow else None
    per_epoch = len(docstrings) // task.batch
    total = task.epochs * per_epoch
    for step in range(total):
        epoch, place = divmod(step, per_epoch)
        if place == 0:
            generator = generator_for("text order", seed, epoch)
            order = torch.randperm(len(docstrings), generator=generator)
        rows = order[place * task.batch : (place + 1) * task.batch]
        given = docstrings[rows], functions[rows]
        optimiser.param_groups[0]["lr"] = peak * (1 - step / total)
        optimiser.zero_grad()
        loss_fn = functools.partial(
            contrastive_loss, temperature=task.temperature, alpha=task.alpha
        )
        if task.source == "cached":
            cached_backward(encoder, given, loss_fn, micro_batch=task.num_queries)
        else:
            queries, keys = (encoder(each) for each in given)
            negatives = in_batch_negatives(keys)
            if queue is not None and queue.filled:
                negatives = combine_negatives(negatives, queue.negatives())
            loss_fn(queries, keys, negatives).backward()
        new_keys = None if slow is None else slow(given[1])
        optimiser.step()
        if slow is not None and queue is not None and new_keys is not None:
            slow.update()
            queue.enqueue(new_keys)
        context.advance(1)
    return encoder.eval()


def reciprocal_ranks(queries: Tensor, keys: Tensor) -> Tensor:
    """1/rank of each query's own key among all keys by cosine, (N,); ties count half.

    >>> reciprocal_ranks(torch.eye(3), torch.eye(3)[[0, 2, 1]])
    tensor([1.0000, 0.4000, 0.4000])
    """
    unit = [nn.functional.normalize(each, dim=1) for each in (queries, keys)]
    scores = unit[0] @ unit[1].t()
    own = scores.diagonal()[:, None]
    nearer, same = (scores > own).sum(dim=1), (scores == own).sum(dim=1) - 1
    return 1 / (1 + nearer + same / 2)


def word_weights(texts: Tensor, frequent: Tensor) -> Tensor:
    """Counts of words, rare ones weighed more (tf-idf), (N, BUCKETS)."""
    counts = torch.zeros(len(texts), BUCKETS).scatter_add_(1, texts, torch.ones(texts.shape))
    counts[:, 0] = 0
    return counts * frequent


def run(task: TextTask, seed: int, context: RunContext) -> RunResult:
    """Train, and search for the functions of other files; beside it a search by shared words."""
    trained, tested = split(task)
    texts = [
        (
            bags([pair.docstring for pair in pairs], DOCSTRING_WORDS),
            bags([pair.function for pair in pairs], FUNCTION_WORDS),
        )
        for pairs in (trained, tested)
    ]
    encoder = train_encoder(task, *texts[0], seed, context)
    with torch.no_grad():
        found = reciprocal_ranks(*(encoder(each) for each in texts[1]))
        used = (word_weights(texts[0][1], torch.ones(BUCKETS)) > 0).sum(dim=0)
        frequent = torch.log((1 + len(trained)) / (1 + used))
        by_words = reciprocal_ranks(*(word_weights(each, frequent) for each in texts[1]))
    versions = {"python": platform.python_version()}
    versions |= {name: version(name) for name in task.packages if name != "python"}
    return RunResult(
        metrics={
            "mrr": float(found.mean()),
            "first": float((found == 1).double().mean()),
            "words_mrr": float(by_words.mean()),
        },
        curves={"trained": len(trained), "tested": len(tested), "versions": versions},
    )


def row_of(recipe: dict[str, Any]) -> str:
    """What a training is called in the table."""
    alpha = recipe["alpha"]
    loss = "plain ranking loss" if alpha is None else f"EqCo, α={alpha:g}"
    return {
        "batch": loss,
        "queue": f"{loss}, and a queue up to {recipe['filled']} by a slow copy",
        "cached": f"{loss}, batch of {recipe['pieces']}·N by caching",
    }[recipe["source"]]


def column_of(num_queries: int) -> Coordinates:
    """Where the trainings with this N stand."""
    return Coordinates(num_queries=num_queries, metric="MRR, %")


def compare(records: Sequence[Record]) -> list[Comparison]:
    """MRR in percent: rows are losses, columns N; the search by shared words is trained nowhere."""
    cells = []
    places = [(row_of(record.recipe), record.recipe["num_queries"]) for record in records]
    for row, count in distinct(places):
        here = [r for r, place in zip(records, places, strict=True) if place == (row, count)]
        found = {record.seed: 100 * record.metrics["mrr"] for record in here}
        cells.append(Comparison.of(row, column_of(count), found))
    for count in distinct(count for _, count in places):
        value = 100 * records[0].metrics["words_mrr"]
        row = "shared words (tf-idf), no training"
        cells.append(Comparison(row=row, column=column_of(count), values=(value,)))
    return cells


def gains(records: Sequence[Record]) -> list[Comparison]:
    """What α gains with the same source and N, seed by seed."""
    found: dict[tuple[str, int, float | None], dict[int, float]] = {}
    rows = {}
    for record in records:
        recipe = record.recipe
        place = recipe["source"], recipe["num_queries"], recipe["alpha"]
        found.setdefault(place, {})[record.seed] = 100 * record.metrics["mrr"]
        rows[place] = row_of(recipe)
    table = []
    for (source, num_queries, alpha), ours in found.items():
        plain = found.get((source, num_queries, None), {})
        gained = {seed: mrr - plain[seed] for seed, mrr in ours.items() if seed in plain}
        if alpha is not None and gained:
            row, column = rows[source, num_queries, alpha], column_of(num_queries)
            table.append(Comparison.of_difference(row, column, gained))
    return table


def conclude(records: Sequence[Record]) -> dict[str, list[Comparison]]:
    """The gain of α, if any pair was run."""
    table = gains(records)
    heading = heading_of_differences("Gained by α, points of MRR, seed by seed", table)
    return {heading: table} if table else {}


ARMS: tuple[tuple[Source, float | None], ...] = (
    ("batch", None),
    ("batch", 4096.0),
    ("queue", 4096.0),
    ("cached", None),
    ("cached", 4096.0),
)


def tasks(sizes: Sequence[int], **settings: Any) -> list[TextTask]:
    """Every source and α with every batch size."""
    return [
        TextTask(num_queries=size, source=source, alpha=alpha, **settings)
        for size in sizes
        for source, alpha in ARMS
    ]


STUDY_TEXT = Experiment(
    name="study-text",
    title="Search for functions by their docstrings, with batches of 8 and 32",
    profiles={
        "smoke": tasks([8], packages=("numpy",), pairs=256, tests=64, epochs=1, filled=32),
        "desk": tasks([8, 32], packages=("python", "numpy", "torch"), pairs=8000, tests=1000),
    },
    seeds={"smoke": (0,), "desk": (0, 1, 2)},
    size=lambda task: task.steps,
    run=run,
    compare=compare,
    conclude=conclude,
)
