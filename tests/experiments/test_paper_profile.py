"""The published settings start without editing: complete recipes, one step each on a CPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from eqco.assembly import build_components, learning_rate_at
from eqco.data import Source, open_source
from eqco.experiments import training_runs
from eqco.experiments.catalog import EXPERIMENTS
from eqco.experiments.experiment import RunContext
from eqco.experiments.grid import pretrain_and_evaluate
from eqco.experiments.tab2 import CELLS as TAB2_CELLS
from eqco.experiments.tab2 import FEW, OTHER_IMAGES
from eqco.experiments.tasks import framework, moco, simclr, simo
from eqco.experiments.training_runs import IMAGES
from eqco.recipes import RECIPES, named_recipe
from eqco.recipes.profiles import PAPER
from eqco.training.loop import optimise

IMAGENET = IMAGES["imagenet"]
NAMES = [name for name, each in EXPERIMENTS.items() if "embedded" in each.profiles]
RUNS = [
    (name, EXPERIMENTS[name].training(task).recipe, EXPERIMENTS[name].training(task))
    for name in NAMES
    for task in EXPERIMENTS[name].profiles.get("paper", ())
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """ImageNet with two classes of four images."""
    root = tmp_path_factory.mktemp("imagenet")
    for split in ("train", "val"):
        for label in ("n01440764", "n01443537"):
            place = root / split / label
            place.mkdir(parents=True)
            for number in range(4):
                pixels = np.random.default_rng(number).integers(0, 256, (300, 400, 3), np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.JPEG")
    return root


@pytest.fixture(scope="module")
def imagenet(folder):
    """The same images over and over: as many as ImageNet has."""
    source = open_source(folder, memory_gib=0)
    train = source["train"]
    many = train.subset(np.arange(IMAGENET) % len(train))
    return Source(source.name, {"train": many, "val": source["val"]})


# as published; 30 for the others
LINEAR_RATES = {"simclr": 0.1, "simclrv2": 0.1, "mocov3": 0.1, "byol": 0.2, "swav": 0.3}


def steps_per_epoch(recipe):
    return IMAGENET // recipe.training.num_queries


def test_every_run_is_a_resnet50_on_imagenet_by_the_linear_protocol():
    """But for the vision transformers among the recipes that a study compares."""
    for name, recipe, run in RUNS:
        patches = recipe.method.name == "cpc"  # 6 × 6 of 80 pixels, with layer norm
        transformer = name == "study-precision" and recipe.optimiser.name == "adamw"
        usual = "timm:vit_small_patch16_224" if transformer else "resnet50"
        assert recipe.encoder.backbone == ("resnet50-ln" if patches else usual), name
        assert recipe.data.image_size == (260 if patches else 224), name
        assert run.data == "imagenet", name
        rate = 3 if transformer else LINEAR_RATES.get(recipe.method.name, 30)
        assert run.accuracy.learning_rate == rate, name


def test_a_high_linear_rate_is_for_features_that_sgd_trained():
    """MoCo's rate of 30 is a hundred times that of systems trained by LARS."""
    for name, recipe, run in RUNS:
        if recipe.optimiser.name == "lars":
            assert run.accuracy.learning_rate <= 0.3, name


@pytest.mark.parametrize("name", ["cmc", "pirl", "infomin"])
def test_systems_of_pycontrast_are_evaluated_as_there(name):
    found = framework(name, PAPER).accuracy
    assert (found.epochs, found.weight_decay, found.drop_factor) == (60, 0, 0.2)
    assert [round(drop * found.epochs) for drop in found.drops] == [30, 40, 50]


def test_few_negatives_stand_in_for_those_of_the_system_they_are_taken_from():
    cells = [cell for cell in TAB2_CELLS["paper"] if cell.at.num_negatives == FEW]
    found = {cell.at.framework: cell.at.alpha for cell in cells if cell.at.alpha is not None}
    for name in ("MoCo v2", "InfoMin Aug.", "SimCLR v2", "MoCo v3", OTHER_IMAGES):
        assert found[name] == 65536, name
    assert (found["CMC"], found["PIRL"]) == (16384, 32000)


