"""Explains how a call of a learner's function ended: an error, a deadlock, or a stub."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace

from parlab.checks.base.mistakes import COMMON, Finding, observed
from parlab.checks.base.refused_calls import refusal
from parlab.checks.base.watchdog import Ended
from parlab.runtime.rank_names import by_value, ranks_text

_METHOD = re.compile(r"\.(\w+)\(")


def unfinished(endings: dict[int, Ended], exercise: str) -> Finding | None:
    """Return a finding if a stub was called, else None.

    A function may call the stub of an earlier exercise. The finding then names that exercise.
    """
    stub = next((ended.error for ended in endings.values() if ended.kind == "unfinished"), None)
    if stub is None:
        return None
    named = re.match(r"exercise (\w+)", stub)
    if named is None or named[1] == exercise:
        return observed("not done yet")
    return observed(
        f"it calls exercise {named[1]}, which is not done yet. Do that exercise first, or run "
        f'use_reference("{named[1]}") in a %%px cell'
    )


def ending(endings: dict[int, Ended]) -> Finding | None:
    """Return what went wrong in a call, with ranks and lines; None if it returned on all ranks."""
    raised = {rank: ended for rank, ended in endings.items() if ended.kind == "raised"}
    if raised:
        return _raised(raised, len(endings))
    if not any(ended.kind == "stuck" for ended in endings.values()):
        return None
    groups = by_value({rank: _place(ended) for rank, ended in endings.items()})
    # Leave out the rank's number if there is only one rank.
    names = [f"{ranks_text(ranks)}  " if len(endings) > 1 else "" for ranks, _ in groups]
    width = max(map(len, names))
    lines = [f"  {name:<{width}}{place}" for name, (_, place) in zip(names, groups, strict=True)]
    finding = COMMON.does_not_end()
    return replace(finding, text="\n".join([finding.text, *lines, *_meaning(endings)]))


def _place(ended: Ended) -> str:
    if ended.kind != "stuck":
        return "returned"
    return f"at {ended.line}" if ended.line else "did not return in time"


def idle_ranks_left(
    endings: dict[int, Ended], work: Sequence[object], mistake: Finding
) -> Finding | None:
    """Return `mistake` if ranks are stuck and only ranks without `work[rank]` returned; else None.

    Return None if a rank raised an error, too, because the others may wait for this rank.
    """
    returned = [rank for rank, ended in endings.items() if ended.kind == "returned"]
    kinds = {ended.kind for ended in endings.values()}
    waiting = ending(endings)
    if waiting is None or kinds != {"returned", "stuck"} or any(work[rank] for rank in returned):
        return None
    return replace(mistake, text=f"{mistake.text}\n{waiting.text}")


def _raised(raised: dict[int, Ended], took_part: int) -> Finding:
    first = next(iter(raised.values()))
    alike = [rank for rank, e in raised.items() if (e.error, e.line) == (first.error, first.line)]
    finding = refusal(first.error) or COMMON.raises(error=first.error)
    who = f"{ranks_text(alike, took_part)}  " if took_part > 1 else ""
    return replace(finding, text=f"{finding.text}\n  {who}{first.line}".rstrip())


def _meaning(endings: dict[int, Ended]) -> Iterable[str]:
    """Yield explanations of why these ranks wait, if they are certain."""
    stuck = [ended for ended in endings.values() if ended.kind == "stuck"]
    if not all(ended.line for ended in stuck):
        return
    found = (_METHOD.search(ended.line) for ended in stuck)  # its arguments may be calls, too
    doing = {match[1] for match in found if match}
    send = bool(doing) and doing <= {"Send", "send", "Ssend", "ssend"}
    if len(stuck) < len(endings) and not (send and len(stuck) > 1):  # these wait for each other
        yield (
            "Some ranks have already returned. If the stuck ranks wait for messages from them, "
            "or for them to receive, they wait forever"
        )
        return
    if send:
        yield (
            "All of them wait in a send, so none receives. A send may wait until its receiver has "
            "called a receive. MPI often buffers small messages, but not in this check"
        )
    if doing and doing <= {"Recv", "recv"}:
        yield "All of them wait in a receive, so none sends"
