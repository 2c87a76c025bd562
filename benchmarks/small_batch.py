"""A batch of 256 in micro-batches of 8, and two towers: time and peak memory beside others'.

    python benchmarks/small_batch.py             ResNet-18 at 64 pixels and a small transformer
    python benchmarks/small_batch.py --quick     batch 32, one round, two towers up to N = 1024
    python benchmarks/small_batch.py --record    keep it under results/bench-small-batch/

Every figure is measured in a fresh process; times are the best of the rounds, in which the
contenders take turns. A step is the encoding of two views and the backward pass of the loss.

Ways: `cached`, eqco.cached_backward; `gradcache`, the algorithm of the GradCache package, written
out; `sentence-transformers`, its CachedMultipleNegativesRankingLoss; `accumulation`, an independent
loss for each micro-batch, which is another loss; `micro-batch`, one of them alone; `whole`, the
batch at once.
"""

import resource
import time
from collections.abc import Callable

import torch
import torch.nn.functional as F
from measure import (
    best_seconds,
    command_line,
    in_own_process,
    interleave,
    keep_record,
    peak_extra_bytes,
    read_options,
)
from torch import nn

TAU = 0.05
MEMORY_LIMIT = 10 * 2**30
WAYS = ("cached", "gradcache", "sentence-transformers", "accumulation", "micro-batch", "whole")
ENCODERS = ("resnet18", "transformer")
TOWERS = ("ours", "open-clip")
TOWER_DIM = 512


class TextEncoder(nn.Module):
    """Four layers of 256 dimensions with dropout, over 64 tokens."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(1000, 256)
        layer = nn.TransformerEncoderLayer(256, 4, 1024, dropout=0.1, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)

    def forward(self, tokens):
        """The mean over tokens, (n, 256)."""
        return self.layers(self.tokens(tokens)).mean(dim=1)


def encoder_and_views(name: str, num_queries: int):
    torch.manual_seed(0)
    if name == "transformer":
        return TextEncoder(), torch.randint(1000, (2, num_queries, 64)).unbind()
    from torchvision.models import resnet18

    return resnet18(num_classes=128), torch.randn(2, num_queries, 3, 64, 64).unbind()


def contrast(first, second):
    """The usual form, so that what differs is the caching alone."""
    logits = F.normalize(first, dim=1) @ F.normalize(second, dim=1).t() / TAU
    return F.cross_entropy(logits, torch.arange(len(first)))


def grad_cache_step(encoder, views, size):
    """GradCache: representations, their gradients, and a surrogate for each micro-batch."""
    states, embedded = [], []
    with torch.no_grad():
        for view in views:
            parts = []
            for chunk in view.split(size):
                states.append(torch.get_rng_state())
                parts.append(encoder(chunk))
            embedded.append(torch.cat(parts).requires_grad_())
    contrast(*embedded).backward()
    states.reverse()
    for view, leaf in zip(views, embedded, strict=True):
        for chunk, gradient in zip(view.split(size), leaf.grad.split(size), strict=True):
            with torch.random.fork_rng(devices=[]):
                torch.set_rng_state(states.pop())
                again = encoder(chunk)
            torch.dot(again.flatten(), gradient.flatten()).backward()


class SentenceModel(nn.Module):
    """An encoder as sentence-transformers' losses want it."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def __getitem__(self, place):
        return self.encoder

    def forward(self, features):
        """A dictionary, as its modules hand on."""
        return {"sentence_embedding": self.encoder(features["input"])}


def sentence_transformers_step(encoder, views, size):
    from sentence_transformers.sentence_transformer.losses import (
        CachedMultipleNegativesRankingLoss,
    )

    loss_fn = CachedMultipleNegativesRankingLoss(
        SentenceModel(encoder), scale=1 / TAU, mini_batch_size=size
    )
    features = [{"input": view} for view in views]
    return lambda: loss_fn(features, None).backward()


def accumulate(encoder, views, size, parts=None):
    pairs = list(zip(*(view.split(size) for view in views), strict=True))[:parts]
    for first, second in pairs:
        (contrast(encoder(first), encoder(second)) / len(pairs)).backward()


def stepping(way: str, name: str, num_queries: int, size: int) -> Callable[[], object]:
    """One step as a call without arguments."""
    encoder, views = encoder_and_views(name, num_queries)
    if way == "sentence-transformers":
        step = sentence_transformers_step(encoder, views, size)
    elif way == "cached":
        import eqco

        def step():
            eqco.cached_backward(encoder, views, contrast, micro_batch=size)
    else:
        step = {
            "gradcache": lambda: grad_cache_step(encoder, views, size),
            "accumulation": lambda: accumulate(encoder, views, size),
            "micro-batch": lambda: accumulate(encoder, views, size, parts=1),
            "whole": lambda: contrast(*map(encoder, views)).backward(),
        }[way]
    for parameter in encoder.parameters():
        parameter.grad = torch.zeros_like(parameter)  # part of what is there before
    return step


