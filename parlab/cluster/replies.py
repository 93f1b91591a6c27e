"""The ranks' answers to one cell, and what they printed and displayed."""

import re
from collections.abc import Callable
from typing import Any

from ipyparallel import AsyncResult

from parlab.cluster.channel import Channel
from parlab.runtime.heap import give_back

# Open MPI prints this, and an empty line, when a non-blocking collective fails because parlab has
# revoked its communicator (error 77). The error of the cell already says what happened.
_REVOKED = re.compile(
    r"NBC_Progress: an error 77 was found during schedule \S+ at row-offset \d+ - "
    r"aborting the schedule\n\n?"
)


# After a cell that printed this many characters, the kernel returns its unused memory to the
# system. Otherwise, each of its threads would keep some of it.
LARGE_OUTPUT = 1_000_000
# Each of these methods keeps the last 128 results that it was called on.
_KEEP_RESULTS = (AsyncResult.__len__, AsyncResult._count_chunks, AsyncResult.split)


class Replies:
    """The answers to one cell, by rank, as futures."""

    def __init__(self, ranks: list[int], result: AsyncResult, channel: Channel) -> None:
        self._channel = channel
        self.result = result
        self.is_shared = False  # True if the user has `result`
        # AsyncResult is done when the whole cell is. Its children are the futures of single ranks.
        self._futures = dict(zip(ranks, result._children, strict=True))
        self._before: dict[int, dict[str, int]] = {}  # see `ended_early`

    def on_each(self, call: Callable[[], None]) -> None:
        """Call `call` each time a rank has answered."""
        for future in self._futures.values():
            future.add_done_callback(lambda _: call())

    def forget(self) -> None:
        """Free the memory of what the ranks printed and returned, which ipyparallel would keep.

        Do nothing if the user has the AsyncResult.
        """
        if self.is_shared:
            return
        if self.result.ready():
            self.result._client.purge_local_results(self.result)
        for method in _KEEP_RESULTS:
            method.cache_clear()
        printed = 0
        for future in self._futures.values():
            metadata = future.output.metadata
            printed += sum(len(metadata.get(stream) or "") for stream in ("stdout", "stderr"))
            metadata.clear()
        if printed > LARGE_OUTPUT:
            give_back()

    def running(self) -> list[int]:
        """Return the ranks that have not answered."""
        return [rank for rank, future in self._futures.items() if not future.done()]

    def will_not_come(self) -> bool:
        """Return True if ranks will never answer, because one ended or all were replaced."""
        ended = self._channel.is_closed or bool(self._channel.deaths())
        return ended and bool(self.running())

    def errors(self) -> dict[int, Exception]:
        """Return the exception of each rank that has answered with one."""
        answers = {r: f.exception() or f.result() for r, f in self._futures.items() if f.done()}
        return {rank: a for rank, a in answers.items() if isinstance(a, Exception)}

    def last_line(self) -> str:
        """Return the last line that the first rank has printed so far."""
        first = next(iter(self._futures.values()))
        printed = (first.output.metadata["stdout"] or "").rstrip()
        return printed.replace("\r", "\n").rpartition("\n")[2]

    def ended_early(self) -> None:
        """Record how much the running ranks have shown so far. Call this before they are freed.

        A freed rank can reach the end of a cell in which it would otherwise still be waiting.
        This happened in about one of forty deadlocks on Open MPI 5.0.11, probably because a send
        succeeds if its receiver is freed first. `outputs` leaves out what such a rank shows after
        this call.
        """
        self._before = {
            rank: {kind: len(metadata[kind] or "") for kind in ("stdout", "stderr", "outputs")}
            for rank in self.running()
            for metadata in [self._futures[rank].output.metadata]
        }

    def on_output(self, call: Callable[[], None]) -> None:
        """Call `call` each time the output of a rank is complete."""
        for future in self._futures.values():
            future.output.add_done_callback(lambda _: call())

    def has_all_output(self) -> bool:
        """Return True if the output of each rank that has answered is complete.

        A rank that died after its answer may not have sent all of its output.
        """
        dead = self._channel.deaths()
        return all(
            future.output.done()
            for rank, future in self._futures.items()
            if future.done() and rank not in dead
        )

    def outputs(self) -> dict[int, dict[str, Any]]:
        """Return each rank's `stdout`, `stderr`, `outputs`, and `execute_result` so far.

        Messages of Open MPI about calls that parlab has revoked are left out.
        """
        failed = self.errors()
        found = {rank: dict(future.output.metadata) for rank, future in self._futures.items()}
        for rank, before in self._before.items():
            if rank not in failed:
                cut = {kind: (found[rank][kind] or "")[:length] for kind, length in before.items()}
                found[rank] |= cut | {"execute_result": None}
        for shown in found.values():
            shown["stderr"] = _REVOKED.sub("", shown["stderr"] or "")
        return found
