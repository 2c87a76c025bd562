"""Whether compiling the encoders pays, and what it needs."""

import copy
import os
import shutil
import sys
import sysconfig
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from eqco.encoders import Encoder, LightEncoder, Precision, ResNet, autocast_to, in_channels_of
from eqco.methods import Method
from eqco.runtime import processes
from eqco.runtime.errors import InputError

__all__ = ["check_compiler", "compile_encoders", "compiling_pays", "explain_compiler"]

# What compiling gains differs between networks and machines (benchmarks/compiling.py), so that a
# long run tries it, which costs the compiler's wait and a few passes. A pass is one view's, forward
# and backward through the encoder that is trained: not of other views or encoders, nor the data.
LONG = 1200.0  # seconds of all passes of a training
GAIN = 0.05  # the share of a pass that has to be saved
TIMED_PASSES = 3

COMPILER = ("torch._dynamo", "torch._inductor")  # the packages of its errors
OF_THE_NETWORK = "TorchRuntimeError"  # but for what a network raises while it is traced


def compile_encoders(method: Method) -> None:
    """Let torch compile each encoder, forward and backward, when it is first called."""
    for module in method.modules():
        if isinstance(module, Encoder):
            compile_encoder(module)


def compile_encoder(encoder: Encoder) -> None:
    """The backbone, since some methods ask for features alone; the head is no work beside it."""
    encoder.backbone.compile(dynamic=False)


def check_compiler(device: torch.device) -> None:
    """Refuse to compile where it cannot work, before anything is trained."""
    if processes.world_size() > 1:
        raise InputError(
            f"training.compile=True with {processes.world_size()} processes, whose batch norm "
            f"exchanges statistics inside the encoders. Give --training.compile False, or one "
            f"process."
        )
    lacking = missing_tool() if device.type == "cpu" else ""
    if lacking:
        raise InputError(
            f"training.compile=True, but {lacking} is missing here. Install it, as by apt install "
            f"g++ python3-dev, or give --training.compile False (beside --resume too, where "
            f"the run has a checkpoint)."
        )


@contextmanager
def explain_compiler() -> Iterator[None]:
    """Errors of a compiler that is there and does not work, in the words of the setting.

    They come in a step, mostly the first: a trial beforehand takes longer than the step itself.
    """
    try:
        yield
    except Exception as error:
        if not is_of_compiler(error):
            raise
        raise InputError(
            f"training.compile=True, but the compiler fails here ({cause(error)}). Mend it, or "
            f"give --training.compile False (beside --resume too, where the run has a checkpoint)."
        ) from error


def is_of_compiler(error: Exception) -> bool:
    """Whether the compiler raised it, not the network that it compiles."""
    kinds = type(error).__mro__
    if any(kind.__name__ == OF_THE_NETWORK for kind in kinds):
        return False
    return any(kind.__module__.startswith(COMPILER) for kind in kinds)


def cause(error: Exception) -> str:
    """What an error of a compiler says first, cut to a line: the error that torch has wrapped, and
    of the output of a C++ compiler the first line with an error.

    >>> cause(RuntimeError("no space left.\\nSet TORCH_LOGS for more")), cause(OSError())
    ('no space left', 'OSError')
    """
    while isinstance(inner := getattr(error, "inner_exception", None), Exception):
        error = inner
    printed = str(getattr(error, "output", "")).splitlines()
    lines = [line for line in printed if "error" in line]
    lines += str(error).strip().splitlines() or [type(error).__name__]
    return textwrap.shorten(lines[0], 160, placeholder=" …").rstrip(".")


def missing_tool() -> str:
    """What torch needs to compile for a CPU and does not find; empty if nothing is missing."""
    if not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))):
        return "a C++ compiler"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return "" if header.exists() else f"Python's header {header}"


def compiling_pays(
    encoder: Encoder,
    *,
    num_images: int,
    size: int,
    passes: int,
    precision: Precision,
    bn_groups: int = 1,
) -> bool:
    """What auto chooses: to compile networks of ours, on a CPU, by one process, in a long run,
    where a trial shows that it saves time. The wait for the trial is announced, and that it failed.

    Args:
        encoder: what is trained, by `num_images` of `size` pixels at once.
        passes: how often they pass through it.
        bn_groups: that its batch norm cuts them into.
    """
    device = next(encoder.parameters()).device
    ours = isinstance(encoder.backbone, LightEncoder | ResNet)
    if processes.world_size() > 1 or device.type != "cpu" or not ours or missing_tool():
        return False
    few = few_images(num_images, bn_groups)
    images = torch.zeros(num_images, in_channels_of(encoder), size, size)
    plain = copy.deepcopy(encoder).train()
    (short,) = seconds_per_pass([plain], images[:few], precision)
    if short * num_images / few * passes < LONG:
        return False
    print(
        "a long training: trying whether compiling the encoder saves time, up to a minute or so",
        file=sys.stderr,
        flush=True,
    )
    compiled = copy.deepcopy(encoder).train()
    pass_through(plain, images, precision)  # what fails here is not the compiler
    try:
        compile_encoder(compiled)
        before, after = seconds_per_pass([plain, compiled], images, precision)
    except Exception as error:  # compilers raise almost any
        print(
            f"compiling was tried and failed ({cause(error)}); training goes on uncompiled",
            file=sys.stderr,
            flush=True,
        )
        return False
    return after < (1 - GAIN) * before


def few_images(num_images: int, bn_groups: int) -> int:
    """About an eighth of a batch, so that start-up stays short: whole groups of batch norm, of two
    images at least.

    >>> few_images(200, 1), few_images(200, 2), few_images(64, 8), few_images(8, 4)
    (25, 24, 16, 8)
    """
    return min(num_images, bn_groups * max(2, num_images // (8 * bn_groups)))


def seconds_per_pass(
    encoders: Sequence[nn.Module], images: Tensor, precision: Precision
) -> list[float]:
    """Time of forward and backward by each, which take turns: the shortest of a few after one that
    is not counted.
    """
    times: list[list[float]] = [[] for _ in encoders]
    for _ in range(1 + TIMED_PASSES):
        for encoder, taken in zip(encoders, times, strict=True):
            start = time.perf_counter()
            pass_through(encoder, images, precision)
            taken.append(time.perf_counter() - start)
    return [min(taken[1:]) for taken in times]


def pass_through(encoder: nn.Module, images: Tensor, precision: Precision) -> None:
    """One pass forward and backward."""
    with autocast_to(precision, images.device):
        embeddings = encoder(images)
    embeddings.float().sum().backward()
