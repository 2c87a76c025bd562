"""The loss beside its peers: forward + backward time and peak extra memory, one table, one run.

    python benchmarks/loss.py                    everything (about twelve minutes on two cores)
    python benchmarks/loss.py --only decisive    the decisive K alone (about three minutes)
    python benchmarks/loss.py --only queue       one case, or keys, or views
    python benchmarks/loss.py --quick            one round of K up to 65536
    python benchmarks/loss.py --record           keep it under results/bench-loss/

Every figure is measured in a fresh process. N = 256 queries of D = 128 dimensions, float32.

Cases: `queue`, gradient to queries only (MoCo); `keys`, gradient to queries, positives and
negatives; `views`, SimCLR's symmetric loss on two views of N images (K = 2N − 2). *ours, ids* looks
for keys of the query's own id, of which there are none. Times are the best of the rounds, in which
contenders take turns.

`decisive` is a part of its own: at K = 65536 ours, the compiled loss and the floor take turns over
five rounds, each with the median of its calls; all rounds are kept, and their median counts.
"""

import resource
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import metadata
from statistics import median

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
    seconds_of_calls,
    settings_named,
)

N, D, TAU, ALPHA = 256, 128, 0.2, 65536.0
MEMORY_LIMIT = 10 * 2**30
DECISIVE, DECISIVE_K, DECISIVE_ROUNDS = "decisive", 65536, 5
DECISIVE_CASES = ("queue", "keys")
RIVALS = ("ours", "compiled", "floor")  # of the decisive part
SLOW = 0.6  # seconds: a contender above this takes part in one round only
CONTENDERS = {
    "queue": (
        "ours",
        "ours, ids",
        "cross-entropy",
        "lightly",
        "metric-learning",
        "info-nce",
        "compiled",
        "floor",
    ),
    "keys": (
        "ours",
        "ours, ids",
        "cross-entropy",
        "metric-learning",
        "info-nce",
        "compiled",
        "floor",
    ),
    "views": ("ours", "cross-entropy", "lightly", "metric-learning", "compiled"),
}
PEERS = {
    "lightly": "lightly",
    "metric-learning": "pytorch-metric-learning",
    "info-nce": "info-nce-pytorch",
}


def direct_loss(queries, positives, keys):
    """MoCo's formulation: all logits side by side, then cross-entropy."""
    queries, positives = F.normalize(queries, dim=1), F.normalize(positives, dim=1)
    own = (queries * positives).sum(dim=1, keepdim=True)
    logits = torch.cat([own, queries @ keys.t()], dim=1) / TAU
    return F.cross_entropy(logits, torch.zeros(len(queries), dtype=torch.long))


def direct_views(first, second):
    """SimCLR's formulation: the matrix of all similarities without its diagonal."""
    both = F.normalize(torch.cat([first, second]), dim=1)
    logits = both @ both.t() / TAU
    logits = logits.masked_fill(torch.eye(len(both), dtype=torch.bool), -torch.inf)
    return F.cross_entropy(logits, torch.arange(len(both)).roll(len(first)))


def products_alone(queries, keys, products, chunk):
    """The floor: the matrix products that no way of computing the loss can do without.

    The third, for the keys, needs similarities that are kept: all are summed before it begins.
    """
    pulls, kept = torch.zeros_like(queries), []
    for part in keys.split(chunk):
        weights = queries @ part.t()
        pulls.addmm_(weights, part)
        if products == 3:
            kept.append(weights)
    if kept:
        gradient = torch.empty_like(keys)
        for weights, here in zip(kept, gradient.split(chunk), strict=True):
            torch.mm(weights.t(), queries, out=here)


