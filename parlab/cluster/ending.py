"""Formats what the notebook shows when a rank cell has ended."""

import re
import signal
from collections.abc import Mapping

from ipyparallel.error import RemoteError

from parlab.cluster import report
from parlab.cluster.channel import Channel
from parlab.cluster.errors import (
    CellError,
    DeadlineExceeded,
    RankDied,
    RankFailed,
    RankInterrupted,
)
from parlab.cluster.locations import Cells, in_torch, where
from parlab.cluster.outcome import Ending, Outcome
from parlab.cluster.replies import Replies
from parlab.rank.engine.tracebacks import HANDLED
from parlab.runtime.rank_names import by_value, ranks_text

OTHERS = "The others were at:"
MESSAGE_START, MESSAGE_END = 4000, 1000  # characters of an exception's message
NOT_FREE = (
    "Python cannot interrupt a call into C code, such as a long computation or a call that waits "
    "for a window or a file of MPI. Nor can it end code that catches every exception. MPI cannot "
    "replace a rank alone, so all ranks are replaced."
)
TORCH_ENDED = (
    ". torch.distributed ended the process: probably, the ranks passed tensors of different sizes "
    "or types to the same call"
)
CUT_OFF = (
    "The process that connects this notebook with its ranks (ipyparallel's controller) has ended."
)
# In errors of torch.distributed: a port or the number of a group, which differ from rank to rank.
_OWN_NUMBER = re.compile(r"(\[[\d.:a-f]+\]:|group registered under the name )\d+")
INTACT = "The ranks are free again, and their variables are intact."
COMM_WORKS = "The ranks are free again, their variables are intact, and `comm` works again."


def errors_by_rank(replies: Replies, skip: Mapping[int, str]) -> dict[int, tuple[str, str]]:
    """Return (message, frames) of each rank that raised, except for the ranks in `skip`."""
    return {
        rank: _message_and_lines(error) if isinstance(error, RemoteError) else (repr(error), "")
        for rank, error in replies.errors().items()
        if rank not in skip
    }


def _message_and_lines(error: RemoteError) -> tuple[str, str]:
    """Return the error's message, shortened, and the lines of the cell, as the rank sent them.

    If the rank sent a text in another form, return that text and no lines.
    """
    text = error.traceback or ""
    message = f"{error.ename}: {error.evalue}".rstrip(": ")
    if text.startswith(message) or not text:
        shown = _cut(_OWN_NUMBER.sub(r"\1…", error.evalue))
        return f"{error.ename}: {shown}".rstrip(": "), text.removeprefix(message).lstrip("\n")
    return _cut(text), ""


def _cut(text: str) -> str:
    """Return `text`, without its middle if it is too long to read."""
    left_out = len(text) - MESSAGE_START - MESSAGE_END
    if left_out <= 0:
        return text
    return f"{text[:MESSAGE_START]} … {left_out:,} characters left out … {text[-MESSAGE_END:]}"


def error_of(
    outcome: Outcome, replies: Replies, timeout: float, died: str, n: int
) -> CellError | None:
    """Return the exception that the cell raises, or None if it succeeded.

    The message does not include what happens to the ranks afterwards. `died` is the result of
    `died_text`.
    """
    errors = replies.errors()
    stuck = {
        rank: place + _handled(errors.get(rank))
        for rank, place in outcome.stuck.items()
        if rank not in outcome.deaths
    }
    skip = stuck | {rank: "" for rank in outcome.deaths}
    failed = report.failures(errors_by_rank(replies, skip), n)
    places = report.positions(stuck)
    others = [OTHERS, *places] if places else []
    also_died = [died] if died else []
    match outcome.ending:
        case Ending.FINISHED:
            return RankFailed("\n".join(failed)) if failed else None
        case Ending.FAILED:
            return RankFailed("\n".join([*failed, *others, *also_died]))
        case Ending.CUT_OFF:
            return RankDied("\n".join([CUT_OFF, "The ranks were at:", *places, *failed]))
        case Ending.DIED:
            return RankDied("\n".join([died, *others, *failed]))
        case Ending.DEADLINE:
            head = [
                f"Stopped after {timeout:g} s (use `%%px --timeout SECONDS` for more time). "
                "These ranks had not finished:"
            ]
            return DeadlineExceeded("\n".join(head + places + failed + also_died))
        case Ending.INTERRUPTED:
            head = ["Interrupted. These ranks had not finished:"] if places else ["Interrupted."]
            return RankInterrupted("\n".join(head + places + failed + also_died))


