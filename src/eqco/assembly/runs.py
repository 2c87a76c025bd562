"""Runs: train from the beginning, and resume."""

import copy
import math
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from eqco.assembly.choosing import DEFAULT_MINUTES, choose_recipe
from eqco.assembly.compiling import explain_compiler
from eqco.assembly.heading import UNREADABLE, heading
from eqco.assembly.parts import build_components, training_split
from eqco.assembly.weights import Weights, open_weights, run_of, unfinished_note
from eqco.data import Source, StepLoader, open_source, write_unreadable
from eqco.data.cache import CachedImages, cached_side, fill_cache, fits_cache
from eqco.data.images import StoredImages
from eqco.data.index import ScanIndex
from eqco.data.opening import kind_of, resolved_name, short_name
from eqco.data.stored import OnUnreadable
from eqco.encoders import TIMM, Encoder, resize_input, stored_size
from eqco.encoders.colours import HeadPair
from eqco.methods import Method
from eqco.recipes import RECIPES, Recipe, recipe_from_dict, recipe_to_dict, with_settings
from eqco.recipes.rules import LARGEST, Choice
from eqco.runtime import processes
from eqco.runtime.checkpoints import read_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.records import code_version, hardware
from eqco.runtime.run_directory import RunDirectory, read_object, write_json
from eqco.training.display import training_display
from eqco.training.loop import Outcome, StepReport, TrainerComponents, run_training