def contender(name: str, case: str, k: int) -> Callable[[], object]:
    """One forward and backward of one contender as a call without arguments."""
    torch.manual_seed(0)
    if case == "views":
        first, second = (torch.randn(k, D, requires_grad=True) for _ in range(2))
        return stepping(views_loss(name), first, second)
    queries = torch.randn(N, D, requires_grad=True)
    positives = torch.randn(N, D, requires_grad=case == "keys")
    keys = F.normalize(torch.randn(k, D), dim=1).requires_grad_(case == "keys")
    if name == "floor":
        sizes = [size for size in (256, 512, 1024, 2048, 4096, 65536) if size <= max(k, 256)]
        products = 3 if case == "keys" else 2
        q, pool = queries.detach(), keys.detach()
        calls = {c: (lambda c=c: products_alone(q, pool, products, c)) for c in sizes}
        return calls[min(sizes, key=lambda c: best_seconds(calls[c], budget=0.3))]
    if name == "lightly":
        from lightly.loss import NTXentLoss

        loss = NTXentLoss(temperature=TAU, memory_bank_size=(k, D))
        return stepping(loss, queries, positives)
    return stepping(pool_loss(name, k), queries, positives, keys)


def stepping(loss, *leaves) -> Callable[[], object]:
    def step():
        for leaf in leaves:
            leaf.grad = None
        loss(*leaves).backward()

    return step


def views_loss(name: str):
    if name == "ours":
        import eqco

        return eqco.NTXentLoss(temperature=TAU, alpha=ALPHA)
    if name == "lightly":
        from lightly.loss import NTXentLoss

        return NTXentLoss(temperature=TAU)
    if name == "metric-learning":
        from pytorch_metric_learning import losses

        return losses.SelfSupervisedLoss(losses.NTXentLoss(temperature=TAU))
    return torch.compile(direct_views) if name == "compiled" else direct_views


def pool_loss(name: str, k: int):
    if name == "ours":
        import eqco

        return eqco.EqCoLoss(temperature=TAU, alpha=ALPHA)
    if name == "ours, ids":
        import eqco

        ids, key_ids = torch.arange(N), N + torch.arange(k)
        return partial(eqco.EqCoLoss(temperature=TAU, alpha=ALPHA), ids=ids, key_ids=key_ids)
    if name == "info-nce":
        from info_nce import InfoNCE

        return InfoNCE(temperature=TAU)
    if name == "metric-learning":
        from pytorch_metric_learning.losses import NTXentLoss

        loss = NTXentLoss(temperature=TAU)
        own, others = torch.arange(N), N + torch.arange(k)

        def with_labels(queries, positives, keys):
            reference, labels = torch.cat([positives, keys]), torch.cat([own, others])
            return loss(queries, own, ref_emb=reference, ref_labels=labels)

        return with_labels
    return torch.compile(direct_loss) if name == "compiled" else direct_loss


def child(question: dict) -> dict:
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_LIMIT, MEMORY_LIMIT))
    # what libraries set up at their first call is not what is measured, nor is compiling
    warm = "cross-entropy" if question["contender"] == "compiled" else question["contender"]
    contender(warm, question["case"], 256)()
    step = contender(question["contender"], question["case"], question["k"])
    if question["contender"] == "compiled":
        step()
    memory, times = peak_extra_bytes(step), seconds_of_calls(step)
    return {"seconds": min(times), "median": median(times), "bytes": memory}


def measure(cases: dict[str, list[int]], rounds: int) -> dict[str, float]:
    """All figures, flat: `case/K/contender/seconds` and `…/bytes`; what failed is left out."""
    found: dict[str, float] = {}
    for case, ks in cases.items():
        for k in ks:
            broken: set[str] = set()
            for turn in range(rounds):
                for name in CONTENDERS[case]:
                    if name in broken:
                        continue
                    place = f"{case}/{k}/{name}"
                    question = {"case": case, "k": k, "contender": name}
                    answer = in_own_process(__file__, question)
                    if "error" in answer:
                        print(f"  {place}: {answer['error']}", file=sys.stderr)
                        broken.add(name)
                        continue
                    if answer["seconds"] > SLOW:
                        broken.add(name)  # one round tells
                    for what in ("seconds", "bytes"):
                        key = f"{place}/{what}"
                        found[key] = min(found.get(key, float("inf")), answer[what])
                print(f"  {case} K={k} round {turn + 1}/{rounds}", file=sys.stderr)
    return found


