"""Checks of lab 04, tensor parallelism: one module for each exercise.

_passes: run a function forward and backward, and check what it computes, sends, and refuses.
_layers: compare a learner's layer with the serial layer.
_gpt: the small GPT, and each rank's share of it.
"""

from parlab.checks.base.collective import show_values
from parlab.checks.tensor_parallel.column_parallel_linear import column_parallel_linear
from parlab.checks.tensor_parallel.dropout_generators import dropout_generators
from parlab.checks.tensor_parallel.f_and_g import f_and_g
from parlab.checks.tensor_parallel.parallel_attention import parallel_attention
from parlab.checks.tensor_parallel.parallel_gpt import parallel_gpt
from parlab.checks.tensor_parallel.parallel_mlp import parallel_mlp
from parlab.checks.tensor_parallel.predict_activations import predict_activations
from parlab.checks.tensor_parallel.predict_layer import predict_layer
from parlab.checks.tensor_parallel.row_parallel_linear import row_parallel_linear
from parlab.checks.tensor_parallel.sequence_operators import sequence_operators
from parlab.checks.tensor_parallel.sequence_parallel_gpt import sequence_parallel_gpt
from parlab.checks.tensor_parallel.vocabulary_cross_entropy import vocabulary_cross_entropy
from parlab.checks.tensor_parallel.vocabulary_embedding import vocabulary_embedding

__all__ = [
    "column_parallel_linear",
    "dropout_generators",
    "f_and_g",
    "parallel_attention",
    "parallel_gpt",
    "parallel_mlp",
    "predict_activations",
    "predict_layer",
    "row_parallel_linear",
    "sequence_operators",
    "sequence_parallel_gpt",
    "show_values",
    "vocabulary_cross_entropy",
    "vocabulary_embedding",
]
