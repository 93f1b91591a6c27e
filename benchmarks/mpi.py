"""Lab 01's ring against the library's all-reduce."""

from benchmarks import Pair, benchmark


def _ring_against_gloo(bytes_: int) -> Pair:
    import numpy as np
    import torch
    import torch.distributed as dist

    from parlab.rank import comm, rank, world_size
    from parlab.rank.torch_groups import start
    from parlab_staff.course.references import definitions

    start()
    ring_all_reduce = definitions("01_mpi")["ring_all_reduce"]
    ours = np.full(bytes_ // 4, rank + 1, dtype=np.float32)
    theirs = torch.from_numpy(ours.copy())
    ring_all_reduce(ours, comm)
    gloo = dist.new_group(backend="gloo")  # even if the default group uses NCCL
    dist.all_reduce(theirs, group=gloo)
    assert np.array_equal(ours, theirs.numpy()) and ours[0] == world_size * (world_size + 1) / 2
    # Use zeros, because repeated sums of other numbers would become infinite.
    ours[:] = 0
    theirs.zero_()
    return Pair(
        reference=lambda: ring_all_reduce(ours, comm),
        peer=lambda: dist.all_reduce(theirs, group=gloo),
    )


@benchmark(
    peer="torch.distributed on Gloo",
    work="lab 01's ring_all_reduce of 16 MB of float32 on 2 ranks",
    target=1.0,
    ranks=2,
    calls=3,
)
def ring_all_reduce_16MB() -> Pair:
    return _ring_against_gloo(16 * 2**20)
