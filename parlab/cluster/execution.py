"""Runs one rank cell: sends it to the ranks, waits for it, and stops it if it does not end."""

import time
from collections.abc import Callable

from parlab.cluster.freeing import Freeing
from parlab.cluster.import_time import BEGIN_SECONDS, ImportTime
from parlab.cluster.locations import (
    cell_line,
    has_not_begun,
    in_import,
    in_torch,
    is_in,
    outside_cells,
    where,
)
from parlab.cluster.outcome import Ending, Outcome
from parlab.cluster.session import Session
from parlab.cluster.stop_button import StopButton
from parlab.rank.engine.supervisor import STOPPED

# When a rank raises an error, others may wait for it. They get this long to end by themselves, and
# longer if a busy machine has not let one of them begin.
GRACE_SECONDS = 1.0
NOT_BEGUN = (
    "had not begun this cell, because it ran an earlier `--noblock` cell, which was stopped as "
    "well, at {place}"
)
IMPORTING = "Ranks are importing modules. This time does not count."
# The same line often kills several ranks. Wait this long for reports of the other deaths.
SETTLE_SECONDS = 0.2


class Execution:
    """Runs `code` on the ranks `targets` of `session`, for at most `timeout` seconds.

    The time that ranks spend importing modules does not count.
    """

    def __init__(
        self, session: Session, code: str, targets: list[int], timeout: float, stop: StopButton
    ) -> None:
        self.session = session
        self._stop = stop
        self.code = code
        self.targets = targets
        self.timeout = timeout

    def run(self, progress: Callable[..., None] = lambda replies, note="": None) -> Outcome:
        """Run the cell until it ends or is stopped, and return how it ended.

        Call `progress(replies, note)` about once a second. Run it within `session.waking(stop)`, so
        that it notices at once when a rank ends.
        """
        self._progress = progress
        self._start()
        outcome = Outcome(self._wait())
        stacks = self._locate(outcome)
        self._note_names(stacks)
        if outcome.ending is not Ending.FINISHED:
            self._finish(outcome, stacks)
        return outcome

    def _start(self) -> None:
        self._imports = ImportTime(self.session.channel)
        self._end = time.monotonic() + self.timeout
        self.replies = self.session.send(self.code, self.targets)
        self.replies.on_each(self._stop.notify)

    def _next_change(self, until: float) -> None:
        """Wait for a change, at most until the time `until`, and at most for a second."""
        if not self._stop.wait_for_change(min(until - time.monotonic(), 1.0)):
            self._progress(self.replies, IMPORTING if self._imports.was_importing else "")

    def _is_late(self) -> bool:
        """Return True if the deadline has passed. Imports extend the deadline."""
        if time.monotonic() < self._end + self._imports.seconds:
            return False
        return not self._imports.extends_deadline(self.replies.running())

    def _wait(self) -> Ending:
        """Wait until the cell ends or must be stopped, and return which of them happened."""
        failed = grace_ends = None
        while self.replies.running():
            if self._stop.presses:
                return Ending.INTERRUPTED
            if self.session.channel.deaths():
                self._stop.wait_for(self._all_dead_or_done, SETTLE_SECONDS)
                return Ending.DIED
            if self.session.ranks.is_cut_off:
                return Ending.CUT_OFF
            if self._is_late():
                # The cell may have finished while the ranks were asked for their stacks.
                return Ending.DEADLINE if self.replies.running() else Ending.FINISHED
            if failed is None and self.replies.errors():
                failed = time.monotonic()
                grace_ends = failed + GRACE_SECONDS
            if grace_ends is not None and time.monotonic() >= grace_ends:
                if time.monotonic() > failed + BEGIN_SECONDS or not self._some_have_not_begun():
                    return Ending.FAILED
                grace_ends = time.monotonic() + GRACE_SECONDS
            deadline = self._end + self._imports.seconds
            self._next_change(min(grace_ends or deadline, deadline))
        return Ending.FINISHED

    def _some_have_not_begun(self) -> bool:
        stacks = self.session.channel.stacks(self.replies.running())
        return any(map(has_not_begun, stacks.values()))

    def _all_dead_or_done(self) -> bool:
        return not set(self.replies.running()) - set(self.session.channel.deaths())

    def _note_names(self, stacks: dict[int, str]) -> None:
        cells = self.session.cells
        lines = [cell_line(stack, cells) for stack in stacks.values() if in_import(stack)]
        cut_off_at = min((line for line in lines if line is not None), default=None)
        self.session.names.add(self.code, cut_off_at)
        self.session.names.missing.update(
            str(error.evalue)
            for error in self.replies.errors().values()
            if getattr(error, "ename", "") in ("ImportError", "ModuleNotFoundError")
        )

    def _finish(self, outcome: Outcome, stacks: dict[int, str]) -> None:
        """Free the ranks that are still running, and record the result in `outcome`."""
        if outcome.ending not in (Ending.DIED, Ending.CUT_OFF):
            self._free(outcome, stacks)
        outcome.deaths = self.session.channel.deaths()
        is_cut_off = outcome.ending is Ending.CUT_OFF
        outcome.intact = outcome.intact and not outcome.deaths and not is_cut_off

    def _free(self, outcome: Outcome, stacks: dict[int, str]) -> None:
        ended_here = [cell for cell in self.session.background if cell.running()]
        freeing = Freeing(self.session, self.replies, self._stop, self._progress)
        freeing.in_torch = any(map(in_torch, stacks.values()))
        if outcome.ending is Ending.FAILED:
            if not freeing.from_calls() and self._wait_for_others():
                outcome.finished = sorted(outcome.stuck.keys() - self.replies.errors().keys())
        else:
            self.replies.ended_early()
            freeing.from_calls()
        free = freeing.from_all()
        outcome.freed = True
        outcome.not_free = freeing.busy()
        outcome.intact = free and freeing.recover(outcome)
        for cell in ended_here:  # this cell's error reports them
            self.session.background.remove(cell)

    def _wait_for_others(self) -> bool:
        """Let ranks that compute continue after another rank failed.

        The ranks that waited for the failed rank are already free. Return True if all ranks ended
        before the deadline, without a death or a press of the stop button.
        """
        while self.replies.running():
            if self._stop.presses or self.session.channel.deaths() or self._is_late():
                return False
            self._next_change(self._end + self._imports.seconds)
        return True

    def _locate(self, outcome: Outcome) -> dict[int, str]:
        """Record in `outcome` where each rank is, and return the stacks of ranks in this cell.

        Ranks that run a `--noblock` cell are recorded as well. Their cell is stopped with this one,
        because all ranks must take part when communicators are renewed.
        """
        running = self.replies.running()
        if not running:
            return {}
        busy = self.session.in_background()
        # After the deadline, ImportTime has already asked most ranks for their stacks.
        known = self._imports.stacks if outcome.ending is Ending.DEADLINE else {}
        stacks = {rank: known.get(rank, "") for rank in running}
        unknown = {*running, *busy} - {rank for rank, stack in stacks.items() if stack}
        stacks |= self.session.channel.stacks(sorted(unknown))
        places = {rank: self._place(stack) for rank, stack in stacks.items()}
        file = self.session.cells.file(self.code)
        waiting = {rank for rank in busy if rank in running and not is_in(stacks[rank], file)}
        outcome.stuck = {
            rank: NOT_BEGUN.format(place=places[rank]) if rank in waiting else places[rank]
            for rank in running
        }
        outcome.background = {rank: places[rank] for rank in set(places) - set(running)}
        return {rank: stacks[rank] for rank in running if rank not in waiting}

    def _place(self, stack: str) -> str:
        if stack == STOPPED:
            return "stopped by a signal (SIGSTOP)"
        if not stack:
            return "does not respond (perhaps stuck in C code)"
        return where(stack, self.session.cells) or outside_cells(stack)