def _handled(error: Exception | None) -> str:
    """Return a note on the error that a rank was handling when it got stuck, or "".

    A rank can get stuck in this way in `__exit__` of a `with` block.
    """
    lines = (getattr(error, "traceback", None) or "").splitlines()
    return next((f"  ({line.strip()})" for line in lines if line.startswith(HANDLED)), "")


def died_text(deaths: Mapping[int, int], channel: Channel, cells: Cells, n: int) -> str:
    """Return which ranks died, and how. Add the line if the rank reported it before it died."""
    texts = {}
    for rank, status in deaths.items():
        crash = channel.ranks[rank].crash
        place = where(crash, cells)
        texts[rank] = report.exit_text(status) + (f" at {place}" if place else "")
        if status == -signal.SIGABRT and in_torch(crash):
            texts[rank] += TORCH_ENDED
    return "\n".join(
        f"{ranks_text(ranks).capitalize()} died: {text}" for ranks, text in by_value(texts)
    )


def replaced_text(gone: list[str]) -> str:
    """Return a text that says that new ranks start and which variables are lost."""
    text = "New ranks are starting, and the imports of your cells run again on them."
    return f"{text} {_gone_text(gone)}".rstrip()


def lost_job_text(job: str, gone: list[str]) -> str:
    """Return a text that says that the ranks ended with their batch job."""
    text = f"{job}\nThe ranks ended with it. cluster.start() submits a new job."
    return f"{text} {_gone_text(gone)}".rstrip()


def _gone_text(gone: list[str]) -> str:
    if not gone:
        return ""
    return (
        "These variables are lost: "
        + ", ".join(f"`{name}`" for name in gone)
        + ". Run the cells that define them again."
    )


def reason_text(outcome: Outcome, n: int) -> str:
    """Return why the ranks must be replaced, or "" if the error already says it."""
    if outcome.deaths or outcome.ending is Ending.CUT_OFF:
        return ""
    if outcome.not_free:
        return f"{_not_free_text(outcome.not_free, n)} {NOT_FREE}"
    modules = {
        rank: ", ".join(f"`{module}`" for module in modules)
        for rank, modules in outcome.interrupted_imports.items()
        if modules
    }
    if modules:
        return "\n".join(
            f"{ranks_text(ranks, n).capitalize()} stopped during the import of {text}, which the "
            "same process cannot import again."
            for ranks, text in by_value(modules)
        )
    return "The ranks were stopped, and then they did not answer."


def _not_free_text(ranks: list[int], n: int) -> str:
    if len(ranks) == n > 1:
        return "No rank could be stopped."
    return f"{ranks_text(ranks).capitalize()} could not be stopped."


def unreceived_text(unreceived: Mapping[int, list[tuple[int, int] | None]]) -> str:
    """Return a text about the messages of a cell that no rank received.

    For each receiving rank, `unreceived` lists the source and tag of each message, or None for a
    message of a collective call.
    """
    messages = [
        f"from rank {one[0]} to rank {rank} (tag {one[1]})"
        for rank, found in unreceived.items()
        for one in found
        if one is not None
    ]
    if messages:
        return (
            f"No rank received some messages, such as {', '.join(messages)}. They were discarded. "
            "Receive each message in the cell that sends it."
        )
    return (
        "The ranks' collective calls in this cell did not match. Do all ranks make the same calls, "
        "in the same order, and with the same root? Their messages were discarded."
    )


def kept_text(outcome: Outcome) -> str:
    """Return a text that says what freeing the ranks preserved, and what it ended."""
    finished = f"{ranks_text(outcome.finished).capitalize()} then finished the cell. "
    text = finished if outcome.finished else ""
    text += INTACT if "comm" in outcome.lost else COMM_WORKS
    if outcome.background:
        places = (
            f"{ranks_text(ranks)} at {place}" for ranks, place in by_value(outcome.background)
        )
        text += (
            f" Other cells were stopped, too, because all ranks are needed: {'; '.join(places)}."
        )
    if outcome.continued:
        them = "it" if len(outcome.continued) == 1 else "them"
        text += (
            f" A signal had stopped {ranks_text(outcome.continued)}, and parlab continued {them}."
        )
    if outcome.torch_is_new:
        text += " torch.distributed was started again, and `group` works again."
        old = [name for name in outcome.old if name not in outcome.lost]
        text += (
            f" The process groups in {', '.join(f'`{name}`' for name in old)} ended: run the cells "
            "that define these variables again."
            if old
            else " Process groups, DDP models, and meshes must be created again."
        )
    if outcome.lost:
        names = ", ".join(f"`{name}`" for name in outcome.lost)
        plural = len(outcome.lost) > 1
        text += (
            f" Your own {'communicators' if plural else 'communicator'} {names} ended: rerun "
            f"{'the cells that make them' if plural else 'the cell that makes it'}."
        )
    return text
