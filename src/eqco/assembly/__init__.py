"""Recipe -> objects, and the calls that use them."""

from eqco.assembly.parts import build_encoder, build_parts, rate_at
from eqco.assembly.runs import load, resume, train

__all__ = ["build_encoder", "build_parts", "load", "rate_at", "resume", "train"]
