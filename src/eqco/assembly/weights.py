"""One door for weights: runs, files of others, torchvision's own, and the two baselines."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

import torch
from torch import Tensor, nn

from eqco.assembly.hub_files import HUB, HUB_WEIGHTS, hub_folder
from eqco.assembly.parts import build_evaluated_encoder
from eqco.encoders import (
    Architecture,
    ColourHalves,
    Encoder,
    Half,
    Pixels,
    Stem,
    architecture_of,
    feature_dim_of,
    fill,
    in_channels_of,
    resize_input,
    state_dict_in,
    stored_size,
    unwrap,
)
from eqco.encoders.layer_norm import LAYER_NORM
from eqco.recipes import Recipe, recipe_from_dict
from eqco.runtime.checkpoints import FORMAT, read_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory, read_object
from eqco.runtime.tensor_files import read_tensor_file

__all__ = [
    "Weights",
    "encoder_of",
    "half_of",
    "open_weights",
    "pixels",
    "random_like",
    "run_of",
    "unfinished_note",
    "unfinished_step",
]

TORCHVISION = "torchvision:"
# What an exported file tells of itself: the network, and the size of image.
NETWORK = ("backbone", "width", "stem")
METADATA_KEYS = (*NETWORK, "in_channels", "image_size")


@dataclass(frozen=True, kw_only=True, repr=False)
class Weights:
    """A frozen backbone, and what it is."""

    name: str
    """What to call it in a table."""
    origin: str
    """run, file, torchvision, random or pixels."""
    backbone: nn.Module
    """Images (N, in_channels, H, W) to features (N, feature_dim); in eval mode, frozen."""
    image_size: int
    """The size of image it was trained on, or is best given."""
    size_is_known: bool = True
    """False: neither the weights nor the caller gave image_size, and the usual one was taken."""
    architecture: Architecture | None = None
    """How to build the backbone anew; None: a module of the user's, or pixels."""
    left_out: tuple[str, ...] = ()
    """Parts of the file that are not the backbone, such as a head."""
    encoder: Encoder | None = None
    """Of a run: backbone and head."""
    recipe: Recipe | None = None
    """Of a run."""
    step: int | None = None
    """Of a run: the steps it was trained for."""

    def __repr__(self) -> str:
        network = self.architecture or type(self.backbone).__name__
        return (
            f"Weights({self.name!r}, {self.origin}: {network} at {self.image_size} pixels, "
            f"features of {self.feature_dim})"
        )

    @property
    def feature_dim(self) -> int:
        """D, the size of the features."""
        return feature_dim_of(self.backbone)

    @property
    def in_channels(self) -> int:
        """The bands of the images it takes."""
        return in_channels_of(self.backbone)

    @property
    def size_note(self) -> str:
        """What a user should read where the size of image is a guess; empty where it is known."""
        if self.size_is_known:
            return ""
        return f"image size not known: {self.image_size} taken; give --image-size"


def open_weights(
    given: Path | str,
    *,
    backbone: nn.Module | str | None = None,
    width: int = 1,
    stem: Stem | None = None,
    image_size: int | None = None,
    in_channels: int = 3,
    seed: int = 0,
) -> Weights:
    """The frozen backbone that a path or a name stands for.

    Args:
        given: a run directory; a checkpoint of a run; a file of torch.save or safetensors with a
            state dict of torchvision, timm, MoCo, SimSiam or alike; hf:FOLDER or hf:USER/NAME as
            `eqco export --to hub` writes them; `torchvision:resnet50` for torchvision's supervised
            weights; `random` for untrained ones; `pixels` for no encoder.
        backbone: the network, by name or as a module with `feature_dim`; by default it is read
            from the weights. `random` needs it.
        width: of a ResNet that is named.
        stem: of a ResNet that is named; None: imagenet.
        image_size: pixels along each side; None: what it was trained on where that is known, else
            224, or 32 for networks made for small images, and then `size_is_known` is False. The
            position embeddings of a vision transformer are interpolated to it.
        in_channels: bands of the images, of `random` and `pixels`; others tell it themselves.
        seed: of `random`.
    """
    name = os.fspath(given)
    named = None
    if isinstance(backbone, str):
        named = Architecture(backbone, width, stem or "imagenet", in_channels)
    elif width != 1 or stem is not None:
        raise InputError(f"width={width}, stem={stem} without a backbone by name. Give --backbone.")
    module = backbone if isinstance(backbone, nn.Module) else None
    if name == "pixels":
        return pixels(32 if image_size is None else image_size, in_channels)
    if name == "random":
        found = random_weights(named, module, seed, image_size)
    elif name.startswith(TORCHVISION):
        found = torchvision_weights(name)
    elif name.startswith(HUB):
        file = hub_folder(name) / HUB_WEIGHTS
        found = replace(read_weights(file, named, module, image_size), name=name)
    else:
        found = read_weights(Path(name).expanduser(), named, module, image_size)
    if image_size is not None:
        if image_size < 1:
            raise InputError(f"image_size={image_size}; it must be 1 or more.")
        found = replace(found, image_size=image_size, size_is_known=True)
        with refused_size(found):
            resize_input(found.backbone, image_size)
    refuse_size(found)
    return found


