"""Exercise `row_parallel_linear`."""

from torch import nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.models import TOLERANCE
from parlab.checks.tensor_parallel import layers, requirements
from parlab.checks.tensor_parallel.layers import Passed, Right, Share, passes, random, seeded
from parlab.checks.trial import Trial

MISTAKES = Mistakes(
    columns_split=(
        "weight has shape {got}: that cuts the outputs, which is the product by columns. Here the "
        "inputs are cut, the second dimension of PyTorch's weight"
    ),
    bias_on_every_rank=(
        "the output has the bias {ranks} times: every rank added it before the sum. Add it once, "
        "after g"
    ),
    averaged="the output is the mean of the ranks' parts where their sum is right",
    no_bias="the output lacks the bias",
    bias_gradient=(
        "the bias's gradient is {got} of what is right on this rank: a bias that goes into the sum "
        "on one rank, or divided, gets a part. Add it whole after the sum, on every rank"
    ),
    **requirements.texts(
        "reduced_again",
        "not_summed",
        "whole_weights",
        "not_own_memory",
        "memory_of_serial",
        "strided",
        "sends_more",
        "kept_whole",
        "not_refused",
    ),
)


@check_of(MISTAKES)
def row_parallel_linear(check: Check) -> str:
    """Check parameters, output, gradients, memory and calls; with and without a bias."""
    for trial in check.trials():
        for bias, shape in [(True, (3, 2)), (False, (4,)), (True, (2, 1, 3))]:
            trial.situation = f"{trial.size} ranks, {'with' if bias else 'without'} bias"
            _one(trial, bias, shape)
        trial.situation = f"{trial.size} ranks"
        linear = nn.Linear(2 * trial.size + 1, 3)
        requirements.refusal(
            trial,
            lambda linear=linear: check.function(linear, trial.group),
            f"{linear.in_features} inputs",
            [linear.in_features],
        )
    return (
        "the whole output on every rank, the bias in it once; one sum forward, nothing sent "
        f"backward, on 1 to {check.world_size} ranks"
    )


def _one(trial: Trial, bias: bool, shape: tuple[int, ...]) -> None:
    inputs, outputs = trial.size * trial.draw.randrange(2, 5), trial.draw.randrange(3, 7)
    seed = trial.draw.getrandbits(32)
    x = random(trial.draw, *shape, inputs)
    weights = random(trial.draw, *shape, outputs)
    mine = Share(-1).of(x, max(trial.rank, 0), trial.size)

    def serial() -> nn.Module:
        return seeded(seed, lambda: nn.Linear(inputs, outputs, bias=bias))

    right = layers.serially(serial(), x, layers.weighing(weights))
    passed = trial.run_function(
        passes,
        trial,
        serial,
        lambda linear: trial.check.function(linear, trial.group),
        mine,
        layers.weighing(weights),
        seconds=layers.SECONDS,
    )
    shares = {"weight": Share(1), "bias": None}
    everyone = trial.gather(passed)
    size = right.output.nbytes
    trial.require(
        lambda: instead(passed, right, trial),
        lambda: requirements.holds_its_share(passed, right, shares, trial),
        lambda: requirements.untouched(passed),
        lambda: output_is(passed, right, everyone, trial),
        lambda: requirements.sends(passed.forward, size, trial.size, "forward"),
        lambda: bias_gradient(passed, right, trial) if bias else None,
        lambda: requirements.gradient_is(
            passed.input_gradient,
            Share(-1).of(right.input_gradient, trial.rank, trial.size),
            [p.input_gradient for p in everyone],
            "x",
            whole=False,
        ),
        lambda: requirements.gradients_are(passed, right, shares, everyone, trial),
        lambda: requirements.sends(passed.backward, 0, trial.size, "backward"),
    )


def instead(passed: Passed, right: Right, trial: Trial) -> Finding | None:
    got, whole = passed.parameters.get("weight"), right.parameters["weight"]
    if got is None or trial.size == 1:
        return None
    if got.shape == (whole.shape[0] // trial.size, whole.shape[1]) and got.shape != (
        whole.shape[0],
        whole.shape[1] // trial.size,
    ):
        return MISTAKES.columns_split(got=tuple(got.shape))
    if same(got, whole[:, trial.rank :: trial.size]) and not same(
        got, Share(1).of(whole, trial.rank, trial.size)
    ):
        return MISTAKES.strided(name="weight", which="inputs")
    return None


def output_is(passed: Passed, right: Right, everyone: list[Passed], trial: Trial) -> Finding | None:
    got, bias = passed.output, right.parameters.get("bias")
    if trial.size > 1 and got.shape == right.output.shape:
        if bias is not None:
            if same(got, right.output + (trial.size - 1) * bias, TOLERANCE):
                return MISTAKES.bias_on_every_rank(ranks=trial.size)
            if same(got, right.output - bias, TOLERANCE):
                return MISTAKES.no_bias()
        shift = bias if bias is not None else 0.0
        product = right.output - shift
        if same(got, product / trial.size + shift, TOLERANCE):
            return MISTAKES.averaged()
        spare = (trial.size - 1) * bias if bias is not None else 0.0
        parts = sum(p.output for p in everyone)
        if not same(got, right.output, TOLERANCE) and (
            same(parts, right.output, TOLERANCE) or same(parts, right.output + spare, TOLERANCE)
        ):
            return MISTAKES.not_summed(name="the output")
    return equal(got, right.output, "the output", TOLERANCE)


def bias_gradient(passed: Passed, right: Right, trial: Trial) -> Finding | None:
    """Where the output is right, and the bias has only a part of its gradient."""
    got, whole = passed.gradients["bias"], right.gradients["bias"]
    if trial.size == 1:
        return None
    if got is None or not got.any():
        return MISTAKES.bias_gradient(got="none")
    if same(got * trial.size, whole, TOLERANCE):
        return MISTAKES.bias_gradient(got=f"1/{trial.size}")
    return None
