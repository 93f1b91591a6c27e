"""The emulated network: all operations of the group over MPI, and the times that they take."""

import pytest
import torch
from torch import nn

from parlab import cluster
from parlab.network import Link, Network, Stage, clock, emulated, sleeping_layer
from tests.ranks.network_times import NETWORK, TRIES
from tests.support.on_ranks import cases_test

pytestmark = pytest.mark.xdist_group("clock")  # a busy machine would disturb its measurements

# A fast network, for tests that do not measure time.
QUICK = Network(2, 2, Link(5e-6, 1e-9), Link(20e-6, 1e-8), 10e-6)

# By day, these run on the group without a network (`test_mpi_group.py`), and the operations run on
# the ranks of `test_times`, too.
test_operations = cases_test(
    "cases_group_operations",
    "cases_group_training",
    "cases_group_use",
    "cases_group_recovery",
    world_sizes=[],
    nightly=[4],
    network=QUICK,
)
test_libraries = cases_test("cases_group_libraries", world_sizes=[], nightly=[4], network=QUICK)
test_times = cases_test(
    "cases_network_collectives",
    "cases_network_queues",
    "cases_network_computing",
    "cases_layout_runs",
    "cases_group_operations",
    world_sizes=[4],
    network=NETWORK,
)


def test_contradictory_arguments_are_refused_before_ranks_start() -> None:
    for arguments, expected in [
        ({"n": 8, "network": QUICK}, "the network has 4 ranks"),
        ({"network": "2 nodes of 4"}, "a parlab.network.Network, not '2 nodes of 4'"),
        ({"profile": "slurm", "network": QUICK}, "but not both"),
    ]:
        with pytest.raises(ValueError) as refused:
            cluster.start(**arguments)
        assert expected in str(refused.value) and "\n" not in str(refused.value)


def test_stages_make_up_for_waking_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten stages each wake 90 ms late, but the whole pass takes only 90 ms more."""

    def oversleep(moment: float) -> float:
        return 0.09 + clock.sleep_until(moment + 0.09)

    monkeypatch.setattr(sleeping_layer, "sleep_until", oversleep)
    stages = nn.Sequential(*(Stage(nn.Linear(1, 1), 0, 0.1) for _ in range(10)))
    took: list[float] = []
    # The first pass must not change the second one. A busy machine may delay some.
    while len([seconds for seconds in took if seconds < 1.7]) < 2:
        loss = stages(torch.ones(1))
        begun = clock.now()
        loss.backward()
        took.append(clock.now() - begun)
        assert took[-1] >= 1.09 and len(took) < TRIES, took


def test_times_are_named() -> None:
    assert emulated("time (ms)") == "emulated time (ms)"
