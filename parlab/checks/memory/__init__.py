"""Checks of lab 08, training in less memory: one module an exercise."""

from parlab.checks.base.collective import show_values

__all__ = [
    "show_values",
]
