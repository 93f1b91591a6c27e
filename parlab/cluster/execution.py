"""One rank cell: sent, and watched until it ends or has to be ended."""

import time
from collections.abc import Callable

from parlab.cluster.freeing import Freeing
from parlab.cluster.import_time import ImportTime
from parlab.cluster.locations import cell_line, in_import, in_torch, is_in, outside_cells, where
from parlab.cluster.outcome import Ending, Outcome
from parlab.cluster.session import Session
from parlab.cluster.stop_button import StopButton
from parlab.rank.engine.supervisor import STOPPED

# A rank that raised may have left others waiting for it: they get this long to end by themselves.
GRACE_SECONDS = 1.0
NOT_BEGUN = (
    "had not begun this cell; an earlier one, with `--noblock`, was ended as well, at {place}"
)
IMPORTING = "Ranks are importing modules. This time does not count."
# Ranks often die together, of the same line: the others of them are heard of a little later.
SETTLE_SECONDS = 0.2


class Execution:
    """The run of `code` on ranks `targets` of `session`, at most `timeout` seconds.

    Time that ranks spend in importing modules does not count.
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
        """Wait for the cell, whatever happens to it; call `progress(replies, note)` about once
        a second."""
        self._progress = progress
        self.session.on_change.append(self._stop.notify)
        try:
            self._start()
            outcome = Outcome(self._wait())
            stacks = self._locate(outcome)
            self._note_names(stacks)
            if outcome.ending is not Ending.FINISHED:
                self._finish(outcome, stacks)
            return outcome
        finally:
            self.session.on_change.remove(self._stop.notify)

    def _start(self) -> None:
        self._imports = ImportTime(self.session.channel)
        self._end = time.monotonic() + self.timeout
        self.replies = self.session.send(self.code, self.targets)
        self.replies.on_each(self._stop.notify)

    def _next_change(self, until: float) -> None:
        """Wait for something to happen, at most until then, and for a second."""
        if not self._stop.wait_for_change(min(until - time.monotonic(), 1.0)):
            self._progress(self.replies, IMPORTING if self._imports.is_at_work else "")

    def _is_late(self) -> bool:
        """Whether the deadline has passed; it waits for imports."""
        if time.monotonic() < self._end + self._imports.seconds:
            return False
        return not self._imports.goes_on(self.replies.running())

    def _wait(self) -> Ending:
        """Why to wait no longer."""
        grace_ends = None
        while self.replies.running():
            if self._stop.presses:
                return Ending.INTERRUPTED
            if self.session.channel.deaths():
                self._stop.wait_for(self._all_dead_or_done, SETTLE_SECONDS)
                return Ending.DIED
            if self.session.ranks.is_cut_off:
                return Ending.CUT_OFF
            if self._is_late():
                # To look what ranks do may take a second.
                return Ending.DEADLINE if self.replies.running() else Ending.FINISHED
            if grace_ends is None and self.replies.errors():
                grace_ends = time.monotonic() + GRACE_SECONDS
            if grace_ends is not None and time.monotonic() >= grace_ends:
                return Ending.FAILED
            deadline = self._end + self._imports.seconds
            self._next_change(min(grace_ends or deadline, deadline))
        return Ending.FINISHED

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
        """Free what still runs; note in `outcome` what came of it."""
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
        for cell in ended_here:  # of which this cell tells
            self.session.background.remove(cell)

    def _wait_for_others(self) -> bool:
        """A rank failed, and those that wait for it are free: let those that compute go on.

        Says whether all have ended, before the deadline and before stop was pressed.
        """
        while self.replies.running():
            if self._stop.presses or self.session.channel.deaths() or self._is_late():
                return False
            self._next_change(self._end + self._imports.seconds)
        return True

    def _locate(self, outcome: Outcome) -> dict[int, str]:
        """Note where each rank is that runs, also with another cell, which is ended with this one:
        all ranks are needed to renew what is revoked. Returns the stacks of those in this cell.
        """
        running = self.replies.running()
        if not running:
            return {}
        busy = self.session.in_background()
        # After the deadline, most have just been asked.
        known = self._imports.stacks if outcome.ending is Ending.DEADLINE else {}
        stacks = {rank: known.get(rank, "") for rank in running}
        unknown = {*running, *busy} - {rank for rank, stack in stacks.items() if stack}
        stacks |= self.session.channel.stacks(sorted(unknown))
        places = self._places(stacks)
        file = self.session.cells.file(self.code)
        waiting = {rank for rank in busy if rank in running and not is_in(stacks[rank], file)}
        outcome.stuck = {
            rank: NOT_BEGUN.format(place=places[rank]) if rank in waiting else places[rank]
            for rank in running
        }
        outcome.background = {rank: places[rank] for rank in set(places) - set(running)}
        return {rank: stacks[rank] for rank in running if rank not in waiting}

    def _places(self, stacks: dict[int, str]) -> dict[int, str]:
        """The line of a cell for each stack."""
        return {rank: self._place(stack) for rank, stack in stacks.items()}

    def _place(self, stack: str) -> str:
        if stack == STOPPED:
            return "stopped by a signal (SIGSTOP)"
        if not stack:
            return "no sign (stuck in C code)"
        return where(stack, self.session.cells) or outside_cells(stack)
