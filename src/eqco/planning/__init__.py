"""Arithmetic before a run: margin, learning rate, bytes, steps, and the same in other libraries."""

from eqco.planning.plan import IMAGENET, ContrastPlan, Plan, plan

__all__ = ["IMAGENET", "ContrastPlan", "Plan", "plan"]
