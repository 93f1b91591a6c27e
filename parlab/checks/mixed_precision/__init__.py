"""Checks of lab 06, mixed precision: one module per exercise.

Shared: _float16 (all numbers of the format), _weights and _scaler (objects that record calls),
and _serial_training (the reference of sharded_master_weights).
"""

from parlab.checks.base.collective import show_values
from parlab.checks.mixed_precision.decode_half import decode_half
from parlab.checks.mixed_precision.encode_half import encode_half
from parlab.checks.mixed_precision.gradient_exponents import gradient_exponents
from parlab.checks.mixed_precision.loss_scaler import loss_scaler
from parlab.checks.mixed_precision.master_weights import master_weights
from parlab.checks.mixed_precision.mixed_step import mixed_step
from parlab.checks.mixed_precision.predict_bytes import predict_bytes
from parlab.checks.mixed_precision.predict_vanishing import predict_vanishing
from parlab.checks.mixed_precision.reduce_halves import reduce_halves
from parlab.checks.mixed_precision.scaled_step import scaled_step
from parlab.checks.mixed_precision.sharded_master_weights import sharded_master_weights

__all__ = [
    "decode_half",
    "encode_half",
    "gradient_exponents",
    "loss_scaler",
    "master_weights",
    "mixed_step",
    "predict_bytes",
    "predict_vanishing",
    "reduce_halves",
    "scaled_step",
    "sharded_master_weights",
    "show_values",
]
