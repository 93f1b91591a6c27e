"""Exercise `predict_step_seconds`."""

from collections.abc import Iterator
from dataclasses import replace
from numbers import Real
from typing import Any

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import close, has_type, instead
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.costs import layouts as costs
from parlab.layouts import ELEMENT_BYTES, Cluster, Layout, Link, Model

MISTAKES = Mistakes(
    bubble_forgotten="a step has m + p − 1 passes: the last stage waits for p − 1 others first",
    backward_forgotten=(
        "the computation is that of the forward pass. The backward pass has twice as many FLOP"
    ),
    backward_as_forward=(
        "the backward pass computes as long as the forward pass. It has twice as many FLOP"
    ),
    compute_not_split="the computation is not divided by tp: t ranks share each layer",
    all_layers="each stage has all layers. It has only layers / pp of them",
    two_all_reduces="a layer has two all-reduces in each pass, so there are four in F + B",
    all_reduces_forgotten="the all-reduces of tensor parallelism are missing",
    messages_forgotten="the messages between stages are missing",
    one_way="messages go to the next stage, and gradients come back: count both ways",
    one_round_trip=(
        "there is one round trip of messages. Only p micro-batches are in flight, so a step with m "
        "of them waits for ⌈m/p⌉ round trips"
    ),
    every_micro_batch=(
        "there is a round trip of messages for each micro-batch. Up to p of them share one"
    ),
    rounded_down="the round trips are rounded down. The last micro-batches need one, too",
    stages_are_neighbors=(
        "the messages are from rank i to rank i + 1. Stage i of a replica has the ranks from i·t "
        "on, so its neighbor is t ranks away"
    ),
    replicas_are_neighbors=(
        "the gradients are those of ranks 0 to dp − 1. Replicas are p·t ranks apart, often on "
        "different nodes"
    ),
    all_devices=(
        "all devices take part in the collectives of the gradients. Only replicas share them, "
        "with the same stage and the same tensor-parallel coordinate"
    ),
    embedding_forgotten="the gradients lack the embedding's, which the first stage has, too",
    gather_forgotten="the all-gather of the weights is missing, or the reduce-scatter",
    all_reduce_instead=(
        "the gradients are all-reduced. ZeRO-1 reduce-scatters them and all-gathers the weights"
    ),
    per_micro_batch="the gradients are reduced for every micro-batch. Once in a step is enough",
    numbers_as_bytes="messages and collectives count numbers. Each one has 2 bytes",
)
SLOW, FAST = Link.of(5e-3, 2e6), Link.of(1e-4, 5e7)
# For each cluster: the links inside and between nodes, and FLOP/s.
CLUSTERS = {
    "with slow links between nodes": (FAST, SLOW, 1e9),
    "with slow links inside nodes": (SLOW, FAST, 1e9),
}
CLUSTERS |= {"with slow devices": (FAST, SLOW, 2e7)}
LAYOUTS = [  # of 24 devices: dp, tp, pp, micro-batch
    (2, 3, 4, 3),
    (2, 2, 6, 6),
    (1, 4, 6, 2),  # stages begin inside a node and end on the next one
    (12, 2, 1, 1),
    (4, 6, 1, 5),
    (8, 1, 3, 1),
    (1, 2, 12, 4),
    (2, 12, 1, 4),
    (24, 1, 1, 1),
]


@check_of(MISTAKES, ranks=1)
def predict_step_seconds(check: Check) -> str:
    """Compare with the formulas on clusters where one part or another takes the most time."""
    with check.trial() as trial:
        pick = trial.draw.randrange
        for _, (inside, between, speed) in trial.cases(CLUSTERS):
            numbers = {"hidden": 12 * pick(4, 8), "sequence": pick(40, 90)}
            model = Model(12, heads=12, vocabulary=pick(900, 1900), batch=120, **numbers)
            cluster = Cluster(4, 6, 1e9, speed, inside, between, call=pick(20, 40) * 1e-4)
            layouts = [Layout(*sizes) for sizes in LAYOUTS]
            got = [trial.run(model, layout, cluster) for layout in layouts]
            trial.require(lambda: _finding(got, model, layouts, cluster))
    return "passes, messages, and gradients, on links inside nodes and between them"


def _finding(
    got: list[Any], model: Model, layouts: list[Layout], cluster: Cluster
) -> Finding | None:
    """Return None for the right seconds, the mistake that explains all of them, or the first."""
    for seconds in got:
        if found := has_type(seconds, Real, "a number of seconds"):
            return found
    right = [costs.step_seconds(model, layout, cluster) for layout in layouts]
    all_wrong = zip(*(_wrong(model, layout, cluster) for layout in layouts), strict=True)
    variants = (([value for value, _ in wrong], wrong[0][1]) for wrong in all_wrong)
    if named := instead(got, right, variants, _alike):
        return named
    for layout, one, other in zip(layouts, got, right, strict=True):
        if not _alike(one, other):
            return observed(
                f"for {layout}, you predicted {one:.4g} s, expected {other:.4g} s, of which passes "
                f"take {_passes(model, layout, cluster):.4g} s, messages "
                f"{costs.message_seconds(model, layout, cluster):.4g} s, and gradients "
                f"{costs.gradient_seconds(model, layout, cluster):.4g} s"
            )
    return None


