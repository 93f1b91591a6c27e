"""The watchdog frees ranks that wait for each other, but not ranks that wait for a slow rank."""

import contextlib
import importlib
import os
import resource
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest

from parlab.checks.base import deadlock
from parlab.checks.base.deadlock import Standstill, next_call
from parlab.checks.base.watchdog import run_watched
from parlab.ledger import Ledger
from tests.support.on_ranks import World, on_ranks

DEADLINE = 80.0  # long, so that it does not end the calls
SLOW = 2.5  # longer than the time after which ranks that wait for each other are freed


def made(ledger: Ledger) -> int:
    return ledger.made


def ends(world: World, *functions: Callable[[Any], Any]) -> list[str]:
    """Return how calls end on this rank, and require that none of them reached the deadline.

    Each call gets its own communicator.
    """
    kinds = []
    for function in functions:
        ledger = Ledger()
        comm = ledger.watch(world.comm.Dup())
        board, number = next_call()
        assert board is not None
        standstill = Standstill(board, number, range(world.size), partial(made, ledger))
        start = time.monotonic()
        kinds.append(run_watched(function, (comm,), comm, DEADLINE, standstill=standstill).kind)
        assert time.monotonic() - start < DEADLINE / 2
    return kinds


def all_receive(comm: Any) -> None:
    comm.recv(source=(comm.rank + 1) % comm.size)


def all_wait_for_several(comm: Any) -> None:
    from mpi4py import MPI

    right, memory = (comm.rank + 1) % comm.size, bytearray(8)
    MPI.Request.Waitall([comm.Issend(bytearray(8), right), comm.Irecv(memory, right, tag=1)])


def one_leaves(comm: Any) -> None:
    if comm.rank != 1:
        comm.Barrier()


def one_sends_to_itself(comm: Any) -> None:
    comm.Issend(bytearray(8), comm.rank).Wait()


def one_raises_and_others_wait_in_a_part(comm: Any) -> None:
    part = comm.Split(comm.rank > 0)
    if comm.rank == 0:
        raise ValueError  # which revokes `comm`, but not the part of the other ranks
    part.recv(source=1 - part.rank)


def stand_still(world: World) -> list[str]:
    return ends(
        *(world, all_receive, all_wait_for_several, one_leaves, one_sends_to_itself),
        one_raises_and_others_wait_in_a_part,
    )


def test_ranks_that_wait_for_each_other_are_freed_long_before_the_deadline() -> None:
    assert on_ranks(3, stand_still) == [
        ["stuck", "stuck", "stuck", "stuck", "raised"],
        ["stuck", "stuck", "returned", "stuck", "stuck"],
        ["stuck", "stuck", "stuck", "stuck", "stuck"],
    ]


@contextlib.contextmanager
def busy_processors() -> Iterator[None]:
    """Run four processes for each core that compute all the time."""
    command = [sys.executable, "-c", "while True: pass"]
    with contextlib.ExitStack() as started:
        for _ in range(4 * len(os.sched_getaffinity(0))):
            process = started.enter_context(subprocess.Popen(command))
            started.callback(process.kill)
        yield


def receive_in_vain(world: World) -> list[str]:
    with busy_processors() if world.rank == 0 else contextlib.nullcontext():
        return ends(world, all_receive)


@pytest.mark.nightly
def test_stuck_ranks_are_freed_as_soon_on_a_busy_machine() -> None:
    """A waiting rank yields the CPU, so its CPU time does not show how long it has been waiting."""
    assert on_ranks(3, receive_in_vain) == [["stuck"]] * 3


def one_computes(comm: Any) -> None:
    until = time.monotonic() + SLOW
    while comm.rank == 1 and time.monotonic() < until:
        pass
    comm.Barrier()


def one_is_in_c(comm: Any) -> None:
    if comm.rank == 1:
        time.sleep(SLOW)
    comm.Barrier()


