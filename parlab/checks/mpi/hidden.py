"""What hidden checks show of a call: how it was done, in values that every right answer has."""

from mpi4py import MPI

from parlab.checks.agreement import gather
from parlab.checks.messages import step
from parlab.checks.rounds import rounds
from parlab.checks.unbuffered import UnbufferedComm
from parlab.ledger import Ledger
from parlab.ledger.calls import RECEIVES, SENDS


def turned(comm: MPI.Intracomm, ledger: Ledger) -> MPI.Intracomm:
    """The ranks of `comm` in reverse order, watched by `ledger`, with no message buffered.

    Collective. A function that reads the notebook's `rank` is found out on it.
    """
    return UnbufferedComm(comm.Split(0, -comm.rank), ledger)


def sent(ledger: Ledger) -> list[list[int | None]]:
    """[destination, bytes] of each message of this rank that was not empty, in order."""
    return [[call.to, call.bytes_sent] for call in ledger.sends() if call.bytes_sent]


def received(ledger: Ledger) -> int:
    """How many messages that were not empty this rank received."""
    return sum(call.op in RECEIVES and call.bytes_received > 0 for call in ledger.calls)


def no_messages(ledger: Ledger) -> list[str]:
    """Names of the calls that are no messages: a library's collectives."""
    return sorted({call.api for call in ledger.calls if call.op not in (*SENDS, *RECEIVES)})


def within_rounds(ledger: Ledger, most: int) -> bool:
    """Whether the messages of all ranks, on `turned`, take `most` rounds at most. Collective."""
    everyone = gather(ledger.calls)[::-1]
    taken = rounds([[step(call) for call in calls] for calls in everyone])
    return taken is None or taken <= most
