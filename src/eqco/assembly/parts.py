"""Recipe -> objects: the only package that sees both sides."""

import copy
import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed import GradBucket
from torch.nn.parallel import DistributedDataParallel

from eqco.assembly.compiling import check_compiler, compile_encoders, compiling_pays
from eqco.contrast import Objective
from eqco.contrast.normaliser import RememberingObjective
from eqco.data import Source, Split, StepLoader
from eqco.data.cache import CachedImages
from eqco.data.sources import divide
from eqco.encoders import (
    Encoder,
    Precision,
    backbone_named,
    byol_head,
    choose_precision,
    feature_dim_of,
    fix_patches,
    linear_head,
    mlp_head,
    mocov3_head,
    normalised_head,
    simclrv2_head,
    split_batch_norm,
    swav_head,
    sync_batch_norm,
    unset_gradients,
)
from eqco.evaluation import extract_features, knn_accuracy
from eqco.evaluation.knn import usual_neighbours
from eqco.methods import Method, MethodParts
from eqco.recipes import Recipe
from eqco.runtime import processes
from eqco.runtime.errors import InputError
from eqco.runtime.seeds import generator_for
from eqco.theory import scaled_learning_rate
from eqco.training.loggers import require_loggers
from eqco.training.loop import Intervals, TrainerComponents
from eqco.training.optimisers import LARS, adamw, sgd
from eqco.training.schedules import learning_rate_factor

__all__ = [
    "HELD_BACK",
    "build_components",
    "build_encoder",
    "build_evaluated_encoder",
    "check_processes",
    "learning_rate_at",
    "probed_splits",
    "scaled_rate",
    "training_split",
    "validation_splits",
]

REFUSALS = (RuntimeError, AssertionError, ValueError)  # of networks, by images they do not take
PROBED = 10_000, 2_000  # images, at most, that a kNN probe compares with and asks about
HELD_BACK = "a tenth of train"  # for validation, where no split with labels is
USUAL_SIZES = (32, 64, 96, 128, 224)

HEADS: dict[str, Callable[..., nn.Module]] = {
    "normalised": normalised_head,
    "mlp": mlp_head,
    "linear": linear_head,
    "simclrv2": simclrv2_head,
    "mocov3": mocov3_head,
    "byol": byol_head,
    "swav": swav_head,
}


def build_encoder(
    recipe: Recipe, backbone: nn.Module | None = None, number: int = 0, *, in_channels: int = 3
) -> Encoder:
    """Backbone and head with first weights drawn from the recipe's seed.

    A backbone of the user's own takes the place of the recipe's; each `number` of a method's
    encoders draws weights of its own.
    """
    settings, seed = recipe.encoder, recipe.training.seed
    if number:
        seed = generator_for("encoder", seed, number).initial_seed()
        backbone = copy.deepcopy(backbone)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if backbone is None:
            backbone = backbone_named(
                settings.backbone,
                width=settings.width,
                stem=settings.stem,
                in_channels=in_channels,
                image_size=recipe.data.image_size,
            )
            if settings.fixed_patches:
                fix_patches(backbone)
        head = HEADS[settings.head](feature_dim_of(backbone), settings.embedding_dim)
    return Encoder(backbone, head)


def build_evaluated_encoder(
    recipe: Recipe, backbone: nn.Module | None = None, *, in_channels: int = 3
) -> Encoder:
    """What is evaluated and exported of a run, with weights drawn as the recipe draws them.

    Those that `--init` gives are not in it. Of most methods it is `build_encoder`; CMC has two of
    them in one.
    """
    bands = in_channels

    def make_encoder(number: int = 0, in_channels: int | None = None) -> Encoder:
        own = bands if in_channels is None else in_channels
        return build_encoder(recipe, backbone, number, in_channels=own)

    return recipe.method.evaluated_encoder(make_encoder)


def convert_batch_norm(method: Method, bn_groups: int, device: torch.device) -> Method:
    """The method with the batch norm of all its networks over the processes that there are.

    Groups of shuffling BN keep their number: each process has its share of them.
    """
    count = processes.world_size()
    if bn_groups == 1:
        return method if count == 1 else sync_batch_norm(method, device)
    groups = bn_groups // count
    return split_batch_norm(method, groups) if groups > 1 else method


