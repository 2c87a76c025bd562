"""What would run on a GPU, without one: where tensors are, and where the host waits for the device.

Tensors on "cuda" have shape and type but no values here (torch's FakeTensorMode), those of the CPU
are real. So an operation that mixes the two fails, a generator of the wrong device fails, and each
read of a value by the host is noted, and each copy to the device that the host waits for. What
needs the device itself is not covered: backward and the optimiser, pinned memory, random states,
and several GPUs.
"""

import math
import sys
import tarfile
from collections import Counter
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from fake_cuda import needs_fake_cuda
from PIL import Image
from together import Pictures, TinyBackbone, light, simo, tiny
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import eqco
from eqco.assembly import build_components
from eqco.assembly.loaded import LoadedEncoder
from eqco.contrast import (
    Contrast,
    KeyQueue,
    Negatives,
    Objective,
    combine_negatives,
    in_batch_negatives,
    sampled_negatives,
)
from eqco.data import Augment, DataSettings, StepLoader, ViewSpec, open_source, source_from_dataset
from eqco.data.cache import CachedImages, fill_cache
from eqco.data.parameters import draw_parameters
from eqco.data.pipelines import INFOMIN, MOCO_V1, MOCO_V2, SIMCLR
from eqco.data.shards import index_shards
from eqco.detection.batches import TrainingBatches
from eqco.detection.folders import open_annotated
from eqco.detection.squares import write_squares
from eqco.encoders import Encoder, linear_head
from eqco.evaluation import extract_features, knn_accuracy, probe_accuracy
from eqco.evaluation.features import Features
from eqco.methods import (
    METHODS,
    BYOLSettings,
    CMCSettings,
    CPCSettings,
    MoCoSettings,
    MoCoV3Settings,
    PIRLSettings,
    SimCLRSettings,
    SimCLRv2Settings,
    SwAVSettings,
)
from eqco.recipes import Recipe
from eqco.recipes.profiles import scale_method
from eqco.runtime.devices import copy_to
from eqco.training.cached_step import in_pieces
from eqco.training.diagnostics import diagnose
from eqco.training.loop import diagnose_step, largest_weight, mean, warm_up

pytestmark = needs_fake_cuda

# Where the host is meant to wait for the device, and why.
MEANT = {
    "assembly.loaded.refuse_unprepared": "the first images that a user gives to a loaded encoder",
    "contrast.diagnostics.read_contrast": "numbers for the log, every diagnose_every steps",
    "contrast.diagnostics.diagnose_embeddings": "the same without cosines to negatives",
    "evaluation.features.extract_several": "features are kept on the host, batch by batch",
    "training.loop.mean": "the loss for the log and the alarms, every log_every steps",
    "training.loop.largest_weight": "stops a training whose weights are not finite",
}
PACKAGE = Path(eqco.__file__).parent
PICTURES = source_from_dataset(Pictures())
aten = torch.ops.aten
READS = {aten._local_scalar_dense.default, aten.equal.default}
SHAPED_BY_VALUES = {aten.nonzero.default, aten._unique2.default, aten.masked_select.default}


class PretendGPU(TorchDispatchMode):
    """Operations on "cuda" without values, those on the CPU as they are; notes where one waits."""

    def __init__(self):
        super().__init__()
        self.waits = Counter()
        self.copies = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        given = tree_leaves((args, kwargs))
        on_gpu = any(isinstance(each, FakeTensor) and each.is_cuda for each in given)
        target = kwargs.get("device")
        to_gpu = target is not None and torch.device(target).type == "cuda"
        if not on_gpu and not to_gpu:
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        for each in given:
            if isinstance(each, torch.Generator) and each.device.type != "cuda":
                raise RuntimeError(f"{func} on cuda with a generator of {each.device}")
        if is_blocking_copy(func, args, kwargs):
            self.note(self.copies)
        if func in READS:
            self.note(self.waits)
            return 1
        if func in SHAPED_BY_VALUES:
            self.note(self.waits)
            raise RuntimeError(f"{func} on cuda: the host waits for a shape")
        if (on_gpu and target is not None and not to_gpu) or is_copy_to_cpu(func, args):
            self.note(self.waits)
            with unset_fake_temporarily():
                if func is aten.copy_.default:
                    return args[0].zero_()
                return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype)
        return func(*args, **kwargs)

    def note(self, counter):
        frame = sys._getframe(2)
        while frame and PACKAGE not in Path(frame.f_code.co_filename).parents:
            frame = frame.f_back
        if frame is None:
            counter["outside the package"] += 1
            return
        place = Path(frame.f_code.co_filename).relative_to(PACKAGE).with_suffix("")
        counter[".".join([*place.parts, frame.f_code.co_qualname])] += 1


