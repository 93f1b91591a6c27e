"""What each rank answered to one cell, and what it printed and displayed."""

import time
from collections.abc import Callable
from typing import Any

from ipyparallel import AsyncResult


class Replies:
    """The futures of one cell's ranks, by rank."""

    def __init__(self, ranks: list[int], result: AsyncResult) -> None:
        # AsyncResult tells of the whole cell only; its children tell of each rank.
        self._futures = dict(zip(ranks, result._children, strict=True))
        self._printed: dict[int, int] = {}

    def on_each(self, call: Callable[[], None]) -> None:
        """Call this whenever a rank has answered."""
        for future in self._futures.values():
            future.add_done_callback(lambda _: call())

    def running(self) -> list[int]:
        """The ranks that have not answered."""
        return [rank for rank, future in self._futures.items() if not future.done()]

    def errors(self) -> dict[int, Exception]:
        """What each rank raised that has answered, and raised."""
        answers = {r: f.exception() or f.result() for r, f in self._futures.items() if f.done()}
        return {rank: a for rank, a in answers.items() if isinstance(a, Exception)}

    def last_line(self) -> str:
        """What the first rank printed last, so far."""
        first = next(iter(self._futures.values()))
        return (first.output.metadata["stdout"] or "").rstrip().rpartition("\n")[2]

    def ended_early(self) -> None:
        """Note what the ranks that still run have printed: they are about to be freed.

        A rank that is freed and then comes to the end of its cell did not get there by itself. Seen
        in about one of forty deadlocks on Open MPI 5.0.11; the likely cause is that a send ends
        well when its receiver is freed first. What it prints on the way is not shown.
        """
        self._printed = {
            rank: len(self._futures[rank].output.metadata["stdout"] or "")
            for rank in self.running()
        }

    def outputs(self, timeout: float) -> dict[int, dict[str, Any]]:
        """Each rank's `stdout`, `stderr`, `outputs` and `execute_result`.

        Output comes on another way than answers, and may be later: it is waited for, `timeout`
        seconds in all. A rank that died never says that its output is complete.
        """
        until = time.monotonic() + timeout
        for future in self._futures.values():
            if future.done():
                try:
                    future.output.result(max(0.0, until - time.monotonic()))
                except TimeoutError:
                    break
        failed = self.errors()
        found = {rank: dict(future.output.metadata) for rank, future in self._futures.items()}
        for rank, printed in self._printed.items():
            if rank not in failed:
                found[rank]["stdout"] = (found[rank]["stdout"] or "")[:printed]
        return found