def build_components(
    recipe: Recipe,
    source: Source,
    *,
    backbone: nn.Module | None = None,
    fill: Callable[[Method], None] = lambda method: None,
    device: torch.device | str = "cpu",
    cached: CachedImages | None = None,
    unreadable_list: Path | None = None,
    distributed: bool = True,
) -> TrainerComponents:
    """Everything the training loop drives.

    Args:
        backbone: a module of the user's in place of the recipe's.
        fill: sets first weights that are not to be drawn.
        cached: the images of the training split, read from the cache.
        unreadable_list: the file that names images which had to be skipped.
        distributed: average gradients over processes; False: the caller does.
    """
    split = training_split(source)
    if len(split) < 2:
        raise InputError(
            f"the split {split.name!r} has {len(split)} image; contrast needs at least 2."
        )
    if cached is not None:
        split = replace(split, images=cached)
    check_device(device)
    device = torch.device(device)
    check_processes(recipe, processes.world_size())
    require_loggers(recipe.training.logger)
    settings, views = recipe.training, recipe.method.views(recipe.data)
    together = settings.accumulation == "cached"
    loader = StepLoader(
        split,
        views,
        num_queries=settings.num_queries,
        seed=settings.seed,
        rank=processes.rank(),
        world_size=processes.world_size(),
        accumulation_steps=1 if together else settings.accumulation_steps,
        workers=recipe.data.workers,
        device=device,
        channels_last=settings.channels_last,
        on_unreadable=recipe.data.on_unreadable,
        unreadable_list=unreadable_list,
    )
    check_queue(recipe, loader.steps_per_epoch)
    intervals = build_intervals(recipe, loader.steps_per_epoch)
    objective = build_objective(recipe, len(split))

    def make_encoder(number: int = 0, in_channels: int | None = None) -> Encoder:
        bands = source.channels if in_channels is None else in_channels
        encoder = build_encoder(recipe, backbone, number, in_channels=bands)
        own = None if backbone is None else type(backbone).__name__
        check_images_fit(encoder, recipe, bands, network=own)
        return encoder

    method = recipe.method.build(
        MethodParts(
            make_encoder=make_encoder,
            objective=objective,
            total_steps=intervals.total_steps,
            seed=settings.seed,
            num_images=len(split),
            channels=source.channels,
            steps_per_epoch=loader.steps_per_epoch,
        )
    )
    fill(method)
    method = convert_batch_norm(method, recipe.encoder.bn_groups, device).to(device)
    if settings.channels_last:
        method = method.to(memory_format=torch.channels_last)
    precision = choose_precision(settings.precision, device)
    if precision == "bfloat16" and device.type == "cpu":
        precision = check_bfloat16(method.encoder, recipe, source.channels)
    compiled = settings.compile
    if compiled == "auto":
        at_once, size = recipe.method.encoded_at_once(recipe.micro_batch_size, recipe.data)
        compiled = not together and compiling_pays(
            method.encoder,
            num_images=at_once,
            size=size,
            passes=intervals.total_steps * settings.accumulation_steps,
            precision=precision,
            bn_groups=recipe.encoder.bn_groups,
        )
    elif compiled:
        check_compiler(device)
    if compiled:
        compile_encoders(method)
    averaging = distributed and processes.world_size() > 1
    return TrainerComponents(
        method=method,
        distributed=build_distributed(method, device) if averaging else None,
        objective=objective,
        loader=loader,
        optimiser=build_optimiser(recipe, method),
        learning_rate=partial(learning_rate_at, recipe, loader.steps_per_epoch),
        intervals=intervals,
        precision=precision,
        compiled=compiled,
        pieces=settings.accumulation_steps if together else 1,
        probe=build_probe(recipe, probed_splits(with_split(source, split))),
        loggers=settings.logger,
    )


def training_split(source: Source) -> Split:
    """The images to train on: those without labels where there are such."""
    return source["unlabelled"] if "unlabelled" in source else source["train"]


def build_distributed(method: nn.Module, device: torch.device) -> DistributedDataParallel:
    """The method with gradients averaged over processes, from the first one's weights.

    Statistics are not copied between processes: batch norm is synchronised, or meant to differ.
    """
    where = [device] if device.type == "cuda" else None
    known = inspect.signature(DistributedDataParallel).parameters
    copying = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"
    options: dict[str, Any] = {"device_ids": where, copying: False}
    distributed = DistributedDataParallel(method, gradient_as_bucket_view=True, **options)
    if device.type == "cpu" and processes.exchanges_directly():
        distributed.register_comm_hook(None, average_bucket)
    return distributed


def average_bucket(state: None, bucket: GradBucket) -> torch.futures.Future[Tensor]:
    """Let DDP's gradients of a bucket become their mean over processes."""
    done: torch.futures.Future[Tensor] = torch.futures.Future()
    done.set_result(processes.average_in_place(bucket.buffer()))
    return done


