"""Checks of lab 07, Triton kernels: one module for each exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.triton.adam_group import adam_group
from parlab.checks.triton.adam_step import adam_step
from parlab.checks.triton.attention import attention
from parlab.checks.triton.fair_benchmark import fair_benchmark
from parlab.checks.triton.fused_adam import fused_adam
from parlab.checks.triton.layer_norm import layer_norm
from parlab.checks.triton.matmul import matmul
from parlab.checks.triton.online_softmax import online_softmax
from parlab.checks.triton.predict_fusion import predict_fusion
from parlab.checks.triton.softmax import softmax
from parlab.checks.triton.vector_add import vector_add

__all__ = [
    "adam_group",
    "adam_step",
    "attention",
    "fair_benchmark",
    "fused_adam",
    "layer_norm",
    "matmul",
    "online_softmax",
    "predict_fusion",
    "show_values",
    "softmax",
    "vector_add",
]
