"""Exercise `predict_step_seconds`."""

from collections.abc import Iterator
from numbers import Real
from typing import Any

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import close, has_type, instead
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.predictions import own_formula
from parlab.costs import layouts as costs
from parlab.layouts import ELEMENT_BYTES, Cluster, Layout, Link, Model

MISTAKES = Mistakes(
    bubble_forgotten="a step has m + p − 1 passes: the last stage waits for p − 1 others first",
    two_all_reduces="a layer has two all-reduces in each pass, so there are four in F + B",
    one_round_trip=(
        "this counts one round trip of messages. Only p micro-batches are in flight, so m of them "
        "take ⌈m/p⌉ round trips"
    ),
    stages_are_neighbors=(
        "the messages are from rank i to rank i + 1. Stage i of a replica has the ranks from i·t "
        "on, so its neighbor is t ranks away"
    ),
    replicas_are_neighbors=(
        "the gradients are those of ranks 0 to dp − 1. Replicas are p·t ranks apart, often on "
        "different nodes"
    ),
    all_reduce_instead=(
        "the gradients are all-reduced. ZeRO-1 reduce-scatters them and all-gathers the weights"
    ),
)
SLOW, FAST = Link.of(5e-3, 2e6), Link.of(1e-4, 5e7)
# For each cluster: the links inside and between nodes, and FLOP/s.
CLUSTERS = {
    "with slow links between nodes": (FAST, SLOW, 1e9),
    "with slow links inside nodes": (SLOW, FAST, 1e9),
    "with slow devices": (FAST, SLOW, 2e7),
}
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
            trial.require(
                lambda: own_formula(check.function),
                lambda: _finding(got, model, layouts, cluster),
            )
    return "passes, messages, and gradients, on links inside nodes and between them"


def _finding(
    got: list[Any], model: Model, layouts: list[Layout], cluster: Cluster
) -> Finding | None:
    """Return None for the right seconds, the mistake that explains all, or the first wrong one."""
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
            passes, messages, gradients = _parts(model, layout, cluster)
            return observed(
                f"for {layout}, you predicted {one:.4g} s, expected {other:.4g} s, of which passes "
                f"take {passes:.4g} s, messages {messages:.4g} s, and gradients {gradients:.4g} s"
            )
    return None


def _alike(seconds: float, other: float) -> bool:
    return close(seconds, other, 1e-5)


def _parts(model: Model, layout: Layout, cluster: Cluster) -> tuple[float, float, float]:
    passes = layout.micro_batches(model) + layout.pp - 1
    return (
        passes * costs.stage_seconds(model, layout, cluster),
        costs.message_seconds(model, layout, cluster),
        costs.gradient_seconds(model, layout, cluster),
    )


def _wrong(model: Model, layout: Layout, cluster: Cluster) -> Iterator[tuple[float, Finding]]:
    """Yield what misconceptions predict."""
    passes, messages, gradients = _parts(model, layout, cluster)
    m, tp, pp = layout.micro_batches(model), layout.tp, layout.pp
    size = ELEMENT_BYTES * model.activation_numbers(layout.micro_batch)
    reduce = cluster.collective_seconds("all_reduce", size, range(tp))
    round_trips = -(-m // pp)
    neighbors = 2 * sum(cluster.message_seconds(size, i, i + 1) for i in range(pp - 1))
    of_stage = ELEMENT_BYTES * costs.parameters_of_stage(model, layout)
    first_ranks = sum(
        cluster.collective_seconds(name, of_stage, range(layout.dp))
        for name in ("reduce_scatter", "all_gather")
    )
    replicas = range(0, layout.devices, tp * pp)
    all_reduce = cluster.collective_seconds("all_reduce", of_stage, replicas)
    two_less = 2 * reduce * (m + pp - 1) * model.layers / pp
    for part, wrong, finding in (
        (passes, passes * m / (m + pp - 1), MISTAKES.bubble_forgotten()),
        (passes, passes - two_less, MISTAKES.two_all_reduces()),
        (messages, messages / round_trips, MISTAKES.one_round_trip()),
        (messages, round_trips * neighbors, MISTAKES.stages_are_neighbors()),
        (gradients, first_ranks, MISTAKES.replicas_are_neighbors()),
        (gradients, all_reduce, MISTAKES.all_reduce_instead()),
    ):
        yield passes + messages + gradients - part + wrong, finding
