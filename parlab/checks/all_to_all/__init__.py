"""Checks of lab 09, experts and long contexts: one module an exercise."""

from parlab.checks.all_to_all.merge import merge
from parlab.checks.all_to_all.predict_context_bytes import predict_context_bytes
from parlab.checks.all_to_all.ring_attention import ring_attention
from parlab.checks.all_to_all.ulysses_attention import ulysses_attention
from parlab.checks.all_to_all.zigzag_positions import zigzag_positions
from parlab.checks.base.collective import show_values

__all__ = [
    "merge",
    "predict_context_bytes",
    "ring_attention",
    "show_values",
    "ulysses_attention",
    "zigzag_positions",
]
