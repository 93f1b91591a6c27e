"""Why a step raised or did not end, where the ranks together know; and how far each came."""

import time
from collections.abc import Sequence

from parlab.checks.endings import ending
from parlab.checks.mistakes import Finding
from parlab.checks.pipeline_parallel.cases import Case
from parlab.checks.pipeline_parallel.mistakes import MISTAKES
from parlab.checks.pipeline_parallel.notes import Notes
from parlab.checks.trial import Trial
from parlab.checks.watchdog import Ended
from parlab.ledger import Call
from parlab.ledger.calls import SENDS
from parlab.pipeline import Action, text, texts
from parlab.wording import ranks_text


def explained(trial: Trial, case: Case, notes: Notes, endings: dict[int, Ended]) -> Finding | None:
    """The mistake, where it is certain, with what became of the ranks; collective over the lab."""
    did, waits = trial.gather(notes.did), trial.gather(waited_in(trial.ledger.calls))
    to_itself = trial.gather(calls_itself(trial.rank, trial.ledger.calls))
    sent = trial.gather(any(call.op in SENDS for call in trial.ledger.calls))
    told = ending(endings)
    if told is None:
        return None
    found = (
        refused_to_itself(endings)
        or next((sent_to_itself(r, case.ranks) for r in endings if to_itself[r]), None)
        or tokens_require_grad(case, endings)
        or frozen_raises(case, endings)
        or no_backward_pass(case, did, endings)
        or no_input_gradient(case, did, endings)
        or gradients_not_sent(case, endings)
        or activations_not_sent(did, sent, endings)
        or _sends_block(case, did, waits, endings)
    )
    lines = [*(found.text.splitlines() if found else ()), *told.text.splitlines()]
    lines += _came_to(case, did, endings)
    return Finding("\n".join(lines), (found or told).mistake)


def refused_to_itself(endings: dict[int, Ended]) -> Finding | None:
    """torch refuses a message to oneself."""
    rank = _raised(endings, "rank should not be the same as the rank of the current process")
    return None if rank is None else sent_to_itself(rank, len(endings))


def calls_itself(rank: int, calls: Sequence[Call]) -> bool:
    """Whether a rank sends to itself, or receives from itself: torch lets it start both."""
    return any(rank in (call.to, call.source) for call in calls)


def sent_to_itself(rank: int, ranks: int) -> Finding:
    """Stages that follow each other are on one rank only where there is no other."""
    return (MISTAKES.local_through_group if ranks == 1 else MISTAKES.to_itself)(rank=rank)


def tokens_require_grad(case: Case, endings: dict[int, Ended]) -> Finding | None:
    error = "only Tensors of floating point"
    return MISTAKES.tokens_require_grad() if case.tokens and _raised(endings, error) == 0 else None


def frozen_raises(case: Case, endings: dict[int, Ended]) -> Finding | None:
    rank = _raised(endings, "does not require grad")
    if case.frozen is None or rank is None:
        return None
    own = range(rank, case.count, case.ranks)
    frozen = [s for s in own if not all(p.requires_grad for p in case.layers[s].parameters())]
    return MISTAKES.frozen_raises(stage=frozen[0], rank=rank) if frozen else None


def no_backward_pass(
    case: Case, did: Sequence[list[Action]], endings: dict[int, Ended]
) -> Finding | None:
    """A rank has no gradient to send, or no graph to go back through, before any backward pass."""
    no_graph, nothing = _raised(endings, "does not require grad"), _raised(endings, "NoneType")
    rank = nothing if no_graph is None else no_graph
    if case.frozen or rank is None or not did[rank]:
        return None
    stage = did[rank][-1].stage
    if any(action.kind == "backward" for action in did[rank]) or (no_graph is None and stage == 0):
        return None
    return MISTAKES.no_backward_pass(rank=rank, stage=stage)


def no_input_gradient(
    case: Case, did: Sequence[list[Action]], endings: dict[int, Ended]
) -> Finding | None:
    """After a backward pass there is nothing to send to the stage before."""
    rank = _raised(endings, "NoneType")
    action = did[rank][-1] if rank is not None and did[rank] else None
    if action is None or action.kind == "forward" or action.stage == 0:
        return None
    return MISTAKES.no_input_gradient(rank=rank, action=text(action), stage=action.stage - 1)


