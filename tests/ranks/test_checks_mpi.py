"""The checks of lab 01 on real ranks: no mistake stops a check, and ranks always agree.

`tests/answers/mpi` has the answers that they must reject. Functions of this file without a fixture
run on the ranks: `python -m parlab.mpirun -n 4 tests/ranks/test_checks_mpi.py NAME …`.
"""

import contextlib
import io
import sys
import time
import traceback
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from parlab import mpirun


def run_on_ranks(world_size: int, *names: str) -> None:
    finished = mpirun.run(
        world_size, __file__, *names, capture_output=True, text=True, timeout=280, check=False
    )
    assert finished.returncode == 0, finished.stdout[-2000:] + finished.stderr[-6000:]


@pytest.mark.parametrize("world_size", [1, 7, pytest.param(4, marks=pytest.mark.nightly)])
def test_the_references_cost_what_the_formulas_say(world_size: int) -> None:
    run_on_ranks(world_size, "costs_are_measured")


def test_all_ranks_agree_and_no_mistake_stops_a_check() -> None:
    run_on_ranks(4, "verdicts", "freed_calls_may_end_well", "mistakes_leave_nothing_behind")


# On the ranks


@cache
def references() -> dict[str, Any]:
    from parlab_staff.course.references import definitions

    return definitions("01_mpi")


def quiet() -> contextlib.redirect_stdout:
    return contextlib.redirect_stdout(io.StringIO())


def message(check: Callable[[Callable], None], function: Callable) -> str:
    """Return the message of the check, which must be the same on all ranks."""
    from parlab.checks import CheckFailed
    from parlab.checks.base.collective import gather

    shown = ""
    with quiet():
        try:
            check(function)
        except CheckFailed as failure:
            shown = str(failure)
    assert len(set(gather(shown))) == 1
    return shown


def verdicts() -> None:
    import numpy as np

    from parlab.checks import mpi as check

    def stub(x, comm):
        raise NotImplementedError("exercise ring_shift: not done yet")

    def stub_on_one_rank(x, comm):
        if comm.rank == 2:
            raise NotImplementedError
        return comm.recv()

    def fails_on_one_rank(x, comm):
        if comm.rank == 1:
            return x.no_such_attribute
        received = np.empty_like(x)
        comm.Recv(received)
        return received

    def returns_nothing_on_one_rank(x, comm):
        received = np.empty_like(x)
        comm.Sendrecv(
            x, (comm.rank + 1) % comm.size, recvbuf=received, source=(comm.rank - 1) % comm.size
        )
        return received if comm.rank != 3 else None

    assert message(check.ring_shift, stub) == "ring_shift: not done yet"
    assert message(check.ring_shift, stub_on_one_rank) == "ring_shift: not done yet"
    shown = message(check.ring_shift, fails_on_one_rank)
    assert "AttributeError" in shown and "no_such_attribute" in shown
    assert "\n  rank 1  line " in shown
    shown = message(check.ring_shift, returns_nothing_on_one_rank)
    assert "rank 3: it returns None: is a `return` missing?" in shown


def freed_calls_may_end_well() -> None:
    """A freed call may return without an error, but its rank was still stuck.

    On Open MPI, this can happen to a send whose receiver is freed first. Here it always happens.
    """
    from parlab.checks import mpi as check

    def until_freed(comm):
        while not comm.Is_revoked():
            pass

    def returns_on_rank_1(x, comm):
        return until_freed(comm) if comm.rank == 1 else comm.recv(source=1)

    def raises_on_rank_1(x, comm):
        return until_freed(comm).no_such_attribute if comm.rank == 1 else comm.recv(source=1)

    for function in (returns_on_rank_1, raises_on_rank_1):
        shown = message(check.ring_shift, function)
        assert "does not end, or takes too long, so the check stopped it (with 4 ranks, " in shown
        assert "\n  rank 1         at line " in shown and "\n  ranks 0, 2, 3  at line " in shown


def mistakes_leave_nothing_behind() -> None:
    """After deadlocks and errors, the same check accepts a right answer at once."""
    from mpi4py import MPI

    from parlab.checks import mpi as check
    from parlab.checks.base.trial import STUCK_SECONDS
    from parlab.rank import comm, rank, world_size

    def waits(x, comm):
        comm.recv(source=(comm.rank - 1) % comm.size)

    def sends_too_much(x, comm):
        for dest in range(comm.size):
            comm.Isend(x, dest)

    reference = references()["ring_shift"]
    start = time.monotonic()
    assert "All of them wait in a receive" in message(check.ring_shift, waits)
    assert time.monotonic() - start < STUCK_SECONDS + 10
    assert message(check.ring_shift, sends_too_much)
    assert message(check.ring_shift, reference) == ""
    assert comm.allreduce(rank, op=MPI.SUM) == sum(range(world_size))
    assert not comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)


def costs_are_measured() -> None:
    import numpy as np

    from parlab.chunks import chunk
    from parlab.costs import collectives
    from parlab.ledger import Ledger
    from parlab.rank import comm, rank, world_size

    reference = references()

    def measured(key: str, *arguments: Any) -> tuple[int, int]:
        ledger = Ledger()
        reference[key](*arguments, ledger.watch(comm))
        return len(ledger.sends()), sum(call.bytes_sent for call in ledger.sends())

    x = np.zeros(1000 * world_size)
    for key in ("ring_reduce_scatter", "ring_all_gather", "ring_all_reduce"):
        cost = getattr(collectives, key)(x.nbytes, world_size)
        assert measured(key, x) == (cost.rounds, cost.bytes)

    # Uneven chunks: what each rank leaves out is the chunk that it never sends.
    x = np.zeros(1000 * world_size + 1)
    left_out = chunk(len(x), rank, world_size)
    _, sent = measured("ring_reduce_scatter", x)
    assert sent == x.nbytes - 8 * (left_out.stop - left_out.start)

    # The root of a broadcast is the one that sends in every round.
    messages, sent = measured("binomial_broadcast", x, 0)
    cost = collectives.binomial_broadcast(x.nbytes, world_size)
    if rank == 0:
        assert (messages, sent) == (cost.rounds, cost.bytes)
    assert sum(comm.allgather(messages)) == world_size - 1


if __name__ == "__main__":
    try:
        for name in sys.argv[1:]:
            globals()[name]()
    except BaseException:
        # Otherwise, the other ranks would wait for this one forever.
        traceback.print_exc()
        sys.stderr.flush()
        from mpi4py import MPI

        MPI.COMM_WORLD.Abort(1)
