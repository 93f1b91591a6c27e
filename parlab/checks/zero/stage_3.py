"""Exercise `stage_3`."""

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.zero._models import awkward_blocks
from parlab.checks.zero._steps import FREED, Step
from parlab.checks.zero._training import trials
from parlab.checks.zero._whole_layers import NO_MEMORY, sharded_steps, whole_at_most

MISTAKES = Mistakes(
    **NO_MEMORY,
    gradients_kept=FREED["gradients_kept"],
    buffer_kept=FREED["buffer_kept"],
    not_reduced="the shards' gradients are zero: reduce() must also do what it does in stage 2",
    kept_whole=(
        "{when}, a rank holds {got} bytes of parameters besides its shards, expected at most "
        "{right}. Gather a layer just before it computes, free it after its forward pass and in "
        "reduce(), and gather nothing in step()"
    ),
)


@check_of(MISTAKES)
def stage_3(check: Check) -> str:
    """Check what is whole and when, what is sent, and steps of SGD and Adam."""
    for trial, make_optimizer in trials(check):
        for step in sharded_steps(trial, make_optimizer, awkward_blocks, MISTAKES, evaluates=True):
            one = step.padded[0] + max(step.padded[1:])  # the model's own, and one block
            limits = {"forward": one, "backward": one}
            limits |= {"between": 0, "after": 0, "evaluated": 0}
            trial.require(
                *whole_at_most(step, MISTAKES.kept_whole, limits),
                lambda: step.gradients_are_right(MISTAKES),
                lambda: step.gradients_are_freed(MISTAKES),
                lambda: step.parameters_are_right(MISTAKES),
                lambda: step.sends_at_most(3 * step.passes),
                lambda: only_gathers_and_scatters(step),
            )
    return (
        "a rank holds its shards and one layer at a time; the steps are those of one rank, for "
        f"SGD and Adam, on 1 to {check.world_size} ranks; three times the parameters are sent"
    )


def only_gathers_and_scatters(step: Step) -> Finding | None:
    other = {event.op for event in step.record.events} - {"", "all_gather", "reduce_scatter"}
    if other and step.trial.size > 1:
        return observed(f"a step makes {min(other)}, expected only all-gathers and reduce-scatters")
    return None