@torch.no_grad()
def refuse_size(weights: Weights) -> None:
    """Refuse images of a size that the network does not take, before any is read."""
    size = weights.image_size
    with refused_size(weights):
        weights.backbone(torch.zeros(1, weights.in_channels, size, size))


@contextmanager
def refused_size(weights: Weights) -> Iterator[None]:
    """The error of a network that does not take such images."""
    try:
        yield
    except (RuntimeError, AssertionError, ValueError) as error:
        raise InputError(
            f"{weights.name} does not take images of image_size={weights.image_size} ({error}). "
            f"Give another --image-size."
        ) from error


def freeze(backbone: nn.Module) -> nn.Module:
    """The backbone in eval mode, without gradient."""
    return backbone.eval().requires_grad_(False)


def pixels(image_size: int = 32, in_channels: int = 3) -> Weights:
    """The pixels themselves as features: the reference below every encoder."""
    backbone = freeze(Pixels(image_size, in_channels))
    return Weights(name="pixels", origin="pixels", backbone=backbone, image_size=image_size)


def half_of(weights: Weights, half: Half) -> Weights:
    """One of the two networks that see luminance and colour apart, as a backbone of its own."""
    backbone = weights.backbone
    if not isinstance(backbone, ColourHalves) or half not in backbone.networks:
        raise InputError(
            f"--half {half}: {weights.name} has no network for {half} alone. Only runs of cmc have "
            f"one; leave --half out."
        )
    network = backbone.networks[half]
    alone = freeze(ColourHalves(backbone.space, {half: network}, feature_dim_of(network)))
    architecture = weights.architecture
    if architecture is not None:
        plain = architecture.name.removeprefix(backbone.prefix)
        architecture = replace(architecture, name=f"{backbone.space}-{half}:{plain}")
    return replace(weights, backbone=alone, architecture=architecture, encoder=None)


def random_like(weights: Weights, seed: int = 0) -> Weights:
    """An untrained encoder of the same architecture, for the same size of image."""
    if weights.architecture is None:
        raise InputError(
            f"{weights.name} is not a network by name, so that no untrained one can be built "
            f"like it. Open `random` with a backbone of your own."
        )
    found = random_weights(weights.architecture, None, seed, weights.image_size)
    return replace(found, image_size=weights.image_size, size_is_known=weights.size_is_known)


def random_weights(
    named: Architecture | None, module: nn.Module | None, seed: int, image_size: int | None
) -> Weights:
    """A network as it is before training."""
    if named is None and module is None:
        raise InputError("random weights of which network? Give --backbone, such as resnet18.")
    backbone = module if named is None else named.build(seed, image_size=image_size)
    assert backbone is not None
    size = usual_size(named, backbone)
    return Weights(
        name="random",
        origin="random",
        backbone=freeze(backbone),
        image_size=size,
        architecture=named,
    )


def torchvision_weights(name: str) -> Weights:
    """torchvision's supervised weights for ImageNet, first edition; downloaded once."""
    import torchvision

    model = name.removeprefix(TORCHVISION)
    try:
        edition = torchvision.models.get_model_weights(model)["IMAGENET1K_V1"]
    except (ValueError, KeyError) as error:
        raise InputError(
            f"torchvision has no ImageNet weights for {model!r}; its ResNets are resnet18, "
            f"resnet34, resnet50, resnet101 and resnet152."
        ) from error
    try:
        state = edition.get_state_dict(check_hash=True, weights_only=True)
    except OSError as error:
        raise InputError(
            f"{name} could not be downloaded ({error}). Go online, or download {edition.url} "
            f"elsewhere and give the file."
        ) from error
    found = fill_backbone(state, name, None, None)
    return replace(found, origin="torchvision", name=f"{name} (supervised)")


