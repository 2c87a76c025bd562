"""kNN and the probe against scikit-learn, on the same features of CIFAR-10's size.

    python benchmarks/evaluation.py [--cifar10 FOLDER] [--features FILE] [--rounds 2] [--record]

10,000 features are classified by 50,000, 256 numbers each. With --cifar10 they are the features of
an untrained light encoder of the real images; without, clustered random ones of the same shape.

Each side runs in a process of its own with one thread: one call that shows how much memory it takes
at its peak above the features, then one that is timed (a first call of over 20 s is enough). The
sides take turns, and the best of `rounds` turns counts, in seconds of processor time: for one
thread that is the time on an idle machine, and other programs hardly change it.

scikit-learn's kNN is given twice: as one would write it (cosine metric), and its fast way
(Euclidean on normalised features, the same neighbours). Its LogisticRegression gets the penalty
that the probe chose and is set beside one fit of ours; the probe's whole call, with the choice, is
a line of its own.
"""

import math
import os
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from measure import command_line, in_own_process, keep_record, peak_extra_bytes, read_options

from eqco.data import open_source
from eqco.encoders import LightEncoder
from eqco.evaluation import Features, extract_features, knn_scores, probe_accuracy
from eqco.evaluation.probe import fit_logistic, principal_axes

NEIGHBOURS, TEMPERATURE = 200, 0.07
LONG = 20.0  # seconds from which warming up makes no difference, and one call is enough
SIDES = ("knn eqco", "knn sklearn cosine", "knn sklearn euclidean")
SIDES += ("fit eqco", "fit sklearn", "probe eqco")


def clustered_features() -> dict[str, Features]:
    """Ten overlapping clusters."""
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(10, 256, generator=generator)
    found = {}
    for name, count in (("train", 50_000), ("test", 10_000)):
        labels = torch.randint(10, (count,), generator=generator)
        noise = torch.randn(count, 256, generator=generator)
        found[name] = Features((0.15 * centres[labels] + noise).relu(), labels)
    return found


def encoder_features(folder: Path) -> dict[str, Features]:
    torch.manual_seed(0)
    encoder = LightEncoder().eval()
    source = open_source(folder)
    return {name: extract_features(encoder, source[name], size=32) for name in ("train", "test")}


def find_features(folder: Path | None, kept: Path | None) -> dict[str, Features]:
    if kept is not None and kept.exists():
        return {name: Features(*pair) for name, pair in torch.load(kept).items()}
    features = encoder_features(folder) if folder else clustered_features()
    if kept is not None:
        torch.save({name: (each.values, each.labels) for name, each in features.items()}, kept)
    return features


def standardise(features: dict[str, Features]) -> tuple[torch.Tensor, torch.Tensor]:
    mean, scale = features["train"].values.mean(dim=0), features["train"].values.std(dim=0)
    scale = torch.where(scale > 0, scale, 1.0)
    return tuple((features[name].values - mean) / scale for name in ("train", "test"))


def knn_by_sklearn(features: dict[str, Features], metric: str):
    import numpy as np
    from sklearn.neighbors import KNeighborsClassifier

    train, test = features["train"], features["test"]
    values, scaled_test = train.values.numpy(), test.values.numpy()

    def weights(distance):
        cosine = 1 - distance if metric == "cosine" else 1 - distance**2 / 2
        return np.exp(cosine / TEMPERATURE)

    def call():
        known, queries = values, scaled_test
        if metric == "euclidean":
            known = F.normalize(train.values, dim=1).numpy()
            queries = F.normalize(test.values, dim=1).numpy()
        model = KNeighborsClassifier(NEIGHBOURS, metric=metric, algorithm="brute", weights=weights)
        return torch.from_numpy(model.fit(known, train.labels.numpy()).predict(queries))

    return call


def make_call(side: str, features: dict[str, Features], penalty: float):
    """A function to time, which returns the predictions for the test images."""
    train, test = features["train"], features["test"]
    if side == "knn eqco":
        return lambda: knn_scores(
            test.values,
            train.values,
            train.labels,
            num_classes=10,
            neighbours=NEIGHBOURS,
            temperature=TEMPERATURE,
        ).argmax(dim=1)
    if side.startswith("knn sklearn"):
        return knn_by_sklearn(features, side.split()[-1])
    if side == "probe eqco":
        return lambda: probe_accuracy(test, train).scores.argmax(dim=1)
    known, scaled_test = standardise(features)
    if side == "fit eqco":

        def fit():
            basis, spread = principal_axes(known)
            found = fit_logistic(
                known @ basis, train.labels, num_classes=10, penalty=penalty, spread=spread
            )
            return found(scaled_test @ basis).argmax(dim=1)

        return fit
    from sklearn.linear_model import LogisticRegression

    values, labels, queries = known.numpy(), train.labels.numpy(), scaled_test.numpy()

    def fit_by_sklearn():
        model = LogisticRegression(C=1 / (len(values) * penalty), max_iter=1000)
        return torch.from_numpy(model.fit(values, labels).predict(queries))

    return fit_by_sklearn


def child(question: dict) -> dict:
    torch.set_num_threads(1)
    stored = torch.load(question["features"])
    features = {name: Features(*pair) for name, pair in stored.items()}
    call = make_call(question["side"], features, question["penalty"])
    answers, start = [], time.process_time()
    extra = peak_extra_bytes(lambda: answers.append(call()))
    seconds = time.process_time() - start
    if seconds < LONG:
        start = time.process_time()
        call()
        seconds = time.process_time() - start
    right = answers[0] == features["test"].labels
    return {
        "seconds": seconds,
        "extra_bytes": extra,
        "accuracy": float(right.double().mean()),
    }


def main() -> None:
    parser = command_line(__doc__, rounds=2, quick=False)
    parser.add_argument("--cifar10", type=Path, help="folder with train/CLASS/… and test/CLASS/…")
    parser.add_argument("--features", type=Path, help="keep them in this file; taken from it again")
    given = read_options(parser, child)
    start, metrics = time.time(), {}
    features = find_features(given.cifar10, given.features)
    kind = "untrained light encoder on CIFAR-10" if given.cifar10 else "clustered random numbers"
    penalty = probe_accuracy(features["test"], features["train"]).penalty
    print(f"features: {kind}; penalty {penalty:g}; one thread each, processor time")
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "features.pt"
        torch.save({name: (each.values, each.labels) for name, each in features.items()}, place)
        for turn in range(given.rounds):
            for side in SIDES:
                if turn and metrics.get(f"{side} seconds", 0) > LONG:
                    continue
                question = {"side": side, "features": str(place), "penalty": penalty}
                found = in_own_process(sys.argv[0], question, timeout=1800)
                if "error" in found:
                    raise SystemExit(f"{side}: {found['error']}")
                best = min(found["seconds"], metrics.get(f"{side} seconds", math.inf))
                metrics |= {f"{side} {name}": value for name, value in found.items()}
                metrics[f"{side} seconds"] = best
                print(
                    f"{side:<22} {found['seconds']:7.2f} s  best {best:7.2f} s  "
                    f"{found['extra_bytes'] / 2**20:6.0f} MiB extra  "
                    f"{100 * found['accuracy']:.2f} % right",
                    flush=True,
                )
    recipe = {"features": kind, "train": 50_000, "test": 10_000, "dim": 256, "rounds": given.rounds}
    recipe |= {"threads": 1, "seconds": "processor time"}
    recipe |= {"neighbours": NEIGHBOURS, "temperature": TEMPERATURE, "penalty": penalty}
    if given.record:
        keep_record("bench-evaluation", recipe, metrics, start)


if __name__ == "__main__":
    main()
