"""Doors to other people's tools: losses, recipes and diagnostics inside their trainers, and Ray.

Each module here is for one package, needs it, and says its install line where it is missing.
"""
