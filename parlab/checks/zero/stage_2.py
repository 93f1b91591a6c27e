"""Exercise `stage_2`."""

from typing import Any

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import uneven_shards
from parlab.checks.base.trial import Trial
from parlab.checks.zero._models import Blocks
from parlab.checks.zero._steps import FREED, NOT_GATHERED, SUMMED, Step, steps
from parlab.checks.zero._training import trials

MISTAKES = Mistakes(
    **SUMMED,
    **FREED,
    not_gathered=NOT_GATHERED,
    overwritten=(
        "the shards have only the gradient of the last backward pass: add to unit.shard.grad"
    ),
    freed_late=(
        "during the backward pass, the parameters' gradients take {got} bytes on a rank, but no "
        "layer has more than {right}: free those of a unit when it is reduced, not at the end"
    ),
)


@check_of(MISTAKES)
def stage_2(check: Check) -> str:
    """Check gradients, when they are freed, what is sent, and the steps."""
    for trial, make_optimizer in trials(check):
        # In the second step, a rank may have no samples. The third has two backward passes.
        uneven = uneven_shards(trial.draw, trial.size)
        plan = [[uneven[0]], [uneven[-1]], [uneven[0], uneven[0]]]
        for step in steps(trial, make_optimizer, plan, layers="layers", watch=watch_gradients):
            trial.require(
                lambda: step.gradients_are_right(MISTAKES),
                lambda: step.gradients_are_freed(MISTAKES),
                lambda: freed_early(step),
                lambda: reduced_once(step),
                lambda: step.parameters_are_right(MISTAKES),
                lambda: step.weights_are_right(MISTAKES),
                lambda: step.sends_at_most(step.passes + 1),
            )
    return (
        "gradients are summed, sharded, and freed while the backward pass continues; the steps are "
        f"those of one rank, for SGD and Adam, on 1 to {check.world_size} ranks"
    )


def watch_gradients(trial: Trial, model: Blocks, stage: Any) -> dict[str, int]:
    """Measure the most bytes of the parameters' gradients when one of them is complete."""
    peaks = {"gradients": 0}
    parameters = [p for p in model.parameters() if p.requires_grad]

    def note(_: Any) -> None:
        got = memory.tensor_bytes(p.grad for p in parameters if p.grad is not None)
        peaks["gradients"] = max(peaks["gradients"], got)

    for parameter in parameters:
        parameter.register_post_accumulate_grad_hook(note)
    return peaks


def freed_early(step: Step) -> Finding | None:
    """Allow two layers' gradients, because a tied weight's may be complete before its unit is."""
    got, largest = step.record.peaks["gradients"], 8 * max(step.sizes)
    return MISTAKES.freed_late(got=got, right=largest) if got > 2 * largest else None


def reduced_once(step: Step) -> Finding | None:
    ops = [event.op for event in step.record.events if event.kind == "start"]
    right = step.passes * len(step.sizes)
    if ops.count("reduce_scatter") == right and "all_reduce" not in ops:
        return None
    counts = ", ".join(f"{ops.count(op)} {op}" for op in dict.fromkeys(ops))
    return observed(
        f"the step calls {counts or 'no collective'}. Expected {right} reduce_scatter, one for "
        "each unit in each backward pass, and no all_reduce"
    )
