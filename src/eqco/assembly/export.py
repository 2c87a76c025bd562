"""A trained encoder as a plain file for other programs, checked as it is written."""

import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from eqco.assembly.hub import timm_name, write_config
from eqco.assembly.hub_files import HUB_HEAD, HUB_WEIGHTS
from eqco.assembly.onnx_files import write_onnx
from eqco.assembly.preprocessing import timm_config, timm_difference
from eqco.assembly.weights import Weights
from eqco.encoders import RESNETS, TIMM, Architecture, timm_size
from eqco.recipes import recipe_to_dict
from eqco.runtime.atomic_files import atomic_write, refuse_existing, refuse_existing_folder
from eqco.runtime.checkpoints import save_to
from eqco.runtime.errors import InputError, MissingExtraError
from eqco.runtime.records import code_version

__all__ = ["SUFFIXES", "Exported", "Format", "export_weights"]

Format = Literal["torchvision", "timm", "onnx", "safetensors", "moco", "hub"]
SUFFIXES: dict[str, str] = {
    "torchvision": ".pth",
    "timm": ".pth",
    "onnx": ".onnx",
    "safetensors": ".safetensors",
    "moco": ".pth",
    "hub": "",
}
OTHERS = "Export it --to safetensors, which eqco reads, or --to onnx, which runs anywhere."
# said of a run, for the next one
NEXT_TIME = (
    " To be able to next time, train with --encoder.backbone resnet18 --encoder.width 1 "
    "--encoder.stem imagenet."
)


@dataclass(frozen=True)
class Exported:
    """What was written, and lines that show how to load it."""

    file: Path
    usage: tuple[str, ...]


def export_weights(
    weights: Weights,
    to: Format,
    out: Path,
    *,
    epoch: int = 0,
    preprocess: bool = False,
    overwrite: bool = False,
) -> Exported:
    """Write the backbone so that another program loads it, and check that it does.

    * `torchvision`: a state dict for the ResNet of that name with `fc = Identity()`, strictly.
    * `timm`: a state dict for timm's network of that name with `num_classes=0`, strictly.
    * `onnx`: a graph with any number of images; onnxruntime must give the same features.
    * `safetensors`: the state dict with the recipe in its metadata; of every network.
    * `moco`: a checkpoint in MoCo's form, head included, for scripts made for MoCo.
    * `hub`: a folder as the Hugging Face Hub keeps it, for timm and `eqco.load`; of every network.

    `epoch` is what the checkpoint of `moco` says it was trained for; with `preprocess` the graph of
    `onnx` takes images as they are.
    """
    if to not in get_args(Format):
        raise InputError(f"--to {to}; choose {', '.join(get_args(Format))}.")
    if weights.origin in ("pixels", "random"):
        raise InputError(
            f"{weights.name} is a baseline; give a run or a file of weights to export."
        )
    if preprocess and to != "onnx":
        raise InputError(
            f"--preprocess with --to {to}; only a graph (--to onnx) can hold the preparation of "
            f"images. The card shows it as code."
        )
    if to == "hub":
        refuse_existing_folder(out, overwrite=overwrite)
    else:
        refuse_existing(out, overwrite=overwrite)
    writers: dict[str, Callable[[], tuple[str, ...]]] = {
        "torchvision": lambda: write_torchvision(weights, out),
        "timm": lambda: write_timm(weights, out),
        "onnx": lambda: write_onnx(weights, out, metadata_of(weights), preprocess=preprocess),
        "safetensors": lambda: write_safetensors(weights, out),
        "moco": lambda: write_moco(weights, out, epoch),
        "hub": lambda: write_hub(weights, out),
    }
    return Exported(out, writers[to]())


def write_torchvision(weights: Weights, out: Path) -> tuple[str, ...]:
    """A state dict for torchvision's ResNet without its classifier."""
    name = torchvision_name(weights, "torchvision")
    write_state(weights, out, torchvision_model(name))
    return (
        "import torch, torchvision",
        f"model = torchvision.models.{name}()",
        "model.fc = torch.nn.Identity()  # the file has no classifier; add yours after loading",
        f'model.load_state_dict(torch.load("{out}", weights_only=True))',
        "model.eval()",
    )


