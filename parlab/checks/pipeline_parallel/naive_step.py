"""Exercise `naive_step`."""

from parlab.checks.check import Check, check_of
from parlab.checks.mistakes import Mistakes
from parlab.checks.pipeline_parallel import left_alone, mistakes, order, runs, traffic, values
from parlab.checks.pipeline_parallel.cases import Case, mean_square
from parlab.pipeline import backward, forward

MISTAKES = Mistakes(
    **mistakes.texts_of(
        "weights_updated",
        "no_boundary_gradient",
        "no_input_gradient",
        "gradients_not_sent",
        "activations_not_sent",
        "no_backward_pass",
        "wrong_start",
        "recomputed",
        "loss_arguments",
        "loss_everywhere",
        "sent_more",
        "frozen_raises",
        "frozen_not_passed",
        "unfrozen",
        "mode_changed",
        "tokens_require_grad",
    )
)


@check_of(MISTAKES)
def naive_step(check: Check) -> str:
    """Check loss, gradients, weights and messages of a step, one stage a rank."""
    for trial in check.trials():
        n = trial.size
        schedule = [[forward(r, 0), backward(r, 0)] for r in range(n)]
        _one(Case(trial, schedule, 5), "5 samples")
        _one(Case(trial, schedule, 1), "1 sample")
        _one(Case(trial, schedule, 4, tokens=True, training=False), "4 tokens, in evaluation mode")
        for frozen in ([0], [1]) if n > 1 else ([],):
            what = f"stage {frozen[0]}" if frozen else "a parameter"
            _one(Case(trial, schedule, 3, frozen=frozen), f"3 samples, {what} frozen")
    return (
        "loss and gradients of the whole model, each stage computed once, and two messages at each "
        f"cut, on 1 to {check.world_size} ranks; with tokens, and with frozen stages"
    )


def _one(case: Case, what: str) -> None:
    trial = case.trial
    trial.situation = f"{trial.size} ranks, {what}"

    def start(share):  # type: ignore[no-untyped-def]
        return lambda x, t: trial.check.function(share, x, t, mean_square, trial.group)

    seen = runs.run(trial, case, start)
    trial.require(
        lambda: left_alone.mode_stays(case, seen[0]),
        lambda: left_alone.frozen_stay(case, seen[0]),
        lambda: left_alone.weights_stay(seen[0]),
        lambda: left_alone.arguments_stay(case, seen[0]),
        lambda: order.once(case, seen[0]),
        lambda: values.gradients_are(case, seen[0]),
        lambda: values.loss_is(case, seen[0]),
        lambda: traffic.messages(case),
        lambda: order.in_order(case, seen[0]),
    )