def _alike(seconds: float, other: float) -> bool:
    return close(seconds, other, 1e-5)


def _passes(model: Model, layout: Layout, cluster: Cluster) -> float:
    count = layout.micro_batches(model) + layout.pp - 1
    return count * costs.stage_seconds(model, layout, cluster)


def _wrong(model: Model, layout: Layout, cluster: Cluster) -> Iterator[tuple[float, Finding]]:
    """Yield what misconceptions predict."""
    passes = _passes(model, layout, cluster)
    messages = costs.message_seconds(model, layout, cluster)
    gradients = costs.gradient_seconds(model, layout, cluster)
    for wrong, others in (
        (_wrong_passes(model, layout, cluster, passes), messages + gradients),
        (_wrong_messages(model, layout, cluster, messages), passes + gradients),
        (_wrong_gradients(model, layout, cluster, gradients), passes + messages),
    ):
        for value, finding in wrong:
            yield value + others, finding
    yield _numbers_as_bytes(model, layout, cluster), MISTAKES.numbers_as_bytes()


def _wrong_passes(
    model: Model, layout: Layout, cluster: Cluster, passes: float
) -> Iterator[tuple[float, Finding]]:
    m, tp, pp = layout.micro_batches(model), layout.tp, layout.pp
    compute = model.layer_flop(layout.micro_batch) / tp / cluster.flop_per_second
    size = ELEMENT_BYTES * model.activation_numbers(layout.micro_batch)
    reduce = cluster.collective_seconds("all_reduce", size, range(tp))
    layers = (m + pp - 1) * model.layers / pp
    for flop, reduces, finding in (
        (1, 4, MISTAKES.backward_forgotten()),
        (2, 4, MISTAKES.backward_as_forward()),
        (3 * tp, 4, MISTAKES.compute_not_split()),
        (3, 2, MISTAKES.two_all_reduces()),
        (3, 0, MISTAKES.all_reduces_forgotten()),
    ):
        yield layers * (flop * compute + reduces * reduce), finding
    yield passes * m / (m + pp - 1), MISTAKES.bubble_forgotten()
    yield passes * pp, MISTAKES.all_layers()


def _wrong_messages(
    model: Model, layout: Layout, cluster: Cluster, messages: float
) -> Iterator[tuple[float, Finding]]:
    m, pp = layout.micro_batches(model), layout.pp
    round_trip = messages / -(-m // pp)
    size = ELEMENT_BYTES * model.activation_numbers(layout.micro_batch)
    neighbors = 2 * sum(cluster.message_seconds(size, i, i + 1) for i in range(pp - 1))
    yield 0, MISTAKES.messages_forgotten()
    yield messages / 2, MISTAKES.one_way()
    yield round_trip, MISTAKES.one_round_trip()
    yield m * round_trip, MISTAKES.every_micro_batch()
    yield m // pp * round_trip, MISTAKES.rounded_down()
    yield -(-m // pp) * neighbors, MISTAKES.stages_are_neighbors()


def _wrong_gradients(
    model: Model, layout: Layout, cluster: Cluster, gradients: float
) -> Iterator[tuple[float, Finding]]:
    embedding = ELEMENT_BYTES * model.embedding_parameters
    size = ELEMENT_BYTES * costs.parameters_of_stage(model, layout)
    replicas = range(0, layout.devices, layout.tp * layout.pp)

    def both(size: float, ranks: range) -> float:
        names = ("reduce_scatter", "all_gather")
        return sum(cluster.collective_seconds(name, size, ranks) for name in names)

    yield both(size, range(layout.dp)), MISTAKES.replicas_are_neighbors()
    yield both(size, range(layout.devices)), MISTAKES.all_devices()
    yield both(size - embedding, replicas), MISTAKES.embedding_forgotten()
    for name in ("reduce_scatter", "all_gather"):
        one = cluster.collective_seconds(name, size, replicas)
        yield gradients - one, MISTAKES.gather_forgotten()
    all_reduce = cluster.collective_seconds("all_reduce", size, replicas)
    yield all_reduce, MISTAKES.all_reduce_instead()
    yield gradients * layout.micro_batches(model), MISTAKES.per_micro_batch()


def _numbers_as_bytes(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Return the seconds if all sizes are half of what they should be."""
    links = {
        name: replace(link, beta=link.beta / ELEMENT_BYTES, gamma=link.gamma / ELEMENT_BYTES)
        for name, link in (("inside", cluster.inside), ("between", cluster.between))
    }
    return costs.step_seconds(model, layout, replace(cluster, **links))