def one_has_a_thread(comm: Any) -> None:
    """A rank waits in MPI, while one of its threads will send the message for which all wait."""
    if comm.rank == 1:
        threading.Timer(SLOW, lambda: [comm.send(0, rank) for rank in range(comm.size)]).start()
    comm.recv(source=1)


def one_after_the_other(comm: Any) -> None:
    """Ranks wait for a long time, but not all of them at the same time."""
    for rank in range(comm.size):
        if comm.rank == rank:
            time.sleep(SLOW / 2)
        comm.Barrier()


def are_slow(world: World) -> list[str]:
    return ends(world, one_computes, one_is_in_c, one_has_a_thread, one_after_the_other)


def test_ranks_that_wait_for_a_slow_one_are_not_stuck() -> None:
    assert on_ranks(3, are_slow) == [["returned"] * 4] * 3


def stops_for_a_while(world: World, limit: float, seconds: float) -> str:
    """Stop rank 1 for `seconds` while the other ranks wait for it. Return how the call ends."""
    pause = f"kill -STOP {os.getpid()}; sleep {seconds}; kill -CONT {os.getpid()}"

    def function(comm: Any) -> None:
        if comm.rank == 1:
            subprocess.run(["sh", "-c", pause], check=True)
        comm.Barrier()

    ledger = Ledger()
    comm = ledger.watch(world.comm.Dup())
    board, number = next_call()
    assert board is not None
    standstill = Standstill(board, number, range(world.size), partial(made, ledger))
    return run_watched(function, (comm,), comm, limit, standstill=standstill).kind


def test_ranks_that_wait_for_one_that_the_machine_does_not_run_are_not_stuck() -> None:
    assert on_ranks(2, stops_for_a_while, 2.0, 3.5) == ["returned"] * 2


def test_a_turn_that_another_process_ends_counts() -> None:
    """The kernel counts a thread that finds no message and yields in the same way."""
    processors = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(processors)})  # of this thread, and of the process that it starts
    try:
        with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
            until = time.monotonic() + DEADLINE
            while (before := involuntary_switches()) < 20 and time.monotonic() < until:
                pass
            counted = deadlock._switches(threading.get_ident())
            after = involuntary_switches()
            other.kill()
    finally:
        os.sched_setaffinity(0, processors)
    assert 20 <= before <= counted <= after


def involuntary_switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def is_held_by_the_watchdog(world: World, module: str, reads: str) -> bool:
    """Return True if an object that a call released is alive while the watchdog calls `reads`."""
    looks = importlib.import_module(module)
    slow, looked, asked = getattr(looks, reads), threading.Event(), threading.Event()

    def slowly(*arguments: Any) -> Any:
        looked.set()
        asked.wait(DEADLINE / 2)
        return slow(*arguments)

    def let_go() -> weakref.ref:
        value = threading.Event()
        assert looked.wait(DEADLINE / 2)
        return weakref.ref(value)

    def asks(comm: Any) -> bool:
        held = let_go()() is not None
        asked.set()
        return held

    setattr(looks, reads, slowly)
    board, number = next_call()
    assert board is not None
    standstill = Standstill(board, number, [0], lambda: 0)
    ended = run_watched(asks, (world.comm,), world.comm, DEADLINE, standstill=standstill)
    assert ended.kind == "returned", ended
    return ended.value


@pytest.mark.parametrize(
    ("module", "reads"),
    [
        ("parlab.checks.base.watchdog", "_is_learners"),
        ("parlab.checks.base.watchdog", "_place"),
        ("parlab.checks.base.deadlock", "_calls_mpi"),
        ("parlab.checks.base.deadlock", "_turns"),
    ],
    ids=["the calls", "the learner's source", "the innermost call", "turns of the processor"],
)
def test_the_watchdog_does_not_hold_what_a_call_releases(module: str, reads: str) -> None:
    """A check that tracks live objects would rarely reject a right answer on a busy machine."""
    assert on_ranks(1, is_held_by_the_watchdog, module, reads) == [False]