def two_towers(way: str, num_pairs: int) -> Callable[[], object]:
    torch.manual_seed(0)
    towers = [torch.randn(num_pairs, TOWER_DIM, requires_grad=True) for _ in range(2)]
    if way == "ours":
        import eqco

        loss_fn = eqco.TwoTowerLoss(temperature=0.07)
    else:
        from open_clip.loss import ClipLoss

        clip, scale = ClipLoss(), torch.tensor(1 / 0.07)

        def loss_fn(first, second):
            return clip(F.normalize(first, dim=1), F.normalize(second, dim=1), scale)

    def step():
        for tower in towers:
            tower.grad = None
        loss_fn(*towers).backward()

    return step


def child(question: dict) -> dict:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    way = question["way"]
    if "pairs" in question:
        two_towers(way, 64)()  # what libraries set up at their first call
        step = two_towers(way, question["pairs"])
    else:
        name, num_queries, size = (question[x] for x in ("encoder", "num_queries", "micro_batch"))
        stepping(way, name, min(num_queries, 2 * size), size)()
        step = stepping(way, name, num_queries, size)
    memory = peak_extra_bytes(step)
    seconds = best_seconds(step, budget=question["budget"], least=2, warm=False)
    return {"seconds": seconds, "bytes": memory}


def questions(quick: bool) -> list[tuple[str, dict]]:
    """Where each figure stands, and how to ask for it."""
    budget = 0.0 if quick else 3.0
    batch = {"num_queries": 32 if quick else 256, "micro_batch": 8, "budget": budget}
    found = [
        (f"{name}/{way}", {"encoder": name, "way": way, **batch})
        for name in ENCODERS
        for way in WAYS
    ]
    for pairs in (1024,) if quick else (1024, 8192, 32768):
        for way in TOWERS:
            question = {"way": way, "pairs": pairs, "budget": budget}
            found.append((f"towers {pairs}/{way}", question))
    return found


def measure(quick: bool, rounds: int) -> dict[str, float]:
    """All figures, flat: `case/way/seconds` and `…/bytes`; what failed is left out."""
    found: dict[str, float] = {}
    broken: set[str] = set()
    for _, (place, question) in interleave(questions(quick), rounds):
        if place in broken:
            continue
        answer = in_own_process(__file__, question)
        if "error" in answer:
            print(f"  {place}: {answer['error']}")
            broken.add(place)
            continue
        for what in ("seconds", "bytes"):
            key = f"{place}/{what}"
            found[key] = min(found.get(key, float("inf")), answer[what])
        print(f"  {place}: {answer['seconds']:.3f} s, {answer['bytes'] / 1e6:.0f} MB", flush=True)
    return found


def show(found: dict[str, float], quick: bool) -> None:
    print(f"\n{'':28}{'ms':>10}{'MB':>10}")
    for place, _ in questions(quick):
        seconds, memory = (found.get(f"{place}/{what}") for what in ("seconds", "bytes"))
        if seconds is not None and memory is not None:
            print(f"{place:28}{seconds * 1e3:10.1f}{memory / 1e6:10.1f}")
        else:
            print(f"{place:28}{'–':>10}{'–':>10}")
    for name in ENCODERS:
        ours, plain = (found.get(f"{name}/{way}/seconds") for way in ("cached", "accumulation"))
        held, one = (found.get(f"{name}/{way}/bytes") for way in ("cached", "micro-batch"))
        if ours and plain and held and one:
            print(
                f"{name}: cached takes {ours / plain:.2f} of accumulation's time (aim 1.35) and "
                f"{held / one:.2f} of one micro-batch's memory (aim 1.1)"
            )
    print("– : failed or over 10 GiB")


def main() -> None:
    options = read_options(command_line(__doc__, rounds=3), child)
    start = time.time()
    rounds = 1 if options.quick else options.rounds
    found = measure(options.quick, rounds)
    show(found, options.quick)
    if options.record:
        recipe = {"num_queries": 256, "micro_batch": 8, "rounds": rounds, "tower_dim": TOWER_DIM}
        keep_record("bench-small-batch", recipe, found, start)


if __name__ == "__main__":
    main()
