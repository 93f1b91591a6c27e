"""What may go wrong in an exercise, each kind as a small change of the reference's syntax tree.

An operator gets a node (or a place in a block of statements) and yields what may stand there
instead. It does not know whether the result runs, or differs: `mutants` throws away what does not
compile, what cannot run, and what is the same program.

values         numbers, comparisons, conditions, arithmetic, one name for another
calls          arguments, wrappers, views and copies, dtypes, slices
flow           statements left out, twice, in another order or block; loops that miss a round
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
