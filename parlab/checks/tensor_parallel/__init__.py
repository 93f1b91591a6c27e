"""Checks of lab 04, tensor parallelism: one module an exercise.

layers: passes of a learner's layer beside those of the serial one; who holds which part.
requirements: what is asked of any of them.
gpt: the same for the whole model.
"""

from parlab.checks.agreement import show_values
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
