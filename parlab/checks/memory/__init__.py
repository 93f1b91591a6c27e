"""Checks of lab 08, training in less memory: one module an exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.memory.plan_recomputation import plan_recomputation

__all__ = [
    "plan_recomputation",
    "show_values",
]
