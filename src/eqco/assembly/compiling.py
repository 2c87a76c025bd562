"""Whether compiling the encoders pays, and what it needs."""

import copy
import os
import shutil
import sysconfig
import time
from pathlib import Path

import torch
from torch import Tensor, nn

from eqco.encoders import Encoder, LightEncoder, Precision, ResNet, autocast_to, in_channels_of
from eqco.methods import Method
from eqco.runtime import processes
from eqco.runtime.errors import InputError

__all__ = ["check_compiler", "compile_encoders", "compiling_pays"]

# What compiling gains differs between networks and machines, down to a loss of a third
# (benchmarks/compiling.py), so that a long run tries it, which takes less than a minute.
LONG = 3600.0  # seconds of the encoder's work
GAIN = 0.05  # the share of it that has to be saved
TIMED_STEPS = 3
TIMED_SECONDS = 2.0


def compile_encoders(method: Method) -> None:
    """Let torch compile each encoder, forward and backward, when it is first called."""
    for module in method.modules():
        if isinstance(module, Encoder):
            module.compile(dynamic=False)


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
            f"g++ python3-dev, or start a run with --training.compile False."
        )


def missing_tool() -> str:
    """What torch needs to compile for a CPU and does not find; empty if nothing is missing."""
    if not any(map(shutil.which, (os.environ.get("CXX", "g++"), "g++", "clang++"))):
        return "a C++ compiler"
    header = Path(sysconfig.get_path("include")) / "Python.h"
    return "" if header.exists() else f"Python's header {header}"


def compiling_pays(
    encoder: Encoder, *, num_images: int, size: int, steps: int, precision: Precision
) -> bool:
    """What auto chooses: to compile networks of ours, on a CPU, by one process, in a run of hours,
    where a trial shows that it saves time.

    Args:
        encoder: what a step trains, by `num_images` of `size` pixels at once.
        steps: how often it does.
    """
    device = next(encoder.parameters()).device
    ours = isinstance(encoder.backbone, LightEncoder | ResNet)
    if processes.world_size() > 1 or device.type != "cpu" or not ours or missing_tool():
        return False
    few = max(2, num_images // 8)  # so that start-up stays short
    images = torch.zeros(num_images, in_channels_of(encoder), size, size)
    trial = copy.deepcopy(encoder).train()
    if seconds_per_step(trial, images[:few], precision) * num_images / few * steps < LONG:
        return False
    plain = seconds_per_step(trial, images, precision)
    trial.compile(dynamic=False)
    return seconds_per_step(trial, images, precision) < (1 - GAIN) * plain


def seconds_per_step(encoder: nn.Module, images: Tensor, precision: Precision) -> float:
    """Time of forward and backward, the shortest of a few after one that is not counted."""
    times: list[float] = []
    while len(times) <= TIMED_STEPS and sum(times[1:]) < TIMED_SECONDS:
        start = time.perf_counter()
        with autocast_to(precision, images.device):
            embeddings = encoder(images)
        embeddings.float().sum().backward()
        times.append(time.perf_counter() - start)
    return min(times[1:])