def write_timm(weights: Weights, out: Path) -> tuple[str, ...]:
    """A state dict for timm's network of that name without its classifier."""
    name = timm_name(weights.architecture)
    if name is None:
        raise InputError(f"timm has no network like {network_name(weights)}. {remedy(weights)}")
    size = weights.image_size
    theirs = Architecture(TIMM + name, in_channels=weights.in_channels).build(image_size=size)
    write_state(weights, out, theirs)
    options = {"in_chans": weights.in_channels} if weights.in_channels != 3 else {}
    extra = "".join(f", {key}={value}" for key, value in (options | timm_size(name, size)).items())
    config = ", ".join(f"{key}={value!r}" for key, value in timm_config(weights).items())
    return (
        "import timm, timm.data",
        f'model = timm.create_model("{name}", num_classes=0{extra}, checkpoint_path="{out}",',
        f"    pretrained_cfg_overlay=dict({config}))",
        "model.eval()",
        "transform = timm.data.create_transform(**timm.data.resolve_model_data_config(model))",
        f"# {timm_difference(weights)}",
    )


def write_state(weights: Weights, out: Path, theirs: nn.Module) -> None:
    """A bare state dict that the other library's network loads strictly, with our metadata.

    They are an attribute, as torch keeps its own `_metadata`; the names are the backbone's alone.
    """
    state = OrderedDict(plain_state(weights.backbone))
    state.eqco = metadata_of(weights)  # type: ignore[attr-defined]
    with atomic_write(out) as partial:
        save(state, partial)
        theirs.load_state_dict(torch.load(partial, weights_only=True))
        refuse_other_features(theirs, weights)


def write_safetensors(weights: Weights, out: Path) -> tuple[str, ...]:
    """The state dict, with the metadata that lets `open_weights` build the network."""
    try:
        from safetensors.torch import load_file
        from safetensors.torch import save as safetensors_bytes
    except ModuleNotFoundError as error:
        raise MissingExtraError("safetensors", "export") from error
    state = plain_state(weights.backbone)
    with atomic_write(out) as partial:
        # its own save_file would make a file that nobody else may read
        metadata = {"format": "pt", **metadata_of(weights)}
        partial.write_bytes(safetensors_bytes(state, metadata=metadata))
        read = load_file(partial)
        if any(not torch.equal(read[name], value) for name, value in state.items()):
            raise InputError(f"{out} does not hold what was written to it; is the disk sound?")
    return (
        "import eqco",
        f'backbone = eqco.open_weights("{out}").backbone',
        "# or the bare state dict:",
        "from safetensors.torch import load_file",
        f'state = load_file("{out}")',
    )


def write_hub(weights: Weights, out: Path) -> tuple[str, ...]:
    """Backbone, configuration and, of a run, head; timm must build the same network from them."""
    write_safetensors(weights, out / HUB_WEIGHTS)
    write_config(weights, out)
    lines = [f'backbone = eqco.open_weights("hf:{out}").backbone']
    (out / HUB_HEAD).unlink(missing_ok=True)  # of what the folder held before
    if weights.encoder is not None:
        head = replace(weights, backbone=weights.encoder.head, architecture=None)
        write_safetensors(head, out / HUB_HEAD)
        lines = [
            f'encoder = eqco.load("hf:{out}")  # encoder.embed(photos) takes images as they are'
        ]
    if timm_name(weights.architecture) is None:
        return ("import eqco", *lines)
    import timm

    theirs = timm.create_model(f"local-dir:{out}", pretrained=True)
    refuse_other_features(theirs, weights)
    return (
        "import eqco, timm",
        *lines,
        f'model = timm.create_model("local-dir:{out}", pretrained=True).eval()',
    )