def test_runs_are_as_long_as_the_paper_says():
    found = {(name, recipe.training.epochs) for name, recipe, _ in RUNS}
    for name in ("fig1", "fig2", "fig3", "fig4", "tab1", "tab3", "tab4", "tab8"):
        assert {epochs for other, epochs in found if other == name} == {200}, name
    for name in ("tab6", "tab7"):
        assert {epochs for other, epochs in found if other == name} == {100}, name
    assert {epochs for name, epochs in found if name == "tab2"} == {200, 240, 800}


@pytest.mark.parametrize(
    ("run", "step", "rate"),
    [
        (simo(PAPER, count=16, alpha=256), 10 * 5004, 0.03 * (1 + np.cos(np.pi / 20)) / 2),
        (moco("mocov2", PAPER, count=65536, alpha=None), 0, 0.03),
        (moco("mocov2", PAPER, count=65536, alpha=None, num_queries=512), 0, 0.06),
        (moco("mocov2", PAPER, count=65536, alpha=None, num_queries=1024), 0, 0.12),
        (moco("mocov1", PAPER, count=65536, alpha=None), 119 * 5004, 0.03),
        (moco("mocov1", PAPER, count=65536, alpha=None), 120 * 5004, 0.003),
        (moco("mocov1", PAPER, count=65536, alpha=None), 160 * 5004, 0.0003),
        (simclr(PAPER, count=256, alpha=None), 10 * 5004, 0.3 * (1 + np.cos(np.pi / 20)) / 2),
    ],
)
def test_the_learning_rate_is_the_published_one(run, step, rate):
    recipe = run.recipe
    assert learning_rate_at(recipe, steps_per_epoch(recipe), step) == pytest.approx(rate)


def test_the_settings_of_the_recipes_are_the_published_ones():
    by_name = {
        "simo": simo(PAPER, count=16, alpha=256).recipe,
        "mocov1": moco("mocov1", PAPER, count=4, alpha=None).recipe,
        "mocov2": moco("mocov2", PAPER, count=4, alpha=None).recipe,
        "simclr": simclr(PAPER, count=4, alpha=None).recipe,
    }
    found = {
        name: (r.objective.temperature, r.encoder.head, r.data.pipeline, r.method.shuffle_bn)
        for name, r in by_name.items()
    }
    assert found == {
        "simo": (0.2, "normalised", "mocov2", False),
        "mocov1": (0.07, "linear", "mocov1", True),
        "mocov2": (0.2, "mlp", "mocov2", True),
        "simclr": (0.1, "normalised", "simclr", False),
    }
    assert by_name["simo"].method.ema_decay == by_name["mocov2"].method.ema_decay == 0.999
    assert by_name["simo"].optimiser.warmup_epochs == 10


@pytest.mark.parametrize(
    ("name", "run"),
    [
        ("simo", simo(PAPER, count=16, alpha=256)),
        ("mocov1", moco("mocov1", PAPER, count=65536, alpha=None)),
        ("mocov2", moco("mocov2", PAPER, count=65536, alpha=None)),
        ("simclr", simclr(PAPER, count=256, alpha=256)),
    ],
)
def test_a_run_of_published_numbers_is_the_named_recipe(name, run):
    """But for the checkpoints of MoCo v2 that Figure 2 needs."""
    named = named_recipe(name)
    keep_every = run.recipe.training.keep_every
    assert keep_every == (50 if name == "mocov2" else 0)
    assert run.recipe == replace(named, training=replace(named.training, keep_every=keep_every))


SIDES = {
    "cmc": [224],
    "pirl": [224, 255],
    "infomin": [224, 224, 255],
    "cpcv2": [260],
    "swav": [224] * 2 + [96] * 6,
}
DRAWING = ("simo", "simclr", "simclr-vit")  # more negatives than two images have
BANKS = ("cmc", "pirl")  # with a row for each image


