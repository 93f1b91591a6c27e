"""Answers to `predict_layout_memory`."""

import functools
from types import MappingProxyType

from parlab.costs.layouts import memory
from parlab.layouts import ELEMENT_BYTES
from parlab_staff.answers import Answers

answers = Answers("predict_layout_memory")

PARAMETERS = "layers * model.layer_parameters / layout.tp + model.embedding_parameters"
FLYING = "min(layout.pp, layout.micro_batches(model))"
OPTIMIZER = "12 * parameters / layout.dp"
SHARE = "(10 + 24 / layout.tp)"

for mistake, name, *edits in (
    ("embedding_forgotten", "layers_alone", (" + model.embedding_parameters", "")),
    (
        None,
        "all_divided_by_tp",
        (PARAMETERS, "(layers * model.layer_parameters + model.embedding_parameters) / layout.tp"),
    ),
    (None, "no_stages", ("model.layers // layout.pp", "model.layers")),
    (
        "gradients_sharded",
        "zero_2",
        ('"gradients": 2 * parameters', '"gradients": 2 * parameters / layout.dp'),
    ),
    ("optimizer_not_sharded", "no_zero", (OPTIMIZER, "12 * parameters")),
    ("in_flight", "gpipe", (FLYING, "layout.micro_batches(model)")),
    ("in_flight", "always_p", (FLYING, "layout.pp")),
    ("in_flight", "the_last_stage", (FLYING, "1")),
    ("all_split", "sequence_parallel", (SHARE, "34 / layout.tp")),
    (None, "one_less_in_flight", (FLYING, "max(1, layout.pp - 1)")),
    (None, "moments_alone", (OPTIMIZER, "8 * parameters / layout.dp")),
    (None, "float32", ('"weights": 2', '"weights": 4')),
    (None, "all_parameters", (PARAMETERS, "model.parameters / (layout.tp * layout.pp)")),
    (None, "embedding_twice", ("+ model.embedding", "+ 2 * model.embedding")),
    ("returns_none", "no_return", ("    return {", "    x = {")),
    (
        "wrong_type",
        "sum_of_all",
        ("    return {", "    return sum({"),
        ("    }", "    }.values())"),
    ),
):
    answers.edit(mistake, name, *edits)


@answers.wrong(None)
def three_kinds(model, layout):
    found = dict(answers.reference()(model, layout))
    found["states"] = found.pop("weights") + found.pop("gradients") + found.pop("optimizer")
    return found


@answers.wrong("formula_called")
def from_the_costs(model, layout):
    return memory(model, layout)


def _kinds(model, layout):
    return memory(model, layout)


@answers.wrong("formula_called")
@functools.cache
def by_a_helper(model, layout):
    """Is cached, and hides the call in a helper function."""
    return _kinds(model, layout)


@answers.wrong("formula_called")
def imported(model, layout):
    """Imports the check's formula, and hides it in an inner function."""

    def kinds():
        from parlab.checks.composing import predict_layout_memory as check

        return check.__wrapped__.__globals__["memory"](model, layout)

    return kinds()


@answers.right
def read_only(model, layout):
    return MappingProxyType(answers.reference()(model, layout))


@answers.right
def rounded(model, layout):
    return {kind: round(value) for kind, value in answers.reference()(model, layout).items()}


@answers.right
def layer_by_layer(model, layout):
    """Adds up layers and micro-batches one by one."""
    parameters = activations = 0.0
    own = range(model.layers)[: model.layers // layout.pp]
    for _ in own:
        parameters += 12 * model.hidden**2 / layout.tp
        for _ in range(model.batch // layout.dp // layout.micro_batch)[: layout.pp]:
            numbers = layout.micro_batch * model.sequence * model.hidden
            activations += 10 * numbers + 24 * numbers / layout.tp
    parameters += model.vocabulary * model.hidden
    bits_16 = ELEMENT_BYTES * parameters
    return {
        "activations": activations,
        "optimizer": 6 * bits_16 / layout.dp,
        "gradients": bits_16,
        "weights": bits_16,
    }


@answers.wrong(None)
def with_total(model, layout):
    """Has another kind in addition, so a planner that adds up all kinds counts each byte twice."""
    found = answers.reference()(model, layout)
    return found | {"total": sum(found.values())}


answers.right_edit("other_order", (FLYING, "sorted([layout.micro_batches(model), layout.pp])[0]"))
answers.right_edit("whole_bytes", (OPTIMIZER, "round(12 * parameters / layout.dp)"))

answers.edit(None, "rounded_down", (SHARE, "(10 + 24 // layout.tp)"), says="activations")
