"""Times on an emulated network: never shorter than in the model, and only a little longer.

The network is slow, so that delays of a busy machine are small compared with its times.
"""

from collections.abc import Callable
from typing import Any

import torch

from parlab.network import Link, Network
from parlab.network.clock import now
from tests.support.on_ranks import World

# 4 ranks. A call costs 0.1 s, a float32 0.1 ms inside a node and 1 ms between nodes.
CALL = 0.1
NETWORK = Network(2, 2, Link(0, 0.1e-3 / 4), Link(0, 1e-3 / 4), CALL)
LATE = 0.08  # tolerated delay compared with the model (s)
TRIES = 12
NUMBERS = 100  # 0.1 s between nodes


def seconds_of(world: World, work: Callable[[], Any]) -> tuple[float, float]:
    """Return the time from the first rank's start, and from the last rank's start, to the last end.

    Both are the same on all ranks. They are very different if a busy machine delays a rank.
    """
    world.comm.Barrier()
    begun = now()
    work()
    ended = now()
    starts = world.comm.allgather(begun)
    end = max(world.comm.allgather(ended))
    return end - min(starts), end - max(starts)


def assert_takes(
    world: World, seconds: float, work: Callable[[], Any], needs_all: bool = True
) -> None:
    """Require that `work` never takes less than the model's time, and is on time at least once.

    A busy machine can only delay it, so a few attempts are allowed. `needs_all` is True if it
    begins when the last rank calls it. A message does not need ranks that neither send nor receive
    it, so its time may count from the first rank's start.
    """
    took = []
    for _ in range(TRIES):
        from_first, from_last = seconds_of(world, work)
        took.append(from_last)
        longest = from_last if needs_all else from_first
        assert seconds <= longest + 1e-4, f"took {longest} s, sooner than {seconds:.3f} s"
        if from_last < seconds + LATE:
            return
    raise AssertionError(f"took {took} s, later than {seconds:.3f} s")


def assert_in_time(
    world: World, seconds: float, measure: Callable[[], float], early: float = 1e-4
) -> None:
    """Require the same of the times that `measure` returns on each rank."""
    took = []
    for _ in range(TRIES):
        own = measure()
        took.append(max(world.comm.allgather(own)))
        assert seconds <= own + early, f"took {own} s, sooner than {seconds:.3f} s"
        if took[-1] < seconds + LATE:
            return
    raise AssertionError(f"took {took} s, later than {seconds:.3f} s")


def x(numbers: int = NUMBERS) -> torch.Tensor:
    return torch.ones(numbers)
