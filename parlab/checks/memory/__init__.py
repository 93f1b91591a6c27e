"""Checks of lab 08, training in less memory: one module an exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.memory.adam_8bit_step import adam_8bit_step
from parlab.checks.memory.dequantize_blocks import dequantize_blocks
from parlab.checks.memory.predict_rank_bytes import predict_rank_bytes
from parlab.checks.memory.quantize_blocks import quantize_blocks
from parlab.checks.memory.sharded_8bit_step import sharded_8bit_step

__all__ = [
    "adam_8bit_step",
    "dequantize_blocks",
    "predict_rank_bytes",
    "quantize_blocks",
    "sharded_8bit_step",
    "show_values",
]
