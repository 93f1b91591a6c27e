"""Checks of lab 07, Triton kernels: one module an exercise."""

from parlab.checks.base.collective import show_values
from parlab.checks.triton.adam_group import adam_group
from parlab.checks.triton.adam_step import adam_step
from parlab.checks.triton.attention import attention
from parlab.checks.triton.fused_adam import fused_adam
from parlab.checks.triton.matmul import matmul
from parlab.checks.triton.online_softmax import online_softmax
from parlab.checks.triton.predict_adam import predict_adam
from parlab.checks.triton.predict_softmax import predict_softmax
from parlab.checks.triton.sharded_adam import sharded_adam
from parlab.checks.triton.softmax import softmax
from parlab.checks.triton.vector_add import vector_add

__all__ = [
    "adam_group",
    "adam_step",
    "attention",
    "fused_adam",
    "matmul",
    "online_softmax",
    "predict_adam",
    "predict_softmax",
    "sharded_adam",
    "show_values",
    "softmax",
    "vector_add",
]
