"""Frees the ranks of a cell that is over, and makes them usable again. Their variables are kept."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import ipyparallel as ipp

from parlab.cluster.locations import runs_code
from parlab.cluster.outcome import Outcome
from parlab.cluster.replies import Replies
from parlab.cluster.session import Session
from parlab.cluster.stop_button import GIVE_UP_SECONDS, StopButton
from parlab.rank.engine import calls

# Wait this long for one way of freeing a rank before trying the next.
STEP_SECONDS = 0.2
# Revoke more than once, because a call that waits in MPI may miss a revocation.
ATTEMPTS = 3
# Give up on a rank that does not stop within this many steps, so that a cell ends within two
# seconds of its deadline. Wait longer if the machine is too busy to run the rank, and after a press
# of the stop button, which the user can press again: giving up loses the rank's variables.
STEPS = 3
PATIENCE_SECONDS = 10.0
BUSY_SECONDS = 0.02  # of CPU time in one step: more than the handling of an interrupt takes
HANDLED_SECONDS = 0.1  # of CPU time: a rank that has used this much had time to handle interrupts
STARVED = 0.2  # a rank that wants the CPU and gets less than this share of a core waits for it
# A rank that goes to sleep this often in one step is not short of CPU time. It is waiting in MPI.
OFTEN = 50
LOOK_SECONDS = 0.2  # to read the stacks of ranks that are about to be given up
FREE_SECONDS = 10.0  # for ranks that have ended their cells to answer a call, on a busy machine
CALL_SECONDS = 15.0  # for a free rank to answer a call, even on a busy machine
RECOVERY_SECONDS = 30.0  # to restart torch's groups, which takes long on a busy machine
# After another press, stopped ranks get this long to recover. They only need the CPU for that.
PRESSED_SECONDS = 5.0
STILL_BUSY = (
    "Stopping. Ranks that do not end within ten seconds are replaced, and all variables are lost. "
    "Press stop to replace them now."
)


class Freeing:
    """Frees the ranks of a cell. Tries the methods that lose the least first."""

    def __init__(
        self,
        session: Session,
        replies: Replies,
        stop: StopButton,
        progress: Callable[..., None],
    ) -> None:
        self.session = session
        self.replies = replies
        self._stop = stop
        self._progress = progress
        self._all = list(range(session.n))
        self._pings: dict[int, Future[list[str]]] = {}
        self._used: dict[int, float] = {}  # CPU time of each rank before it was interrupted
        self._sleeps: dict[int, int] = {}  # how often each rank had slept at the last look
        self._slept: dict[int, int] = {}  # how often it slept between the last two looks
        self._looked_at = time.monotonic()  # the time of the last look at the ranks' CPU times
        self._step_seconds = 0.0  # between the last two looks
        self.in_torch = False  # True if ranks wait in one of torch's own process groups
        self.continued: set[int] = set()  # ranks that a signal had stopped

    def in_cells(self) -> list[int]:
        """Return the ranks that run this cell or a `--noblock` cell."""
        return sorted({*self.replies.running(), *self.session.in_background()})

    def busy(self) -> list[int]:
        """Return the ranks that are not free: they run a cell, or do not answer a call."""
        in_cells = self.in_cells()
        if unasked := sorted(set(self._all) - set(in_cells) - self._pings.keys()):
            result = self.session.client[unasked].apply_async(calls.interrupted_imports)
            self._pings |= dict(zip(unasked, self._notifying(result), strict=True))
        silent = {rank for rank, ping in self._pings.items() if not ping.done()}
        return sorted({*in_cells, *silent})

    def from_calls(self) -> bool:
        """Make calls that wait for other ranks fail. Return True if that ends this cell.

        Ranks that compute are not interrupted.
        """
        if self.in_torch:
            self._ask("close_torch", self._all)
        for _ in range(ATTEMPTS):
            self._ask("revoke", self._all)
            if self._stop.wait_for(lambda: not self.replies.running(), STEP_SECONDS / ATTEMPTS):
                return True
        return False

    def from_all(self) -> bool:
        """Interrupt all ranks until they stop or are given up. Return True if all of them stop."""
        presses = len(self._stop.presses)
        is_patient = presses > 0
        patience = time.monotonic() + PATIENCE_SECONDS
        step = 0
        # A rank that runs no cell is free, or runs a function that `view.apply` sent.
        self._stop.wait_for(lambda: not self.busy() or bool(self.in_cells()), STEP_SECONDS)
        self._used = used = self._processor_seconds()
        while self._waits_for_ranks() and time.monotonic() < patience:
            self._ask("interrupt", self.busy())
            self._ask("revoke", self._all)
            if step == 1:
                self._ask("close_torch", self._all)
            if self._stop.wait_for(lambda: not self._waits_for_ranks(), STEP_SECONDS):
                break
            if len(self._stop.presses) > presses:
                patience = min(patience, self._stop.presses[presses] + GIVE_UP_SECONDS)
            before, used = used, self._processor_seconds()
            step += 1
            if step >= STEPS:
                if not self._may_stop(before, used, is_patient):
                    break  # the last busy ranks may still have ended in the meantime
                self._progress(self.replies, STILL_BUSY)
        return not self.busy()

    def _waits_for_ranks(self) -> bool:
        """Return True if ranks are busy and none has died."""
        return bool(self.busy()) and not self.session.channel.deaths()

    def all_are_free(self) -> bool:
        """Wait for all ranks to be free. Return False if some run a cell or another function."""
        return self._stop.wait_for(lambda: not self._waits_for_ranks(), FREE_SECONDS)

    def unreceived(self) -> dict[int, list]:
        """Return what `leftovers.find` finds on each rank that has unreceived messages.

        If a rank does not answer, the result is empty, because that rank may be using `comm`.
        """
        answers = self._answers(FREE_SECONDS, GIVE_UP_SECONDS, calls.unreceived) or {}
        return {rank: found for rank, found in answers.items() if found}

    def recover(self, outcome: Outcome, *, messages_only: bool = False) -> bool:
        """Renew everything that was revoked, on all ranks. Return True if the ranks are intact.

        With `messages_only`, nothing was revoked, but messages on `comm` may be in transit.
        """
        outcome.continued = sorted(self.continued)
        self._stop.wait_for(lambda: not self._waits_for_ranks(), CALL_SECONDS, PRESSED_SECONDS)
        if busy := self.busy():
            outcome.not_free = busy
            return False
        try:
            answers = {rank: ping.result(0) for rank, ping in self._pings.items()}
            outcome.interrupted_imports = {rank: list(answer) for rank, answer in answers.items()}
        except Exception:
            return False
        if any(outcome.interrupted_imports.values()):
            return False
        # Supervisors handle requests in order: after this, they have passed on all interrupts.
        self.session.channel.processor_seconds(self._all, CALL_SECONDS)
        self.session.ranks.generation += 1
        arguments = (self.session.ranks.generation, messages_only)
        answers = self._answers(RECOVERY_SECONDS, PRESSED_SECONDS, calls.recover, *arguments)
        if answers is None:
            return False
        outcome.lost = sorted({name for answer in answers.values() for name in answer["lost"]})
        outcome.old = sorted({name for answer in answers.values() for name in answer["old"]})
        outcome.torch_is_new = any(answer["torch"] for answer in answers.values())
        return True

    def _ask(self, how: str, ranks: list[int]) -> None:
        generation = self.session.ranks.generation
        self.session.channel.send(ranks, do="free", how=how, generation=generation)

    def _processor_seconds(self) -> dict[int, float]:
        channel = self.session.channel
        seconds = channel.processor_seconds(self.busy())
        now = time.monotonic()
        self._step_seconds, self._looked_at = now - self._looked_at, now
        self.continued |= {rank for rank in seconds if channel.ranks[rank].state == "T"}
        sleeps = {rank: channel.ranks[rank].sleeps for rank in seconds}
        self._slept = {rank: n - self._sleeps.get(rank, n) for rank, n in sleeps.items()}
        self._sleeps = sleeps
        return seconds

    def _may_stop(
        self, before: dict[int, float], after: dict[int, float], is_patient: bool
    ) -> bool:
        """Return True if a busy rank may still stop.

        `before` and `after` are the ranks' CPU times around the last step. A rank may still stop if

        - it uses the CPU or waits for it (a rank that often sleeps does neither), and it has had
          too little CPU time to handle an interrupt, or the user `is_patient`;
        - it has left its cell, but the kernel has not received its answer yet;
        - it waits for the CPU so long that its stack does not arrive;
        - its supervisor does not answer.

        The stack does not arrive either if C code holds Python's lock. That rank uses the CPU.
        """
        channel, ranks = self.session.channel, self.busy()
        starved = set()
        for rank in ranks:
            if rank not in before or rank not in after:
                return True
            last, wants = after[rank] - before[rank], channel.ranks[rank].state == "R"
            runs = self._slept[rank] < OFTEN
            is_alive = runs and (wants or last > BUSY_SECONDS)
            used = after[rank] - self._used.setdefault(rank, before[rank])
            if is_alive and (is_patient or used <= HANDLED_SECONDS):
                return True
            if runs and wants and last < STARVED * self._step_seconds:
                starved.add(rank)
        return any(
            not runs_code(stack, self.session.cells) if stack else rank in starved
            for rank, stack in channel.stacks(ranks, LOOK_SECONDS).items()
        )

    def _notifying(self, result: ipp.AsyncResult) -> list[Future]:
        """Return the futures of the ranks' answers. Each answer will wake the waiting thread."""
        for future in result._children:
            future.add_done_callback(lambda _: self._stop.notify())
        return result._children

    def _answers(
        self, seconds: float, give_up: float, function: Callable[..., Any], *arguments: Any
    ) -> dict[int, Any] | None:
        """Call `function` on every rank. Return the results by rank.

        Return None if a rank raises, or does not answer within `seconds`, or within `give_up`
        seconds after another press of the stop button.
        """
        result = self.session.ranks.call(function, *arguments)
        self._notifying(result)
        deaths = self.session.channel.deaths
        self._stop.wait_for(lambda: result.done() or bool(deaths()), seconds, give_up)
        try:
            return dict(enumerate(result.get(0)))
        except Exception:
            return None