def measure_decisive(rounds: int) -> tuple[dict[str, float], dict[str, list[float]]]:
    """`decisive/CASE/CONTENDER/seconds` (the median over rounds) and `…/bytes` (the most); then the
    seconds of every round, by `decisive/CASE/CONTENDER`.
    """
    seconds: dict[str, list[float]] = {}
    held: dict[str, float] = {}
    questions = [(case, name) for case in DECISIVE_CASES for name in RIVALS]
    for turn, (case, name) in interleave(questions, rounds):
        place = f"{DECISIVE}/{case}/{name}"
        answer = in_own_process(__file__, {"case": case, "k": DECISIVE_K, "contender": name})
        if "error" in answer:
            raise SystemExit(f"{place}: {answer['error']}")
        seconds.setdefault(place, []).append(answer["median"])
        held[place] = max(answer["bytes"], held.get(place, 0))
        print(f"  {place} round {turn + 1}/{rounds}: {1e3 * answer['median']:.1f} ms", flush=True)
    found = {f"{place}/seconds": median(times) for place, times in seconds.items()}
    return found | {f"{place}/bytes": most for place, most in held.items()}, seconds


def show_decisive(rounds: dict[str, list[float]]) -> None:
    print(f"\nK = {DECISIVE_K}: ms, median over rounds (least–most)")
    for place, times in rounds.items():
        reach = f"({1e3 * min(times):.1f}–{1e3 * max(times):.1f})"
        print(f"{place:<28}{1e3 * median(times):>9.1f} {reach}")
    for case in DECISIVE_CASES:
        ours, compiled, floor = (median(rounds[f"{DECISIVE}/{case}/{name}"]) for name in RIVALS)
        print(
            f"{case}: ours over floor {ours / floor:.2f}, compiled over ours {compiled / ours:.2f}"
        )


def show(found: dict[str, float], cases: dict[str, list[int]]) -> None:
    for case, ks in cases.items():
        names = CONTENDERS[case]
        title = {"queue": "gradient to queries", "keys": "gradient to queries and keys",
                 "views": "SimCLR, two views (first column: N)"}[case]  # fmt: skip
        for what, unit, scale in (("seconds", "ms", 1e3), ("bytes", "MB", 1e-6)):
            print(f"\n{title}: {'forward + backward' if unit == 'ms' else 'extra memory'}, {unit}")
            print(f"{'K':>8}" + "".join(f"{name:>17}" for name in names))
            for k in ks:
                cells = []
                ours = found.get(f"{case}/{k}/ours/{what}")
                for name in names:
                    value = found.get(f"{case}/{k}/{name}/{what}")
                    if value is None or ours is None:
                        cells.append(f"{'–':>17}")
                        continue
                    ratio = f"({value / ours:.2f}×)" if ours > 0 and name != "ours" else ""
                    cells.append(f"{value * scale:>9.2f} {ratio:>7}")
                print(f"{k:>8}" + "".join(cells))
    print("\n(×: that figure over ours; above 1 ours is better. – : failed or over 10 GiB.)")


def main() -> None:
    parser = command_line(__doc__, rounds=1)
    parser.add_argument("--only", default="", metavar="PART", help="queue, keys, views or decisive")
    options = read_options(parser, child)
    largest = [] if options.quick else [262144]
    cases = {
        "queue": [16, 256, 4096, 65536, *largest],
        "keys": [256, 4096, 65536, *largest],
        "views": [256] if options.quick else [256, 1024],
        DECISIVE: [DECISIVE_K],
    }
    chosen = {name: cases[name] for name in settings_named(parser, options.only, cases)}
    start, rounds = time.time(), {}
    over_k = {name: ks for name, ks in chosen.items() if name != DECISIVE}
    found = measure(over_k, options.rounds)
    decisive_rounds = 1 if options.quick else max(DECISIVE_ROUNDS, options.rounds)
    if DECISIVE in chosen:
        decided, rounds = measure_decisive(decisive_rounds)
        found |= decided
        show_decisive(rounds)
    if over_k:
        show(found, over_k)
    if options.record:
        recipe = {"num_queries": N, "dim": D, "cases": chosen, "rounds": options.rounds}
        if DECISIVE in chosen:
            recipe["decisive_rounds"] = decisive_rounds
        if over_k:
            recipe["peers"] = {peer: metadata.version(peer) for peer in PEERS.values()}
        keep_record("bench-loss", recipe, found, start, curves={"rounds": rounds})


if __name__ == "__main__":
    main()
