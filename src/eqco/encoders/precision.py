"""The number format that an encoder computes in."""

from typing import Literal

import torch

from eqco.runtime import processes

__all__ = ["Precision", "autocast_to", "choose_precision", "has_native_bfloat16"]

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
    if device.type != "cpu":
        return False
    # x86: avx512_bf16 or amx_bf16; ARM: bf16. Older versions of torch do not tell.
    known = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return any(known.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))
