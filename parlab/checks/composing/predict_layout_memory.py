"""Exercise `predict_layout_memory`."""

from collections.abc import Iterator, Mapping
from functools import partial

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.predictions import Wrong, first_wrong, form, is_number
from parlab.checks.base.trial import Trial
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
        {"layers": 30, "heads": 8, "batch": 24},
        [(4, 2, 5, 3), (2, 4, 15, 4), (3, 8, 10, 8)],
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
            _compare(trial, model, [Layout(*layout) for layout in layouts])
    return "weights, gradients, optimizer states, and activations of the micro-batches in flight"


def _compare(trial: Trial, model: Model, layouts: list[Layout]) -> None:
    predicted = [trial.run(model, layout) for layout in layouts]
    right = [memory(model, layout) for layout in layouts]
    for got, kinds in zip(predicted, right, strict=True):
        trial.require(partial(form, got, kinds), partial(_no_other_kinds, got, kinds))
    trial.require(lambda: _explained(predicted, right, model, layouts))
    for got, kinds, layout in zip(predicted, right, layouts, strict=True):
        trial.situation = f"{model} and {layout}"
        trial.require(partial(first_wrong, got, kinds, "what is needed"))


def _explained(
    predicted: list[Mapping[str, float]],
    right: list[Mapping[str, float]],
    model: Model,
    layouts: list[Layout],
) -> Finding | None:
    """Return the first misconception that explains what is predicted for all layouts, or None."""
    for variants in zip(*(_wrong(model, layout) for layout in layouts), strict=True):
        name, _, finding = variants[0]
        got = [one[name] for one in predicted]
        if all(map(is_number, got, [kinds[name] for kinds in right])):
            continue
        if all(map(is_number, got, [value for _, value, _ in variants])):
            return finding
    return None


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
