"""Values that hidden checks display to show how a function works."""

from mpi4py import MPI

from parlab.checks.base.collective import gather
from parlab.checks.base.messages import step
from parlab.checks.base.rounds import rounds
from parlab.checks.base.unbuffered import UnbufferedComm
from parlab.ledger import Ledger
from parlab.ledger.calls import RECEIVES, SENDS


def turned(comm: MPI.Intracomm, ledger: Ledger) -> MPI.Intracomm:
    """Return the ranks of `comm` in reverse order, watched and without buffers. Collective.

    A function that reads the notebook's `rank` gets wrong results on it.
    """
    return UnbufferedComm(comm.Split(0, -comm.rank), ledger)


def sent(ledger: Ledger) -> list[list[int | None]]:
    """Return [destination, bytes] of each message of this rank that was not empty, in order."""
    return [[call.to, call.bytes_sent] for call in ledger.sends() if call.bytes_sent]


def received(ledger: Ledger) -> int:
    """Count the messages that this rank received and that were not empty."""
    return sum(call.op in RECEIVES and call.bytes_received > 0 for call in ledger.calls)


def no_messages(ledger: Ledger) -> list[str]:
    """Return the names of calls that are not messages, such as a library's collectives."""
    return sorted({call.api for call in ledger.calls if call.op not in (*SENDS, *RECEIVES)})


def within_rounds(ledger: Ledger, limit: int) -> bool:
    """Return whether all messages on `turned` take at most `limit` rounds. Collective."""
    everyone = gather(ledger.calls)[::-1]
    taken = rounds([[step(call) for call in calls] for calls in everyone])
    return taken is None or taken <= limit