def is_copy_to_cpu(func, args):
    return func is aten.copy_.default and not args[0].is_cuda and args[1].is_cuda


def is_blocking_copy(func, args, kwargs):
    """To the device, where the host waits until all is done that the device was given before."""
    if func is aten._to_copy.default:
        return not args[0].is_cuda and not kwargs.get("non_blocking")
    to_gpu = func is aten.copy_.default and args[0].is_cuda and not args[1].is_cuda
    return to_gpu and args[2:] != (True,) and not kwargs.get("non_blocking")


@contextmanager
def pretended_gpu():
    """Checks at the end that nothing waited but what is meant to."""
    with FakeTensorMode(allow_non_fake_inputs=True), PretendGPU() as gpu:
        yield gpu
    assert set(gpu.waits) <= set(MEANT), gpu.waits


@pytest.fixture(params=[False, True], ids=["plain", "default device"])
def gpu(request):
    with pretended_gpu() as found:
        found.default = torch.device("cuda") if request.param else nullcontext()
        yield found


@contextmanager
def bfloat16_on_gpu():
    """What auto chooses there; `torch.autocast` itself asks for the driver."""
    torch.set_autocast_dtype("cuda", torch.bfloat16)
    torch.set_autocast_enabled("cuda", True)
    torch.autocast_increment_nesting()
    try:
        yield
    finally:
        torch.autocast_decrement_nesting()
        torch.set_autocast_enabled("cuda", False)
        torch.clear_autocast_cache()


def vectors(*shape):
    return torch.randn(*shape, device="cuda")


@pytest.mark.parametrize(
    "pipeline", [MOCO_V1, MOCO_V2, SIMCLR, INFOMIN], ids=["v1", "v2", "simclr", "infomin"]
)
def test_augmentation(gpu, pipeline):
    images = torch.zeros(8, 3, 40, 40, dtype=torch.uint8, device="cuda")
    with gpu.default:
        parameters = draw_parameters(pipeline, 8, seed=0, step=0, view=0)
        assert Augment(pipeline, 32)(images, parameters).is_cuda
    assert not gpu.copies


CASES = {
    "simo": tiny(simo()),
    "simo, all": tiny(simo(count=None)),
    "simo, shared": tiny(simo(shared=True)),
    "simo, queue": tiny(simo(queue_size=21)),
    "simo, shuffling": tiny(simo(shuffle_bn=True), bn_groups=4, head="mlp"),
    "moco": tiny(MoCoSettings(queue_size=40), bn_groups=4),
    "simclr": tiny(SimCLRSettings()),
    "simclr, drawn": tiny(SimCLRSettings(count=4)),
    "simclr, other view": tiny(SimCLRSettings(both_views=False)),
    "simclrv2": tiny(SimCLRv2Settings(queue_size=40)),
    "mocov3": tiny(MoCoV3Settings()),
    "byol": tiny(BYOLSettings()),
    "swav": tiny(
        SwAVSettings(num_prototypes=8, small_views=1, queue_size=16, queue_epoch=0),
        data=DataSettings(image_size=12),
    ),
    "moco, K < N": tiny(MoCoSettings(queue_size=5, shuffle_bn=False)),
    "cpc": tiny(CPCSettings(grid=3), data=DataSettings(image_size=12)),
    "cpc, sampled": tiny(
        CPCSettings(grid=3, other_images_only=True, count=5), data=DataSettings(image_size=12)
    ),
    "cpc, dot": tiny(CPCSettings(grid=3, similarity="dot"), data=DataSettings(image_size=12)),
    "cpc, colour drop": tiny(
        CPCSettings(grid=3, colour_drop=True), data=DataSettings(image_size=12)
    ),
    "cmc, nce": light(CMCSettings(count=9, loss="nce")),
    "pirl, own draws": light(PIRLSettings(count=9, shared=False)),
}
# and every method of the catalog as it comes
CASES |= {
    name: light(scale_method(kind(), ema_decay=0.9, memory=40))
    for name, kind in METHODS.items()
    if name not in CASES
}


def on_gpu(recipe):
    own = TinyBackbone() if recipe.encoder.backbone == Recipe().encoder.backbone else None
    return build_components(recipe, PICTURES, backbone=own, device="cuda")


