"""What a step's embeddings say about the training, as the loop reads it."""

from eqco.contrast.diagnostics import Diagnostics
from eqco.contrast.diagnostics import diagnose_contrasts as diagnose

__all__ = ["Diagnostics", "diagnose"]
