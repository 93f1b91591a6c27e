"""Checks of lab 09, experts and long contexts: one module an exercise."""

from parlab.checks.base.collective import show_values

__all__ = ["show_values"]
