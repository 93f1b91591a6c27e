"""Requirements on a step: its values, actions, messages, and memory."""

from collections.abc import Callable, Sequence

from parlab.checks.base.compare import a_type_of, equal, explained
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE
from parlab.checks.base.trial import Requirement
from parlab.checks.pipeline_parallel import _messages, _steps
from parlab.checks.pipeline_parallel._models import Case, in_one_row
from parlab.checks.pipeline_parallel._steps import StepRecord

MISTAKES = Mistakes(
    recomputed=(
        "stage {stage} computes its forward pass of micro-batch {i} more than once. Keep the "
        "output for the backward pass: dropout would draw again, and BatchNorm count twice"
    ),
    **_steps.MISTAKES.texts,
    **_messages.MISTAKES.texts,
)
PIPELINE_MISTAKES = Mistakes(
    loss_not_divided=(
        "the micro-batches' mean losses are added up. Weight each by its share of the batch's "
        "samples"
    ),
    remainder_unweighted=(
        "in the loss or in the gradients, all micro-batches count alike, although they have "
        "different numbers of samples. Weight each by its share of the batch's samples"
    ),
    not_accumulated=(
        "only the last micro-batch counts. Add up the gradients and the losses of all of them"
    ),
    other_order="it runs {got}, but the schedule of this rank is {right}",
    kept=(
        "{when}, {got} bytes of tensors are still there that are not needed any more. After the "
        "backward pass of a micro-batch, keep nothing of it but the gradients"
    ),
    **MISTAKES.texts,
)


def require(case: Case, steps: Sequence[StepRecord]) -> None:
    """Try all requirements on each step, except for messages: try these on all steps together."""

    def each(requirement: Callable[[Case, StepRecord], Finding | None]) -> Requirement:
        return lambda: next((found for step in steps if (found := requirement(case, step))), None)

    count, size = (len(steps) * one for one in case.messages(case.trial.rank))
    case.trial.require(
        each(lambda _, step: step.side_effect),
        each(computes_once),
        each(values_are),
        each(in_order),
        each(frees),
        lambda: _messages.sends_once(case.trial, count, size),
    )


def values_are(case: Case, step: StepRecord) -> Finding | None:
    """Require the gradients and the loss of the whole batch."""
    for number, gradient in enumerate(step.gradients):
        if gradient is None:
            return observed(f"parameter {number} of this rank has no gradient")
    right_loss, right_row = case.values(case.inputs, case.targets)
    row, name = in_one_row(step.gradients), "the gradient of this rank's parameters, in one row,"
    if equal(row, right_row, name, TOLERANCE):
        wrong = {key: values for key, (_, values) in case.wrong().items()}
        return explained(row, right_row, wrong, PIPELINE_MISTAKES, name, TOLERANCE)
    if case.trial.rank != case.trial.size - 1:
        if step.loss is None:
            return None
        got = a_type_of(step.loss)
        return observed(f"it returns {got}: only the rank of the last stage returns a loss")
    if not isinstance(step.loss, float):
        got = "None" if step.loss is None else a_type_of(step.loss)
        return COMMON.wrong_type(name="the loss on the last rank", got=got, right="a float")
    wrong = {key: loss for key, (loss, _) in case.wrong().items()}
    loss = right_loss.new_tensor(step.loss)
    return explained(loss, right_loss, wrong, PIPELINE_MISTAKES, "the loss", TOLERANCE)


def computes_once(case: Case, step: StepRecord) -> Finding | None:
    """Require that no stage computes a micro-batch again."""
    for action in step.actions:
        once = action.kind == "backward" or step.actions.count(action) == 1
        if action.micro_batch >= 0 and not once:
            return MISTAKES.recomputed(stage=action.stage, i=action.micro_batch)
    return None


def in_order(case: Case, step: StepRecord) -> Finding | None:
    """Require this rank's actions, in the schedule's order."""
    unseen = {0} & set(case.frozen or ())  # it has no backward pass
    own = [
        action
        for action in case.schedule[case.trial.rank]
        if action.kind == "forward" or action.stage not in unseen or action in step.actions
    ]
    if step.actions == own:
        return None
    got, right = case.texts(step.actions), case.texts(own)
    order = PIPELINE_MISTAKES.other_order(got=got, right=right)
    return _steps.other_input(step.actions) or order


def frees(case: Case, step: StepRecord) -> Finding | None:
    """Require that memory depends only on what is in flight, and that nothing is left at the end.

    Compare the memory before each action with the memory before earlier actions, when as many
    micro-batches of each stage were in flight.
    """
    if step.kept > 0:
        return PIPELINE_MISTAKES.kept(when="after the step", got=step.kept)
    if case.samples % case.pieces or case.frozen is not None:
        return None  # micro-batches differ, or a backward pass is not recorded
    loose = max(_loop_variables(case, stage) for stage in case.own)
    least: dict = {}
    for action, (flying, alive) in zip(step.actions, step.alive, strict=True):
        more = alive - least.setdefault(flying, alive)
        least[flying] = min(least[flying], alive)
        if more > loose:
            return PIPELINE_MISTAKES.kept(when=f"before {case.texts([action])}", got=more)
    return None


def _loop_variables(case: Case, stage: int) -> int:
    """Return the bytes of a pass that variables may hold during the next action.

    They are the input, the output, its gradient, and the gradients of the parameters.
    """
    inputs, outputs = case.widths[stage : stage + 2]
    return 8 * ((inputs + 2 * outputs) * case.samples // case.pieces + (inputs + 1) * outputs)
