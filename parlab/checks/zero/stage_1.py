"""Exercise `stage_1`."""

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes
from parlab.checks.base.models import uneven_shards
from parlab.checks.zero._steps import NOT_GATHERED, SLACK, SUMMED, Step, steps
from parlab.checks.zero._training import trials

MISTAKES = Mistakes(
    **SUMMED,
    not_gathered=NOT_GATHERED,
    other_part=(
        "self.shard.grad begins at index {got} of self.gradient, expected {right}: rank r's part "
        "of the sum belongs into part r"
    ),
    own_memory=(
        "a rank holds {got} bytes of {kind}, expected {right}. self.shard and its .grad must be "
        "views, and the optimizer must know only self.shard"
    ),
)


@check_of(MISTAKES)
def stage_1(check: Check) -> str:
    """Check steps of SGD and Adam on uneven and empty shards, the memory, and what is sent."""
    for trial, make_optimizer in trials(check):
        uneven = uneven_shards(trial.draw, trial.size)
        plan = [[uneven[0]], [uneven[-1]], [uneven[0], uneven[0]]]
        for step in steps(trial, make_optimizer, plan):
            trial.require(
                lambda: nothing_is_copied(step),
                lambda: step.gradients_are_right(MISTAKES),
                lambda: same_part(step),
                lambda: step.parameters_are_right(MISTAKES),
                lambda: step.weights_are_right(MISTAKES),
                lambda: step.sends_at_most(3),
            )
    return (
        "the steps of one rank with all samples, for SGD and Adam, on 1 to "
        f"{check.world_size} ranks; each holds the states of its shard; no more than 3Ψ is sent"
    )


def same_part(step: Step) -> Finding | None:
    """Require that the gradient of rank r's shard is part r of `self.gradient`."""
    got = step.record.begins_at
    right = step.trial.rank * len(step.record.shards[0])
    return None if got in (None, right) else MISTAKES.other_part(got=got, right=right)


def nothing_is_copied(step: Step) -> Finding | None:
    """Require no copies. Adam has two moments of 8 bytes per element, and a step counter."""
    (whole,), states = step.padded, 2 * step.shard_bytes + 8
    limits = {"parameters": whole, "gradients": whole, "optimizer_states": states}
    for kind, right in limits.items():
        got = step.record.bytes_held[kind]
        if got > SLACK * right:
            return MISTAKES.own_memory(got=got, kind=kind.replace("_", " "), right=right)
    return None
