"""Networks that turn images into embeddings: backbones, heads, momentum, batch norm."""
