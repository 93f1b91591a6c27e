"""Defines one entry of a ledger."""

from dataclasses import dataclass

SENDS = ("send", "isend", "sendrecv")
RECEIVES = ("recv", "irecv", "sendrecv")
COLLECTIVES = (
    "all_gather",
    "all_reduce",
    "all_to_all",
    "barrier",
    "broadcast",
    "exscan",
    "gather",
    "neighbor_all_gather",
    "neighbor_all_to_all",
    "reduce",
    "reduce_scatter",
    "scan",
    "scatter",
)
OPS = tuple(dict.fromkeys((*SENDS, *RECEIVES, *COLLECTIVES)))


@dataclass
class Call:
    """One call on this rank. Ranks are numbered as in the watched communicator or the group.

    Attributes:
        api: the library's name for it: `Send`, `allreduce` (mpi4py), `c10d.allreduce` (torch).
        op: this course's name for it, one of `OPS`.
        bytes_sent: bytes that this rank passed to the call (see `parlab.ledger`).
        bytes_received: bytes that this rank got. Until a receive is complete, the buffer's size.
        size: number of ranks of the communicator or group.
        start: when the call was made (seconds, `time.perf_counter`).
        end: when it was complete (seconds), or None before. For a non-blocking mpi4py call, this is
            when a wait or test returned, or at the next call after that. For a torch call, it is
            when the call returned. NCCL has then only queued the operation for the GPU.
        end_seen: False if the call completed without being noticed, as in `Request.Waitall`. Then
            `end` is too late.
        to: the rank to which it sends.
        source: the rank from which it receives, or None while this can be any rank.
        root: the root of a collective that has one.
        tag: a message's tag; for a `sendrecv`, the tag of the message that it sends.
        thread: name of the calling thread.
    """

    api: str
    op: str
    bytes_sent: int
    bytes_received: int
    size: int
    start: float
    end: float | None
    to: int | None = None
    source: int | None = None
    root: int | None = None
    tag: int | None = None
    thread: str = "MainThread"
    end_seen: bool = True

    @property
    def bytes(self) -> int:
        """Bytes of the message, or the larger side of a collective (all parts).

        For a `sendrecv`, these are the bytes sent.
        """
        if self.op == "sendrecv":
            return self.bytes_sent
        return max(self.bytes_sent, self.bytes_received)

    @property
    def peer(self) -> int | None:
        """The other rank of a message, or the root of a collective."""
        return next((r for r in (self.to, self.source, self.root) if r is not None), None)


def without_unused(op: str, is_root: bool, sent: int, received: int) -> tuple[int, int]:
    """Return `sent` and `received`, without buffers that a rooted collective does not use here."""
    if op in ("broadcast", "scatter") and not is_root:
        sent = 0
    if op in ("reduce", "gather") and not is_root:
        received = 0
    if op == "broadcast" and is_root:
        received = 0
    return sent, received
