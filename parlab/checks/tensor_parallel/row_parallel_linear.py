"""Exercise `row_parallel_linear`."""

from torch import nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.trial import Trial
from parlab.checks.tensor_parallel import _layers as layers
from parlab.checks.tensor_parallel._passes import OUTPUT, random, refuses

MISTAKES = Mistakes(
    bias_on_every_rank=(
        "the bias is in it once for each rank: every rank added it before the sum. Add it once, "
        "after g"
    ),
    **layers.texts("not_summed", "reduced_again", "kept_whole", "sends_more"),
)
CASES = {
    "with bias": (True, (3, 2)),
    "without bias": (False, (4,)),
    "with bias, four dimensions": (True, (2, 1, 3)),
}


@check_of(MISTAKES)
def row_parallel_linear(check: Check) -> str:
    """Check parameters, output, gradients, memory, and calls, with and without a bias."""
    for trial in check.trials():
        for _, (bias, shape) in trial.cases(CASES):
            _case(trial, bias, shape)
        linear = nn.Linear(2 * trial.size + 1, 3)
        refuses(
            trial,
            lambda linear=linear: check.function(linear, trial.group),
            f"{linear.in_features} inputs",
            [linear.in_features],
        )
    return (
        "the whole output on every rank, the bias in it once; one sum forward, nothing sent "
        f"backward, on 1 to {check.world_size} ranks"
    )


def _case(trial: Trial, bias: bool, shape: tuple[int, ...]) -> None:
    inputs, outputs = (trial.size * trial.draw.randrange(2, 5) for _ in range(2))
    make = layers.seeded(trial, lambda: nn.Linear(inputs, outputs, bias=bias))
    case = layers.Case(
        MISTAKES,
        make,
        lambda linear: trial.check.function(linear, trial.group),
        random(trial.draw, *shape, inputs),
        {"weight": layers.Share(1), "x": layers.Share(-1)},
        forward=1,
        backward=0,
        wrong=lambda right, _, ranks: (
            [(OUTPUT, "bias_on_every_rank", right[OUTPUT] + (ranks - 1) * make().bias.detach())]
            if bias
            else []
        ),
    )
    layers.compare(trial, case)
