"""Checks of lab 08, training in less memory: one module an exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.memory.checkpoint import checkpoint
from parlab.checks.memory.kept_bytes import kept_bytes
from parlab.checks.memory.predict_kept import predict_kept

__all__ = [
    "checkpoint",
    "kept_bytes",
    "predict_kept",
    "show_values",
]
