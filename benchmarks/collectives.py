"""The labs' process group against Gloo."""

from benchmarks import Pair, benchmark


def _all_reduce(bytes_: int) -> Pair:
    import torch
    import torch.distributed as dist

    from parlab.rank import group, world_size

    ours, theirs = torch.ones(bytes_ // 4), torch.ones(bytes_ // 4)
    dist.all_reduce(ours, group=group)
    dist.all_reduce(theirs)
    assert torch.equal(ours, theirs) and ours[0] == world_size
    # Use zeros, because repeated sums of ones would become infinite.
    ours.zero_()
    theirs.zero_()
    return Pair(
        reference=lambda: dist.all_reduce(ours, group=group),
        peer=lambda: dist.all_reduce(theirs),
    )


@benchmark(
    peer="torch.distributed on Gloo",
    work="dist.all_reduce of 1 kB of float32 on 2 ranks",
    target=0.1,
    ranks=2,
    calls=20,
)
def all_reduce_1kB() -> Pair:
    return _all_reduce(1024)


@benchmark(
    peer="torch.distributed on Gloo",
    work="dist.all_reduce of 16 MB of float32 on 2 ranks",
    target=0.6,
    ranks=2,
    calls=3,
)
def all_reduce_16MB() -> Pair:
    return _all_reduce(16 * 2**20)