def write_moco(weights: Weights, out: Path, epoch: int) -> tuple[str, ...]:
    """A checkpoint as MoCo's training leaves it: the query encoder, its head under `fc`."""
    name = torchvision_name(weights, "moco")
    state = plain_state(weights.backbone)
    if weights.encoder is not None:
        head = plain_state(weights.encoder.head)
        state |= {f"fc.{part}": value for part, value in head.items()}
    prefix = "module.encoder_q."
    content: dict[str, Any] = {
        "epoch": epoch,
        "arch": name,
        "state_dict": {prefix + part: value for part, value in state.items()},
        "eqco": metadata_of(weights),
    }
    with atomic_write(out) as partial:
        save(content, partial)
        read, theirs = torch.load(partial, weights_only=True)["state_dict"], torchvision_model(name)
        theirs.load_state_dict(
            {n.removeprefix(prefix): v for n, v in read.items() if not n.startswith(f"{prefix}fc.")}
        )
        refuse_other_features(theirs, weights)
    return (
        "# with the scripts of github.com/facebookresearch/moco, unchanged",
        f"python main_lincls.py -a {name} --pretrained {out} IMAGENET",
        f"python detection/convert-pretrain-to-detectron2.py {out} {out.stem}.pkl",
    )


def torchvision_name(weights: Weights, to: Format) -> str:
    """The name that the network has in torchvision; others are refused."""
    from torchvision.models import list_models, resnet

    architecture = weights.architecture
    name = "" if architecture is None else architecture.name.removeprefix(TIMM)
    own = architecture and (architecture.width, architecture.stem, architecture.in_channels)
    plain = own == (1, "imagenet", 3)
    if not plain or name not in (*RESNETS, *list_models(module=resnet)):
        raise InputError(
            f"--to {to} needs one of torchvision's ResNets, and {network_name(weights)} is none of "
            f"them. {remedy(weights)}"
        )
    return name


def torchvision_model(name: str) -> nn.Module:
    """torchvision's network without its classifier."""
    from torchvision.models import get_model

    model: nn.Module = get_model(name, weights=None)
    model.fc = nn.Identity()
    return model


def remedy(weights: Weights) -> str:
    """What works for a network that a format does not know, and for a run also what would have."""
    return OTHERS + (NEXT_TIME if weights.recipe is not None else "")


def network_name(weights: Weights) -> str:
    """What to call the network in front of the user."""
    if weights.architecture is None:
        return f"a {type(weights.backbone).__name__}"
    return str(weights.architecture)


@torch.no_grad()
def refuse_other_features(model: nn.Module, weights: Weights) -> None:
    """The file must give, where it is loaded, the features it gives here."""
    size = weights.image_size
    shape = (2, weights.in_channels, size, size)
    images = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    theirs, ours = model.eval()(images), weights.backbone(images)
    if not torch.allclose(theirs, ours, rtol=1e-4, atol=1e-5 * float(ours.abs().max())):
        raise InputError(
            f"{network_name(weights)} loaded there gives other features than here: they are "
            f"different networks of one name. {OTHERS}"
        )


def save(content: dict[str, Any], file: Path) -> None:
    """`torch.save` to a file."""
    with open(file, "wb") as stream:
        save_to(stream, content)


def plain_state(module: nn.Module) -> dict[str, Tensor]:
    """Names and contiguous tensors on the CPU, in the default layout."""
    return {
        name: value.detach().cpu().contiguous().clone(memory_format=torch.contiguous_format)
        for name, value in module.state_dict().items()
    }


def metadata_of(weights: Weights) -> dict[str, str]:
    """What the file tells of itself, in strings; `open_weights` builds the network from it."""
    metadata = {"exported_by": f"eqco {code_version()}"}
    if weights.size_is_known:  # a guess must not look like knowledge in the next file
        metadata["image_size"] = str(weights.image_size)
    if weights.architecture is not None:
        metadata["backbone"] = weights.architecture.name
        metadata["width"] = str(weights.architecture.width)
        metadata["stem"] = weights.architecture.stem
        if weights.in_channels != 3:
            metadata["in_channels"] = str(weights.in_channels)
    if weights.recipe is not None:
        metadata["recipe"] = json.dumps(recipe_to_dict(weights.recipe), sort_keys=True)
        metadata["step"] = str(weights.step)
    return metadata
