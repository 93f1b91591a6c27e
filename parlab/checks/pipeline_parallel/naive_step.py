"""Exercise `naive_step`."""

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Mistakes
from parlab.checks.pipeline_parallel import runs
from parlab.checks.trial import Trial
from parlab.pipeline import backward, forward

MISTAKES = Mistakes(
    **runs.texts_of(
        "weights_updated",
        "no_boundary_gradient",
        "gradients_not_sent",
        "wrong_start",
        "recomputed",
        "loss_everywhere",
        "sent_more",
    )
)


@check_of(MISTAKES)
def naive_step(check: Check) -> str:
    """Check loss, gradients, weights and messages of a step, one stage a rank."""
    for trial in check.trials():
        for samples in (5, 1):
            trial.situation = f"{trial.size} ranks, {samples} samples"
            _one(trial, samples)
    return (
        "loss and gradients of the whole model, each stage computed once, and two messages at each "
        f"cut, on 1 to {check.world_size} ranks"
    )


def _one(trial: Trial, samples: int) -> None:
    case = runs.Case(trial, [[forward(r, 0), backward(r, 0)] for r in range(trial.size)], samples)

    def start(share):  # type: ignore[no-untyped-def]
        return lambda x, t: check(share, x, t, runs.mean_square, trial.group)

    check = trial.check.function
    seen = runs.run(trial, case, start)
    trial.require(
        lambda: runs.weights_stay(seen[0]),
        lambda: runs.arguments_stay(case, seen[0]),
        lambda: runs.once(case, seen[0]),
        lambda: runs.gradients_are(case, seen[0]),
        lambda: runs.loss_is(case, seen[0]),
        lambda: runs.messages(case),
        lambda: runs.in_order(case, seen[0]),
    )