__all__ = ["RunInfo", "resume", "train"]


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """What a call is about to do, when all is checked and nothing is trained yet."""

    recipe: Recipe
    """As the run keeps it: with what it chose where `asked` says auto."""
    asked: Recipe
    choice: Choice | None = None
    """What the rules chose, and why, where no recipe was given."""
    source: Source
    loader: StepLoader
    step: int
    """That training resumes from; 0 in a new run."""
    threads_before: int | None = None
    """That a resumed run began with, where it computes in another number now."""
    was_compiled: bool = False
    """Whether a run that resumes uncompiled was compiled before."""
    unfinished: str = ""
    """Of a run whose weights it begins with: that it is not complete, and its step."""
    backbone: nn.Module | None = None
    """A module of the user's own, in place of the recipe's."""

    @property
    def network(self) -> str:
        """What is trained: the recipe's backbone by its name, or the class of the user's."""
        return self.recipe.encoder.backbone if self.backbone is None else class_name(self.backbone)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Operations of the views that need red, green and blue, where the images have none."""
        views, channels = self.loader.views, self.source.channels
        names = (name for view in views for name in view.pipeline.left_out(channels))
        return tuple(dict.fromkeys(names))


def train(
    data: Any = "groceries",
    recipe: Recipe | None = None,
    *,
    out: Path | str | None = None,
    minutes: float = DEFAULT_MINUTES,
    init: Path | str | None = None,
    extend: Path | str | None = None,
    unlabelled: bool = False,
    channels: int | None = None,
    encoder: nn.Module | None = None,
    cache_gib: float = 4.0,
    device: torch.device | str = "cpu",
    timeout: float = 600.0,
    on_start: Callable[[RunInfo], None] | None = None,
    on_end: Callable[[RunInfo, Outcome], None] | None = None,
    show: Callable[[StepReport], None] | None = None,
    **settings: Any,
) -> Outcome:
    """Train an encoder from the beginning and leave everything in the folder `out`.

    Under torchrun all its processes train together, as one process would with the same recipe.
    `eqco.train` ends as the command does, with the encoder's accuracy beside simpler things where
    there are labels, a curve and neighbours; `eqco.assembly.train` with the weights alone.

    Args:
        data: a name, a folder, a list or other files (see `open_source`), a map-style Dataset, or
            an opened `Source`.
        recipe: what to do; `eqco.named_recipe` has the published ones. None: chosen by
            `eqco.recipes.rules` for the images, the machine and the `minutes`.
        out: the run directory, which must not hold a run; None: runs/ and the name of the data.
        minutes: how long a training without a recipe may take.
        init: the first weights: anything `open_weights` reads, of `encoder` or the recipe's
            network; without either their own is taken. Of a run the head is taken as well, but a
            pair of heads (CMC's) by CMC alone.
        extend: a run of the same recipe, in place of `init`: all that it has trained is taken from
            its last checkpoint, also what is beside the encoder, such as a predictor.
        unlabelled: of a folder, take all images without classes.
        channels: bands of every image; None: as the files are, pictures as colour.
        encoder: a backbone of your own, with `feature_dim`; else the recipe's.
        cache_gib: image files are decoded and shrunk once into `out` if they take less than this
            there (see `eqco.data.cache`); 0: never, every epoch decodes them.
        device: where to train; under torchrun `cuda` is each process's own.
        timeout: seconds that a process waits for the others before it names the missing ones.
        on_start: gets what is about to be done, once, before the first step; None: it is printed
            where `show` is None too.
        on_end: gets what was done, once, when training is complete, in the process that writes;
            of `eqco.train` it replaces the assessment.
        show: gets a report at every line of metrics; None: a progress bar, or lines in a log.
        settings: of the recipe by their names, such as epochs=30 or temperature=0.1.
    """
    if recipe is not None and not isinstance(recipe, Recipe):
        name = recipe if isinstance(recipe, str) and recipe in RECIPES else "simo"
        raise InputError(
            f"recipe={recipe!r} is no Recipe. Give eqco.named_recipe({name!r}, 'folder'), or what "
            f"eqco.read_recipe makes of a file."
        )
    refuse_no_module(encoder)
    if extend is not None:
        refuse_other_beginning(extend, init, recipe)
        init = extend
    if not cache_gib >= 0:
        raise InputError(f"cache_gib={cache_gib}; it must be 0 (no cache) or more.")
    if recipe is not None:
        recipe = with_settings(recipe, **settings)
    pixels = {name: settings[name] for name in asdict(LARGEST.data) if name in settings}
    known = with_settings(LARGEST, **pixels) if recipe is None else recipe
    opened_side = memory_side(known) if cache_gib > 0 else None
    run = RunDirectory(default_out(data) if out is None else Path(out))
    refuse_among_images(run.path, data)
    run.refuse_in_use()  # before anything is read, timed or written
    run.refuse_started()
    named = settings.get("backbone") if recipe is None else recipe.encoder.backbone
    weights = None if init is None else open_weights(init, backbone=first_network(encoder, named))
    of_init: set[str] = set()
    if recipe is None and weights is not None and encoder is None and "backbone" not in settings:
        brought = network_settings(weights)
        of_init = brought.keys() - settings.keys()
        settings = {**brought, **settings}
    index = ScanIndex(run.index)
    source = open_data(data, known.data.on_unreadable, unlabelled, channels, opened_side, index)
    if weights is not None and encoder is None:
        refuse_other_bands(weights, source, "--init" if extend is None else "--extend")
    with processes.process_group(device, timeout=timeout) as own, showing(show) as report:
        listed = unreadable_list(run)
        choice = None
        if recipe is None:
            choice = choose_recipe(
                source,
                minutes=minutes,
                settings=settings,
                of_init=of_init,
                backbone=encoder,
                cache=run.timing if cache_gib > 0 else None,
                cache_gib=cache_gib,
                device=own,
            )
            recipe = choice.recipe
        side = cached_side(recipe.method.views(recipe.data)) if cache_gib > 0 else None
        cached = plan_cache(source, run, side, cache_gib)
        # before the folder is made: what is refused leaves nothing behind
        components = build_components(
            recipe,
            source,
            backbone=encoder,
            fill=partial(fill_method, weights=weights, extended=extend),
            device=own,
            cached=cached,
            unreadable_list=listed,
        )
        chosen = chosen_recipe(recipe, components)
        info = RunInfo(
            recipe=chosen,
            asked=recipe,
            choice=choice,
            source=source,
            loader=components.loader,
            step=0,
            unfinished="" if weights is None else unfinished_note(weights),
            backbone=encoder,
        )
        with write_lock(run):
            if processes.is_writer():
                facts = environment(data, info, components, own)
                facts |= {
                    "unlabelled": unlabelled,
                    "init": None if init is None else str(init),
                    "extended": extend is not None,
                    "opened_side": opened_side,
                    "cache_side": side,
                    "cached": cached is not None,
                }
                run.start(recipe_to_dict(chosen), facts)
                run.write_job(processes.job())
                write_unreadable(listed, source.unreadable)
                with run.explain_failure(run.index):
                    index.write(run.index)
            report_start(info, run, on_start, quiet=show is not None)
            outcome = finish(components, run, chosen, None, report)
            writes = processes.is_writer()
    report_end(info, outcome, on_end if writes else None)
    return outcome


def memory_side(recipe: Recipe) -> int:
    """The shorter side, in pixels, up to which images of one size are kept in memory as they are;
    of larger ones a cache holds what their views need.

    That of views of the largest size that is ever chosen, or of the recipe's if that is larger: so
    a recipe that was chosen opens the same images in the same way when it is given.
    """
    side = recipe.data.image_size
    largest = max(side, LARGEST.data.image_size)
    views = recipe.method.views(recipe.data)
    return cached_side([replace(view, size=-(-view.size * largest // side)) for view in views])


def first_network(encoder: nn.Module | None, named: str | None) -> nn.Module | str | None:
    """What first weights are read into: the user's own module, a copy of it, or a network of timm,
    neither of which a file of weights tells by itself; None: what the file tells.
    """
    if encoder is not None:
        return copy.deepcopy(encoder)
    return named if named is not None and named.startswith(TIMM) else None


def refuse_no_module(encoder: Any) -> None:
    """Refuse what is no module, such as the name of a network."""
    if encoder is not None and not isinstance(encoder, nn.Module):
        remedy = "Give a module with feature_dim"
        if isinstance(encoder, str):
            remedy = f"A network by its name is backbone={encoder!r}"
        raise InputError(f"encoder={encoder!r} is no torch module. {remedy}.")


def class_name(module: nn.Module) -> str:
    """What a module of the user's is called."""
    return type(module).__name__


def report_end(
    info: RunInfo, outcome: Outcome, on_end: Callable[[RunInfo, Outcome], None] | None
) -> None:
    """Hand over what was done, if it is complete: alone, when the other processes have ended."""
    if on_end is not None and outcome.stopped_by is None:
        on_end(info, outcome)


def report_start(
    info: RunInfo, run: RunDirectory, on_start: Callable[[RunInfo], None] | None, *, quiet: bool
) -> None:
    """Hand over what is about to be done, or print it."""
    if on_start is not None:
        on_start(info)
    elif not quiet and processes.is_writer():
        print("\n".join(heading(info, str(run.path))), flush=True)


@contextmanager
def showing(
    show: Callable[[StepReport], None] | None,
) -> Iterator[Callable[[StepReport], None]]:
    """What shows the reports: as given, or the display of the process that writes."""
    if show is not None:
        yield show
        return
    with training_display(sys.stdout if processes.is_writer() else None) as display:
        yield display


def network_settings(weights: Weights) -> dict[str, Any]:
    """The settings of the network that weights are of; of a run those of its head as well, but not
    of a pair of heads, which belongs to the method.
    """
    found: dict[str, Any] = {}
    own, encoder = weights.architecture, weights.encoder
    if own is not None:
        found = {"backbone": own.name, "width": own.width, "stem": own.stem}
    if weights.recipe is not None and encoder is not None and not is_paired(encoder):
        head = weights.recipe.encoder
        found |= {"head": head.head, "embedding_dim": head.embedding_dim}
    return found


def refuse_other_bands(weights: Weights, source: Source, flag: str) -> None:
    """Refuse first weights for images of other bands."""
    wanted, had = weights.in_channels, source.channels
    if wanted == had:
        return
    remedy = "Give images like those it was trained on"
    if wanted in (1, 3):
        pictures = "grey pictures stay grey" if wanted == 1 else "pictures become colour"
        remedy += f"; {pictures} by --channels {wanted}"
    raise InputError(
        f"{flag} {weights.name} takes images of {wanted} band{'s' * (wanted != 1)}, and "
        f"{source.name} has {had}. {remedy}."
    )


def refuse_other_beginning(
    extend: Path | str, init: Path | str | None, recipe: Recipe | None
) -> None:
    """Refuse first weights, or no recipe, beside a run that is extended."""
    if init is not None:
        raise InputError(f"--init {init} beside --extend {extend}: choose one.")
    refuse_extended_file(extend)
    if recipe is None:
        file = RunDirectory(Path(extend)).recipe
        raise InputError(
            f"extend={str(extend)!r} without the recipe of that run. Give recipe="
            f"eqco.read_recipe({str(file)!r}) and, to draw anew, another seed."
        )


def refuse_extended_file(extend: Path | str) -> None:
    """Refuse a checkpoint in place of the run that is extended, which tells its recipe and data."""
    path = Path(extend)
    if not path.is_file():
        return
    run = run_of(path)
    place = f": {run.quoted}" if run.recipe.exists() else " it belongs to"
    raise InputError(
        f"--extend {extend} is a file, and a run is extended from its last checkpoint. Give the "
        f"run directory{place}."
    )


def is_paired(encoder: Encoder) -> bool:
    """Whether an encoder is CMC's two in one, with a head for each half of the colours."""
    return isinstance(encoder.head, HeadPair)


def fill_method(method: Method, weights: Weights | None, extended: Path | str | None) -> None:
    """Copy weights into a method that begins with them: into its encoder or, of a run that is
    extended, into all that it trains.
    """
    if weights is None:
        return
    backbone = method.encoder.backbone
    size = stored_size(backbone, backbone.state_dict())
    if size is not None:
        resize_input(weights.backbone, size)
    if extended is None:
        fill_encoder(method.encoder, weights)
        method.copy_encoder()
        return
    state = read_checkpoint(RunDirectory(Path(extended)).last)["method"]
    assert weights.encoder is not None
    method.load_trained({**state, **weights.encoder.state_dict(prefix="encoder.")})


def fill_encoder(encoder: Encoder, weights: Weights) -> None:
    """Copy weights into an encoder: the backbone, of a run the head too.

    A pair of heads fits another pair alone: between CMC and other methods the backbone is copied.
    """
    own = weights.encoder
    try:
        if own is not None and is_paired(own) == is_paired(encoder):
            encoder.load_state_dict(own.state_dict())
        else:
            encoder.backbone.load_state_dict(weights.backbone.state_dict())
    except RuntimeError as error:
        remedy = (
            "Choose the same by --encoder.backbone, --encoder.width, --encoder.stem and, for a "
            "run, --encoder.head and --encoder.embedding-dim"
        )
        if is_paired(encoder):
            remedy = (
                "Give weights of a network for each half of the colours, such as a run of cmc with "
                "the same --encoder.backbone, or leave out --init"
            )
        raise InputError(
            f"--init {weights.name} is {weights.architecture or type(weights.backbone).__name__}, "
            f"and the recipe trains another network ({type(encoder.backbone).__name__}, embeddings "
            f"of {encoder.embedding_dim}). {remedy}."
        ) from error


def resume(
    path: Path | str,
    data: Any = None,
    *,
    workers: int | None = None,
    compile: Literal[False] | None = None,
    encoder: nn.Module | None = None,
    device: torch.device | str = "cpu",
    timeout: float = 600.0,
    on_start: Callable[[RunInfo], None] | None = None,
    on_end: Callable[[RunInfo, Outcome], None] | None = None,
    show: Callable[[StepReport], None] | None = None,
) -> Outcome:
    """Resume a run from its last checkpoint, or from the checkpoint file given.

    The end is the same, to the bit on one machine with the same number of threads, as if the run
    had never stopped; with another number of threads or processes, to rounding (on other processes
    layers that draw at random themselves, as dropout does, draw otherwise).

    Args:
        path: the run directory, or one of its checkpoint files.
        data: as for `train`; None: what the run was started with, by name or path. A name or path
            that is given is remembered: it is where the data are now.
        workers: processes that decode images, which change no result; None: as the run began.
        compile: False: uncompiled from here on, which the run's recipe then says; a run that was
            compiled stays the same to rounding, not to the bit. None: as the recipe says.
        encoder: the backbone that was given to `train`, if one was.
        device: as for `train`, and so are the others.
    """
    refuse_no_module(encoder)
    if compile:
        raise InputError(
            f"compile={compile!r} for a run that is resumed; it can only be False, to go on "
            f"uncompiled. Leave it out, or train a new run."
        )
    path = Path(path).resolve()
    checkpoint = path if path.suffix == ".pt" else None
    run = RunDirectory(path if checkpoint is None else path.parent.parent)
    kept = recipe_from_dict(run.read_recipe())
    recipe = kept if compile is None else with_settings(kept, compile=compile)
    used = recipe if workers is None else with_settings(recipe, workers=workers)
    began = run.read_environment()
    place = resolved_name(str(data)) if isinstance(data, str | Path) else began["source"]
    if data is None:
        data = own_data(run, place)
    network = began.get("network")
    if encoder is None and network is not None:
        raise InputError(
            f"{run.path} trains a module of your own, {network}, which has no name here. Resume it "
            f"in Python: eqco.resume({str(run.path)!r}, encoder={network}(…))."
        )
    # as it began: other pixels would make other views
    side, opened_side = began.get("cache_side"), began.get("opened_side")
    policy, bands = recipe.data.on_unreadable, began.get("channels")
    index = ScanIndex(run.index)
    source = open_data(data, policy, began["unlabelled"], bands, opened_side, index)
    cached = plan_cache(source, run, side, math.inf) if began.get("cached") else None
    grouped = processes.process_group(device, timeout=timeout)
    with grouped as own, write_lock(run), showing(show) as report:
        state = run.load(recipe_to_dict(recipe), checkpoint, earlier=compiled_before(recipe))
        if processes.is_writer():
            run.write_job(processes.job())
            with run.explain_failure(run.index):
                index.write(run.index)
        listed = unreadable_list(run)
        components = build_components(
            used, source, backbone=encoder, device=own, cached=cached, unreadable_list=listed
        )
        images = len(components.loader.split)
        if images != began["images"]:
            raise InputError(
                f"{run.path} was trained on {began['images']} images ({began['data']}), but "
                f"{source.name} has {images} now. Resume it on the same images."
            )
        if place != began["source"] and processes.is_writer():
            with run.explain_failure(run.environment):
                write_json(run.environment, {**began, "source": place})
        loader, step = components.loader, state["step"]
        if recipe != kept and step < components.intervals.total_steps and processes.is_writer():
            with run.explain_failure(run.recipe):
                write_json(run.recipe, recipe_to_dict(recipe))
        info = RunInfo(
            recipe=used,
            asked=recipe,
            source=source,
            loader=loader,
            step=step,
            threads_before=other_threads(began),
            was_compiled=state["recipe"] in compiled_before(recipe),
            backbone=encoder,
        )
        report_start(info, run, on_start, quiet=show is not None)
        outcome = finish(components, run, recipe, state, report)
        writes = processes.is_writer()
    report_end(info, outcome, on_end if writes else None)
    return outcome


def compiled_before(recipe: Recipe) -> list[dict[str, Any]]:
    """What a recipe that is not compiled was until `resume` was given compile=False, if it was."""
    now = recipe_to_dict(recipe)
    uncompiled = recipe.training.compile is False
    return [{**now, "training": {**now["training"], "compile": True}}] if uncompiled else []


def other_threads(began: dict[str, Any]) -> int | None:
    """The threads that each process of a run began with, if there are more or fewer now.

    None on another number of processes, which is reported by itself.
    """
    before = began.get("hardware", {}).get("threads")
    same = before in (None, torch.get_num_threads())
    return None if same or began.get("processes", 1) != processes.world_size() else before


def own_data(run: RunDirectory, place: str | None) -> str:
    """The data that a run was started with, by name or path, if they can be had."""
    if place is None:
        raise InputError(
            f"{run.path} was trained on a Dataset given in Python; give the same to resume it."
        )
    if kind_of(place) in ("folder", "list") and not Path(place).exists():
        raise InputError(
            f"{run.path} was trained on {place}, which is not there any more. If the images were "
            f"moved, give where they are now: eqco train DATA --resume {run.quoted}."
        )
    return place


def chosen_recipe(recipe: Recipe, components: TrainerComponents) -> Recipe:
    """The recipe with what was chosen for auto, so that a resumed run computes in the same way."""
    training = replace(recipe.training, precision=components.precision, compile=components.compiled)
    return replace(recipe, training=training)


def default_out(data: Any) -> Path:
    """Where a run goes whose place is not given."""
    if isinstance(data, Source):
        data = data.name
    name = short_name(str(data)) if isinstance(data, str | Path) else type(data).__name__
    return Path("runs") / name


def refuse_among_images(out: Path, data: Any) -> None:
    """Refuse a run in the folder of its images: there it would be taken for some of them."""
    if not isinstance(data, str | Path) or kind_of(str(data)) != "folder":
        return
    folder, place = Path(data).expanduser().resolve(), out.resolve()
    if folder.is_dir() and place.is_relative_to(folder):
        raise InputError(
            f"--out {out} is in {folder}, the folder of the images: what a run leaves there would "
            f"be taken for images and classes, and the run could not be resumed. Give --out "
            f"outside it, such as ../runs/{place.name}."
        )


def write_lock(run: RunDirectory) -> AbstractContextManager[None]:
    """The run directory in the hands of the process that writes; the others only read."""
    return run.lock() if processes.is_writer() else nullcontext()


def unreadable_list(run: RunDirectory) -> Path:
    """Where a process lists the images that it cannot read: a file for each process."""
    number = processes.rank()
    return run.path / (f"unreadable-{number}.txt" if number else UNREADABLE)


def open_data(
    data: Any,
    policy: OnUnreadable,
    unlabelled: bool,
    channels: int | None,
    memory_side: int | None,
    index: ScanIndex,
) -> Source:
    """The source that `data` names, or is."""
    if isinstance(data, Source):
        if channels not in (None, data.channels):
            raise InputError(f"channels={channels}, but {data.name} has {data.channels}.")
        return data
    return open_source(
        data,
        unlabelled=unlabelled,
        channels=channels,
        memory_side=memory_side,
        on_unreadable=policy,
        index=index,
    )


def plan_cache(
    source: Source, run: RunDirectory, side: int | None, cache_gib: float
) -> CachedImages | None:
    """The training images as the run's cache will hold them; None: it is not used.

    It is for images on disk alone, and only where it takes at most `cache_gib`.
    """
    images = training_split(source).images
    if side is None or not isinstance(images, StoredImages):
        return None
    if not fits_cache(images, side, cache_gib):
        return None
    return CachedImages(images, run.path / "cache", side)


def finish(
    components: TrainerComponents,
    run: RunDirectory,
    recipe: Recipe,
    state: dict[str, Any] | None,
    show: Callable[[StepReport], None],
) -> Outcome:
    """Run the loop, and write the result when training is complete."""
    start = time.perf_counter()
    images = components.loader.split.images
    step = 0 if state is None else state["step"]
    if step == components.intervals.total_steps and run.result.exists():
        run.read_metrics()  # which refuses damaged ones
        return Outcome(path=run.path, step=step, probe=read_object(run.result)["probe"])
    if isinstance(images, CachedImages):
        fill_cache(images)  # which the probe at the end reads too
    with explain_compiler() if components.compiled else nullcontext():
        outcome = run_training(components, run, recipe_to_dict(recipe), state=state, show=show)
    if outcome.stopped_by is None and processes.is_writer():
        write_json(
            run.result,
            {
                "steps": outcome.step,
                "probe": outcome.probe,
                "seconds_of_this_call": round(time.perf_counter() - start, 2),
                "code": code_version(),
                "hardware": hardware(),
            },
        )
        if isinstance(images, CachedImages):
            shutil.rmtree(images.folder, ignore_errors=True)  # nobody reads it again
    return outcome


def environment(
    data: Any, info: RunInfo, components: TrainerComponents, device: torch.device | str
) -> dict[str, Any]:
    """What the run was started with: data, machine, versions."""
    named = resolved_name(str(data)) if isinstance(data, str | Path) else None
    return {
        "source": named,
        "data": info.source.name,
        "images": len(info.loader.split),
        "channels": info.source.channels,
        "left_out": info.left_out,
        "unreadable": len(info.source.unreadable),
        "steps_per_epoch": info.loader.steps_per_epoch,
        "network": None if info.backbone is None else class_name(info.backbone),
        "parameters": sum(p.numel() for p in components.method.encoder.parameters()),
        "device": str(device),
        "processes": processes.world_size(),
        "code": code_version(),
        "hardware": hardware(),
    }