@pytest.mark.parametrize("recipe", CASES.values(), ids=CASES)
def test_steps_of_every_method_without_backward(gpu, recipe):
    components = on_gpu(recipe)
    method = components.method
    gpu.copies.clear()
    with gpu.default:
        for step in range(2):
            (batch,) = components.loader.micro_batches(step)
            method.warm_up(batch)
            output = method(batch, step)
            assert output.loss.is_cuda
            method.after_step(output)
        assert not gpu.waits
        assert not gpu.copies
        mean(output.loss)
        largest_weight(method)
        diagnose_step(output, components.objective)
    cosines = output.contrasts and components.objective.similarity == "cosine"
    reader = "read_contrast" if cosines else "diagnose_embeddings"
    waits = {name for name in MEANT if name.startswith("training.")}
    assert set(gpu.waits) == {*waits, f"contrast.diagnostics.{reader}"}


@pytest.mark.parametrize("recipe", CASES.values(), ids=CASES)
def test_steps_of_every_method_in_bfloat16(recipe):
    """Features are, and the loss has left it."""
    with pretended_gpu() as gpu:
        components = on_gpu(recipe)
        method, features = components.method, []
        warm_up(components)  # in float32, as the training loop has it
        method.encoder.backbone.register_forward_hook(lambda *given: features.append(given[-1]))
        for step in range(2):
            (batch,) = components.loader.micro_batches(step)
            with bfloat16_on_gpu():
                output = method(batch, step)
            assert output.loss.is_cuda
            assert output.loss.dtype == torch.float32
            method.after_step(output)
        assert {each.dtype for each in features} == {torch.bfloat16}
        diagnose_step(output, components.objective)
    assert set(gpu.waits) <= {name for name in MEANT if name.startswith("contrast.")}


