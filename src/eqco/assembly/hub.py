"""An encoder as a folder of the Hugging Face Hub: for timm, huggingface_hub and `eqco.load`."""

import json
from pathlib import Path
from typing import Any

from torch import nn

from eqco.assembly.hub_files import HUB_CONFIG, HUB_HEAD, HUB_WEIGHTS, hub_folder
from eqco.assembly.loaded import LoadedEncoder
from eqco.assembly.parts import build_evaluated_encoder
from eqco.assembly.preprocessing import timm_config
from eqco.assembly.weights import Weights
from eqco.encoders import RESNETS, TIMM, Architecture, Encoder, in_channels_of, timm_size
from eqco.recipes import recipe_from_dict
from eqco.runtime.errors import InputError, MissingExtraError
from eqco.runtime.run_directory import write_json
from eqco.runtime.tensor_files import read_tensor_file

__all__ = ["CARD_TAGS", "card_header", "load_hub", "timm_name", "write_config"]

CARD_TAGS = ("contrastive-learning", "self-supervised", "eqco")


def timm_name(architecture: Architecture | None) -> str | None:
    """What timm calls a network; None: it has none like it."""
    if architecture is None or (architecture.width, architecture.stem) != (1, "imagenet"):
        return None
    known = architecture.name in RESNETS or architecture.name.startswith(TIMM)
    return architecture.name.removeprefix(TIMM) if known else None


def write_config(weights: Weights, folder: Path) -> None:
    """The file that timm builds the network from; of other networks what they are."""
    name = timm_name(weights.architecture)
    if name is not None:
        try:
            import timm
        except ModuleNotFoundError as error:
            raise MissingExtraError("timm", "hub") from error
    config: dict[str, Any] = {
        "architecture": name or str(weights.architecture or type(weights.backbone).__name__),
        "num_classes": 0,
        "num_features": weights.feature_dim,
    }
    if name is not None:
        own = timm.get_pretrained_cfg(name)
        kept = ("pool_size", "first_conv", "classifier", "fixed_input_size")
        stored = {} if own is None else {key: getattr(own, key) for key in kept}
        options = {"in_chans": weights.in_channels} if weights.in_channels != 3 else {}
        config["model_args"] = {"num_classes": 0, **options, **timm_size(name, weights.image_size)}
        config["pretrained_cfg"] = {**stored, **timm_config(weights)}
    else:
        config["image_size"] = weights.image_size
    write_json(folder / HUB_CONFIG, config)


def card_header(weights: Weights) -> str:
    """The lines at the beginning of a card that the Hub reads."""
    library = "eqco" if timm_name(weights.architecture) is None else "timm"
    lines = [
        "---",
        f"library_name: {library}",
        "pipeline_tag: image-feature-extraction",
        "tags:",
        *(f"- {tag}" for tag in dict.fromkeys((library, *CARD_TAGS))),
        "---",
        "",
    ]
    return "\n".join(lines) + "\n"


def load_hub(name: str, backbone: nn.Module | None = None) -> LoadedEncoder:
    """The encoder of a run that `eqco export --to hub` has written, with its head."""
    folder = hub_folder(name)
    state, metadata = read_tensor_file(folder / HUB_WEIGHTS)
    if "recipe" not in metadata or not (folder / HUB_HEAD).is_file():
        raise InputError(
            f"{name} holds a backbone alone, not the encoder of a run. "
            f"eqco.open_weights({name!r}).backbone gives it."
        )
    recipe = recipe_from_dict(json.loads(metadata["recipe"]))
    encoder: Encoder = build_evaluated_encoder(recipe, backbone)
    bands = in_channels_of(encoder.backbone, state)
    if backbone is None and bands != in_channels_of(encoder.backbone):
        encoder = build_evaluated_encoder(recipe, in_channels=bands)
    try:
        encoder.backbone.load_state_dict(state)
        encoder.head.load_state_dict(read_tensor_file(folder / HUB_HEAD)[0])
    except RuntimeError as error:
        raise InputError(
            f"{name} was trained with another network than {type(encoder.backbone).__name__}; give "
            f"the backbone that it was trained with."
        ) from error
    network = None if backbone is None else type(backbone).__name__
    return LoadedEncoder(encoder, recipe, network=network)
