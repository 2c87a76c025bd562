"""An encoder out of a run, or out of what a run was exported to."""

from pathlib import Path

from torch import nn

from eqco.assembly.hub import load_hub
from eqco.assembly.hub_files import HUB, HUB_WEIGHTS
from eqco.assembly.loaded import LoadedEncoder
from eqco.assembly.runs import class_name
from eqco.assembly.weights import encoder_of
from eqco.runtime.checkpoints import ForeignCheckpointError, read_checkpoint
from eqco.runtime.errors import InputError
from eqco.runtime.run_directory import RunDirectory

__all__ = ["load"]

LOADED = (
    "eqco.load reads a run directory, one of its checkpoints, or as hf:FOLDER what eqco export "
    "--to hub has written"
)


def load(run: Path | str, *, backbone: nn.Module | None = None) -> LoadedEncoder:
    """The trained query encoder of a run, in eval mode; `embed` of it takes images as they are.

    Args:
        run: a run directory, one of its checkpoint files, or hf:FOLDER or hf:USER/NAME as
            `eqco export --to hub` writes them.
        backbone: the module that was passed as `encoder` to `train`, if one was.
    """
    if str(run).startswith(HUB):
        return load_hub(str(run), backbone)
    path = Path(run)
    refuse_exported(path)
    file = path if path.is_file() or path.suffix == ".pt" else RunDirectory(path).last
    try:
        state = read_checkpoint(file)
    except ForeignCheckpointError as error:
        if file != path:
            raise
        raise no_run_error(path) from error
    encoder, recipe = encoder_of(state, path, backbone)
    network = None if backbone is None else class_name(backbone)
    return LoadedEncoder(encoder, recipe, run=path, network=network)


def refuse_exported(path: Path) -> None:
    """Refuse what `eqco export` has written for other calls, with the call that loads it."""
    if path.suffix == ".safetensors" and path.is_file():
        raise no_run_error(path)
    if path.suffix == ".onnx" and path.is_file():
        raise InputError(
            f"{path} is an ONNX graph; {LOADED}. This file is run by "
            f"onnxruntime.InferenceSession({str(path)!r})."
        )
    if (path / HUB_WEIGHTS).is_file() and not RunDirectory(path).last.exists():
        raise InputError(
            f"{path} is a folder as eqco export --to hub writes it. Load it by "
            f"eqco.load({f'{HUB}{path}'!r})."
        )


def no_run_error(path: Path) -> InputError:
    """The error of a file that has not the recipe and the head of a run."""
    return InputError(
        f"{path} is no checkpoint of a run; {LOADED}. The backbone of a file of weights is "
        f"eqco.open_weights({str(path)!r}).backbone."
    )
