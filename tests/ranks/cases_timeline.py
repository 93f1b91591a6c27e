"""Timelines of several ranks on one clock."""

import time
from itertools import pairwise

import numpy as np

from tests.support.on_ranks import Cases, World

cases = Cases()


@cases.add()
def spans_of_all_ranks_are_in_order(world: World) -> None:
    """Each rank works after the previous one, so their spans must not overlap on any clock."""
    from parlab.timeline import Timeline

    timeline = Timeline(world.comm)
    if world.rank:
        world.comm.recv(source=world.rank - 1)
    with timeline.span(f"turn {world.rank}", "compute"):
        time.sleep(0.002)
    if world.rank < world.size - 1:
        world.comm.send(None, world.rank + 1)
    spans = timeline.gather()
    assert [s.name for s in spans] == [f"turn {r}" for r in range(world.size)]
    assert [s.rank for s in spans] == list(range(world.size))
    assert spans[0].start == 0
    assert all(a.end <= b.start for a, b in pairwise(spans))
    assert all(s.seconds >= 0.002 for s in spans)
    assert world.comm.bcast(spans) == spans
    timeline.clear()
    assert timeline.gather() == []


@cases.add()
def a_ledgers_calls_are_communication(world: World) -> None:
    from parlab.ledger import Ledger
    from parlab.timeline import Timeline

    ledger, timeline = Ledger(), Timeline(world.comm)
    comm = ledger.watch(world.comm)
    comm.Barrier()
    comm.Allreduce(np.ones(4), np.ones(4))
    request = comm.Irecv(np.ones(1), world.rank, 99)  # nothing comes yet: not complete
    timeline.add_calls(ledger.calls)
    spans = [s for s in timeline.gather() if s.rank == world.rank]
    assert [(s.name, s.kind) for s in spans] == [
        ("barrier", "communication"),
        ("all_reduce", "communication"),
    ]
    comm.Send(np.ones(1), world.rank, 99)
    request.Wait()


@cases.add()
def clocks_of_other_machines_are_measured(world: World) -> None:
    """The clocks differ as if each rank's machine had started an hour after the previous one."""
    from parlab.timeline import clock_offset

    hour = 3600.0
    offset = clock_offset(world.comm, lambda: time.perf_counter() - hour * world.rank)
    assert abs(offset.seconds - hour * world.rank) <= offset.error + 1e-6
    assert (offset.error == 0) == (world.rank == 0)
