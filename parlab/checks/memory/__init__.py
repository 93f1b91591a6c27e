"""Checks of lab 08, training in less memory: one module an exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.memory._recording_store import RecordingStore
from parlab.checks.memory.offload_activations import offload_activations
from parlab.checks.memory.plan_recomputation import plan_recomputation

__all__ = [
    "RecordingStore",
    "offload_activations",
    "plan_recomputation",
    "show_values",
]
