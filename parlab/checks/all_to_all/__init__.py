"""Checks of lab 09, experts and long contexts: one module an exercise."""

from parlab.checks.all_to_all.ring_attention import ring_attention
from parlab.checks.all_to_all.zigzag_positions import zigzag_positions
from parlab.checks.base.collective import show_values

__all__ = ["ring_attention", "show_values", "zigzag_positions"]
