"""Answers to `plan_layouts`."""

import math
from itertools import product

from parlab.layouts import Layout
from parlab_staff.answers import Answers

answers = Answers("plan_layouts")

SIZES = "range(1, model.batch // dp + 1)"
BATCH = "model.batch % (dp * b) == 0"
FITS = "need <= cluster.memory"
SORTED = "sorted(fitting, key=lambda layout: seconds_of(model, layout, cluster))"
REFUSAL = (
    'raise ValueError(f"none fits: the smallest needs {math.ceil(min(needs.values()))} bytes")'
)
IMPOSSIBLE = 'raise ValueError(f"no layout of {devices} devices divides heads, layers, and batch")'


for mistake, name, *edits in (
    ("too_large", "memory_ignored", (FITS, "True")),
    (None, "less_than", (FITS, "need < cluster.memory")),
    (None, "b_is_1", (SIZES, "(1,)")),
    ("not_sorted", "reverse", ("cluster))", "cluster), reverse=True)")),
    (None, "doubled", (SORTED, SORTED.replace("fitting,", "fitting + fitting,"))),
    ("not_refused", "empty_list", (REFUSAL, "pass")),
    ("not_refused", "no_layout", (IMPOSSIBLE, "return []")),
    (None, "the_budget", (REFUSAL, "raise ValueError(f'{cluster.memory} bytes')")),
    ("impossible", "rounded_replicas", ("dp * tp * pp != devices or ", "")),
    ("impossible", "batch_forgotten", (BATCH, "True")),
    (None, "assertion", (REFUSAL, "raise MemoryError(str(min(needs.values())))")),
    (
        "too_large",
        "states_alone",
        ("sum(memory_of(model, layout).values())", 'memory_of(model, layout)["states"]'),
    ),
    ("too_large", "whole_bytes", (FITS, "int(need) <= cluster.memory")),
    ("too_large", "rounded", ("need <= cluster", "round(need) <= cluster")),
    (None, "rounded_up", ("need <= cluster", "math.ceil(need) <= cluster")),
    (
        "wrong_type",
        "a_generator",
        ("return sorted", "return iter(sorted"),
        ("cluster))", "cluster)))"),
    ),
    (
        "wrong_type",
        "tuples",
        (
            SORTED,
            SORTED.replace("sorted", "[(l.dp, l.tp, l.pp, l.micro_batch) for l in sorted") + "]",
        ),
    ),
):
    answers.edit(mistake, name, *edits)


@answers.wrong("impossible")
def predicts_for_all(model, cluster, memory_of, seconds_of):
    """Asks for the memory of layouts that are not possible."""
    needs = {}
    for tp, pp in product(range(1, cluster.devices + 1), repeat=2):
        layout = Layout(max(1, cluster.devices // (tp * pp)), tp, pp, 1)
        needs[layout] = sum(memory_of(model, layout).values())
    return sorted(needs, key=lambda layout: seconds_of(model, layout, cluster))


@answers.right
def by_products(model, cluster, memory_of, seconds_of):
    """Tries all combinations, and sorts pairs."""
    found = []
    for dp, tp, pp in product(range(1, cluster.devices + 1), repeat=3):
        if dp * tp * pp != cluster.devices or model.heads % tp or model.layers % pp:
            continue
        found += [
            Layout(dp, tp, pp, b) for b in range(1, model.batch + 1) if model.batch % (dp * b) == 0
        ]
    if not found:
        raise ValueError("heads, layers, and batch do not divide")
    needs = [sum(memory_of(model, layout).values()) for layout in found]
    if min(needs) > cluster.memory:
        raise ValueError(
            f"{cluster.memory:,} bytes are too few: {math.ceil(min(needs)):,} bytes needed"
        )
    timed = [
        (seconds_of(model, layout, cluster), i)
        for i, layout in enumerate(found)
        if needs[i] <= cluster.memory
    ]
    return [found[i] for _, i in sorted(timed)]


@answers.right
def tuple_of_layouts(*arguments):
    return tuple(answers.reference()(*arguments))


@answers.right
def by_division(model, cluster, memory_of, seconds_of):
    """Divides the devices, and lets Python's min raise when there is nothing."""
    divisors = [i for i in range(1, cluster.devices + 1) if cluster.devices % i == 0]
    layouts = [
        Layout(dp=cluster.devices // tp // pp, tp=tp, pp=pp, micro_batch=b)
        for tp in divisors
        if model.heads % tp == 0
        for pp in divisors
        if cluster.devices // tp % pp == 0 and model.layers % pp == 0
        for b in range(model.batch, 0, -1)
        if model.batch % (cluster.devices // tp // pp * b) == 0
    ]
    need = {layout: sum(memory_of(model, layout).values()) for layout in layouts}
    least = min(need.values())  # a ValueError if there is none
    if least > cluster.memory:
        raise ValueError(f"a device needs {-(-least // 1)} bytes")
    times = {
        layout: seconds_of(model, layout, cluster)
        for layout in layouts
        if need[layout] <= cluster.memory
    }
    return sorted(times, key=times.__getitem__)


LEAST = "{math.ceil(min(needs.values()))}"
answers.right_edit("scientific", (LEAST, "{float(math.ceil(min(needs.values())))}"))
answers.edit(
    None, "least_rounded_down", (LEAST, "{int(min(needs.values()))}"), says="not name the number"
)
answers.edit(
    None, "least_rounded", (LEAST, "{min(needs.values()):.0f}"), says="not name the number"
)
