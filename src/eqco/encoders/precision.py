"""The number format that an encoder computes in."""

from typing import Literal

import torch
from torch import Tensor, nn

from eqco.encoders.convolution import Conv3x3
from eqco.runtime import processes

__all__ = [
    "Precision",
    "autocast_to",
    "choose_precision",
    "has_native_bfloat16",
    "unset_gradients",
]

Precision = Literal["float32", "bfloat16", "float16"]


def autocast_to(precision: Precision, device: torch.device) -> torch.autocast:
    """Autocast for the encoder; the loss leaves it by itself."""
    dtype = torch.float16 if precision == "float16" else torch.bfloat16
    return torch.autocast(device.type, dtype=dtype, enabled=precision != "float32")


def choose_precision(asked: Literal["auto"] | Precision, device: torch.device) -> Precision:
    """The precision asked for; auto is bfloat16 where every process computes it natively.

    >>> choose_precision("float32", torch.device("cpu"))
    'float32'
    """
    if asked != "auto":
        return asked
    return "float32" if processes.any_of(not has_native_bfloat16(device)) else "bfloat16"


def has_native_bfloat16(device: torch.device) -> bool:
    """Whether a device multiplies bfloat16 itself; elsewhere it is emulated, at a loss."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    # of a CPU torch uses it through oneDNN alone
    if device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    # x86: avx512_bf16 or amx_bf16; ARM: bf16. Older versions of torch do not tell.
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(known.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def unset_gradients(network: nn.Module, size: int, channels: int) -> list[str]:
    """Convolutions whose gradient torch 2.15 leaves partly unset on CPUs in bfloat16.

    They are padded, make one column of pixels, and their stride is longer than the width they see.
    Those of our own networks leave out what meets padding only, and are not concerned.

    >>> halving = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1))
    >>> unset_gradients(halving, 2, 3), unset_gradients(halving, 1, 3)
    ([], ['0'])
    """
    found: list[str] = []

    def note(module: nn.Module, inputs: tuple[Tensor], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        longer = module.stride[1] > inputs[0].shape[3] and output.shape[3] == 1
        if longer and module.padding not in ("valid", (0, 0)):
            found.append(names[module])

    names = {
        module: name
        for name, module in network.named_modules()
        if isinstance(module, nn.Conv2d) and not isinstance(module, Conv3x3)
    }
    handles = [module.register_forward_hook(note) for module in names]
    mode = network.training
    with torch.no_grad():
        network.eval()(torch.zeros(2, channels, size, size))
    network.train(mode)
    for handle in handles:
        handle.remove()
    return found
