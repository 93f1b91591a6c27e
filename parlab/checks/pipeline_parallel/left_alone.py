"""Requirements on a step: what it must leave as it is."""

from parlab.checks.compare import same
from parlab.checks.mistakes import COMMON, Finding, evidence
from parlab.checks.pipeline_parallel.cases import Case
from parlab.checks.pipeline_parallel.mistakes import MISTAKES
from parlab.checks.pipeline_parallel.runs import Seen


def weights_stay(seen: Seen) -> Finding | None:
    for number, (now, before) in enumerate(zip(seen.weights, seen.before, strict=True)):
        if not same(now, before):
            return MISTAKES.weights_updated(name=f"parameter {number} of this rank")
    return None


def arguments_stay(case: Case, seen: Seen) -> Finding | None:
    inputs, targets = seen.arguments
    if inputs.requires_grad:
        return evidence(
            "`inputs` requires a gradient after the step, and belongs to the caller: nobody needs "
            "the first stage's, and tokens are whole numbers, which have none"
        )
    if case.trial.rank == 0 and not same(inputs, case.inputs):
        return COMMON.argument_changed(name="`inputs`")
    if case.trial.rank == case.trial.size - 1 and not same(targets, case.targets):
        return COMMON.argument_changed(name="`targets`")
    return None


def mode_stays(case: Case, seen: Seen) -> Finding | None:
    names = {True: "training", False: "evaluation"}
    for stages, when in ((seen.modes, "in its forward pass"), (seen.modes_after, "after the step")):
        for stage in stages:
            return MISTAKES.mode_changed(
                stage=stage, when=when, got=names[not case.training], right=names[case.training]
            )
    return None


def frozen_stay(case: Case, seen: Seen) -> Finding | None:
    for number, (requires, gradient) in seen.frozen.items():
        if requires or gradient is not None:
            got = "requires a gradient" if requires else "has one in `.grad`"
            return MISTAKES.unfrozen(number=number, got=got)
    return None
