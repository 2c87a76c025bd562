"""What a step's embeddings say about the training, as the loop reads it."""

from eqco.contrast.diagnostics import Diagnostics, EmbeddingDiagnostics, diagnose_embeddings
from eqco.contrast.diagnostics import diagnose_contrasts as diagnose

__all__ = ["Diagnostics", "EmbeddingDiagnostics", "diagnose", "diagnose_embeddings"]
