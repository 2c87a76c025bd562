"""The study behind `eqco.recipes.rules`: each rule against what it was chosen over, at equal cost.

    python benchmarks/rules.py signs=FOLDER tiny=FOLDER:10000 --minutes 5 --seeds 100
    python benchmarks/rules.py signs=FOLDER --minutes 5 --seeds 0 1 2 --tested test --record

A folder has train and val with a folder for each class; `:COUNT` takes so many training images of
it. Every variation changes one rule of the default and trains in one thread for as many processor
minutes, counted before (a timing of steps); kNN and probe are on val, or with `--tested test` on
test. Settings are chosen on val with seeds of 100 and more, and reported on test with seeds below.
Each data set and seed is a record; those of equal minutes share a table.
"""

import tempfile
import time
from argparse import Namespace
from dataclasses import replace
from pathlib import Path

import torch
from measure import command_line, in_own_process, keep_record, named_folders, read_options

from eqco.assembly import build_components, load, train
from eqco.data import Source, open_source
from eqco.data.sources import with_fewer_images
from eqco.evaluation import extract_features, knn_accuracy
from eqco.evaluation.knn import usual_neighbours
from eqco.evaluation.probe import probe_accuracy
from eqco.methods import SiMoSettings
from eqco.recipes import Recipe, with_settings
from eqco.recipes.rules import BASE
from eqco.training.loop import time_steps

SIMO = SiMoSettings(count=None, ema_decay=0.0)
# title -> a method in place of the default's, and settings by name
VARIATIONS = {
    "default": (None, {}),
    "SiMo, no momentum": (SIMO, {}),
    "SiMo, decay rising to 0.99": (replace(SIMO, ema_decay=0.99, ema_schedule="rising"), {}),
    "SiMo, decay 0.99": (replace(SIMO, ema_decay=0.99), {}),
    "64 pixels": (None, {"image_size": 64}),
    "twice the width": (None, {"width": 2}),
    "ResNet-18": (None, {"backbone": "resnet18"}),
    "ResNet-18, 64 pixels": (None, {"backbone": "resnet18", "image_size": 64}),
    "N = 32": (None, {"num_queries": 32}),
    "N = 128": (None, {"num_queries": 128}),
    "N = 256": (None, {"num_queries": 256}),
    "τ = 0.2": (None, {"temperature": 0.2}),
    "half the rate": (None, {"base_learning_rate": 0.12}),
    "twice the rate": (None, {"base_learning_rate": 0.48}),
    "α = 256": (None, {"alpha": 256.0}),
    "α = 4096": (None, {"alpha": 4096.0}),
}


def recipe_of(question: dict) -> Recipe:
    method, settings = VARIATIONS[question["title"]]
    recipe = BASE if method is None else replace(BASE, method=method)
    fixed = {"num_queries": question["n"], "seed": question["seed"], "compile": False}
    return with_settings(recipe, **{**fixed, **settings})


def opened(question: dict) -> Source:
    source = open_source(question["folder"], memory_gib=4)
    count = question["images"]
    return with_fewer_images(source, count) if count else source


def child(question: dict) -> dict:
    torch.set_num_threads(1)
    source, recipe = opened(question), recipe_of(question)
    trial = build_components(with_settings(recipe, epochs=1000), source)
    begun = time.process_time(), time.perf_counter()
    step = time_steps(trial, 3.0)
    # processor time, so that other work on the machine does not shorten the training
    step *= (time.process_time() - begun[0]) / (time.perf_counter() - begun[1])
    epochs = max(1, round(60 * question["minutes"] / step / trial.loader.steps_per_epoch))
    recipe = with_settings(recipe, epochs=epochs, warmup_epochs=epochs / 20, save_every=epochs)
    with tempfile.TemporaryDirectory() as place:
        begun = time.process_time()
        train(source, recipe, out=Path(place) / "run", show=lambda report: None)
        spent = time.process_time() - begun
        encoder = load(Path(place) / "run")
        known, asked = (
            extract_features(encoder.features, source[name], size=recipe.data.image_size)
            for name in ("train", question["tested"])
        )
    neighbours = usual_neighbours(len(known.values))
    return {
        "knn": knn_accuracy(asked, known, neighbours=neighbours),
        "probe": probe_accuracy(asked, known).accuracy,
        "epochs": epochs,
        "processor_minutes": spent / 60,
    }


def main() -> None:
    parser = command_line(__doc__, quick=False)
    parser.add_argument("data", nargs="*", metavar="NAME=FOLDER[:COUNT]")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[100])
    parser.add_argument("--n", type=int, default=64)
    parser.add_argument("--tested", choices=("val", "test"), default="val")
    titles = list(VARIATIONS)
    parser.add_argument("--only", nargs="+", choices=titles, default=titles, metavar="TITLE")
    options = read_options(parser, child)
    folders = named_folders(options.data or ["photos=groceries"])
    for name, (folder, images) in folders.items():
        for seed in options.seeds:
            print(
                f"\n{name}, {options.minutes:g} minutes, {options.tested}, seed {seed}", flush=True
            )
            measure_all(name, folder, images, seed, options)


def measure_all(name: str, folder: str, images: int, seed: int, options: Namespace) -> None:
    """Every variation on one data set, with one seed: a record."""
    begun, found = time.time(), {}
    # a data set has a table for each budget
    part = f"{name}, {options.minutes:g} minutes"
    how = {"minutes": options.minutes, "n": options.n, "tested": options.tested}
    for title in options.only:
        question = {**how, "folder": folder, "images": images, "title": title, "seed": seed}
        answer = in_own_process(__file__, question, 36_000, {"OMP_NUM_THREADS": "1"})
        if "error" in answer:
            print(f"{title:<28} {answer['error']}", flush=True)
            continue
        found |= {f"{part}/{title}/{seed}/{key}": value for key, value in answer.items()}
        knn, probe = 100 * answer["knn"], 100 * answer["probe"]
        print(
            f"{title:<28} kNN {knn:5.1f} probe {probe:5.1f} ({answer['epochs']} epochs)", flush=True
        )
    if options.record:
        recipe = {"data": {part: images}, **how, "rows": options.only}
        keep_record("bench-rules", recipe, found, begun, seed=seed)


if __name__ == "__main__":
    main()
