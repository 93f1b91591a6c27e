"""Exercise `predict_layout_memory`."""

from collections.abc import Iterator

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.predictions import Wrong, first_wrong, form, misconception
from parlab.checks.base.trial import Trial
from parlab.costs.layouts import memory
from parlab.layouts import Layout, Model

STATES = ("weights", "gradients", "optimizer")
MISTAKES = Mistakes(
    embedding_forgotten="{name}: the embedding is missing. The first stage has it, too",
    embedding_split=(
        "{name}: the embedding is divided by tp. Every tensor-parallel rank has all of it, so "
        "divide only the parameters of the layers"
    ),
    all_layers="{name}: these are the layers of all stages. A rank has those of its own stage",
    tp_forgotten=(
        "{name}: these are the complete layers. Each tensor-parallel rank has its share of them"
    ),
    gradients_sharded=(
        "gradients: these are divided by dp. ZeRO-1 shards only the optimizer's states: every "
        "replica has all gradients of its stage"
    ),
    optimizer_not_sharded="optimizer: ZeRO-1 shards these bytes over the dp replicas",
    optimizer_over_devices=(
        "optimizer: this is divided by all devices. Those of other stages and tensor-parallel "
        "ranks have other parameters, so divide a rank's parameters by dp"
    ),
    all_in_flight=(
        "activations: this counts all micro-batches of a step. Under 1F1B, the first stage has at "
        "most p in flight"
    ),
    too_many_in_flight=(
        "activations: this counts p micro-batches in flight, but there are only m, fewer than p"
    ),
    one_in_flight=(
        "activations: this counts one micro-batch. The first stage starts others before the "
        "first one comes back"
    ),
    nothing_split="activations: this has 34 bytes for a number. 24 of them are split over tp ranks",
    all_split=(
        "activations: this divides all 34 bytes by tp. Every tensor-parallel rank keeps 10 of them"
    ),
    one_sequence="activations: this counts one sequence of a micro-batch. It has b of them",
)
MODELS = {  # sizes, and the layouts (dp, tp, pp, micro-batch)
    "12 layers": (
        {"layers": 12, "heads": 12, "batch": 120},
        [(5, 3, 4, 2), (2, 2, 6, 3), (1, 6, 2, 5), (10, 4, 3, 1)],
    ),
    "fewer micro-batches than stages": (
        {"layers": 30, "heads": 8, "batch": 24},
        [(4, 2, 5, 3), (2, 4, 15, 4), (3, 8, 10, 8)],
    ),
    "one device, or one dimension": (
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
            for layout in layouts:
                _compare(trial, model, Layout(*layout))
    return "weights, gradients, optimizer states, and activations of the micro-batches in flight"


def _compare(trial: Trial, model: Model, layout: Layout) -> None:
    trial.situation = f"{model} and {layout}"
    right = memory(model, layout)
    predicted = trial.run(model, layout)
    trial.require(
        lambda: form(predicted, right),
        lambda: misconception(predicted, right, _wrong(model, layout)),
        lambda: first_wrong(predicted, right, "what is needed"),
    )


def _wrong(model: Model, layout: Layout) -> Iterator[Wrong]:
    """Yield what misconceptions predict."""
    right = memory(model, layout)
    dp, tp, pp = layout.dp, layout.tp, layout.pp
    m = layout.micro_batches(model)
    layers, embedding = model.layers * model.layer_parameters, model.embedding_parameters
    parameters = layers / (tp * pp) + embedding
    for name in STATES:
        each = right[name] / parameters
        yield name, each * layers / (tp * pp), MISTAKES.embedding_forgotten(name=name)
        yield name, each * (layers / pp + embedding) / tp, MISTAKES.embedding_split(name=name)
        yield name, each * (layers / tp + embedding), MISTAKES.all_layers(name=name)
        yield name, each * (layers / pp + embedding), MISTAKES.tp_forgotten(name=name)
    yield "gradients", right["gradients"] / dp, MISTAKES.gradients_sharded()
    yield "optimizer", right["optimizer"] * dp, MISTAKES.optimizer_not_sharded()
    yield "optimizer", right["optimizer"] / (tp * pp), MISTAKES.optimizer_over_devices()
    kept, flying, share = right["activations"], min(m, pp), 10 + 24 / tp
    for factor, finding in (
        (m / flying, MISTAKES.all_in_flight()),
        (pp / flying, MISTAKES.too_many_in_flight()),
        (1 / flying, MISTAKES.one_in_flight()),
        (34 / share, MISTAKES.nothing_split()),
        (34 / tp / share, MISTAKES.all_split()),
        (1 / layout.micro_batch, MISTAKES.one_sequence()),
        (pp, MISTAKES.all_layers(name="activations")),
    ):
        yield "activations", kept * factor, finding
