"""What each rank answered to one cell, and what it printed and displayed."""

from collections.abc import Callable
from typing import Any

from ipyparallel import AsyncResult

from parlab.cluster.channel import Channel


class Replies:
    """The futures of one cell's ranks, by rank."""

    def __init__(self, ranks: list[int], result: AsyncResult, channel: Channel) -> None:
        self._channel = channel
        self.result = result
        # AsyncResult tells of the whole cell only; its children tell of each rank.
        self._futures = dict(zip(ranks, result._children, strict=True))
        self._before: dict[int, dict[str, int]] = {}  # of ranks that were freed: see `ended_early`

    def on_each(self, call: Callable[[], None]) -> None:
        """Call this whenever a rank has answered."""
        for future in self._futures.values():
            future.add_done_callback(lambda _: call())

    def running(self) -> list[int]:
        """The ranks that have not answered."""
        return [rank for rank, future in self._futures.items() if not future.done()]

    def will_not_come(self) -> bool:
        """Whether ranks that have not answered never will: one ended, or all were replaced."""
        ended = self._channel.is_closed or bool(self._channel.deaths())
        return ended and bool(self.running())

    def errors(self) -> dict[int, Exception]:
        """What each rank raised that has answered, and raised."""
        answers = {r: f.exception() or f.result() for r, f in self._futures.items() if f.done()}
        return {rank: a for rank, a in answers.items() if isinstance(a, Exception)}

    def last_line(self) -> str:
        """What the first rank printed last, so far."""
        first = next(iter(self._futures.values()))
        return (first.output.metadata["stdout"] or "").rstrip().rpartition("\n")[2]

    def ended_early(self) -> None:
        """Note how much the ranks that still run have shown: they are about to be freed.

        A rank that is freed and then comes to the end of its cell did not get there by itself. Seen
        in about one of forty deadlocks on Open MPI 5.0.11; the likely cause is that a send ends
        well when its receiver is freed first. What it shows on the way is left out.
        """
        self._before = {
            rank: {kind: len(metadata[kind] or "") for kind in ("stdout", "stderr", "outputs")}
            for rank in self.running()
            for metadata in [self._futures[rank].output.metadata]
        }

    def on_output(self, call: Callable[[], None]) -> None:
        """Call this whenever the output of a rank that has answered is complete."""
        for future in self._futures.values():
            future.output.add_done_callback(lambda _: call())

    def has_all_output(self) -> bool:
        """Whether the output of each rank that has answered is complete.

        One that died never says that it is.
        """
        return all(f.output.done() for f in self._futures.values() if f.done())

    def outputs(self) -> dict[int, dict[str, Any]]:
        """Each rank's `stdout`, `stderr`, `outputs` and `execute_result`, so far."""
        failed = self.errors()
        found = {rank: dict(future.output.metadata) for rank, future in self._futures.items()}
        for rank, before in self._before.items():
            if rank not in failed:
                cut = {kind: (found[rank][kind] or "")[:length] for kind, length in before.items()}
                found[rank] |= cut | {"execute_result": None}
        return found
