"""Answers to `predict_activations`."""

from types import MappingProxyType

from parlab.costs import tensor_parallel as costs
from parlab_staff.answers import Answers

answers = Answers("predict_activations")

TENSOR = "4 * once + 12 * once / world_size"
SEQUENCE = "16 * once / world_size"

answers.edit("all_cut", "all_cut", (TENSOR, SEQUENCE))
answers.edit("norms_only", "norms_only", (TENSOR, "2 * once + 14 * once / world_size"))
answers.edit("gathered_kept", "gathered_kept", (SEQUENCE, "2 * once + 14 * once / world_size"))
answers.edit(None, "sequence_not_cut", (SEQUENCE, "16 * once"))
answers.edit("elements", "numbers", ("once = 4 * batch", "once = batch"))
answers.edit(None, "norms_forgotten", ('"serial": 16', '"serial": 14'))


@answers.wrong("formula_called")
def from_the_costs(batch, sequence, hidden, world_size):
    return costs.block_in_numbers(batch, sequence, hidden, world_size, 4)


@answers.right
def counted_up(batch, sequence, hidden, world_size):
    norms = columns = 2
    inside = 3 + 1 + 4 + 4
    once = 4 * batch * sequence * hidden
    return {
        "serial": (norms + columns + inside) * once,
        "tensor_parallel": (norms + columns + inside / world_size) * once,
        "sequence_parallel": (norms + columns + inside) * once / world_size,
    }


@answers.right
def read_only(*sizes):
    return MappingProxyType(answers.reference()(*sizes))


@answers.right
def rounded(*sizes):
    return {name: round(value) for name, value in answers.reference()(*sizes).items()}


@answers.right
def with_more(*sizes):
    return {**answers.reference()(*sizes), "full": 0}