def read_weights(
    path: Path, named: Architecture | None, module: nn.Module | None, image_size: int | None
) -> Weights:
    """Weights from a run directory or a file."""
    if not path.exists():
        raise InputError(
            f"there is no {path}. Give a run directory, a file of weights, torchvision:NAME, "
            f"random or pixels."
        )
    if path.is_dir():
        return run_weights(read_checkpoint(RunDirectory(path).last), path, named, module)
    content, metadata = read_tensor_file(path)
    if isinstance(content, Mapping) and content.get("format") == FORMAT:
        return run_weights(content, path, named, module)
    state = state_dict_in(content, str(path))
    kept = read_metadata(content, metadata)
    if named is None and module is None and "backbone" in kept:
        named = Architecture(
            kept["backbone"],
            read_number(kept, "width", path),
            read_stem(kept, path),
            read_number(kept, "in_channels", path) if "in_channels" in kept else 3,
        )
    known = read_number(kept, "image_size", path) if "image_size" in kept else None
    found = fill_backbone(state, str(path), named, module, known or image_size)
    if known is None:
        return replace(found, size_is_known=False)
    return replace(found, image_size=known)


def read_number(kept: Mapping[str, str], name: str, path: Path) -> int:
    """A number in the metadata of an exported file, of 1 or more."""
    try:
        number = int(kept[name])
    except ValueError:
        number = 0
    if number < 1:
        raise changed_metadata(kept, name, path, "it must be a whole number of 1 or more")
    return number


def read_stem(kept: Mapping[str, str], path: Path) -> Stem:
    """The stem in the metadata of an exported file."""
    known: tuple[Stem, ...] = get_args(Stem)
    for stem in known:
        if kept["stem"] == stem:
            return stem
    raise changed_metadata(kept, "stem", path, f"there are {' and '.join(map(repr, known))}")


def changed_metadata(kept: Mapping[str, str], name: str, path: Path, limit: str) -> InputError:
    """The error of metadata that no export writes."""
    return InputError(
        f"{path} says of itself {name}={kept[name][:40]!r}; {limit}. The file was changed after "
        f"its export; export the weights again."
    )


def read_metadata(content: Any, metadata: Mapping[str, str]) -> dict[str, str]:
    """What a file that this project exported tells of itself; of other files nothing.

    It is under `eqco` in a checkpoint, in an attribute of that name of a bare state dict,
    and in the metadata of safetensors. A network without a name tells its image size alone, and
    one whose size was never known the rest.
    """
    inside = content.get("eqco") if isinstance(content, Mapping) else None
    places = (inside, getattr(content, "eqco", None))
    stored = next((place for place in places if isinstance(place, Mapping)), metadata)
    kept = {name: stored[name] for name in METADATA_KEYS if isinstance(stored.get(name), str)}
    named = all(name in kept for name in NETWORK)
    if not named and "exported_by" not in stored:
        return {}
    return {name: word for name, word in kept.items() if named or name not in NETWORK}


def run_weights(
    state: Mapping[str, Any], path: Path, named: Architecture | None, module: nn.Module | None
) -> Weights:
    """The query encoder's backbone, out of a checkpoint of a run."""
    encoder, recipe = encoder_of(state, path, module)
    settings = recipe.encoder
    bands = in_channels_of(encoder.backbone)
    name = recipe.method.evaluated_backbone(settings.backbone)
    own = Architecture(name, settings.width, settings.stem, bands)
    if named is not None and replace(named, in_channels=bands) != own:
        raise InputError(f"{path} was trained with {own}, not {named}. Leave out --backbone.")
    return Weights(
        name=str(path),
        origin="run",
        backbone=freeze(encoder.backbone),
        image_size=recipe.data.image_size,
        architecture=own if module is None else None,
        left_out=("head",),
        encoder=encoder,
        recipe=recipe,
        step=int(state["step"]),
    )


