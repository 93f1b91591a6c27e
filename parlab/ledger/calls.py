"""One entry of a ledger."""

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
    """One call on this rank. Ranks are those of the communicator that was watched, or of the group.

    Attributes:
        api: its name where it was made: `Send`, `allreduce` (mpi4py), `c10d.allreduce` (torch).
        op: its name in this course, one of `OPS`, whatever the library calls it.
        bytes_sent: what this rank handed in (see `parlab.ledger`).
        bytes_received: what this rank got. Of a receive under way, the room for it.
        size: ranks of the communicator or group.
        start: when the call was made (seconds, `time.perf_counter`).
        end: when it was complete: a non-blocking mpi4py call's when a wait or test said so, or
            at the next call after that; None before. A torch call's, when the call returned. NCCL
            has then only queued the operation for the GPU.
        end_seen: False where it was complete out of sight, as in `Request.Waitall`: `end` is late.
        to: the rank sent to.
        source: the rank received from; None while it is any.
        root: the root of a collective that has one.
        tag: a message's tag; of a `sendrecv`, that of what it sends.
        thread: name of the thread that called.
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
        """The message sent, or else received; the larger side of a collective (all parts)."""
        if self.op == "sendrecv":
            return self.bytes_sent
        return max(self.bytes_sent, self.bytes_received)

    @property
    def peer(self) -> int | None:
        """The other rank of a message, or the root of a collective."""
        return next((r for r in (self.to, self.source, self.root) if r is not None), None)


def one_sided(op: str, is_root: bool, sent: int, received: int) -> tuple[int, int]:
    """`sent` and `received` of a rooted collective, less what this rank only has a buffer for."""
    if op in ("broadcast", "scatter") and not is_root:
        sent = 0
    if op in ("reduce", "gather") and not is_root:
        received = 0
    if op == "broadcast" and is_root:
        received = 0
    return sent, received
