"""One call of a learner's function on some of the lab's ranks, watched."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar

from mpi4py import MPI

from parlab.checks.base.call_outcome import ending, unfinished
from parlab.checks.base.collective import gather
from parlab.checks.base.deadlock import Standstill, next_call
from parlab.checks.base.globals_used import global_names
from parlab.checks.base.mistakes import COMMON, Finding
from parlab.checks.base.unbuffered import UnbufferedComm, written
from parlab.checks.base.verdict import Judge
from parlab.checks.base.watchdog import Ended, agreed, run_watched
from parlab.ledger import Call, Ledger
from parlab.ledger.calls import RECEIVES, SENDS
from parlab.ledger.watched import WatchedComm

if TYPE_CHECKING:
    from parlab.checks.base.late_group import RecordingGroup

# Messages of checks are small, and a correct function needs milliseconds: one that has not ended
# after this many seconds never ends, or waits for what will not come. Who tries hundreds of
# functions that hang, and knows how long the right one takes, sets it lower.
STUCK_SECONDS = 5.0

# Names that rank cells have anyway, and that are wrong inside a function that takes `comm`, or a
# group.
_LAB_NAMES = {"rank": "comm.rank", "world_size": "comm.size", "comm": "its argument `comm`"}
_GROUP_NAMES = {"rank": "group.rank()", "world_size": "group.size()", "comm": "its group"}

T = TypeVar("T")
Requirement = Callable[[], Finding | None]
Explain = Callable[[dict[int, Ended]], Finding | None]


class Trial:
    """A place to run the learner's function: ranks, a communicator or a group, a ledger.

    Attributes:
        size: number of ranks in this trial.
        rank: this rank's number in it; −1 on a rank of the lab that takes no part.
        ranks: their numbers in the lab, in the trial's order.
        comm: what the function gets as its communicator; calls on it are in `calls`.
        group: what it gets as its process group, where it takes one.
        calls: those of the last `run`, by rank of the trial, on every rank of the lab alike.
        situation: told with every finding; requirements may add to it.
    """

    def __init__(
        self, check: Judge, comm: MPI.Intracomm | None, ranks: list[int], *, unbuffered: bool
    ) -> None:
        """With `unbuffered`, `comm` sends no message before its receiver has come."""
        self.check, self.ranks, self.size = check, ranks, len(ranks)
        self._comm = comm
        self.rank = comm.rank if comm is not None else -1
        self.situation = f"with {self.size} rank" + "s" * (self.size > 1)
        self.ledger = Ledger()
        watch = UnbufferedComm if unbuffered else WatchedComm
        self.comm = None if comm is None else watch(comm, self.ledger)
        self._group: RecordingGroup | None = None
        self.calls: list[list[Call]] = [[] for _ in ranks]

    @property
    def takes_part(self) -> bool:
        """Whether this rank takes part."""
        return self._comm is not None

    @property
    def draw(self) -> Any:
        """The check's random generator, in the same state on all ranks."""
        return self.check.draw

    @property
    def group(self) -> "RecordingGroup | None":
        """A torch process group over the trial's ranks; its events are in `group.events`."""
        if self._group is None and self._comm is not None:
            from parlab.checks.base.late_group import RecordingGroup  # torch: lab 01 does without

            self.check.takes_group = True
            self._group = RecordingGroup(self._comm, self.ranks, self.ledger)
        return self._group

    def close(self) -> None:
        """Let go of the group; the communicator belongs to whoever made the trial."""
        if self._group is not None:
            self._group.close()

    def add(self, *situation: str) -> None:
        """Say more of the situation, for findings from here on: `trial.add(f"root {root}")`."""
        self.situation = ", ".join([self.situation, *situation])

    def cases(self, cases: Mapping[str, T], *, again: bool = True) -> Iterator[tuple[str, T]]:
        """Yield each case with its name, which findings show while the case is tried.

        The situation is as before when the loop ends: `for name, shape in trial.cases(SHAPES):`.

        The check's very first case comes twice, and `draw` draws the same shapes with other values
        then: a function that remembers its last result gives that one again.

        Args:
            again: False if cases build on each other, like the steps of a training.
        """
        before = self.situation
        for name, case in cases.items():
            self.situation = f"{before}, {name}"
            repeated = again and self.check.repeats_a_case
            self.check.repeats_a_case &= not again
            state = self.draw.getstate()
            yield name, case
            if repeated:
                self.situation = f"{before}, {name}, again with other values"
                with self.draw.other_values(state):
                    yield name, case
            self.situation = before

    def run(
        self,
        *arguments: Any,
        seconds: float | None = None,
        explain: Explain | None = None,
    ) -> Any:
        """The result of the learner's function; the check fails where it raises or hangs."""
        return self.run_function(self.check.function, *arguments, seconds=seconds, explain=explain)

    def run_function(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        seconds: float | None = None,
        explain: Explain | None = None,
    ) -> Any:
        """`function(*arguments)` on the trial's ranks; None elsewhere. Collective over the lab.

        Where it raises on some rank, or has not returned after `seconds` (STUCK_SECONDS, unless
        given), the communicator is revoked, which frees the ranks that wait in it, and the check
        fails by naming ranks (by their numbers in the trial) and lines. `explain` may know a
        mistake from how the ranks ended, and returns it, or None.
        """
        seconds = STUCK_SECONDS if seconds is None else seconds
        # A function that fails at once revokes the communicator: by then all ranks are through with
        # whatever the check itself sends on it.
        board, number = next_call()
        self.ledger.clear()

        def called() -> Any:
            try:
                return function(*arguments)
            finally:
                self.ledger.settle()  # now: what the check does next takes time

        ended = None
        if self.comm is not None:
            standstill = board and Standstill(board, number, self.ranks, self._messages)
            ended = run_watched(called, (), self.comm, seconds, self._messages, standstill)
        # An array in the result may be large, and is this rank's alone.
        everyone = self.gather(ended and (ended.without_value(), self.ledger.calls))
        endings = agreed({rank: entry[0] for rank, entry in enumerate(everyone)})
        if (stub := unfinished(endings, self.check.key)) is not None:
            self.check.fail(stub)
        finding = ending(endings)
        if finding is not None:
            self.fail((explain and explain(endings)) or finding)
        self.calls = [entry[1] for entry in everyone]
        if (finding := self._waited()) is not None:
            self.fail(finding)
        return ended.value if ended else None

    def _messages(self) -> int:
        return self.ledger.made

    def gather(self, value: Any) -> list[Any]:
        """The value of each rank of the trial, in its order, on every rank of the lab."""
        everyone = gather(value)
        return [everyone[rank] for rank in self.ranks]

    def require(self, *requirements: Requirement) -> None:
        """Try the requirements on each rank of the trial; fail with the first that is not met.

        An earlier requirement comes first, on whichever rank it is not met: what one rank sees
        may follow from another's mistake. Collective over all ranks of the lab.
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
        """Fail for what all ranks know, as from `calls`."""
        self.check.fail(self._with_situation(finding))

    def _with_situation(self, finding: Finding) -> Finding:
        """The finding with its situation and with what else may have caused it."""
        text, separator, more = finding.text.partition("\n")
        return replace(finding, text=f"{text} ({self.situation}){separator}{more}{self._hint()}")

    def _hint(self) -> str:
        names = global_names(self.check.function) & _LAB_NAMES.keys()
        if not names:
            return ""
        name = min(names)
        right = (_GROUP_NAMES if self.check.takes_group else _LAB_NAMES)[name]
        return (
            f"\nThe function reads the global `{name}`: use {right}, since the ranks "
            "it is given need not be all of them, nor in the same order"
        )

    def _waited(self) -> Finding | None:
        for rank, calls in enumerate(self.calls):
            for call in calls:
                if call.end is None:
                    return COMMON.no_wait(rank=rank, name=written(call))
        return None

    # What the calls were

    def sends(self, rank: int) -> list[Call]:
        """The calls by which `rank` sent a message, in order."""
        return [call for call in self.calls[rank] if call.op in SENDS]

    def receives(self, rank: int) -> list[Call]:
        """The calls by which `rank` received a message, in order."""
        return [call for call in self.calls[rank] if call.op in RECEIVES]

    def bytes_sent(self, rank: int) -> int:
        """Bytes that `rank` handed in, in messages and collectives."""
        return sum(call.bytes_sent for call in self.calls[rank])


def _tried(requirement: Requirement) -> Finding | None:
    try:
        return requirement()
    except Exception as error:
        return COMMON.unreadable(error=f"{type(error).__name__}: {error}")
