"""Exercise `parallel_mlp`."""

from torch import nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.models import TOLERANCE
from parlab.checks.tensor_parallel import layers, requirements
from parlab.checks.tensor_parallel.layers import Passed, Right, Share, passes, random, seeded
from parlab.checks.trial import Trial

SHARES = {"0.weight": Share(0), "0.bias": Share(0), "2.weight": Share(1), "2.bias": None}

MISTAKES = Mistakes(
    rows_first=(
        "0.weight has shape {got}: the first layer is cut by rows, so that the activation sees a "
        "part of a sum. Columns first, then rows"
    ),
    gathered_between=(
        "the forward pass sends {got} bytes: columns, then rows, need one all-reduce at the end "
        "and nothing between"
    ),
    **requirements.texts(
        "no_reduce_backward",
        "not_summed",
        "whole_weights",
        "kept_whole",
        "not_refused",
        "sends_more",
    ),
)


@check_of(MISTAKES)
def parallel_mlp(check: Check) -> str:
    """Check parameters, output, gradients and calls, with several activations."""
    for trial in check.trials():
        for activation in (nn.GELU, nn.Tanh):
            trial.situation = f"{trial.size} ranks, {activation.__name__}"
            _one(trial, activation)
        trial.situation = f"{trial.size} ranks"
        mlp = nn.Sequential(
            nn.Linear(2, 2 * trial.size + 1), nn.ReLU(), nn.Linear(2 * trial.size + 1, 2)
        )
        requirements.refusal(
            trial,
            lambda mlp=mlp: check.function(mlp, trial.group),
            f"{2 * trial.size + 1} hidden numbers",
            [2 * trial.size + 1],
        )
        n = trial.size
        mlp = nn.Sequential(nn.Linear(2, n), nn.ReLU(), nn.Linear(n, 2))
        requirements.uses_classes(trial, mlp)
    return (
        "the serial MLP's output and gradients, with one all-reduce forward and one backward, on 1 "
        f"to {check.world_size} ranks"
    )


def _one(trial: Trial, activation: type[nn.Module]) -> None:
    inputs, outputs = 2 * trial.size, 3 * trial.size
    hidden, seed = trial.size * trial.draw.randrange(2, 5), trial.draw.getrandbits(32)
    x = random(trial.draw, 3, 2, inputs)
    weights = random(trial.draw, 3, 2, outputs)

    def serial() -> nn.Module:
        return seeded(
            seed,
            lambda: nn.Sequential(
                nn.Linear(inputs, hidden), activation(), nn.Linear(hidden, outputs)
            ),
        )

    right = layers.serially(serial(), x, layers.weighing(weights))
    passed = trial.run_function(
        passes,
        trial,
        serial,
        lambda mlp: trial.check.function(mlp, trial.group),
        x,
        layers.weighing(weights),
        seconds=layers.SECONDS,
    )
    everyone = trial.gather(passed)
    trial.require(
        lambda: instead(passed, right),
        lambda: requirements.holds_its_share(passed, right, SHARES, trial),
        lambda: requirements.untouched(passed),
        lambda: between(passed, right, trial),
        lambda: output_is(passed, right, everyone, trial),
        lambda: requirements.gradient_is(
            passed.input_gradient, right.input_gradient, [p.input_gradient for p in everyone], "x"
        ),
        lambda: requirements.gradients_are(passed, right, SHARES, everyone, trial),
        lambda: requirements.sends(passed.backward, x.nbytes, trial.size, "backward"),
    )


def instead(passed: Passed, right: Right) -> Finding | None:
    got, whole = passed.parameters.get("0.weight"), right.parameters["0.weight"]
    if got is not None and got.shape[0] == whole.shape[0] and got.shape[1] < whole.shape[1]:
        return MISTAKES.rows_first(got=tuple(got.shape))
    return None


def between(passed: Passed, right: Right, trial: Trial) -> Finding | None:
    if requirements.sends_too_much(passed.forward, right.output.nbytes, trial.size):
        return MISTAKES.gathered_between(got=requirements.told_calls(passed.forward))
    return None


def output_is(passed: Passed, right: Right, everyone: list[Passed], trial: Trial) -> Finding | None:
    same_here = same(passed.output, right.output, TOLERANCE)
    bias = right.parameters["2.bias"]
    parts = sum(p.output for p in everyone) - (trial.size - 1) * bias
    if not same_here and trial.size > 1 and same(parts, right.output, TOLERANCE):
        return MISTAKES.not_summed(name="the output")
    return equal(passed.output, right.output, "the output", TOLERANCE)
