"""Runs a learner's function on some of the lab's ranks and watches the call."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from mpi4py import MPI

from parlab.checks.base.call_outcome import ending, unfinished
from parlab.checks.base.collective import gather
from parlab.checks.base.deadlock import Standstill, next_call
from parlab.checks.base.first_use import load_torch
from parlab.checks.base.globals_used import global_names, parameters
from parlab.checks.base.mistakes import COMMON, Finding
from parlab.checks.base.paused_comm import Pauses, no_pauses, paused
from parlab.checks.base.unbuffered import written
from parlab.checks.base.verdict import Judge
from parlab.checks.base.watchdog import Ended, agreed, run_watched
from parlab.ledger import Call, Ledger
from parlab.ledger.calls import RECEIVES, SENDS
from parlab.ledger.watched import WatchedComm

if TYPE_CHECKING:
    from parlab.checks.base.late_group import RecordingGroup

# Checks send small messages, and a correct function needs milliseconds. A function that has not
# returned after this time is stuck. Mutation runs use a shorter time, because they know how long
# the reference takes.
STUCK_SECONDS = 5.0

# Globals of rank cells that a function must not use if it takes `comm` or a group, and what to use
# instead.
_LAB_NAMES = {"rank": "comm.rank", "world_size": "comm.size", "comm": "its argument `comm`"}
_GROUP_NAMES = {"rank": "group.rank()", "world_size": "group.size()", "comm": "its group"}

T = TypeVar("T")
Requirement = Callable[[], Finding | None]
Explain = Callable[[dict[int, Ended]], Finding | None]


class Trial:
    """What a learner's function needs to run: ranks, a communicator or a group, and a ledger.

    Attributes:
        size: number of ranks in this trial.
        rank: this rank's number in it; −1 on a rank of the lab that takes no part.
        ranks: the ranks' numbers in the lab, in the trial's order.
        comm: the communicator for the function; calls on it are in `calls`.
        group: the process group for the function, if it takes one.
        calls: the calls of the last `run`, by rank of the trial, on every rank of the lab.
        situation: a description that every finding shows; requirements may add to it.
    """

    def __init__(
        self,
        check: Judge,
        comm: MPI.Intracomm | None,
        ranks: list[int],
        *,
        unbuffered: bool,
        pauses: bool,
    ) -> None:
        """
        Args:
            unbuffered: whether `comm` sends no message before the receiver has made its call.
            pauses: whether a rank sleeps before some calls (see `paused_comm`). This affects `comm`
                only if it is unbuffered.
        """
        self.check, self.ranks, self.size = check, ranks, len(ranks)
        self._comm = comm
        self.rank = comm.rank if comm is not None else -1
        counted = f"with {self.size} rank" + "s" * (self.size > 1)
        self.situation = counted if check.uses_ranks else ""
        self.ledger = Ledger()
        check.trials_made += 1
        self._pauses = Pauses(check.seed, check.trials_made, self.rank) if pauses else no_pauses
        self.comm = None
        if comm is not None and unbuffered:
            self.comm = paused(comm, self.ledger, self._pauses)
        elif comm is not None:
            self.comm = WatchedComm(comm, self.ledger)
        self._group: RecordingGroup | None = None
        self._standstill: Standstill | None = None  # of the call on this rank
        self.calls: list[list[Call]] = [[] for _ in ranks]

    @property
    def takes_part(self) -> bool:
        """Return True if this rank takes part."""
        return self._comm is not None

    @property
    def draw(self) -> Any:
        """The check's random generator, in the same state on all ranks."""
        return self.check.draw

    @property
    def group(self) -> "RecordingGroup | None":
        """A torch process group over the trial's ranks; its events are in `group.events`."""
        if self._group is None and self._comm is not None:
            # Imported here because it needs torch, which lab 01 does not use.
            from parlab.checks.base.late_group import RecordingGroup

            self.check.takes_group = True
            self._group = RecordingGroup(self._comm, self.ranks, self.ledger, self._pauses)
        return self._group

    def close(self) -> None:
        """Close the group. The communicator is freed by the caller that created the trial."""
        if self._group is not None:
            self._group.close()

    def add(self, *situation: str) -> None:
        """Add to the situation that later findings show: `trial.add(f"root {root}")`."""
        self.situation = _listed(self.situation, *situation)

    def cases(self, cases: Mapping[str, T], *, again: bool = True) -> Iterator[tuple[str, T]]:
        """Yield each case with its name: `for name, shape in trial.cases(SHAPES):`.

        Findings show the name while the loop tries the case.

        The check's very first case is repeated. The second time, `draw` draws other values in the
        same shapes, so that a function fails if it returns a remembered result.

        Args:
            again: False if cases build on each other, such as the steps of training.
        """
        before = self.situation
        for name, case in cases.items():
            self.situation = _listed(before, name)
            repeated = again and self.check.repeats_a_case
            self.check.repeats_a_case &= not again
            state = self.draw.getstate()
            yield name, case
            if repeated:
                self.situation = _listed(before, name, "in a second call")
                with self.draw.other_values(state):
                    yield name, case
            self.situation = before

    def run(
        self,
        *arguments: Any,
        seconds: float | None = None,
        explain: Explain | None = None,
    ) -> Any:
        """Return the result of the learner's function. The check fails if it raises or hangs."""
        return self.run_function(self.check.function, *arguments, seconds=seconds, explain=explain)

    def run_function(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        seconds: float | None = None,
        explain: Explain | None = None,
        waits: bool = True,
    ) -> Any:
        """Return `function(*arguments)` on the trial's ranks, and None on others.

        Collective over the lab. If the function raises an error on some rank, or has not returned
        after `seconds` (default STUCK_SECONDS), the communicator is revoked, which frees the ranks
        that wait in it. The check then fails and names the ranks, by their numbers in the trial,
        and their lines. `explain` gets how the call ended on each rank, and may return the mistake.
        If `waits`, the function must have waited for each message that it started.
        """
        seconds = STUCK_SECONDS if seconds is None else seconds
        load_torch()
        # Wait for all ranks first: if the function fails at once, it revokes the communicator, and
        # another rank may still be receiving the check's own messages on it.
        board, number = next_call()
        self.ledger.clear()

        def called() -> Any:
            try:
                return function(*arguments)
            finally:
                self.ledger.settle()  # before the check's own work takes time

        ended = None
        if self.comm is not None:
            self._standstill = board and Standstill(board, number, self.ranks, self._messages)
            ended = run_watched(called, (), self.comm, seconds, self._messages, self._standstill)
        # Leave out the result: it may contain large arrays, and only this rank needs it.
        everyone = self.gather(ended and (replace(ended, value=None), self.ledger.calls))
        endings = agreed({rank: entry[0] for rank, entry in enumerate(everyone)})
        if (stub := unfinished(endings, self.check.key)) is not None:
            self.check.fail(stub, repeatable=False)
        finding = ending(endings)
        if finding is not None:
            self.fail((explain and explain(endings)) or finding)
        self.calls = [entry[1] for entry in everyone]
        if waits and (finding := self._waited()) is not None:
            self.fail(finding)
        return ended.value if ended else None

    def others_wait(self, seconds: float) -> bool:
        """Return whether the other ranks have waited in MPI for `seconds`, or ended the call.

        Return False if that is unknown, because the ranks share no memory.
        """
        return self._standstill is not None and self._standstill.others_wait(seconds)

    def _messages(self) -> int:
        return self.ledger.made

    def gather(self, value: Any) -> list[Any]:
        """Return the values of the trial's ranks, in its order, on every rank of the lab."""
        everyone = gather(value)
        return [everyone[rank] for rank in self.ranks]

    def require(self, *requirements: Requirement) -> None:
        """Try the requirements on each rank of the trial. Fail with the first one that is not met.

        If ranks fail different requirements, the earliest one in the list counts, because a later
        failure may be a consequence of it. Collective over all ranks of the lab.
        """
        first: tuple[int, Finding] | None = None
        if self.takes_part:
            for number, requirement in enumerate(requirements):
                if (finding := _tried(requirement)) is not None:
                    first = number, finding
                    break
        found = self.gather(first)
        number = min((entry[0] for entry in found if entry), default=None)
        if number is None:
            return
        own = first[1] if first is not None and first[0] == number else None
        self.check.agree(own and self._with_situation(own), (self.rank, self.size))

    def fail(self, finding: Finding) -> None:
        """Fail with a finding that all ranks have, such as one from `calls`."""
        self.check.fail(self._with_situation(finding))

    def _with_situation(self, finding: Finding) -> Finding:
        """Return the finding with the situation and, if any, a hint at another possible cause."""
        text, separator, more = finding.text.partition("\n")
        situation = f" ({self.situation})" if self.situation else ""
        return replace(finding, text=f"{text}{situation}{separator}{more}{self._hint()}")

    def _hint(self) -> str:
        names = global_names(self.check.function) & _LAB_NAMES.keys()
        arguments = parameters(self.check.function)
        if not names or not arguments:
            return ""
        name = min(names)
        right = (_GROUP_NAMES if self.check.takes_group else _LAB_NAMES)[name]
        because = "the function may get fewer ranks, or the same ranks in another order"
        if not self.check.takes_group and "comm" not in arguments:
            right, because = "its arguments", "the check also calls it for other numbers of ranks"
        return f"\nThe function reads the global `{name}`: use {right}, because {because}"

    def _waited(self) -> Finding | None:
        for rank, calls in enumerate(self.calls):
            for call in calls:
                if call.end is None:
                    return COMMON.no_wait(rank=rank, name=written(call))
        return None

    def sends(self, rank: int) -> list[Call]:
        """Return the calls by which `rank` sent messages, in order."""
        return [call for call in self.calls[rank] if call.op in SENDS]

    def receives(self, rank: int) -> list[Call]:
        """Return the calls by which `rank` received messages, in order."""
        return [call for call in self.calls[rank] if call.op in RECEIVES]

    def bytes_sent(self, rank: int) -> int:
        """Return how many bytes `rank` passed to messages and collectives."""
        return sum(call.bytes_sent for call in self.calls[rank])


def _tried(requirement: Requirement) -> Finding | None:
    try:
        return requirement()
    except Exception as error:
        return COMMON.unreadable(error=f"{type(error).__name__}: {error}")


def _listed(*situation: str) -> str:
    return ", ".join(part for part in situation if part)
