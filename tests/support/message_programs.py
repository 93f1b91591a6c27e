"""Random programs of messages, for which the playground's hub and MPI must have the same result.

A program is a list of actions for each rank, as `hub_rank.mjs` describes them. Sends are never
buffered, and each receive names its source and its tag, so that each program has only one result:
what each rank receives, and the action in which it is stuck, if it is stuck.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

Action = list[Any]
Program = list[list[Action]]
ROUNDS_WITHOUT_PROGRESS = 30


def program(seed: int, size: int) -> Program:
    """Return a program: messages in an order that works, but with some random changes."""
    random = Random(seed)
    actions: Program = [[] for _ in range(size)]
    for value in range(random.randrange(2, 12)):
        sender, receiver = random.sample(range(size), 2)
        tag = random.randrange(2)
        actions[sender].append(["send", receiver, tag, value])
        actions[receiver].append(["receive", sender, tag])
    for own in actions:
        for _ in range(random.choice([0, 0, 1, 2])):
            _disturb(own, random)
        _begin_some(own, random)
    return actions


def _disturb(own: list[Action], random: Random) -> None:
    if len(own) < 2:
        return
    place = random.randrange(len(own) - 1)
    kind = random.choice(["swap", "swap", "drop", "tag"])
    if kind == "swap":
        own[place : place + 2] = own[place : place + 2][::-1]
    elif kind == "drop":
        del own[place]
    else:
        own[place][2] = 1 - own[place][2]


def _begin_some(own: list[Action], random: Random) -> None:
    """Begin some actions without waiting, and wait for them later."""
    changed: list[Action] = []
    begun = 0
    for action in own:
        if random.random() < 0.3:
            changed.append([f"begin {action[0]}", *action[1:]])
            begun += 1
        else:
            changed.append(action)
        while begun and random.random() < 0.4:
            changed.append(["wait"])
            begun -= 1
    own[:] = [*changed, *([["wait"]] * begun)]


def results_on_mpi(world: Any, programs: list[Program]) -> list[dict[str, Any]]:
    """Run all programs at the same time. Return this rank's results.

    Ranks test their requests in rounds. They are stuck after many rounds without any progress.
    """
    comms = [world.comm.Dup() for _ in programs]
    runs = [_Run(comm, one[world.rank]) for comm, one in zip(comms, programs, strict=True)]
    quiet = 0
    while quiet < ROUNDS_WITHOUT_PROGRESS:
        moved = sum(run.advance() for run in runs for _ in range(20))
        quiet = 0 if world.comm.allreduce(moved) else quiet + 1
    return [run.result() for run in runs]


class _Run:
    """One program on this rank of MPI."""

    def __init__(self, comm: Any, actions: list[Action]) -> None:
        self.comm, self.actions = comm, actions
        self.at, self.received = 0, []
        self.begun: list[tuple[str, Any, Any]] = []
        self.steps = self._steps()

    def advance(self) -> int:
        """Advance the program. Return how many actions have ended."""
        before = self.at
        next(self.steps, None)
        return self.at - before

    def result(self) -> dict[str, Any]:
        if self.at == len(self.actions):
            return {"received": self.received, "at": None}
        return {"received": self.received, "at": self.at, "why": "deadlock"}

    def _steps(self) -> Iterator[None]:
        for action in self.actions:
            name = action[0]
            if name == "wait":
                yield from self._end(*self.begun.pop(0))
            else:
                begun = name.split()[-1], *self._post(action)
                if name.startswith("begin"):
                    self.begun.append(begun)
                else:
                    yield from self._end(*begun)
            self.at += 1
        while True:
            self.comm.Iprobe()  # lets MPI make progress
            yield

    def _post(self, action: Action) -> tuple[Any, Any]:
        import numpy as np

        name, peer, tag, *value = action
        if name.endswith("send"):
            data = np.array(value, np.int32)
            return self.comm.Issend(data, peer, tag), data
        data = np.empty(1, np.int32)
        return self.comm.Irecv(data, peer, tag), data

    def _end(self, name: str, request: Any, data: Any) -> Iterator[None]:
        while not request.Test():
            yield
        if name == "receive":
            self.received.append(int(data[0]))