def check_device(device: torch.device | str) -> None:
    """Refuse a device that this machine does not have."""
    device = processes.parse_device(device)
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"--device {device} cannot be used here: {reason}") from error


def build_objective(recipe: Recipe, num_images: int) -> Objective | RememberingObjective:
    """The loss, with the memory that the recipe asks for."""
    wanted = recipe.objective
    if wanted.normaliser == "batch":
        return Objective(
            temperature=wanted.temperature,
            alpha=wanted.alpha,
            second_temperature=wanted.second_temperature,
            similarity=recipe.method.similarity,
        )
    return RememberingObjective(
        num_images if wanted.normaliser == "instance" else 1,
        recipe.method.num_contrasts,
        temperature=wanted.temperature,
        alpha=wanted.alpha,
        source=wanted.normaliser,
        decay=wanted.normaliser_decay,
    )


def check_processes(recipe: Recipe, count: int) -> None:
    """Refuse a number of processes that cannot share the batch, or its groups of batch norm."""
    if count < 1:
        raise InputError(f"--processes {count}; it must be at least 1.")
    if count > 1 and recipe.training.accumulation == "cached":
        raise InputError(
            f"training.accumulation=cached with {count} processes: batch norm would see other "
            f"images than in one. Give --training.accumulation independent, or one process."
        )
    size, groups = recipe.micro_batch_size, recipe.encoder.bn_groups
    if size % count:
        raise InputError(
            f"training.num_queries={recipe.training.num_queries} over training.accumulation_steps="
            f"{recipe.training.accumulation_steps} makes micro-batches of {size}, which {count} "
            f"processes cannot share equally. Choose a multiple of {count}."
        )
    if groups > 1 and groups % count:
        raise InputError(
            f"encoder.bn_groups={groups} with {count} processes: shuffling BN normalises at least "
            f"one group in each. Choose a multiple of {count}, or a number of processes that "
            f"divides {groups}."
        )


def check_images_fit(
    encoder: Encoder, recipe: Recipe, channels: int, *, network: str | None = None
) -> None:
    """Refuse a network that does not take such images, before anything is written.

    `network` is the name of a module of the user's; what it does not take, it may in another size.
    """
    mode = encoder.training
    for size in sorted(set(recipe.method.input_sizes(recipe.data))):
        try:
            take_images(encoder, size, channels)
        except InputError:
            raise
        except REFUSALS as error:
            taken = None if network is None else usual_size_taken(encoder, recipe, channels)
            remedy = "" if taken is None else f". It takes {taken}: give image_size={taken}"
            raise InputError(
                f"the backbone {network or recipe.encoder.backbone} does not take images of {size} "
                f"pixels and {channels} bands, with data.image_size={recipe.data.image_size}: "
                f"{error}{remedy}"
            ) from error
    encoder.train(mode)


@torch.no_grad()
def take_images(encoder: Encoder, size: int, channels: int) -> None:
    """Let the network see two images; its own errors pass."""
    encoder.eval()(torch.zeros(2, channels, size, size))


def usual_size_taken(encoder: Encoder, recipe: Recipe, channels: int) -> int | None:
    """The first of the usual image sizes whose views the network takes all; None: none of them."""
    for usual in USUAL_SIZES:
        try:
            for size in recipe.method.input_sizes(replace(recipe.data, image_size=usual)):
                take_images(encoder, size, channels)
        except REFUSALS:
            continue
        return usual
    return None


def check_bfloat16(encoder: Encoder, recipe: Recipe, channels: int) -> Precision:
    """The precision of a CPU that has bfloat16; refused if asked for where gradients are wrong."""
    sizes = sorted(set(recipe.method.input_sizes(recipe.data)))
    for size in sizes:
        names = unset_gradients(encoder.backbone, size, channels)
        if names and recipe.training.precision == "auto":
            return "float32"
        if names:
            raise InputError(
                f"training.precision=bfloat16, but in views of {size} pixels the convolution "
                f"{names[0]!r} of {type(encoder.backbone).__name__} sees less than its stride, and "
                f"on CPUs torch does not set its gradient then. Give --training.precision float32, "
                f"or larger images (--data.image-size; now {recipe.data.image_size})."
            )
    return "bfloat16"


