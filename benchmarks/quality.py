"""The quality of an encoder after so many minutes: ours by default, and others' tutorials.

    python benchmarks/quality.py photos=FOLDER cifar10=FOLDER --minutes 10 --record
    python benchmarks/quality.py photos=FOLDER --seeds 1 2 --only eqco "lightly SimCLR" --record
    python benchmarks/quality.py part=FOLDER:1000 --record           so many training images
    python benchmarks/quality.py                                     the embedded photos

Each contender trains in a process of its own, from the folder to the last step; evaluation is not
counted. The others stop by the clock; ours chooses its length for so many minutes, and those that
it took are recorded. So the cores must be free: the share of them that a contender got is recorded,
and said where it is low. A folder has train and test (or val, of which nothing else is used) with a
folder for each class. kNN and probe are on test images, by the same code for all, at 32 pixels, and
of ours at the size that it chose. Curves of others are kNN at tenths of the time, among at most
5,000 training and 1,000 test images; that of ours is its own, on validation images. Ours runs once
more with 0.35 of the minutes: what others reach in ten it should have by then.
Each data set and seed is a record, of all contenders or of those named by `--only`; those of equal
minutes and cores share a table.

lightly's tutorials: SimCLR with ResNet-18, batches of 256, rate 0.06, weight decay 5e-4, τ = 0.5;
MoCo with ResNet-18, batches of 512, a bank of 4096, rate 0.06, τ = 0.1, β = 0.99; both at 32
pixels, with a cosine over the whole time. Where the data are fewer than a batch, half of it.
stable-pretraining's SimCLR, where that is installed, as its README has it: ResNet-18, batches of
256, Adam with a rate of 0.001 under a cosine, τ = 0.5, in bfloat16 by Lightning's flag.
"""

import copy
import importlib.metadata
import math
import os
import sys
import tempfile
import time
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import torch
from measure import command_line, in_own_process, keep_record, named_folders, read_options
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18

from eqco.assembly import load, train
from eqco.data import Source, open_source
from eqco.data.sources import evaluation_split, with_fewer_images
from eqco.encoders import ColourHistogram, Pixels, backbone_named
from eqco.evaluation import extract_features, knn_accuracy
from eqco.evaluation.knn import usual_neighbours
from eqco.evaluation.probe import probe_accuracy
from eqco.experiments.experiment import processor_seconds
from eqco.runtime.run_directory import RunDirectory

SIZE, POINTS = 32, 10
CURVE_TRAIN, CURVE_TEST = 5000, 1000  # images that a point of a curve is of, at most
IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RATE_OF_ADAM = 0.001
SHARE = 0.35
LEAST_OF_CORES = 0.9  # that a contender should get; with less, other work ran beside it
SOONER = "eqco in 0.35 of the time"
REFERENCES = "references"
THREADS = len(os.sched_getaffinity(0))


class Watch:
    """Seconds of training: stopped while something else is done."""

    def __init__(self, minutes: float):
        self.budget, self.spent, self.start = 60 * minutes, 0.0, time.perf_counter()
        self.measure, self.curve = None, []

    @property
    def now(self) -> float:
        """Seconds trained so far."""
        return self.spent + time.perf_counter() - self.start

    @property
    def share(self) -> float:
        """Of the time that is over."""
        return min(1.0, self.now / self.budget)

    def look(self) -> bool:
        """Measure at each tenth of the time; whether the time is over."""
        if self.share >= (len(self.curve) + 1) / POINTS:
            self.spent = self.now
            self.curve.append((self.spent / 60, self.measure()))
            self.start = time.perf_counter()
        return self.share >= 1


def accuracies(encode, source: Source, *, probe: bool = True, size: int = SIZE) -> dict:
    """On test images, or on val where there are none."""
    splits = source["train"], source[evaluation_split(source.splits)]
    known, asked = (extract_features(encode, split, size=size) for split in splits)
    found = {"knn": knn_accuracy(asked, known, neighbours=usual_neighbours(len(known.values)))}
    return found | ({"probe": probe_accuracy(asked, known).accuracy} if probe else {})


def opened(question: dict) -> Source:
    source = open_source(question["folder"], memory_gib=4)
    count = question["images"]
    return with_fewer_images(source, count) if count else source


class Items(Dataset):
    """The training images as PIL images, for a transform."""

    def __init__(self, source: Source, transform):
        self.images, self.transform = source["train"].images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, number: int):
        return self.transform(self.images.read(number))


def tutorial(question: dict, watch: Watch, *, n: int, transform, step, parts: list[nn.Module]):
    """A loop of lightly's tutorials: SGD under a cosine, until the time is over."""
    items = Items(opened(question), transform)
    while len(items) < n:
        n //= 2
    loader = DataLoader(items, batch_size=n, shuffle=True, drop_last=True, num_workers=2)
    parameters = [each for part in parts for each in part.parameters() if each.requires_grad]
    optimiser = torch.optim.SGD(parameters, lr=0.06, momentum=0.9, weight_decay=5e-4)
    while True:
        for first, second in loader:
            rate = 0.03 * (1 + math.cos(math.pi * watch.share))
            for group in optimiser.param_groups:
                group["lr"] = rate
            loss = step(first, second)
            loss.backward()
            optimiser.step()
            optimiser.zero_grad()
            if watch.look():
                return


