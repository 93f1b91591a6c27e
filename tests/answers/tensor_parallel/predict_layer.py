"""Answers to `predict_layer`."""

from types import MappingProxyType

from parlab.costs import tensor_parallel as costs
from parlab_staff.answers import Answers

answers = Answers("predict_layer")

answers.edit("forward_only", "forward_alone", ('"all_reduces": 4', '"all_reduces": 2'))
answers.edit("elements", "numbers", ("size = 4 * batch", "size = batch"))
answers.edit("mlp_width", "hidden_numbers", ('"bytes": size', '"bytes": 4 * size'))
answers.edit(None, "one_half", ("4 * 2 * share * size", "4 * share * size"))
answers.edit("whole", "keeps_nothing", ("4 * 2 * share * size", "4 * 2 * size"))
answers.edit("whole", "all_weights", ('"weights": share * 4', '"weights": 4'))
answers.edit(None, "weights_reduced", ("share * 4 * 12", "2 * share * 4 * 12"))


@answers.wrong("formula_called")
def from_the_costs(batch, sequence, hidden, world_size):
    return costs.layer_in_numbers(batch, sequence, hidden, world_size, 4)


@answers.right
def by_halves(batch, sequence, hidden, world_size):
    size = batch * sequence * hidden * 4
    half = size - size / world_size
    weights = 48 * hidden * hidden
    return {
        "all_reduces": 2 + 2,
        "bytes": size,
        "sent": 8 * half,
        "weights": weights - weights / world_size,
    }


@answers.right
def read_only(*sizes):
    return MappingProxyType(answers.reference()(*sizes))


@answers.right
def rounded(*sizes):
    return {name: round(value) for name, value in answers.reference()(*sizes).items()}


@answers.right
def nothing_alone(batch, sequence, hidden, world_size):
    """One rank makes no all-reduce; in another order."""
    size = 4 * batch * sequence * hidden
    return {
        "weights": 48 * hidden**2 * (1 - 1 / world_size),
        "sent": 8 * size * (1 - 1 / world_size),
        "bytes": float(size),
        "all_reduces": 4 * (world_size > 1),
    }