def check_queue(recipe: Recipe, steps_per_epoch: int) -> None:
    """Refuse a queue that is sure to hold the images of a batch already, of the epoch before.

    It is filled from the last batch of the first epoch, so its keys must be gone when that comes.
    """
    method, num_queries = recipe.method, recipe.training.num_queries
    most = (steps_per_epoch - 1) * num_queries
    if method.queue_size > most:
        why, remedy = method.shorter_queue(most, recipe.contrasted_size)
        raise InputError(
            f"method.queue_size={method.queue_size}, but an epoch has {steps_per_epoch} "
            f"batch{'es' * (steps_per_epoch != 1)} of {num_queries}: the queue would hold {why}. "
            f"{remedy}."
        )


def build_intervals(recipe: Recipe, steps_per_epoch: int) -> Intervals:
    """The recipe's epochs as steps."""
    training = recipe.training
    return Intervals(
        total_steps=training.epochs * steps_per_epoch,
        warmup_steps=round(recipe.optimiser.warmup_epochs * steps_per_epoch),
        log_every=training.log_every,
        diagnose_every=training.diagnose_every,
        save_every=training.save_every * steps_per_epoch,
        keep_every=training.keep_every * steps_per_epoch,
        probe_every=training.probe_every * steps_per_epoch,
    )


def build_optimiser(recipe: Recipe, method: Method) -> torch.optim.Optimizer:
    """SGD with the published settings, LARS or AdamW, over all that is trained."""
    settings = recipe.optimiser
    makers: dict[str, Callable[..., torch.optim.Optimizer]] = {
        "sgd": sgd,
        "lars": LARS,
        "adamw": adamw,
    }
    return makers[settings.name](
        [parameter for parameter in method.parameters() if parameter.requires_grad],
        scaled_rate(recipe),
        sgd_momentum=settings.sgd_momentum,
        weight_decay=settings.weight_decay,
    )


def scaled_rate(recipe: Recipe) -> float:
    """The peak learning rate: the base rate scaled to N (Eq. 8)."""
    settings = recipe.optimiser
    return scaled_learning_rate(
        settings.base_learning_rate,
        recipe.training.num_queries,
        settings.reference,
        rule=settings.rule,
    )


def learning_rate_at(recipe: Recipe, steps_per_epoch: int, step: int) -> float:
    """The learning rate at a step."""
    settings = recipe.optimiser
    return scaled_rate(recipe) * learning_rate_factor(
        step,
        schedule=settings.schedule,
        total_steps=recipe.training.epochs * steps_per_epoch,
        warmup_steps=round(settings.warmup_epochs * steps_per_epoch),
        drops=tuple(drop * steps_per_epoch for drop in settings.drops),
    )


def validation_splits(source: Source) -> tuple[Split, Split] | None:
    """Train and val; without labels in val, train less a tenth of each class, and that tenth.

    Test images are for `eqco eval` alone. The tenth is trained on, but without its labels.
    """
    train = source.splits.get("train")
    if train is None or train.labels is None:
        return None
    if "val" in source and source["val"].labels is not None:
        return train, source["val"]
    parts = divide(train, val_fraction=0.1, test_fraction=0.0, seed=0)
    if "val" not in parts:
        return None
    return parts["train"], replace(parts["val"], name=HELD_BACK)


def probed_splits(source: Source) -> tuple[Split, Split] | None:
    """What the kNN probe of a training takes: the validation splits, or a part of large ones."""
    splits = validation_splits(source)
    return None if splits is None else (splits[0].spread(PROBED[0]), splits[1].spread(PROBED[1]))


def with_split(source: Source, split: Split) -> Source:
    """The source with another split of that name."""
    return replace(source, splits={**source.splits, split.name: split})


def build_probe(
    recipe: Recipe, splits: tuple[Split, Split] | None
) -> Callable[[nn.Module], dict[str, float]] | None:
    """A kNN probe where the data has labels to train and to test on."""
    if splits is None:
        return None
    train_split, test_split = splits
    neighbours = usual_neighbours(len(train_split))

    def probe(encoder: nn.Module) -> dict[str, float]:
        assert isinstance(encoder, Encoder)
        # the same weights uncompiled: this mode and each size of batch would be compiled anew
        plain = Encoder(copy.copy(encoder.backbone), encoder.head)
        features = [
            extract_features(
                plain.features,
                split,
                size=recipe.data.image_size,
                device=next(encoder.parameters()).device,
                workers=recipe.data.workers,
                on_unreadable=recipe.data.on_unreadable,
            )
            for split in (train_split, test_split)
        ]
        accuracy = knn_accuracy(features[1], features[0], neighbours=neighbours)
        return {f"knn{neighbours}_{test_split.name}": accuracy}

    return probe
