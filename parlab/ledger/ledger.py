"""The ledger, which records calls and counts them."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Self

from mpi4py import MPI

from parlab.costs.collectives import ring_bytes
from parlab.ledger.calls import COLLECTIVES, OPS, RECEIVES, SENDS, Call
from parlab.ledger.entries import Entries
from parlab.ledger.watched import WatchedComm


class Ledger(Entries):
    """The calls of this rank. `parlab.ledger` explains how to use it and what the bytes mean."""

    def __init__(self) -> None:
        super().__init__()
        self._recordings: list[AbstractContextManager] = []

    def watch(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        """Return a communicator with the handle of `comm` that records each call in this ledger.

        Communicators that are made from it by Dup, Clone, Split, Split_type, Create, or
        Create_group record their calls as well.
        """
        return WatchedComm(comm, self)

    def __enter__(self) -> Self:
        # Importing torch takes seconds, and labs that only use mpi4py do not need it.
        from parlab.ledger.torch_calls import recording

        self._recordings.append(recording(self.enter))
        self._recordings[-1].__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._recordings.pop().__exit__(kind, error, traceback)

    def sends(self) -> list[Call]:
        """Return the calls that sent a message to one rank."""
        return [call for call in self.calls if call.op in SENDS]

    def receives(self) -> list[Call]:
        """Return the calls that received a message from one rank."""
        return [call for call in self.calls if call.op in RECEIVES]

    def count(self, op: str | None = None) -> int:
        """Return the number of calls, or of calls of one op."""
        return len(self._of(op))

    def bytes_sent(self, op: str | None = None) -> int:
        """Return the bytes that this rank passed to all calls, or to those of one op."""
        return sum(call.bytes_sent for call in self._of(op))

    def bytes_received(self, op: str | None = None) -> int:
        """Return the bytes that this rank got from all calls, or from those of one op."""
        return sum(call.bytes_received for call in self._of(op))

    def ring_bytes(self) -> float:
        """Return the bytes that this rank sends if each collective uses a ring, which is minimal.

        Messages count with their own bytes, and barriers with 0. Raises ValueError for an op that
        has no such minimum (see `bus_bandwidth`).
        """
        return ring_bytes_sent(self.calls)

    def _of(self, op: str | None) -> list[Call]:
        if op is not None and op not in OPS:
            raise ValueError(f"no op {op!r}: use one of {', '.join(OPS)}")
        return [call for call in self.calls if op in (None, call.op)]

    def table(self) -> str:
        """Return a table of calls and bytes by op, in the order of first use, as text."""
        ops = list(dict.fromkeys(call.op for call in self.calls))
        columns: list[tuple[str, Callable[[str | None], int]]] = [
            ("calls", self.count),
            ("bytes sent", self.bytes_sent),
            ("bytes received", self.bytes_received),
        ]
        rows = [["", *(title for title, _ in columns)]]
        for op in [*ops, None] if len(ops) != 1 else ops:
            rows.append([op or "total", *(f"{value(op):,}" for _, value in columns)])
        widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
        return "\n".join(
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])])
            for row in rows
        )


def ring_bytes_sent(calls: Sequence[Call]) -> float:
    """Return the bytes of one rank's `calls`, as `Ledger.ring_bytes` counts them."""
    return sum(
        ring_bytes(call.op, call.bytes, call.size)
        if call.op in COLLECTIVES and call.op != "barrier"
        else call.bytes_sent
        for call in calls
    )