def headless() -> nn.Module:
    network = resnet18()
    network.fc = nn.Identity()
    return network


def frozen(backbone: nn.Module, source: Source):
    """Measures the backbone as it is, on a part of the images."""
    asked = evaluation_split(source.splits)
    part = {"train": source["train"].spread(CURVE_TRAIN)}
    part[asked] = source[asked].spread(CURVE_TEST)
    few = replace(source, splits=part)

    def measure() -> float:
        backbone.eval()
        with torch.no_grad():
            found = accuracies(backbone, few, probe=False)
        backbone.train()
        return found["knn"]

    return measure


def lightly_simclr(question: dict, watch: Watch) -> dict:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.transforms import SimCLRTransform

    backbone, source = headless(), opened(question)
    head, criterion = SimCLRProjectionHead(512, 512, 128), NTXentLoss()
    watch.measure = frozen(backbone, source)
    tutorial(
        question,
        watch,
        n=256,
        transform=SimCLRTransform(input_size=SIZE),
        step=lambda first, second: criterion(head(backbone(first)), head(backbone(second))),
        parts=[backbone, head],
    )
    return accuracies(backbone.eval(), source)


def lightly_moco(question: dict, watch: Watch) -> dict:
    from lightly.loss import NTXentLoss
    from lightly.models.modules import MoCoProjectionHead
    from lightly.models.utils import deactivate_requires_grad, update_momentum
    from lightly.transforms import MoCoV2Transform

    backbone, source = headless(), opened(question)
    head = MoCoProjectionHead(512, 512, 128)
    slow, slow_head = copy.deepcopy(backbone), copy.deepcopy(head)
    deactivate_requires_grad(slow)
    deactivate_requires_grad(slow_head)
    criterion = NTXentLoss(temperature=0.1, memory_bank_size=(4096, 128))
    watch.measure = frozen(backbone, source)

    def step(first, second):
        update_momentum(backbone, slow, m=0.99)
        update_momentum(head, slow_head, m=0.99)
        with torch.no_grad():
            key = slow_head(slow(second))
        return criterion(head(backbone(first)), key)

    transform = MoCoV2Transform(input_size=SIZE)
    tutorial(question, watch, n=512, transform=transform, step=step, parts=[backbone, head])
    return accuracies(backbone.eval(), source)


