"""Answers to `predict_step_seconds`."""

from itertools import pairwise

from parlab_staff.answers import Answers

answers = Answers("predict_step_seconds")

MESSAGES = "-(-m // pp) * 2 * one_way"
REPLICAS = "range(0, layout.devices, tp * pp)"
SCATTER = 'cluster.collective_seconds("reduce_scatter", shared, replicas)'
TOTAL = "passes + messages + gradients + weights"

for mistake, name, *edits in (
    ("bubble_forgotten", "m_passes", ("(m + pp - 1)", "m")),
    (None, "twice_the_forward_pass", ("3 * model", "2 * model")),
    ("two_all_reduces", "forward_reduces", ("4 * reduce", "2 * reduce")),
    (None, "no_messages", ("passes + messages", "passes")),
    ("one_round_trip", "fill_and_drain", (MESSAGES, "2 * one_way")),
    ("stages_are_neighbors", "next_rank", ("i * tp, (i + 1) * tp", "i, i + 1")),
    ("replicas_are_neighbors", "first_ranks", (REPLICAS, "range(layout.dp)")),
    (
        "all_reduce_instead",
        "no_zero",
        (SCATTER, SCATTER.replace("reduce_scatter", "all_reduce")),
        (" + weights", ""),
    ),
    (None, "numbers", ("size = 2 *", "size ="), ("shared = 2 *", "shared =")),
    ("returns_none", "no_return", ("return passes", "passes")),
    (
        "wrong_type",
        "parts",
        ("return passes + messages + gradients + weights", "return passes, messages, gradients"),
    ),
):
    answers.edit(mistake, name, *edits)


@answers.right
def by_the_pipeline(model, layout, cluster):
    """Uses chapter 05's formula for the passes, and adds up the parts in another order."""
    size = 2 * model.activation_numbers(layout.micro_batch)
    reduce = cluster.collective_seconds("all_reduce", size, list(range(layout.tp)))
    flop = model.layers * model.layer_flop(layout.micro_batch) / layout.tp / layout.pp
    forward = flop / cluster.flop_per_second + 2 * reduce * model.layers / layout.pp
    backward = forward + flop / cluster.flop_per_second
    m = layout.micro_batches(model)
    seconds = m * (forward + backward) + (layout.pp - 1) * (forward + backward)
    ranks = [i * layout.tp for i in range(layout.pp)]
    for source, destination in pairwise(ranks):
        there = cluster.message_seconds(size, source, destination)
        back = cluster.message_seconds(size, destination, source)
        seconds += (m + layout.pp - 1) // layout.pp * (there + back)
    owned = 2 * (model.layers // layout.pp) * model.layer_parameters / layout.tp
    owned += 2 * model.embedding_parameters
    replicas = [d * layout.pp * layout.tp for d in range(layout.dp)]
    for name in ("all_gather", "reduce_scatter"):
        seconds += cluster.collective_seconds(name, owned, replicas)
    return seconds


@answers.right
def from_the_mesh(model, layout, cluster):
    """Finds the groups of rank 0 by the coordinates of all ranks."""
    tp, pp = layout.tp, layout.pp
    places = {r: (r // (tp * pp), r // tp % pp, r % tp) for r in range(layout.devices)}
    tensor = [r for r, place in places.items() if place[:2] == (0, 0)]
    stages = [r for r, place in places.items() if (place[0], place[2]) == (0, 0)]
    replicas = [r for r, place in places.items() if place[1:] == (0, 0)]
    size = model.activation_numbers(layout.micro_batch) * 2
    layer = 3 * model.layer_flop(layout.micro_batch) / cluster.flop_per_second / len(tensor)
    if len(tensor) > 1:
        layer += 4 * cluster.collective_seconds("all_reduce", size, tensor)
    m = model.batch // len(replicas) // layout.micro_batch
    total = sum(layer for _ in range(m + pp - 1) for _ in range(model.layers // pp))
    trips = len(range(0, m, pp))
    for i in range(1, pp):
        total += 2 * trips * cluster.message_seconds(size, stages[i - 1], stages[i])
    weights = model.layers / pp * model.layer_parameters / tp + model.embedding_parameters
    if len(replicas) > 1:
        total += cluster.collective_seconds("reduce_scatter", 2 * weights, replicas)
        total += cluster.collective_seconds("all_gather", 2 * weights, replicas)
    return total


answers.right_edit("ceil", ("-(-m // pp)", "(m // pp + (m % pp > 0))"))
answers.right_edit("groups_as_lists", ("range(tp))", "[i for i in range(tp)])"))
answers.right_edit("another_order", (TOTAL, "weights + gradients + messages + passes"))
