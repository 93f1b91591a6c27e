"""Checks of lab 08, training in less memory: one module an exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.memory.adafactor_step import adafactor_step
from parlab.checks.memory.checkpoint import checkpoint
from parlab.checks.memory.chunked_cross_entropy import chunked_cross_entropy
from parlab.checks.memory.kept_bytes import kept_bytes
from parlab.checks.memory.predict_kept import predict_kept
from parlab.checks.memory.predict_state_bytes import predict_state_bytes

__all__ = [
    "adafactor_step",
    "checkpoint",
    "chunked_cross_entropy",
    "kept_bytes",
    "predict_kept",
    "predict_state_bytes",
    "show_values",
]
