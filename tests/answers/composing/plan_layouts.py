"""Answers to `plan_layouts`."""

from itertools import product

from parlab.layouts import Layout
from parlab_staff.answers import Answers

answers = Answers("plan_layouts")

DIVIDES = "dp * tp * pp != devices or model.heads % tp or model.layers % pp"
SIZES = "range(1, model.batch // dp + 1)"
BATCH = "model.batch % (dp * b) == 0"
FITS = "need <= cluster.memory"
SORTED = "sorted(fitting, key=lambda layout: seconds_of(model, layout, cluster))"
SMALLEST = "min(needs.values())"
REFUSAL = 'raise ValueError(f"no layout fits: the smallest needs {min(needs.values()):.0f} bytes")'
IMPOSSIBLE = 'raise ValueError(f"no layout of {devices} devices divides heads, layers, and batch")'


for mistake, name, *edits in (
    ("too_large", "memory_ignored", (FITS, "True")),
    ("exact_fit_missing", "less_than", (FITS, "need < cluster.memory")),
    ("one_micro_batch", "b_is_1", (SIZES, "(1,)")),
    (
        "in_one_node",
        "tp_in_a_node",
        ("range(1, devices + 1)", "range(1, min(devices, cluster.devices_per_node) + 1)"),
    ),
    ("only_the_fastest", "one", (SORTED, SORTED + "[:1]")),
    ("slowest_first", "reverse", ("cluster))", "cluster), reverse=True)")),
    ("slowest_first", "negative", ("layout: seconds_of", "layout: -seconds_of")),
    ("by_memory", "needs", (SORTED, "sorted(fitting, key=needs.get)")),
    ("twice", "doubled", (SORTED, SORTED.replace("fitting,", "fitting + fitting,"))),
    ("refusal_missing", "empty_list", (REFUSAL, "pass")),
    ("impossible_accepted", "no_layout", (IMPOSSIBLE, "return []")),
    ("smallest_not_named", "no_number", (REFUSAL, "raise ValueError('nothing fits')")),
    ("smallest_not_named", "the_budget", (REFUSAL, "raise ValueError(f'{cluster.memory} bytes')")),
    ("smallest_not_named", "largest", (SMALLEST, "max(needs.values())")),
    ("smallest_not_named", "first", (SMALLEST, "[*needs.values()][0]")),
    ("wrong_devices", "rounded_replicas", ("dp * tp * pp != devices or ", "")),
    ("heads_undivided", "heads_forgotten", ("or model.heads % tp ", "")),
    ("layers_undivided", "layers_forgotten", (" or model.layers % pp", "")),
    ("batch_undivided", "batch_forgotten", (BATCH, "True")),
    ("batch_undivided", "a_rest_of_the_batch", (BATCH, "model.batch // dp % b == 0")),
    (None, "as_possible", (SORTED, "fitting")),
    (None, "assertion", (REFUSAL, "raise MemoryError(str(min(needs.values())))")),
    (
        "too_large",
        "states_alone",
        ("sum(memory_of(model, layout).values())", 'memory_of(model, layout)["states"]'),
    ),
    ("too_large", "largest_kind", ("sum(memory_of", "max(memory_of")),
    (None, "powers_of_two", (SIZES, "(1, 2, 4, 8, 16, 32)")),
    (None, "no_whole_batch", (SIZES, "range(1, model.batch // dp)")),
    (
        "wrong_type",
        "a_generator",
        ("return sorted", "return iter(sorted"),
        ("cluster))", "cluster)))"),
    ),
    (
        None,
        "tuples",
        (
            SORTED,
            SORTED.replace("sorted", "[(l.dp, l.tp, l.pp, l.micro_batch) for l in sorted") + "]",
        ),
    ),
):
    answers.edit(mistake, name, *edits)


@answers.wrong("wrong_devices")
def predicts_for_all(model, cluster, memory_of, seconds_of):
    """Asks for the memory of layouts that are not possible."""
    needs = {}
    for tp, pp in product(range(1, cluster.devices + 1), repeat=2):
        layout = Layout(max(1, cluster.devices // (tp * pp)), tp, pp, 1)
        needs[layout] = sum(memory_of(model, layout).values())
    return sorted(needs, key=lambda layout: seconds_of(model, layout, cluster))


@answers.wrong(None)
def stops_early(model, cluster, memory_of, seconds_of):
    """Tries larger micro-batches only until one does not fit."""
    plans = answers.reference()(model, cluster, memory_of, seconds_of)
    fitting = []
    for layout in sorted(plans, key=lambda one: one.micro_batch):
        smaller = [i for i in range(1, layout.micro_batch) if layout.micro_batch % i == 0]
        others = [Layout(layout.dp, layout.tp, layout.pp, i) for i in smaller]
        if all(other in fitting for other in others):
            fitting.append(layout)
    return [layout for layout in plans if layout in fitting]


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
        raise ValueError(f"{cluster.memory:,} bytes are too few: {min(needs):,} bytes needed")
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
        raise ValueError(f"a device needs {least} bytes")
    times = {
        layout: seconds_of(model, layout, cluster)
        for layout in layouts
        if need[layout] <= cluster.memory
    }
    return sorted(times, key=times.__getitem__)


answers.right_edit(
    "sort_in_place",
    (
        f"return {SORTED}",
        "fitting.sort(key=lambda one: seconds_of(model, one, cluster)); return fitting",
    ),
)
answers.right_edit("scientific", ("{min(needs.values()):.0f}", "{float(min(needs.values()))}"))
