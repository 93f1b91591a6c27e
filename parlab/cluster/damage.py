"""Repairs objects that a cell broke but that the labs need, before the next cell runs."""

from parlab.cluster.ending import replaced_text, unreceived_text
from parlab.cluster.errors import CellError, RankDied
from parlab.cluster.execution import Execution
from parlab.cluster.freeing import Freeing
from parlab.cluster.outcome import Ending, Outcome
from parlab.cluster.stop_button import StopButton
from parlab.rank.engine import DAMAGE
from parlab.runtime.rank_names import by_value, ranks_text

# For each kind of damage: what the cell did, and how it was repaired.
BROKEN = {
    "comm": ("freed or revoked `comm` or another communicator of parlab", "It works again."),
    "torch": (
        "destroyed the default process group",
        "It was created again, and so was `group`. Objects on them, such as DDP models and meshes, "
        "must be created again.",
    ),
}
NOT_RENEWED = "The ranks could not repair this."
# What the cell did if its rank has to be replaced.
ENDED = {
    "exit": (
        "called quit() or exit(), which ends the process of a rank. To leave a cell early, raise "
        "an error."
    ),
    "mpi": (
        "called MPI.Finalize. After that, a process cannot use MPI any more. Leave this call out: "
        "MPI ends by itself."
    ),
}


def repair(
    execution: Execution, outputs: dict[int, dict], error: CellError | None, stop: StopButton
) -> None:
    """Repair everything that the cell broke, on all ranks, and print what it was.

    After an error, messages may be in transit, so `comm` is renewed as well.

    Raises RankDied if the ranks have to be replaced. Its text includes the cell's own `error`.
    """
    broken = {rank: kind for rank, meta in outputs.items() if (kind := meta["data"].get(DAMAGE))}
    session = execution.session
    if not broken:
        reason = _renew_messages(execution, error, stop)
        if not reason:
            return
    elif ended := {rank: ENDED[kind] for rank, kind in broken.items() if kind in ENDED}:
        sentences = (f"{ranks_text(ranks, session.n)} {did}" for ranks, did in by_value(ended))
        reason = "\n".join(text[0].upper() + text[1:] for text in sentences)
    else:
        kinds = sorted(set(broken.values()))
        hindered = _renew(execution, stop)
        if not hindered:
            texts = (f"This cell {did}. {remedy}" for did, remedy in map(BROKEN.get, kinds))
            print("\n".join(texts))
            return
        reason = f"This cell {', and '.join(BROKEN[kind][0] for kind in kinds)}. {hindered}"
    text = [reason, replaced_text(session.replace())]
    raise RankDied("\n".join([str(error), *text] if error else text))


def _renew_messages(execution: Execution, error: CellError | None, stop: StopButton) -> str:
    """Renew `comm` if messages may be in transit. Return why ranks must be replaced, or "".

    Messages of a cell that ran on only some ranks are kept, because a later cell on other ranks may
    receive them.
    """
    session = execution.session
    on_all = len(execution.targets) == session.n
    if session.in_background():
        return ""
    freeing = Freeing(session, execution.replies, stop, lambda *_: None)
    if error is None:
        unreceived = freeing.unreceived() if on_all else {}
        if not unreceived:
            return ""
        print(unreceived_text(unreceived))
    elif not freeing.all_are_free():
        return ""
    outcome = Outcome(Ending.FINISHED)
    # After an error, groups on an emulated network also have messages and collectives in transit.
    return "" if freeing.recover(outcome, messages_only=error is None) else NOT_RENEWED


def _renew(execution: Execution, stop: StopButton) -> str:
    """Renew communicators and groups on all ranks. Return why this was not possible, or ""."""
    session = execution.session
    # Renewal is collective, and a rank that still runs a `--noblock` cell cannot take part.
    if busy := session.in_background():
        who = ranks_text(busy, session.n)
        return f"All ranks are needed to repair this, but {who} still ran a `--noblock` cell."
    freeing = Freeing(session, execution.replies, stop, lambda *_: None)
    return "" if freeing.recover(Outcome(Ending.FINISHED)) else NOT_RENEWED