def gradients_not_sent(case: Case, endings: dict[int, Ended]) -> Finding | None:
    """Some of the last ranks have done all, so every activation came; and all before them wait."""
    stuck = [rank for rank, ended in endings.items() if ended.kind == "stuck"]
    done = [rank for rank, ended in endings.items() if ended.kind == "returned"]
    if not stuck or not done or len(stuck) + len(done) < case.ranks or max(stuck) > min(done):
        return None
    if case.chunks == 1 and min(done) in (case.frozen or ()):
        return MISTAKES.frozen_not_passed(stage=min(done))
    return MISTAKES.gradients_not_sent() if len(done) == 1 else None


def activations_not_sent(
    did: Sequence[list[Action]], sent: Sequence[bool], endings: dict[int, Ended]
) -> Finding | None:
    """Rank 0 has begun, no message has left it, and no other rank has anything to begin with."""
    stuck = [rank for rank, ended in endings.items() if ended.kind == "stuck"]
    if len(stuck) < len(endings) or len(stuck) < 2 or not did[0] or sent[0] or any(did[1:]):
        return None
    return MISTAKES.activations_not_sent()


def sending_to_each_other(waiting: dict[int, int]) -> list[int]:
    """Ranks that wait in a circle, where each of `waiting` waits for another to receive."""
    for first in waiting:
        circle, rank = [], first
        while rank in waiting and rank not in circle:
            circle.append(rank)
            rank = waiting[rank]
        if rank in circle:
            return sorted(circle[circle.index(rank) :])
    return []


def waited_in(calls: Sequence[Call]) -> Call | None:
    """The call in which a rank was stuck: of those that took long, the one that began last.

    It need not be the last of all. A send is freed as soon as its receiver is, and may end as if
    all were well; the rank then goes on to its next call. Nor is it the one that took longest: a
    message that was started before, and that nobody waits for, is under way as long.
    """
    now = time.perf_counter()
    seconds = [(call.end or now) - call.start for call in calls]
    long = max(seconds, default=0.0) / 2
    return next(
        (c for c, s in zip(reversed(calls), reversed(seconds), strict=True) if s > long), None
    )


def _sends_block(
    case: Case,
    did: Sequence[list[Action]],
    waits: Sequence[Call | None],
    endings: dict[int, Ended],
) -> Finding | None:
    """Ranks that have more to do wait for a send, each for the next."""
    waiting = {
        rank: call.to
        for rank, ended in endings.items()
        if ended.kind == "stuck"
        and len(did[rank]) < len(case.schedule[rank])
        and (call := waits[rank]) is not None
        and call.op in SENDS
    }
    circle = sending_to_each_other(waiting)
    return MISTAKES.blocking_send(ranks=ranks_text(circle)) if circle else None


def _came_to(case: Case, did: Sequence[list[Action]], endings: dict[int, Ended]) -> list[str]:
    """Of the ranks that raised, else of those that wait: what they began, and what comes then."""
    kind = "raised" if any(e.kind == "raised" for e in endings.values()) else "stuck"
    several = None if case.chunks > 1 else case.ranks
    lines = []
    for rank, ended in endings.items():
        begun, own = did[rank], case.schedule[rank]
        if ended.kind != kind:
            continue
        # What came to a stage may be of no micro-batch.
        begun_text = texts(begun, several).replace("-1", "?")
        line = f"  rank {rank} has begun {begun_text or 'no action'}"
        if begun == own[: len(begun)]:
            left = own[len(begun) :]
            line += f"; then comes {text(left[0], several)}" if left else ", all that it has to do"
        else:
            line += f" where its schedule says {texts(own, several)}"
        lines.append(line)
    return lines


def _raised(endings: dict[int, Ended], error: str) -> int | None:
    """The first rank that raised an error with these words."""
    return next(
        (rank for rank, e in endings.items() if e.kind == "raised" and error in e.error), None
    )
