"""Which ranks may still stop when a cell is over."""

from types import SimpleNamespace

import pytest

from parlab.cluster.freeing import HANDLED_SECONDS, Freeing
from parlab.cluster.locations import Cells

STEP = 0.25  # seconds


@pytest.mark.parametrize(
    ("last", "sleeps", "may_stop"),
    [
        pytest.param(STEP, 0, False, id="computes in C"),
        pytest.param(STEP / 2, 0, False, id="computes in C on half of a core"),
        pytest.param(STEP / 25, 0, True, id="waits for the CPU"),
        pytest.param(STEP / 25, 1000, False, id="waits in MPI_Finalize"),
    ],
)
def test_a_rank_without_a_stack_may_stop_only_if_it_lacks_the_cpu(
    last: float, sleeps: int, may_stop: bool
) -> None:
    """Its stack does not arrive in time, and it had time to handle an interrupt."""
    channel = SimpleNamespace(ranks=[SimpleNamespace(state="R")], stacks=lambda ranks, _: {0: ""})
    session = SimpleNamespace(n=1, channel=channel, cells=Cells(), in_background=lambda: [])
    replies = SimpleNamespace(running=lambda: [0])
    freeing = Freeing(session, replies, stop=None, progress=None)
    freeing._used, freeing._slept, freeing._step_seconds = {0: 0.0}, {0: sleeps}, STEP
    before = 2 * HANDLED_SECONDS
    assert freeing._may_stop({0: before}, {0: before + last}, False) is may_stop