@pytest.mark.end_to_end
@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_takes_a_step_at_its_published_sizes(name, imagenet):
    """As `eqco train --profile paper` assembles it, with as few queries as each allows; banks of
    70,000 images fit a small machine."""
    recipe = named_recipe(name)
    if recipe.encoder.backbone.startswith("timm:"):
        pytest.importorskip("timm")
    groups = min(2, recipe.encoder.bn_groups)
    num_queries = 2 * groups
    recipe = replace(
        recipe,
        training=replace(recipe.training, num_queries=num_queries),
        data=replace(recipe.data, workers=0),
        encoder=replace(recipe.encoder, bn_groups=groups),
        method=replace(recipe.method, count=1) if name in DRAWING else recipe.method,
    )
    fewer = {"train": imagenet["train"].subset(np.arange(70_000))}
    source = Source(imagenet.name, fewer) if name in BANKS else imagenet
    components = build_components(recipe, source)
    method, loader = components.method, components.loader
    assert loader.steps_per_epoch == len(source["train"]) // num_queries
    batches = loader.micro_batches(1)
    sides = SIDES.get(name, [224, 224])
    assert [view.shape for view in batches[0].views] == [(num_queries, 3, s, s) for s in sides]
    method.warm_up(*loader.micro_batches(0))
    before = {name: value.detach().clone() for name, value in method.encoder.named_parameters()}
    for group in components.optimiser.param_groups:
        group["lr"] = components.learning_rate(10 * loader.steps_per_epoch)
    output = optimise(components, torch.amp.GradScaler("cpu", enabled=False), batches, 0)
    assert output.loss.isfinite()
    expected = recipe.method.num_negatives(num_queries)
    assert bool(output.contrasts) == (expected is not None)
    for contrast in output.contrasts:
        assert contrast.queries.shape[1] == recipe.encoder.embedding_dim
        # the first batch is all that a queue holds
        filled = num_queries - recipe.method.queue_size if recipe.method.queue_size else 0
        assert contrast.negatives.num_negatives == expected + filled
    after = dict(method.encoder.named_parameters())
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    trained = [name for name, value in after.items() if value.requires_grad]
    assert trained[0] in moved
    assert any(name.startswith("head.") for name in moved)
    method.after_step(output)


def test_from_a_folder_to_the_linear_protocol(folder, tmp_path, monkeypatch):
    """The whole way of a run of this profile, with a small network and one epoch of each."""
    monkeypatch.setitem(training_runs.IMAGES, "imagenet", 8)
    monkeypatch.setitem(training_runs.TEST_IMAGES, "imagenet", 8)
    run = simo(PAPER, count=2, alpha=256)
    recipe = run.recipe
    recipe = replace(
        recipe,
        data=replace(recipe.data, image_size=32, workers=0),
        encoder=replace(recipe.encoder, backbone="light"),
        optimiser=replace(recipe.optimiser, warmup_epochs=0),
        training=replace(recipe.training, epochs=1, num_queries=4, diagnose_every=1),
    )
    linear = replace(run.accuracy, epochs=1, batch_size=4, learning_rate=0.1)
    run = replace(run, recipe=recipe, neighbours=8, accuracy=linear)
    context = RunContext(work=tmp_path, folders={"imagenet": folder})
    outcome = pretrain_and_evaluate(run, 0, context)
    diagnosed = {"information", "gradient_norm", "positive_probability"}
    assert set(outcome.metrics) == {"linear", "knn", *diagnosed}
    assert 0 <= outcome.metrics["linear"] <= 1
    assert outcome.curves["num_negatives"] == 2


def test_table_9_starts_from_the_trainings_of_table_2():
    """200 epochs of ImageNet are not done twice: same recipe, same folder."""
    shared = {task.run_name(0): task.recipe for task in EXPERIMENTS["tab2"].profiles["paper"]}
    needed = [task.pretraining for task in EXPERIMENTS["tab9"].profiles["paper"]]
    assert [pretraining is None for pretraining in needed] == [True, True, False, False]
    for pretraining in needed[2:]:
        assert shared[pretraining.run] == pretraining.recipe
