"""The error of times on the emulated network, as the ratio of the measured and the modeled time.

Both sides are the same operation. Our time is measured, from the start of the last rank to the end
of the last rank. The peer's time is computed by `parlab.costs`. The rows `exchange_…` show the time
of the real exchange, on a network that takes no time. If the real exchange takes longer than the
modeled time, the emulated operation also takes that long.
"""

from collections.abc import Callable
from typing import Any

from benchmarks import Pair, benchmark
from parlab.network import Link, Network

# Emulated times above 1 ms should be within 10 % of the model.
TARGET = 1.1
NETWORK = "2 nodes of {} ranks: 20 µs and 1 GB/s inside, 100 µs and 100 MB/s between, 50 µs a call"


def network(ranks: int) -> Network:
    inside, between = Link.of(20e-6, 1e9), Link.of(100e-6, 100e6)
    return Network(2, ranks // 2, inside, between, call=50e-6)


LAB_NETWORK = (
    "2 nodes of 2 ranks: 200 µs and 100 MB/s inside, 1 ms and 20 MB/s between, 2 ms a call"
)


def lab_network(ranks: int) -> Network:
    """Return the network of lab 02, which is slow enough for a busy machine."""
    inside, between = Link.of(200e-6, 100e6), Link.of(1e-3, 20e6)
    return Network(2, ranks // 2, inside, between, call=2e-3)


def free(ranks: int) -> Network:
    """Return a network on which messages take no time."""
    return Network(1, ranks, Link(0, 0), Link(0, 0))


def _timed(work: Callable[[], Any], first: int | None = None) -> Callable[[], float]:
    """Return a function that runs `work` and returns its seconds, until the last rank ends.

    The time starts when the last rank begins, or when rank `first` begins.
    """
    import time

    from parlab.rank import comm

    def seconds() -> float:
        comm.Barrier()
        begun = time.perf_counter()
        work()
        end = time.perf_counter()
        starts = comm.allgather(begun)
        return max(comm.allgather(end)) - (max(starts) if first is None else starts[first])

    return seconds


def _all_reduce(
    kilobytes: int,
    describe: Callable[[int], Network] = network,
    exchange_alone: bool = False,
) -> Pair:
    import torch
    import torch.distributed as dist

    from parlab.network import emulated_group
    from parlab.rank import world_size

    described, numbers = describe(world_size), torch.zeros(kilobytes * 250)
    emulated = emulated_group(free(world_size) if exchange_alone else described)
    modeled = described.collective("all_reduce", 1000 * kilobytes).seconds
    return Pair(_timed(lambda: dist.all_reduce(numbers, group=emulated)), lambda: modeled)


@benchmark(
    peer="the model",
    work=f"emulated all-reduce of 150 kB, {NETWORK.format(2)}",
    target=TARGET,
    ranks=4,
)
def emulated_all_reduce_150kB() -> Pair:
    return _all_reduce(150)


@benchmark(
    peer="the model",
    work=f"emulated all-reduce of 2 MB, {NETWORK.format(2)}",
    target=TARGET,
    ranks=4,
)
def emulated_all_reduce_2MB() -> Pair:
    return _all_reduce(2000)


@benchmark(
    peer="the model",
    work=f"emulated all-reduce of 2 MB, {NETWORK.format(4)}",
    target=TARGET,
    ranks=8,
)
def emulated_all_reduce_2MB_8_ranks() -> Pair:
    return _all_reduce(2000)


@benchmark(
    peer="the model",
    work=f"emulated all-reduce of 500 kB, {LAB_NETWORK}",
    target=TARGET,
    ranks=4,
)
def emulated_all_reduce_500kB_lab() -> Pair:
    return _all_reduce(500, lab_network)


@benchmark(
    peer="the model",
    work=f"the exchange alone of an all-reduce of 2 MB, {NETWORK.format(2)}",
    target=1.0,
    ranks=4,
)
def exchange_2MB() -> Pair:
    return _all_reduce(2000, exchange_alone=True)


@benchmark(
    peer="the model",
    work=f"the exchange alone of an all-reduce of 2 MB, {NETWORK.format(4)}",
    target=1.0,
    ranks=8,
)
def exchange_2MB_8_ranks() -> Pair:
    return _all_reduce(2000, exchange_alone=True)


@benchmark(
    peer="the model",
    work=f"emulated message of 100 kB between nodes, there and back, {NETWORK.format(2)}",
    target=TARGET,
    ranks=4,
)
def emulated_message_100kB() -> Pair:
    import torch
    import torch.distributed as dist

    from parlab.network import emulated_group
    from parlab.rank import rank, world_size

    emulated, numbers = emulated_group(network(world_size)), torch.zeros(25_000)
    last = world_size - 1

    def there_and_back() -> None:
        if rank == 0:
            dist.send(numbers, last, group=emulated)
            dist.recv(numbers, last, group=emulated)
        elif rank == last:
            dist.recv(numbers, 0, group=emulated)
            dist.send(numbers, 0, group=emulated)

    modeled = 2 * emulated.network.message(numbers.nbytes, 0, last)
    return Pair(_timed(there_and_back, first=0), lambda: modeled)


@benchmark(
    peer="the model",
    work="emulated backward pass of 8 stages of 4 ms, DistributedDataParallel with a bucket of "
    f"100 kB for each, {NETWORK.format(2)}",
    target=TARGET,
    ranks=4,
)
def emulated_ddp_buckets() -> Pair:
    import torch
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    from parlab.costs.data_parallel import bucket_timeline
    from parlab.network import Stage, emulated_group
    from parlab.rank import world_size

    emulated, width, stages, backward = emulated_group(network(world_size)), 158, 8, 4e-3
    layers = [Stage(nn.Linear(width, width, bias=False), 0, backward) for _ in range(stages)]
    size = 4 * width * width
    parallel = DistributedDataParallel(
        nn.Sequential(*layers), process_group=emulated, bucket_cap_mb=size / 2**20
    )
    inputs = torch.zeros(1, width)
    for _ in range(2):  # DDP creates its buckets again after the first step
        parallel(inputs).sum().backward()
    sending = emulated.network.collective("all_reduce", size).seconds
    modeled = bucket_timeline([backward] * stages, [sending] * stages)[-1].end
    loss: torch.Tensor

    def backward_pass() -> None:
        loss.backward()

    timed = _timed(backward_pass)

    def seconds() -> float:
        nonlocal loss
        loss = parallel(inputs).sum()  # the model does not include the forward pass
        return timed()

    return Pair(seconds, lambda: modeled)
