"""The losses, recipes and diagnostics inside other people's trainers.

Each module here is for one package, needs it, and says its install line where it is missing:
`sentence_transformers`, `open_clip`, `lightly`, `metric_learning`, `lightning`, `transformers`.
"""