@pytest.mark.parametrize("name", ["simo", "moco", "simclr", "byol"])
def test_a_batch_in_pieces_that_share_a_loss(gpu, name, monkeypatch):
    monkeypatch.setattr("eqco.training.cached_step.random_states", lambda devices: [])
    recipe = replace(CASES[name], encoder=replace(CASES[name].encoder, bn_groups=1))
    components = on_gpu(recipe)
    with gpu.default:
        (batch,) = components.loader.micro_batches(0)
        components.method.warm_up(batch)
        with in_pieces(components.method, len(batch.index) // 2) as encoders:
            output = components.method(batch, 0)
        assert output.loss.is_cuda
        assert any(encoder.calls for encoder in encoders)
    assert not gpu.waits


@pytest.fixture
def pictures_in_files(tmp_path):
    for number in range(8):
        place = tmp_path / f"{number % 2}"
        place.mkdir(exist_ok=True)
        Image.new("RGB", (20 + number, 24)).save(place / f"{number}.png")
    return tmp_path


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true")
@pytest.mark.parametrize("workers", [0, 1])
def test_views_of_images_in_files(gpu, workers, pictures_in_files):
    with gpu.default:
        split = open_source(str(pictures_in_files), unlabelled=True)["train"]
        views = [ViewSpec(MOCO_V2, 16)] * 2
        loader = StepLoader(split, views, num_queries=4, seed=0, device="cuda", workers=workers)
        assert loader.pixels is None  # read in every step
        for (batch,) in loader.iterate(0, 2):
            assert all(view.is_cuda for view in (*batch.views, batch.index))
    assert not gpu.waits
    assert not gpu.copies


def test_a_cache_shards_and_batches_of_a_detector(gpu, pictures_in_files, tmp_path_factory):
    """What reads with workers of its own draws nothing on the device, whichever is the default."""
    out = tmp_path_factory.mktemp("out")
    files = open_source(str(pictures_in_files))["train"].images
    cached = CachedImages(files, out / "cache", 16)
    with tarfile.open(out / "photos.tar", "w") as shard:
        shard.add(pictures_in_files, arcname=".")
    write_squares(out, images={"train": 2}, side=48)
    annotated = open_annotated(out, "train")
    with gpu.default:
        fill_cache(cached)
        assert len(index_shards([str(out / "photos.tar")])["names"]) == len(files)
        (batch,) = TrainingBatches(annotated, num_images=2, seed=0).iterate(0, 1)
    assert cached.read(0).size == (16, 19)
    assert not any(image.is_cuda for image, _ in batch)
    assert not gpu.waits


def drawn(count, **settings):
    def make(keys):
        return sampled_negatives(in_batch_negatives(keys), count, seed=0, step=0, **settings)

    return make


SOURCES = {
    "batch": in_batch_negatives,
    "both views": lambda keys: in_batch_negatives(keys, keys),
    "drawn": drawn(5),
    "shared": drawn(5, shared=True),
    "pool": Negatives,
    "with a queue": lambda keys: combine_negatives(drawn(5)(keys), Negatives(vectors(30, 8))),
}


@pytest.mark.parametrize("alpha", [None, 64.0])
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_loss_with_every_source_of_negatives(gpu, source, alpha):
    with gpu.default:
        contrast = Contrast(vectors(16, 8), vectors(16, 8), source(vectors(16, 8)))
        assert Objective(temperature=0.2, alpha=alpha)([contrast]).is_cuda


@pytest.mark.parametrize("alpha", [None, 64, math.inf])
def test_ids_weights_and_two_towers(gpu, alpha):
    queries, positives = torch.randn(2, 16, 8, device="cuda").unbind()
    ids = torch.zeros(16, dtype=torch.int64, device="cuda")
    settings = {"alpha": alpha, "temperature": 0.2, "on_empty": "skip"}
    for kind in (eqco.EqCoLoss, eqco.NTXentLoss, eqco.TwoTowerLoss):
        assert kind(**settings)(queries, positives, ids=ids).is_cuda
    weights = torch.zeros(16, device="cuda")
    assert eqco.EqCoLoss(**settings)(queries, positives, log_weights=weights).is_cuda
    remembering = eqco.RunningNormaliser(20, alpha=alpha).to("cuda")
    assert remembering(queries, positives, index=ids).is_cuda
    assert not gpu.waits


@pytest.mark.parametrize("capacity", [5, 16, 40])
def test_queue(gpu, capacity):
    queue = KeyQueue(capacity, 8).to("cuda")
    gpu.copies.clear()
    with gpu.default:
        for _ in range(3):
            queue.enqueue(vectors(16, 8))
            assert queue.negatives().keys.is_cuda
    assert not gpu.copies
    assert queue.negatives().num_negatives == min(48, capacity)


@pytest.mark.parametrize("kind", ["memory", "files"])
def test_features(gpu, kind, request):
    split = PICTURES["train"]
    if kind == "files":
        split = open_source(str(request.getfixturevalue("pictures_in_files")))["train"]
    network = TinyBackbone().to("cuda").eval()
    with gpu.default:
        train = extract_features(network, split, size=12, batch_size=32, device="cuda")
    assert train.values.device.type == "cpu"
    assert len(train.values) == len(split)
    assert set(gpu.waits) == {"evaluation.features.extract_several"}


def test_a_loaded_encoder_checks_the_first_images_alone(gpu):
    encoder = LoadedEncoder(Encoder(TinyBackbone(), linear_head(8, 4)), Recipe()).to("cuda")
    with gpu.default:
        for _ in range(3):
            assert encoder(vectors(4, 3, 12, 12)).is_cuda
    assert gpu.waits == {"assembly.loaded.refuse_unprepared": 1}


def test_knn_and_probe(gpu):
    """Features of the CPU, as `extract_features` gives them, under any default device."""
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(40, 5, generator=generator, device="cpu")
    features = Features(values, torch.arange(40, device="cpu") % 2)
    with gpu.default:
        assert knn_accuracy(features, features, neighbours=1) == 1
        assert probe_accuracy(features, features).accuracy > 0.5
    assert not gpu.waits


def test_a_stray_tensor_generator_or_wait_is_found():
    """Else the tests above could not fail."""
    with pretended_gpu() as gpu:
        with pytest.raises(RuntimeError, match="same device"):
            vectors(3) + torch.ones(3)
        with pytest.raises(RuntimeError, match="generator of cpu"):
            torch.randperm(3, generator=torch.Generator(), device="cuda")
        diagnose(
            [Contrast(vectors(4, 2), vectors(4, 2), Negatives(vectors(4, 2)))],
            temperature=0.2,
            alpha=None,
        )
        assert set(gpu.waits) == {"contrast.diagnostics.read_contrast"}


def peeking_function():
    """Code that would be a module of the package."""
    code = compile(
        "def peek(x):\n    return x.item()", str(PACKAGE / "methods" / "rude.py"), "exec"
    )
    found = {}
    exec(code, found)
    return found["peek"]


@pytest.mark.parametrize(
    ("read", "place"),
    [(peeking_function(), "methods.rude.peek"), (lambda x: x.item(), "outside the package")],
)
def test_a_wait_that_is_not_meant_fails(read, place):
    with pytest.raises(AssertionError, match=place), pretended_gpu():
        read(vectors(1))


@pytest.mark.parametrize(
    ("copy", "waits"),
    [
        (lambda x: x.to("cuda"), True),
        (lambda x: vectors(3).copy_(x), True),
        (lambda x: copy_to(torch.device("cuda"), x), False),
        (lambda x: vectors(3).copy_(x, non_blocking=True), False),
    ],
)
def test_a_copy_that_the_host_waits_for_is_found(copy, waits):
    with pretended_gpu() as gpu:
        copy(torch.ones(3))
        assert bool(gpu.copies) == waits