def stable_pretraining_simclr(question: dict, watch: Watch) -> dict:
    import lightning
    from stable_pretraining import Module
    from stable_pretraining.data import transforms
    from stable_pretraining.forward import simclr
    from stable_pretraining.losses import NTXEntLoss

    view = transforms.Compose(
        transforms.RGB(),
        transforms.RandomResizedCrop((SIZE, SIZE)),
        transforms.RandomHorizontalFlip(p=0.5),
        transforms.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1, p=0.8),
        transforms.RandomGrayscale(p=0.2),
        transforms.ToImage(mean=IMAGENET[0], std=IMAGENET[1]),
    )
    both = transforms.MultiViewTransform([view, view])
    backbone, source = headless(), opened(question)
    items = Items(source, lambda image: both({"image": image, "label": 0}))
    module = Module(
        backbone=backbone,
        projector=nn.Sequential(nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 128)),
        forward=simclr,
        simclr_loss=NTXEntLoss(temperature=0.5),
        optim={"optimizer": {"type": "Adam", "lr": RATE_OF_ADAM}},
    )
    watch.measure = frozen(backbone, source)

    class UntilTimeIsOver(lightning.Callback):
        """The cosine over the whole time, and its end."""

        def on_train_batch_end(self, trainer, *_: object) -> None:
            """A step has ended."""
            for optimiser in trainer.optimizers:
                for group in optimiser.param_groups:
                    group["lr"] = RATE_OF_ADAM * (1 + math.cos(math.pi * watch.share)) / 2
            trainer.should_stop = watch.look()

    trainer = lightning.Trainer(
        max_epochs=100_000,
        accelerator="cpu",
        precision="bf16-mixed",
        callbacks=[UntilTimeIsOver()],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    n = min(256, 1 << (len(items).bit_length() - 1))
    loader = DataLoader(items, batch_size=n, shuffle=True, drop_last=True, num_workers=2)
    trainer.fit(module, loader)
    return accuracies(backbone.eval(), source)


def ours(question: dict, watch: Watch) -> dict:
    """`eqco train FOLDER --minutes …`, with its own learning curve."""
    with tempfile.TemporaryDirectory() as place:
        began, seen, about = time.perf_counter(), {}, []
        source = opened(question)
        outcome = train(
            source,
            out=Path(place) / "run",
            minutes=question["minutes"],
            seed=question["seed"],
            on_start=about.append,
            show=lambda report: seen.update({report.step: time.perf_counter() - began}),
        )
        if outcome.stopped_by is not None:
            raise SystemExit(f"the training was stopped at step {outcome.step}; it says nothing")
        recipe = about[0].recipe
        run = RunDirectory(outcome.path)
        probes = [
            (line["step"], value)
            for line in run.read_metrics()
            for name, value in line.items()
            if name.startswith("probe/")
        ]
        # the probe during training is on validation images: a curve to look at, no result
        watch.curve = [
            (min(t for s, t in seen.items() if s >= step) / 60, value) for step, value in probes
        ]
        encoder = load(run.path)
        found = accuracies(encoder.features, source, size=recipe.data.image_size)
        minutes = max(seen.values()) / 60
        return found | {"minutes": minutes, "epochs": recipe.training.epochs}


OURS = {"eqco": ours, SOONER: ours}
PEERS = {"lightly SimCLR": lightly_simclr, "lightly MoCo": lightly_moco}
# heavy to install, so it takes part only where it is there
if find_spec("stable_pretraining"):
    PEERS["stable-pretraining SimCLR"] = stable_pretraining_simclr


def references(question: dict) -> dict:
    """What needs no training."""
    source = opened(question)
    torch.manual_seed(question["seed"])
    encoders = {
        "raw pixels": Pixels(SIZE),
        "colour histogram": ColourHistogram(*IMAGENET),
        "random ResNet-18": headless().eval(),
        "random light encoder": backbone_named("light").eval(),
    }
    return {name: accuracies(encoder, source) for name, encoder in encoders.items()}


def child(question: dict) -> dict:
    torch.manual_seed(question["seed"])
    if question["name"] == REFERENCES:
        return references(question)
    watch = Watch(question["minutes"])
    stdout, sys.stdout = sys.stdout, sys.stderr
    found = (OURS | PEERS)[question["name"]](question, watch)
    sys.stdout = stdout
    return found | {"curve": watch.curve}


def peer_versions(peers: list[str]) -> dict[str, str]:
    """Of the packages that took part."""
    packages = {peer.split()[0] for peer in peers} | {"torch"}
    return {name: importlib.metadata.version(name) for name in sorted(packages)}


def show(title: str, answers: dict[str, dict]) -> None:
    print(f"\n{title:<32}{'kNN %':>8}{'probe %':>10}")
    for name, answer in answers.items():
        print(f"{name:<32}{100 * answer['knn']:8.1f}{100 * answer['probe']:10.1f}", flush=True)


def main() -> None:
    parser = command_line(__doc__, quick=False)
    parser.add_argument(
        "data", nargs="*", metavar="NAME=FOLDER[:COUNT]", default=["photos=groceries"]
    )
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    everybody = [REFERENCES, *OURS, *PEERS]
    parser.add_argument(
        "--only",
        nargs="+",
        choices=everybody,
        default=everybody,
        metavar="NAME",
        help="of " + ", ".join(everybody),
    )
    options = read_options(parser, child)
    for name, (folder, images) in named_folders(options.data).items():
        for seed in options.seeds:
            begun = time.time()
            common = {"folder": folder, "images": images, "seed": seed}
            answers = measure_all(common, options.minutes, options.only)
            show(f"{name}, seed {seed}", answers)
            metrics = {
                f"{name}/{contender}/{seed}/{measure}": answer[measure]
                for contender, answer in answers.items()
                for measure in ("knn", "probe", "minutes", "epochs", "cores")
                if measure in answer
            }
            curves = {name: {each: of["curve"] for each, of in answers.items() if "curve" in of}}
            if options.record:
                recipe = {"data": {name: images}, "minutes": options.minutes, "threads": THREADS}
                recipe |= {"peers": peer_versions([peer for peer in PEERS if peer in answers])}
                recipe |= {"rows": options.only}
                keep_record("bench-quality", recipe, metrics, begun, curves=curves, seed=seed)


def measure_all(common: dict, minutes: float, contenders: list[str]) -> dict[str, dict]:
    """What each contender reached; one that failed is named and left out."""
    environment, answers = {"OMP_NUM_THREADS": str(THREADS)}, dict[str, dict]()
    for contender in contenders:
        given = SHARE * minutes if contender == SOONER else minutes
        question = {**common, "name": contender, "minutes": given}
        began, busy = time.perf_counter(), processor_seconds()
        answer = in_own_process(__file__, question, 3600 + 600 * minutes, environment)
        share = (processor_seconds() - busy) / (time.perf_counter() - began) / THREADS
        if share < LEAST_OF_CORES:
            print(f"{contender}: had {share:.0%} of the core(s), too little to be compared")
        if "error" in answer:
            print(f"{contender}, seed {common['seed']}: {answer['error']}")
        elif contender == REFERENCES:
            answers |= answer
        else:
            answers[contender] = answer | {"cores": share}
    return answers


if __name__ == "__main__":
    main()
