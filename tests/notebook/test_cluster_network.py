"""Ranks on an emulated network, in a notebook: texts mention it, and stuck ranks are freed."""

from collections.abc import Iterator

import pytest

from tests.support.kernel import Notebook

START = """
from parlab import cluster
from parlab.network import Link, Network

network = Network(
    nodes=2, ranks_per_node=2, call=50e-6,
    inside=Link.of(alpha=20e-6, bandwidth=1e9), between=Link.of(alpha=100e-6, bandwidth=100e6),
)
cluster.start(network=network)
"""
PREPARE = """%%px --timeout 120
import torch
import torch.distributed as dist
from parlab.network import sub_group
from parlab.rank import comm, device, group, rank
from parlab.timeline import Span, draw

pairs = [sub_group(group, [0, 1]), sub_group(group, [2, 3])]
pair, held, x = pairs[rank // 2], rank * 11, torch.ones(250_000)
"""


@pytest.fixture(scope="module")
def emulated() -> Iterator[Notebook]:
    kernel = Notebook()
    try:
        started = kernel.run(START)
        assert started.status == "ok", started.message
        assert (
            "`group` is on an emulated network, 2 nodes of 2 ranks: 20 µs and 1 GB/s inside, "
            "100 µs and 100 MB/s between, 50 µs a call; `comm` is not emulated\n"
        ) in started.text
        ran = kernel.run(PREPARE)
        assert ran.status == "ok", ran.message
        yield kernel
    finally:
        kernel.shutdown()


def works_and_keeps(kernel: Notebook) -> None:
    ran = kernel.run(
        "%%px\ny = torch.ones(3)\ndist.all_reduce(y, group=group)\nprint(y[0].item(), held)"
    )
    assert ran.status == "ok", ran.message
    assert ran.text == "".join(f"[rank {rank}] 4.0 {rank * 11}\n" for rank in range(4))


def test_prints_and_pictures_say_that_it_is_emulated(emulated: Notebook) -> None:
    ran = emulated.run(
        "%%px --targets 0\ndrawn, axes = draw([Span(0, 'a', 'compute', 0, 1)], 'A title')\n"
        "print(group, axes.get_xlabel(), dist.get_backend(group), device)"
    )
    assert ran.text.startswith("[rank 0] <EmulatedGroup, rank 0 of 4, on emulated 2 nodes of 2")
    assert "emulated time (ms) emulated cpu" in ran.text


STUCK = {
    "a collective that one rank skips": (
        "if rank != 2:\n    dist.all_reduce(x, group=group)",
        "ranks 0, 1, 3  line 3: dist.all_reduce(x, group=group)",
    ),
    "a message that nobody sends": (
        "if rank == 0:\n    dist.recv(x, 1, group=group)",
        "rank 0  line 3: dist.recv(x, 1, group=group)",
    ),
    "two large messages that wait for each other": (
        "dist.send(x, rank ^ 1, group=group)\ndist.recv(x, rank ^ 1, group=group)",
        "ranks 0-3  line 2: dist.send(x, rank ^ 1, group=group)",
    ),
    "a handle": (
        "if rank:\n    work = dist.all_reduce(x, group=group, async_op=True)\n    work.wait()",
        "ranks 1-3  line 4: work.wait()",
    ),
    "a future": (
        "if rank:\n    work = dist.all_reduce(x, group=group, async_op=True)\n"
        "    work.get_future().wait()",
        "ranks 1-3  line 4: work.get_future().wait()",
    ),
    "another call while one is under way": (
        "if rank:\n    work = dist.all_reduce(x, group=group, async_op=True)\n    comm.Barrier()",
        "ranks 1-3  line 4: comm.Barrier()",
    ),
}


@pytest.mark.parametrize("name", STUCK)
def test_stuck_ranks_are_freed(emulated: Notebook, name: str) -> None:
    code, expected = STUCK[name]
    ran = emulated.run(f"%%px --timeout 1\n{code}")
    assert ran.error == "DeadlineExceeded", ran.message
    assert expected in ran.message and "variables are intact" in ran.message, ran.message
    works_and_keeps(emulated)


def test_a_group_of_some_ranks_ends_when_they_are_freed(emulated: Notebook) -> None:
    pairs = "pairs = [sub_group(group, [0, 1]), sub_group(group, [2, 3])]"
    made = emulated.run(f"%%px\n{pairs}\nduo = pairs[rank // 2]")
    assert made.status == "ok", made.message
    ran = emulated.run("%%px --timeout 1\nif rank != 3:\n    dist.all_reduce(x, group=duo)")
    assert "rank 2  line 3: dist.all_reduce(x, group=duo)" in ran.message, ran.message
    assert "Your own communicators `duo`, `pairs` ended" in ran.message, ran.message
    works_and_keeps(emulated)


def test_restarted_ranks_are_on_the_network_again(emulated: Notebook) -> None:
    ran = emulated.run("cluster.restart()")
    assert ran.text.startswith("4 new ranks on the emulated network, 2 nodes of 2 ranks: ")
    ran = emulated.run("%%px --timeout 120\nprint(group.network.ranks)")
    assert ran.text == "[all ranks] 4\n", ran.message
