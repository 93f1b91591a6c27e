"""Checks of lab 08, training in less memory: one module for each exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.memory._recording_store import RecordingStore
from parlab.checks.memory.adafactor_step import adafactor_step
from parlab.checks.memory.adam_8bit_step import adam_8bit_step
from parlab.checks.memory.checkpoint import checkpoint
from parlab.checks.memory.chunked_cross_entropy import chunked_cross_entropy
from parlab.checks.memory.dequantize_blocks import dequantize_blocks
from parlab.checks.memory.kept_bytes import kept_bytes
from parlab.checks.memory.offload_activations import offload_activations
from parlab.checks.memory.plan_recomputation import plan_recomputation
from parlab.checks.memory.predict_kept import predict_kept
from parlab.checks.memory.predict_rank_bytes import predict_rank_bytes
from parlab.checks.memory.predict_state_bytes import predict_state_bytes
from parlab.checks.memory.quantize_blocks import quantize_blocks
from parlab.checks.memory.sharded_8bit_step import sharded_8bit_step

__all__ = [
    "RecordingStore",
    "adafactor_step",
    "adam_8bit_step",
    "checkpoint",
    "chunked_cross_entropy",
    "dequantize_blocks",
    "kept_bytes",
    "offload_activations",
    "plan_recomputation",
    "predict_kept",
    "predict_rank_bytes",
    "predict_state_bytes",
    "quantize_blocks",
    "sharded_8bit_step",
    "show_values",
]
