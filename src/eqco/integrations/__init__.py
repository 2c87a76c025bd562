"""Doors to other people's tools: one module each, which needs that package alone."""
