"""Lab 09's pairwise all-to-all against the library's."""

from benchmarks import Pair, benchmark


def _pairwise_against_gloo(bytes_: int) -> Pair:
    import numpy as np
    import torch
    import torch.distributed as dist

    from parlab.rank import comm, rank, world_size
    from parlab.rank.torch_groups import start
    from parlab_staff.course.references import definitions

    start()
    pairwise_all_to_all = definitions("09_all_to_all")["pairwise_all_to_all"]
    shape = (world_size, bytes_ // 4 // world_size)
    ours = np.arange(shape[0] * shape[1], dtype=np.float32).reshape(shape) + rank
    theirs, received = torch.from_numpy(ours), torch.empty(shape)
    gloo = dist.new_group(backend="gloo")  # even if the default group uses NCCL
    dist.all_to_all_single(received, theirs, group=gloo)
    assert np.array_equal(pairwise_all_to_all(ours, comm), received.numpy())
    return Pair(
        reference=lambda: pairwise_all_to_all(ours, comm),
        peer=lambda: dist.all_to_all_single(received, theirs, group=gloo),
    )


@benchmark(
    peer="torch.distributed on Gloo",
    work="lab 09's pairwise_all_to_all of 1 kB of float32 on 4 ranks",
    target=1.0,
    ranks=4,
    calls=20,
)
def pairwise_all_to_all_1kB() -> Pair:
    return _pairwise_against_gloo(1024)


@benchmark(
    peer="torch.distributed on Gloo",
    work="lab 09's pairwise_all_to_all of 16 MB of float32 on 4 ranks",
    target=1.0,
    ranks=4,
    calls=3,
)
def pairwise_all_to_all_16MB() -> Pair:
    return _pairwise_against_gloo(16 * 2**20)
