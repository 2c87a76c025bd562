"""Files of tensors, whoever wrote them: read without running anything in them."""

import argparse
import pickle
import warnings
import zipfile
from pathlib import Path
from typing import Any

import torch

from eqco.runtime.errors import InputError, MissingExtraError

__all__ = ["archive_fault", "read_tensor_file"]


def read_tensor_file(path: Path) -> tuple[Any, dict[str, str]]:
    """What torch.save or safetensors wrote, on the CPU, and the words that safetensors keeps.

    A pickle that could run code is refused and nothing of it is run.
    """
    if not path.is_file():
        raise InputError(f"there is no file {path}.")
    if path.suffix == ".onnx":
        raise InputError(
            f"{path} is an ONNX graph, for onnxruntime. Give the weights it came from."
        )
    with open(path, "rb") as file:
        head = file.read(9)
    if path.suffix == ".safetensors" or head[8:] == b"{":
        return read_safetensors(path)
    fault = archive_fault(path) if zipfile.is_zipfile(path) else None  # as newer files of torch are
    if fault is not None:
        raise unreadable_error(path, fault)
    try:
        # a Namespace of options is in many checkpoints and is a plain holder of values
        with torch.serialization.safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of pickles that are refused below
            return torch.load(path, map_location="cpu", weights_only=True), {}
    except pickle.UnpicklingError as error:
        if head[:2] != b"PK" and head[:1] != b"\x80":  # neither of the beginnings torch writes
            raise unreadable_error(path, "its content is another") from error
        raise InputError(
            f"{path} holds more than tensors and numbers and could run code when loaded; it was "
            f"refused and nothing of it was run. If you trust it, save its tensors alone: "
            f'torch.save(torch.load(FILE, weights_only=False)["state_dict"], "weights.pth").'
        ) from error
    # torch answers damage with almost any exception
    except (RuntimeError, EOFError, LookupError, ValueError, AttributeError, OSError) as error:
        raise unreadable_error(
            path, (str(error) or type(error).__name__).splitlines()[0]
        ) from error


def archive_fault(path: Path) -> str | None:
    """What is wrong with a zip archive, by its check sums, which torch itself does not compare."""
    try:
        with zipfile.ZipFile(path) as archive:
            broken = archive.testzip()
    # zipfile answers damage with almost any exception: BadZipFile, EOFError, struct.error, …
    except Exception as error:
        return str(error) or type(error).__name__
    return None if broken is None else f"{broken} has another check sum"


def read_safetensors(path: Path) -> tuple[Any, dict[str, str]]:
    """Tensors by name, and the file's metadata."""
    try:
        from safetensors import SafetensorError, safe_open
    except ModuleNotFoundError as error:
        raise MissingExtraError("safetensors", "export") from error
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
    except SafetensorError as error:
        raise unreadable_error(path, str(error)) from error


def unreadable_error(path: Path, reason: str) -> InputError:
    """The error of a file that neither library reads."""
    return InputError(
        f"{path} is damaged, or not a file of torch.save or safetensors ({reason}). "
        f"Give a run directory, a checkpoint or a state dict."
    )
