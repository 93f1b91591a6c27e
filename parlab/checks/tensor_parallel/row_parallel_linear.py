"""Exercise `row_parallel_linear`."""

from collections.abc import Iterator

from torch import Tensor, nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Mistakes
from parlab.checks.base.trial import Trial
from parlab.checks.tensor_parallel import _layers as layers
from parlab.checks.tensor_parallel._passes import OUTPUT, gradient_of, random, refuses

MISTAKES = Mistakes(
    bias_on_every_rank=(
        "the bias is in it once for each rank: every rank added it before the sum. Add it once, "
        "after g"
    ),
    no_bias="the bias is missing",
    bias_gradient=(
        "this rank has none, or only an N-th, of what is right: add the whole bias on every rank, "
        "after the sum"
    ),
    **layers.texts(
        "wrong_dimension",
        "strided",
        "whole_weights",
        "not_summed",
        "reduced_again",
        "not_own_memory",
        "sends_more",
        "kept_whole",
        "not_refused",
    ),
)
CASES = {
    "with bias": (True, (3, 2)),
    "without bias": (False, (4,)),
    "with bias, four dimensions": (True, (2, 1, 3)),
}


@check_of(MISTAKES)
def row_parallel_linear(check: Check) -> str:
    """Check parameters, output, gradients, memory, and calls; with and without a bias."""
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
        wrong=lambda *given: _wrong(*given, make().bias.detach()) if bias else (),
    )
    layers.compare(trial, case)


def _wrong(
    right: dict[str, Tensor], _: Tensor, rank: int, ranks: int, bias: Tensor
) -> Iterator[layers.Variant]:
    of_bias = right[gradient_of("bias")]
    yield OUTPUT, "bias_on_every_rank", right[OUTPUT] + (ranks - 1) * bias
    yield OUTPUT, "no_bias", right[OUTPUT] - bias
    yield gradient_of("bias"), "bias_gradient", 0 * of_bias
    yield gradient_of("bias"), "bias_gradient", of_bias / ranks
