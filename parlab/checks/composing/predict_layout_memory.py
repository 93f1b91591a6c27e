"""Exercise `predict_layout_memory`."""

from collections.abc import Iterator, Mapping
from itertools import starmap

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.predictions import Wrong, require_numbers
from parlab.costs.layouts import memory
from parlab.layouts import Layout, Model

STATES = ("weights", "gradients", "optimizer")
MISTAKES = Mistakes(
    embedding_forgotten="{name}: the embedding is missing. The first stage has it, too",
    gradients_sharded=(
        "gradients: these are divided by dp. ZeRO-1 shards only the optimizer's states: every "
        "replica has all gradients of its stage"
    ),
    optimizer_not_sharded="optimizer: ZeRO-1 shards these bytes over the dp replicas",
    in_flight=(
        "activations: this counts {count}. Under 1F1B, the first stage has p micro-batches in "
        "flight, or all m of a step if these are fewer"
    ),
    all_split=(
        "activations: this divides all 34 bytes by tp. Every tensor-parallel rank keeps 10 of them"
    ),
)
MODELS = {  # sizes, and the layouts (dp, tp, pp, micro-batch)
    "for a model with 12 layers": (
        {"layers": 12, "heads": 12, "batch": 120},
        [(5, 3, 4, 2), (2, 2, 6, 3), (1, 6, 2, 5), (10, 4, 3, 1)],
    ),
    "with fewer micro-batches than stages": (
        {"layers": 30, "heads": 16, "batch": 24},
        [(4, 2, 5, 3), (2, 4, 15, 4), (3, 8, 10, 8), (3, 16, 10, 8)],
    ),
    "on one device, or in one dimension": (
        {"layers": 6, "heads": 6, "batch": 12},
        [(1, 1, 1, 3), (4, 1, 1, 1), (1, 3, 1, 4), (1, 1, 6, 2)],
    ),
}


@check_of(MISTAKES, ranks=1)
def predict_layout_memory(check: Check) -> str:
    """Compare with the formulas."""
    with check.trial() as trial:
        pick = trial.draw.randrange
        for _, (sizes, layouts) in trial.cases(MODELS):
            hidden = sizes["heads"] * pick(20, 40)
            model = Model(
                hidden=hidden, sequence=pick(100, 900), vocabulary=pick(9, 19) * hidden, **sizes
            )
            for layout in starmap(Layout, layouts):
                trial.situation = f"{model} and {layout}"
                predicted, right = trial.run(model, layout), memory(model, layout)
                require_numbers(trial, predicted, right, _wrong(model, layout), "what is needed")
                trial.require(lambda: _no_other_kinds(predicted, right))
    return "weights, gradients, optimizer states, and activations of the micro-batches in flight"


def _no_other_kinds(predicted: Mapping[str, float], right: Mapping[str, float]) -> Finding | None:
    other = next((name for name in predicted if name not in right), None)
    if other is None:
        return None
    return observed(f"{other!r} is no kind of bytes here, and the planner adds up all kinds")


def _wrong(model: Model, layout: Layout) -> Iterator[Wrong]:
    """Yield what misconceptions predict."""
    right = memory(model, layout)
    dp, tp, pp = layout.dp, layout.tp, layout.pp
    layers = model.layers * model.layer_parameters / (tp * pp)
    for name in STATES:
        without = right[name] * layers / (layers + model.embedding_parameters)
        yield name, without, MISTAKES.embedding_forgotten(name=name)
    yield "gradients", right["gradients"] / dp, MISTAKES.gradients_sharded()
    yield "optimizer", right["optimizer"] * dp, MISTAKES.optimizer_not_sharded()
    m = layout.micro_batches(model)
    one, share = right["activations"] / min(m, pp), 10 + 24 / tp
    yield "activations", m * one, MISTAKES.in_flight(count="all micro-batches of a step")
    yield "activations", pp * one, MISTAKES.in_flight(count="p micro-batches")
    yield "activations", one, MISTAKES.in_flight(count="one micro-batch")
    yield "activations", right["activations"] * 34 / tp / share, MISTAKES.all_split()
