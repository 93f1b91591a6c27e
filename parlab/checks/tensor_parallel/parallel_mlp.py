"""Exercise `parallel_mlp`."""

from collections.abc import Callable
from functools import partial

from torch import nn

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import a_type_of
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.trial import Trial
from parlab.checks.tensor_parallel import _layers as layers
from parlab.checks.tensor_parallel._passes import random, refuses, uses_classes

MISTAKES = Mistakes(
    **layers.texts("not_summed", "sends_more", "kept_whole"),
)
ACTIVATIONS = {
    # A new GELU() would not have this setting.
    "GELU with approximate='tanh'": partial(nn.GELU, approximate="tanh"),
    "Tanh": nn.Tanh,
}
SHARES = {"0.weight": layers.Share(0), "0.bias": layers.Share(0), "2.weight": layers.Share(1)}


@check_of(MISTAKES)
def parallel_mlp(check: Check) -> str:
    """Check parameters, output, gradients, and calls, with several activations."""
    for trial in check.trials():
        n = trial.size
        for _, activation in trial.cases(ACTIVATIONS):
            _case(trial, activation)
        refuses(
            trial,
            lambda trial=trial: check.function(_mlp(2, 2 * trial.size + 1, 2), trial.group),
            f"{2 * n + 1} hidden numbers",
            [2 * n + 1],
        )
        uses_classes(trial, check.function, _mlp(2, n, 2), ["column", "row"])
    return (
        "the serial MLP's output and gradients, with one all-reduce forward and one backward, on 1 "
        f"to {check.world_size} ranks"
    )


def _mlp(
    inputs: int, hidden: int, outputs: int, activation: Callable[[], nn.Module] = nn.ReLU
) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), activation(), nn.Linear(hidden, outputs))


def _case(trial: Trial, activation: Callable[[], nn.Module]) -> None:
    n = trial.size
    hidden = n * trial.draw.randrange(2, 5)
    case = layers.Case(
        MISTAKES,
        layers.seeded(trial, lambda: _mlp(2 * n, hidden, 3 * n, activation)),
        lambda mlp: trial.check.function(mlp, trial.group),
        random(trial.draw, 3, 2, 2 * n),
        SHARES,
        forward=1,
        backward=1,
        form=_is_sequential,
        takes_apart=True,
    )
    layers.compare(trial, case)


def _is_sequential(module: nn.Module) -> Finding | None:
    if isinstance(module, nn.Sequential) and len(module) == 3:
        return None
    length = f" of {len(module)}" if isinstance(module, nn.Sequential) else ""
    return observed(
        f"it returns {a_type_of(module)}{length}: return an nn.Sequential of three layers"
    )