def fill_backbone(
    state: Mapping[str, torch.Tensor],
    file: str,
    named: Architecture | None,
    module: nn.Module | None,
    image_size: int | None = None,
) -> Weights:
    """A backbone filled with a state dict: the one that is named, or that the weights tell of."""
    backbone = module if named is None else named.build(image_size=image_size)
    unwrapped = unwrap(state, file, backbone)
    if backbone is None:
        named = architecture_of(unwrapped.weights)
        if named is None:
            names = ", ".join(list(state)[:4])
            raise InputError(
                f"{file} does not tell which network its weights belong to (it begins with "
                f"{names}). Name it: --backbone resnet50, light or timm:NAME (of eqco train: "
                f"--encoder.backbone)."
            )
        backbone = named.build()
    bands = in_channels_of(backbone, unwrapped.weights)
    if named is not None and named.in_channels != bands:  # nobody names them, the weights tell
        named = replace(named, in_channels=bands)
        backbone = named.build(image_size=image_size)
    own_size = stored_size(backbone, unwrapped.weights)
    if own_size is not None:  # other positions than the network was built for are no other network
        resize_input(backbone, own_size)
    called = str(named) if named is not None else type(backbone).__name__
    likely = architecture_of(unwrapped.weights)
    remedy = "Name the network it was trained with: --backbone, for a ResNet with --width, --stem."
    if likely is not None and likely != named:
        remedy = f"It looks like {likely}: leave out --backbone."
    heads = fill(backbone, unwrapped.weights, file=file, called=called, remedy=remedy)
    tops = dict.fromkeys(unwrapped.prefix + name.split(".")[0] for name in heads)
    return Weights(
        name=file,
        origin="file",
        backbone=freeze(backbone),
        image_size=usual_size(named, backbone),
        architecture=named,
        left_out=(*tops, *unwrapped.others),
    )


def usual_size(named: Architecture | None, backbone: nn.Module) -> int:
    """The image size a network is made for, where no file tells it."""
    light = named is not None and named.name.removesuffix(LAYER_NORM) == "light"
    if light or (named is not None and named.stem == "small"):
        return 32
    config = getattr(backbone, "pretrained_cfg", None)  # timm's own knowledge
    size = config.get("input_size") if isinstance(config, Mapping) else None
    return int(size[-1]) if size else 224


def encoder_of(
    state: Mapping[str, Any], path: Path, backbone: nn.Module | None = None
) -> tuple[Encoder, Recipe]:
    """The query encoder in a checkpoint's state, in eval mode, and the recipe it came from."""
    if not {"recipe", "method"} <= set(state):
        raise InputError(f"{path} is a checkpoint, but not of a training run; it has no encoder.")
    recipe = recipe_from_dict(state["recipe"])
    weights: dict[str, Tensor] = {
        name.removeprefix("encoder."): value
        for name, value in state["method"].items()
        if name.startswith("encoder.")
    }
    encoder = build_evaluated_encoder(recipe, backbone)
    bands = in_channels_of(encoder, weights)
    if backbone is None and bands != in_channels_of(encoder):
        encoder = build_evaluated_encoder(recipe, in_channels=bands)
    try:
        encoder.load_state_dict(weights)
    except RuntimeError as error:
        trained = own_network(path)
        called = "backbone=…" if trained is None else f"backbone={trained}(…)"
        raise InputError(
            f"{path} was trained with another network than {type(encoder.backbone).__name__}"
            f"{'' if trained is None else f': a module of your own, {trained}'}. Give it in "
            f"Python: eqco.load({str(path)!r}, {called}); no command can build it."
        ) from error
    return encoder.eval(), recipe


def own_network(path: Path) -> str | None:
    """The class of the user's module that a run trained; None: the recipe's, or nobody knows."""
    run = run_of(path)
    found = read_object(run.environment).get("network") if run.environment.exists() else None
    return None if found is None else str(found)


def run_of(path: Path) -> RunDirectory:
    """The directory of a run, or of one of its checkpoints; of other weights no run is there."""
    return RunDirectory(path if path.is_dir() else path.resolve().parent.parent)


def unfinished_step(weights: Weights) -> str:
    """How far a run has come that is not complete; empty where it is, or is not known."""
    if weights.recipe is None:
        return ""
    run = run_of(Path(weights.name))
    try:
        steps_per_epoch = read_object(run.environment).get("steps_per_epoch")
    except (InputError, OSError):  # damaged, or a checkpoint that was taken out of its run
        return ""
    if not isinstance(steps_per_epoch, int):
        return ""
    total = weights.recipe.training.epochs * steps_per_epoch
    return "" if weights.step == total else f"step {weights.step} of {total}"


def unfinished_note(weights: Weights) -> str:
    """A line for people that names a run which is not complete; empty where it is."""
    step = unfinished_step(weights)
    return f"{weights.name} is not trained to its end: {step}" if step else ""
