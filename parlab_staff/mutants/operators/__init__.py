"""Operators that make typical mistakes: small changes of the reference's syntax tree.

An operator gets a node, or a position in a block of statements, and yields replacements. It does
not check them: `generate` drops replacements that do not compile, cannot run, or do not change the
program.

values         numbers, comparisons, conditions, arithmetic, names
calls          arguments, wrappers, views and copies, dtypes, slices
flow           dropped, repeated, and moved statements; loops with one round less
communication  peers, roots, communicators, operations, waiting
"""

from parlab_staff.mutants.operators import calls, communication, flow, values
from parlab_staff.mutants.operators.kind import BlockOperator, Context, NodeOperator

NODE_OPERATORS: list[NodeOperator] = [
    *values.NODE_OPERATORS,
    *calls.NODE_OPERATORS,
    *flow.NODE_OPERATORS,
    *communication.NODE_OPERATORS,
]
BLOCK_OPERATORS: list[BlockOperator] = flow.BLOCK_OPERATORS

__all__ = ["BLOCK_OPERATORS", "NODE_OPERATORS", "BlockOperator", "Context", "NodeOperator"]
