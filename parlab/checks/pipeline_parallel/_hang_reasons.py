"""Reasons why ranks raise or wait for each other in a step, from what all ranks know."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from parlab.checks.base.call_outcome import ending
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.watchdog import Ended
from parlab.checks.pipeline_parallel._models import Case
from parlab.ledger import Call
from parlab.ledger.calls import SENDS
from parlab.pipeline import Action, text, texts
from parlab.runtime.rank_names import ranks_text

if TYPE_CHECKING:
    from parlab.checks.pipeline_parallel._steps import Recorder

MISTAKES = Mistakes(
    to_itself=(
        "rank {rank} sends to itself, or receives from itself. Use `group_dst` and `group_src`: "
        "`dst` and `src` count the ranks of the whole job. A tensor that stays on its rank needs "
        "no message"
    ),
    no_input_gradient=(
        "rank {rank} has no gradient for stage {stage}: `x.grad` is None. A backward pass sets it "
        "if `x` is a leaf that required a gradient (`requires_grad_()`) before the forward pass"
    ),
    blocking_send=(
        "{ranks} wait in the middle of the step until what they sent is received, each by the next "
        "of them. Send with `dist.isend`, and wait for its handle at the end of the step"
    ),
)
Endings = dict[int, Ended]


def explain(case: Case, recorder: "Recorder", endings: Endings) -> Finding | None:
    """Name the mistake if it is certain, and say how far each rank came. Collective."""
    trial, own = case.trial, case.trial.ledger.calls
    actions, waits = trial.gather(recorder.actions), trial.gather(waited_in(own))
    to_itself = trial.gather(calls_itself(trial.rank, own))
    sends = trial.gather(sum(call.op in SENDS for call in own[recorder.calls_before :]))
    outcome = ending(endings)
    if outcome is None:
        return None
    found = (
        sends_to_itself(to_itself, endings)
        or _other_input(actions)
        or _no_input_gradient(actions, endings)
        or _blocking_send(case, actions, waits, endings)
    )
    lines = [found.text] if found else []
    lines += [outcome.text, *_progress(case, actions, sends, endings)]
    return Finding("\n".join(lines), (found or outcome).mistake)


def calls_itself(rank: int, calls: Sequence[Call]) -> bool:
    """Return whether a rank sends to itself or receives from itself: torch starts both."""
    return any(rank in (call.to, call.source) for call in calls)


def sends_to_itself(to_itself: Sequence[bool], endings: Endings) -> Finding | None:
    refused = "rank should not be the same as the rank of the current process"
    for rank, ended in endings.items():
        if to_itself[rank] or refused in ended.error:
            return MISTAKES.to_itself(rank=rank)
    return None


def _other_input(actions: Sequence[list[Action]]) -> Finding | None:
    first = sorted(own[0].stage for own in actions if own and own[0].micro_batch < 0)
    return other_input(first[0]) if first else None


def other_input(stage: int) -> Finding:
    """Say that a stage computed on a tensor that the check does not know."""
    if stage == 0:
        return observed("stage 0 is called on a tensor that is no micro-batch of `inputs`")
    return observed(
        f"stage {stage} is called on a tensor that is not the output of stage {stage - 1} for any "
        "micro-batch. Call it on what `mailbox.receive` returned"
    )


def _no_input_gradient(actions: Sequence[list[Action]], endings: Endings) -> Finding | None:
    for rank, ended in endings.items():
        last = actions[rank][-1] if actions[rank] else None
        if last and last.kind == "backward" and last.stage > 0 and "NoneType" in ended.error:
            return MISTAKES.no_input_gradient(rank=rank, stage=last.stage - 1)
    return None


def _blocking_send(
    case: Case, actions: Sequence[list[Action]], waits: Sequence[Call | None], endings: Endings
) -> Finding | None:
    """Find ranks with more to do that wait in a circle, each for the next to receive."""
    waiting = {}
    for rank, ended in endings.items():
        call = waits[rank]
        unfinished = len(actions[rank]) < len(case.schedule[rank])
        if ended.kind == "stuck" and unfinished and call is not None and call.op in SENDS:
            waiting[rank] = call.to
    for first in waiting:
        circle, rank = [], first
        while rank in waiting and rank not in circle:
            circle.append(rank)
            rank = waiting[rank]
        if rank in circle:
            return MISTAKES.blocking_send(ranks=ranks_text(sorted(circle[circle.index(rank) :])))
    return None


def waited_in(calls: Sequence[Call]) -> Call | None:
    """Return the call in which a rank was stuck: of those that took long, the last one.

    It need not be the rank's last call: a send is freed as soon as its receiver is, and may end
    without an error, after which the rank makes its next call. It need not be the longest call
    either: a message that was started earlier, and for which no rank waits, takes as long.
    """
    now = time.perf_counter()
    seconds = [(call.end or now) - call.start for call in calls]
    long = max(seconds, default=0.0) / 2
    pairs = zip(reversed(calls), reversed(seconds), strict=True)
    return next((call for call, took in pairs if took > long), None)


def _progress(
    case: Case, actions: Sequence[list[Action]], sends: Sequence[int], endings: Endings
) -> list[str]:
    """Describe how far the ranks that raised came, or else all ranks."""
    raised = {rank for rank, ended in endings.items() if ended.kind == "raised"}
    several = None if case.chunks > 1 else case.ranks
    lines = []
    for rank in raised or endings:
        begun, own = actions[rank], case.schedule[rank]
        after = own[len(begun)] if begun == own[: len(begun)] and begun != own else None
        lines.append(
            f"  rank {rank} has begun {texts(begun, several).replace('-1', '?') or 'no action'}, "
            f"and sent {sends[rank]} of {case.messages(rank)[0]} messages"
            + (f". Its next action is {text(after, several)}" if after else "")
        )
    return lines
