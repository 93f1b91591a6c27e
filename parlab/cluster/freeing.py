"""Frees the ranks of a cell that is over, and makes them usable again, with what they hold."""

import time
from collections.abc import Callable
from typing import Any

from parlab.cluster.locations import where
from parlab.cluster.outcome import Outcome
from parlab.cluster.replies import Replies
from parlab.cluster.session import Session
from parlab.cluster.stop_button import GIVE_UP_SECONDS, StopButton

# Each way of freeing a rank gets this long before the next.
STEP_SECONDS = 0.35
# A revocation is asked for more than once: a call that waits in MPI may miss one.
ATTEMPTS = 3
# A rank that sleeps through so many interrupts is given up; one that computes, or is on a machine
# that is too busy to let it run, gets longer: its variables are worth the wait.
STEPS_IDLE = 3
PATIENCE_SECONDS = 10.0
BUSY_SECONDS = 0.02  # of processor time in one step: more than hearing an interrupt takes
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
        self.in_torch = False  # whether ranks wait in a process group of torch's own

    def running(self) -> list[int]:
        """The ranks that are not free, whatever cell they are busy with."""
        return sorted({*self.replies.running(), *self.session.in_background()})

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
        """Interrupt all ranks, for as long as they show signs of life; says whether all stop."""
        presses = len(self._stop.presses)
        patience = time.monotonic() + PATIENCE_SECONDS
        used: dict[int, float] = {}
        step = 0
        while self.running() and time.monotonic() < patience:
            self._ask("interrupt", self.running())
            self._ask("revoke", self._all)
            if step == 1:
                self._ask("close_torch", self._all)
            if step > 0:
                self._ask("interrupt_taken", self.running())
            if self._stop.wait_for(lambda: not self.running(), STEP_SECONDS):
                return True
            if len(self._stop.presses) > presses:
                patience = min(patience, self._stop.presses[presses] + GIVE_UP_SECONDS)
            before, used = used, self._processor_seconds()
            step += 1
            if step >= STEPS_IDLE:
                if not self._any_alive(before, used):
                    break  # unless the last of them has ended meanwhile
                self._progress(self.replies, STILL_BUSY)
        return not self.running()

    def recover(self, outcome: Outcome) -> bool:
        """Renew what was revoked, on all ranks; says whether the ranks are intact."""
        outcome.cut_off = self._answers(_cut_off) or {}
        if any(outcome.cut_off.values()):
            return False
        self.session.ranks.generation += 1
        answers = self._answers(_recover, self.session.ranks.generation)
        if answers is None:
            return False
        outcome.lost = sorted({name for answer in answers.values() for name in answer["lost"]})
        outcome.torch_is_new = any(answer["torch"] for answer in answers.values())
        return True

    def _ask(self, how: str, ranks: list[int]) -> None:
        generation = self.session.ranks.generation
        self.session.channel.send(ranks, do="free", how=how, generation=generation)

    def _processor_seconds(self) -> dict[int, float]:
        return self.session.channel.processor_seconds(self.running())

    def _any_alive(self, before: dict[int, float], after: dict[int, float]) -> bool:
        """Whether some rank used the processor, or waits for it; or has left its cell, which the
        kernel then hears of, on a busy machine a while later. One that does not answer may have.
        """
        channel = self.session.channel
        if any(
            rank not in before
            or rank not in after
            or after[rank] - before[rank] > BUSY_SECONDS
            or channel.ranks[rank].runnable
            for rank in self.running()
        ):
            return True
        stacks = channel.stacks(self.running())
        return any(not where(stack, self.session.cells) for stack in stacks.values())

    def _answers(self, function: Callable[..., Any], *arguments: Any) -> dict[int, Any] | None:
        """What `function` returns on each rank; None where one does not answer, or raises."""
        result = self.session.ranks.call(function, *arguments)
        for future in result._children:
            future.add_done_callback(lambda _: self._stop.notify())
        deaths = self.session.channel.deaths
        self._stop.wait_for(lambda: result.done() or bool(deaths()), RECOVERY_SECONDS)
        try:
            return dict(enumerate(result.get(0)))
        except Exception:
            return None


def _cut_off() -> list[str]:
    from parlab.rank.engine.interrupts import cut_off

    return cut_off()


def _recover(generation: int) -> dict[str, object]:
    from IPython import get_ipython

    from parlab.rank.engine.recovery import recover

    return recover(get_ipython().user_ns, generation)
