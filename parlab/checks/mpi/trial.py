"""One call of a learner's function, on a communicator that counts and never buffers."""

import dis
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from types import CodeType
from typing import Any

from mpi4py import MPI

from parlab.checks.base import Check, gather
from parlab.checks.mpi.rounds import Step
from parlab.checks.watchdog import Ended
from parlab.ledger import Call, Ledger
from parlab.ledger.calls import RECEIVES, SENDS

# A message that is sent before its receiver has come may be buffered, or not: MPI leaves that
# open, and decides by size. A program is right when it works without. In trials it has to.
UNBUFFERED = {
    "Send": "Ssend",
    "send": "ssend",
    "Isend": "Issend",
    "isend": "issend",
}
WRITTEN = {unbuffered: name for name, unbuffered in UNBUFFERED.items()}
_CALL = re.compile(r"\.(\w+)\(")
# Names that rank cells have anyway, and that are wrong inside a function that takes `comm`.
GLOBALS = ("rank", "world_size", "comm")


class Trial:
    """What a call did: `calls[r]` are the MPI calls of rank r of `comm`, on every rank alike."""

    def __init__(
        self, check: Check, function: Callable[..., Any], comm: MPI.Intracomm | None, size: int
    ) -> None:
        self.check, self.function, self.comm, self.size = check, function, comm, size
        self.rank = comm.rank if comm is not None else -1
        self.situation = f"with {size} ranks" if size > 1 else "with 1 rank"
        self.ledger = Ledger()
        self.watched = None if comm is None else self._watch(comm)
        self.calls: list[list[Call]] = []

    def _watch(self, comm: MPI.Intracomm) -> MPI.Intracomm:
        watched = self.ledger.watch(comm)
        for name, unbuffered in UNBUFFERED.items():
            setattr(watched, name, getattr(watched, unbuffered))
        return watched

    def run(self, *arguments: Any) -> Any:
        """Call the function with `arguments` and the communicator; fails as `Check.call` does."""
        value = self.check.call(
            self.function,
            *arguments,
            self.watched,
            comm=self.comm,
            situation=self.situation,
            explain=self._explain,
        )
        told = gather(self.ledger.calls if self.comm is not None else None)
        order = gather(self.rank)
        self.calls = [told[order.index(r)] for r in range(self.size)]
        self._no_library()
        for rank, calls in enumerate(self.calls):
            for call in calls:
                if call.end is None:
                    self.fail(
                        f"rank {rank} never waits for the request of its `{_written(call)}`: until "
                        "`Wait` returns, the message may not have left or arrived"
                    )
        return value

    def agree(self, problem: str | None) -> None:
        """Fail where a rank of the communicator has a problem with what it got. Collective."""
        if problem is not None:
            problem = f"{problem} ({self.situation}){self._globals_text()}"
        self.check.agree(problem, comm=self.comm)

    def fail(self, problem: str) -> None:
        """Fail for what all ranks know, as from `calls`."""
        self.check.fail(f"{problem} ({self.situation}){self._globals_text()}")

    # What the calls were

    def sends(self, rank: int) -> list[Call]:
        """The calls by which `rank` sent, in order."""
        return [call for call in self.calls[rank] if call.op in SENDS]

    def receives(self, rank: int) -> list[Call]:
        """The calls by which `rank` received, in order."""
        return [call for call in self.calls[rank] if call.op in RECEIVES]

    def bytes_sent(self, rank: int) -> int:
        """Bytes that `rank` sent in messages."""
        return sum(call.bytes_sent for call in self.sends(rank))

    def programs(self) -> list[list[Step]]:
        """Every rank's messages, for `rounds`."""
        return [[_step(call) for call in calls] for calls in self.calls]

    def _no_library(self) -> None:
        for calls in self.calls:
            for call in calls:
                if call.op not in (*SENDS, *RECEIVES):
                    self.fail(
                        f"it calls `comm.{call.api}`, which is what you are to build: use "
                        "messages from one rank to another (Send, Recv, Sendrecv)"
                    )

    def no_pickles(self) -> None:
        """Fail where Python objects were sent: every byte of theirs is copied and wrapped."""
        for rank, calls in enumerate(self.calls):
            for call in calls:
                name = _written(call)
                if name.islower():
                    self.fail(
                        f"rank {rank} calls `comm.{name}`: in lower case it pickles a Python "
                        f"object; `comm.{name.capitalize()}` sends the array's own memory"
                    )

    # What a failure may mean

    def _globals_text(self) -> str:
        used = global_names(self.function) & {*GLOBALS}
        if not used:
            return ""
        name = sorted(used)[0]
        right = {"rank": "comm.rank", "world_size": "comm.size"}.get(name, "its argument `comm`")
        return (
            f"\nThe function reads the global `{name}`: use {right}, since `comm` need not hold "
            "all ranks, nor in the same order"
        )

    def _explain(self, endings: dict[int, Ended]) -> str:
        if any(ended.kind == "unfinished" for ended in endings.values()):
            return ""
        return "\n".join(filter(None, [_meaning(endings), self._globals_text().lstrip()]))


def _meaning(endings: dict[int, Ended]) -> str:
    stuck = [ended for ended in endings.values() if ended.kind == "stuck"]
    if not stuck or any(ended.kind == "raised" for ended in endings.values()):
        return ""
    if len(stuck) < len(endings):
        return "What the stuck ranks wait for, no rank that has returned will do any more"
    doing = {name for ended in stuck for name in _CALL.findall(ended.line)}
    if doing and doing <= {"Send", "send", "Ssend", "ssend"}:
        return (
            "All wait to send, so nobody receives: `Send` may return only when the receiver has "
            "come. Small messages get away with it; here none does"
        )
    if doing and doing <= {"Recv", "recv"}:
        return "All wait to receive, so nobody sends"
    return ""


def global_names(function: Callable[..., Any]) -> set[str]:
    """Names of the globals that the function's own code reads."""
    codes: list[CodeType] = [function.__code__] if hasattr(function, "__code__") else []
    names = set()
    for code in codes:
        for instruction in dis.get_instructions(code):
            if instruction.opname == "LOAD_GLOBAL":
                names.add(instruction.argval)
            elif isinstance(instruction.argval, CodeType):
                codes.append(instruction.argval)  # a function inside, a comprehension
    return names


def _written(call: Call) -> str:
    """The name that the learner called, which the trial may have replaced."""
    return WRITTEN.get(call.api, call.api)


def _step(call: Call) -> Step:
    return Step(call.to, call.source, blocking=call.op in ("send", "recv", "sendrecv"))


@contextmanager
def trial(check: Check, function: Callable[..., Any], ranks: list[int]) -> Iterator[Trial]:
    """A trial on a fresh communicator over these ranks of the lab, in this order. Collective."""
    with check.communicator(ranks) as comm:
        yield Trial(check, function, comm, len(ranks))


def worlds(check: Check, draw: Random, smallest: int = 1) -> list[list[int]]:
    """Ranks to try on: all; all in another order; then fewer and fewer of them, at random."""
    everyone = list(range(check.world_size))
    orders = [everyone, everyone[::-1]]
    orders += [draw.sample(everyone, n) for n in range(check.world_size - 1, 0, -1)]
    return [order for order in orders if len(order) >= smallest]
