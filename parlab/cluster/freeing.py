"""Frees the ranks of a cell that is over, and makes them usable again, with what they hold."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import ipyparallel as ipp

from parlab.cluster.locations import is_at_work
from parlab.cluster.outcome import Outcome
from parlab.cluster.replies import Replies
from parlab.cluster.session import Session
from parlab.cluster.stop_button import GIVE_UP_SECONDS, StopButton

# Each way of freeing a rank gets this long before the next.
STEP_SECONDS = 0.3
# A revocation is asked for more than once: a call that waits in MPI may miss one.
ATTEMPTS = 3
# A rank that does not stop within so many steps is given up, so that a cell ends within two seconds
# of its deadline. It gets longer on a machine that is too busy to let it run, and after the stop
# button, since the user can press it again: its variables are worth the wait.
STEPS = 3
PATIENCE_SECONDS = 10.0
BUSY_SECONDS = 0.02  # of processor time in one step: more than hearing an interrupt takes
HEARD_SECONDS = 0.2  # of processor time: a rank that has had this much would have stopped
LOOK_SECONDS = 0.2  # for a last look at ranks that are about to be given up
FREE_SECONDS = 1.0  # in which ranks that have ended their cells show that they are free
CALL_SECONDS = 5.0  # in which a rank that is free answers a call, on a busy machine, too
RECOVERY_SECONDS = 30.0  # a busy machine takes long to start torch's groups anew
STILL_BUSY = (
    "Stopping. What is being computed ends first, if that takes no more than ten seconds: press "
    "stop again to give these ranks up, with their variables."
)


class Freeing:
    """The ways to free the ranks of a cell, from the gentlest."""

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
        self._used: dict[int, float] = {}  # processor time of each rank before it was interrupted
        self.in_torch = False  # whether ranks wait in a process group of torch's own
        self.continued: set[int] = set()  # ranks that a signal had stopped

    def in_cells(self) -> list[int]:
        """The ranks that run this cell, or one that nobody waits for."""
        return sorted({*self.replies.running(), *self.session.in_background()})

    def busy(self) -> list[int]:
        """The ranks that are not free: they are in a cell, or do not answer a call."""
        in_cells = self.in_cells()
        if unasked := sorted(set(self._all) - set(in_cells) - self._pings.keys()):
            result = self.session.client[unasked].apply_async(_cut_off)
            self._pings |= dict(zip(unasked, self._wakes(result), strict=True))
        silent = {rank for rank, ping in self._pings.items() if not ping.done()}
        return sorted({*in_cells, *silent})

    def from_calls(self) -> bool:
        """Make calls that wait for other ranks fail; says whether that ends this cell.

        Ranks that compute go on.
        """
        if self.in_torch:
            self._ask("close_torch", self._all)
        for _ in range(ATTEMPTS):
            self._ask("revoke", self._all)
            if self._stop.wait_for(lambda: not self.replies.running(), STEP_SECONDS / ATTEMPTS):
                return True
        return False

    def from_all(self) -> bool:
        """Interrupt all ranks until they stop or are given up; says whether all stop."""
        presses = len(self._stop.presses)
        is_patient = presses > 0
        patience = time.monotonic() + PATIENCE_SECONDS
        step = 0
        # A rank that is in no cell is free, or runs a function that was sent by `view.apply`.
        self._stop.wait_for(lambda: not self.busy() or bool(self.in_cells()), STEP_SECONDS)
        self._used = used = self._processor_seconds()
        while self._waits_for_ranks() and time.monotonic() < patience:
            self._ask("interrupt", self.busy())
            self._ask("revoke", self._all)
            if step == 1:
                self._ask("close_torch", self._all)
            if step > 0:
                self._ask("interrupt_taken", self.busy())
            if self._stop.wait_for(lambda: not self._waits_for_ranks(), STEP_SECONDS):
                break
            if len(self._stop.presses) > presses:
                patience = min(patience, self._stop.presses[presses] + GIVE_UP_SECONDS)
            before, used = used, self._processor_seconds()
            step += 1
            if step >= STEPS:
                if not self._may_stop(before, used, is_patient):
                    break  # unless the last of them has ended meanwhile
                self._progress(self.replies, STILL_BUSY)
        return not self.busy()

    def _waits_for_ranks(self) -> bool:
        """Whether ranks are busy; one that died is not waited for."""
        return bool(self.busy()) and not self.session.channel.deaths()

    def all_are_free(self) -> bool:
        """Whether all ranks answer: none is in a cell, or in a function that was sent to it."""
        return self._stop.wait_for(lambda: not self._waits_for_ranks(), FREE_SECONDS)

    def unreceived(self) -> dict[int, list]:
        """What `leftovers.find` returns on each rank that has such messages.

        Nothing if a rank does not answer, since it runs something else that may use `comm`.
        """
        answers = self._answers(FREE_SECONDS, _unreceived) or {}
        return {rank: found for rank, found in answers.items() if found}

    def recover(self, outcome: Outcome, *, messages_only: bool = False) -> bool:
        """Renew what was revoked, on all ranks; says whether the ranks are intact.

        With `messages_only`, nothing was, but messages on `comm` may be under way.
        """
        outcome.continued = sorted(self.continued)
        self._stop.wait_for(lambda: not self._waits_for_ranks(), CALL_SECONDS)
        if busy := self.busy():
            outcome.not_free = busy
            return False
        try:
            answers = {rank: ping.result(0) for rank, ping in self._pings.items()}
            outcome.cut_off = {rank: list(answer) for rank, answer in answers.items()}
        except Exception:
            return False
        if any(outcome.cut_off.values()):
            return False
        self.session.channel.processor_seconds(self._all, CALL_SECONDS)  # after any late interrupt
        self.session.ranks.generation += 1
        arguments = (self.session.ranks.generation, messages_only)
        answers = self._answers(RECOVERY_SECONDS, _recover, *arguments)
        if answers is None:
            return False
        outcome.lost = sorted({name for answer in answers.values() for name in answer["lost"]})
        outcome.torch_is_new = any(answer["torch"] for answer in answers.values())
        return True

    def _ask(self, how: str, ranks: list[int]) -> None:
        generation = self.session.ranks.generation
        self.session.channel.send(ranks, do="free", how=how, generation=generation)

    def _processor_seconds(self) -> dict[int, float]:
        channel = self.session.channel
        seconds = channel.processor_seconds(self.busy())
        self.continued |= {rank for rank in seconds if channel.ranks[rank].state == "T"}
        return seconds

    def _may_stop(
        self, before: dict[int, float], after: dict[int, float], is_patient: bool
    ) -> bool:
        """Whether some rank that is busy may still stop.

        It uses the processor, or waits for it, but has had little of it, unless the user
        `is_patient`. Or it has left its cell, and the kernel hears of that later, on a busy
        machine. A rank that does not answer may have.
        """
        channel = self.session.channel
        for rank in self.busy():
            if rank not in before or rank not in after:
                return True
            is_alive = after[rank] - before[rank] > BUSY_SECONDS or channel.ranks[rank].state == "R"
            has_heard = after[rank] - self._used.setdefault(rank, before[rank]) > HEARD_SECONDS
            if is_alive and (is_patient or not has_heard):
                return True
        stacks = channel.stacks(self.busy(), LOOK_SECONDS).values()
        return any(stack and not is_at_work(stack, self.session.cells) for stack in stacks)

    def _wakes(self, result: ipp.AsyncResult) -> list[Future]:
        """The answers of the ranks; each wakes the thread that waits here."""
        for future in result._children:
            future.add_done_callback(lambda _: self._stop.notify())
        return result._children

    def _answers(
        self, seconds: float, function: Callable[..., Any], *arguments: Any
    ) -> dict[int, Any] | None:
        """What `function` returns on each rank; None where one does not answer, or raises."""
        result = self.session.ranks.call(function, *arguments)
        self._wakes(result)
        deaths = self.session.channel.deaths
        self._stop.wait_for(lambda: result.done() or bool(deaths()), seconds)
        try:
            return dict(enumerate(result.get(0)))
        except Exception:
            return None


def _cut_off() -> list[str]:
    from parlab.rank.engine.interrupts import cut_off

    return cut_off()


def _unreceived() -> list[tuple[int, int] | None]:
    from parlab.rank.engine.leftovers import find

    return find()


def _recover(generation: int, messages_only: bool) -> dict[str, object]:
    from IPython import get_ipython

    from parlab.rank.engine.recovery import recover

    return recover(get_ipython().user_ns, generation, messages_only)
