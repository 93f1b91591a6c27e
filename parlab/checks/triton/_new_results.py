"""A requirement on two calls of a learner's function: each returns a tensor of its own."""

from typing import Any

from torch import Tensor

from parlab.checks.base.trial import Trial
from parlab.checks.triton import _kernels
from parlab.rank import device


def require_new_results(trial: Trial, *arguments: Any) -> None:
    """Require that a second call with twice the numbers does not change the first result."""
    first = [x.to(device) if isinstance(x, Tensor) else x for x in arguments]
    second = [2 * x if isinstance(x, Tensor) else x for x in first]

    def both_calls() -> tuple[Tensor, Tensor]:
        result = trial.check.function(*first)
        copy = result.clone()
        trial.check.function(*second)
        return result, copy

    trial.situation = "two calls with the same sizes"
    result, copy = trial.run_function(both_calls, seconds=_kernels.SECONDS)
    trial.require(
        lambda: _kernels.unless(
            _kernels.alike(result, copy),
            "the second call changes the result of the first one: make a new tensor in each call",
        )
    )
