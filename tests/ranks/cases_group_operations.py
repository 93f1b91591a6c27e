"""Every operation of the mpi4py group against Gloo, on the same tensors."""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from tests.ranks.cases_group_reductions import COMPLEX, DTYPES, numbers
from tests.support.on_ranks import Cases, World

cases = Cases()

# Makes a tensor of a shape, from a seed that is different for each rank and tensor.
Make = Callable[..., torch.Tensor]


def gapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values with a gap after each element in memory."""
    wide = tensor.new_zeros(*tensor.shape, 2)
    wide[..., 0] = tensor
    return wide[..., 0]


def turned(tensor: torch.Tensor) -> torch.Tensor:
    """Return the same values, stored column by column."""
    return tensor.t().contiguous().t() if tensor.dim() == 2 else gapped(tensor)


# All operations. Each makes tensors with `make(seed, *shape)`, and returns the tensors it fills.


def run_all_reduce(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    x = make(rank, 4, 3)
    dist.all_reduce(x, group=group)
    return [x]


def run_all_reduce_coalesced(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    tensors = [make(rank, 4, 3), make(rank + 10, 5), make(rank + 20, 1)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_reduce_coalesced(tensors, group=group)
    return tensors


def run_broadcast(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    x = make(rank, 4, 3)
    dist.broadcast(x, src=size - 1, group=group)
    return [x]


def run_reduce(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    x = make(rank, 4, 3)
    dist.reduce(x, dst=size - 1, group=group)
    return [x] if rank == size - 1 else []


def run_all_gather(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    outputs = [make(90 + r, 4, 3) for r in range(size)]
    dist.all_gather(outputs, make(rank, 4, 3), group=group)
    return outputs


def run_all_gather_single(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    x = make(90, size * 4, 3)
    dist.all_gather_single(x, make(rank, 4, 3), group=group)
    return [x]


def run_all_gather_in_place(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    x = make(90, size * 4, 3)
    own = x.chunk(size)[rank]
    own.copy_(make(rank, 4, 3))
    dist.all_gather_single(x, own, group=group)
    return [x]


def run_all_gather_coalesced(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    outputs = [[make(90, 4, 3), make(91, 5)] for _ in range(size)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dist.all_gather_coalesced(outputs, [make(rank, 4, 3), make(rank, 5)], group=group)
    return [tensor for tensors in outputs for tensor in tensors]


def run_gather(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    outputs = [make(90 + r, 4, 3) for r in range(size)] if rank == 0 else None
    dist.gather(make(rank, 4, 3), outputs, dst=0, group=group)
    return outputs or []


def run_scatter(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    x = make(90, 4, 3)
    inputs = [make(r, 4, 3) for r in range(size)] if rank == size - 1 else None
    dist.scatter(x, inputs, src=size - 1, group=group)
    return [x]


def run_reduce_scatter(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    x = make(90, 4, 3)
    dist.reduce_scatter(x, [make(rank + 10 * r, 4, 3) for r in range(size)], group=group)
    return [x]


def run_reduce_scatter_single(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    x = make(90, 4, 3)
    dist.reduce_scatter_single(x, make(rank, size * 4, 3), group=group)
    return [x]


def run_all_to_all_single(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    even, uneven = make(90, size * 2, 3), make(91, sum(range(1, size + 1)), 3)
    dist.all_to_all_single(even, make(rank, size * 2, 3), group=group)
    # Rank r sends r + 1 rows to each rank, so every rank receives 1, 2, … rows.
    dist.all_to_all_single(
        uneven,
        make(rank, size * (rank + 1), 3),
        output_split_sizes=list(range(1, size + 1)),
        input_split_sizes=[rank + 1] * size,
        group=group,
    )
    return [even, uneven]


def run_send_recv(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    x = make(90, 4, 3)
    sent = dist.isend(make(rank, 4, 3), (rank + 1) % size, group=group)
    dist.recv(x, (rank - 1) % size, group=group)
    sent.wait()
    return [x]


def run_batch(group: Any, rank: int, size: int, make: Make) -> list[torch.Tensor]:
    received = [make(90, 4, 3), make(91, 4, 3)]
    right, left = (rank + 1) % size, (rank - 1) % size
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, received[0], left, group=group, tag=1),
            dist.P2POp(dist.isend, make(rank, 4, 3), right, group=group, tag=1),
            dist.P2POp(dist.irecv, received[1], right, group=group, tag=2),
            dist.P2POp(dist.isend, make(rank + 10, 4, 3), left, group=group, tag=2),
        ]
    )
    for work in works:
        work.wait()
    return received


RUNS = [
    run_all_reduce,
    run_all_reduce_coalesced,
    run_broadcast,
    run_reduce,
    run_all_gather,
    run_all_gather_single,
    run_all_gather_in_place,
    run_all_gather_coalesced,
    run_gather,
    run_scatter,
    run_reduce_scatter,
    run_reduce_scatter_single,
    run_all_to_all_single,
    run_send_recv,
    run_batch,
]
ADDING = [run for run in RUNS if "reduce" in run.__name__]


def same_as_gloo(world: World, run: Callable, ours: Make, theirs: Make) -> None:
    got = run(world.group, world.rank, world.size, ours)
    right = run(None, world.rank, world.size, theirs)
    for own_rows, gloos in zip(got, right, strict=True):
        assert own_rows.shape == gloos.shape
        assert torch.equal(own_rows, gloos.to(own_rows.dtype)), (own_rows, gloos)


@cases.add(run=RUNS, dtype=DTYPES)
def as_gloo(world: World, run: Callable, dtype: torch.dtype) -> None:
    if dtype is torch.bool and run in ADDING:
        return  # Gloo adds the bytes of bools; ours are tested above
    if run in (run_reduce, run_gather) and dtype.is_complex:
        return  # Gloo does not take them; ours are tested below

    # Gloo has no int16. Its values fit in 32 bits as well.
    gloos = torch.int32 if dtype is torch.int16 else dtype
    same_as_gloo(
        world,
        run,
        lambda seed, *shape: numbers(dtype, seed, *shape),
        lambda seed, *shape: numbers(gloos, seed, *shape),
    )


@cases.add(run=RUNS, layout=[gapped, turned])
def not_contiguous(world: World, run: Callable, layout: Callable) -> None:
    def make(seed: int, *shape: int) -> torch.Tensor:
        return layout(numbers(torch.float32, seed, *shape))

    same_as_gloo(world, run, make, lambda seed, *shape: numbers(torch.float32, seed, *shape))


@cases.add(run=RUNS)
def empty(world: World, run: Callable) -> None:
    def make(seed: int, *shape: int) -> torch.Tensor:
        return torch.empty(shape[0], 0)

    for tensor in run(world.group, world.rank, world.size, make):
        assert tensor.numel() == 0


@cases.add(dtype=[torch.float32, torch.bfloat16, torch.int64, torch.bool])
def without_dimensions(world: World, dtype: torch.dtype) -> None:
    one = torch.tensor(1, dtype=dtype)
    dist.all_reduce(one, group=world.group)
    assert one.item() == (True if dtype is torch.bool else world.size)
    root = torch.tensor(world.rank, dtype=dtype)
    dist.broadcast(root, 0, group=world.group)
    assert root.item() == 0
    gathered = [torch.tensor(0, dtype=dtype) for _ in range(world.size)]
    dist.all_gather(gathered, torch.tensor(world.rank % 2, dtype=dtype), group=world.group)
    assert [int(t) for t in gathered] == [r % 2 for r in range(world.size)]


@cases.add()
def all_to_all_of_tensors_of_any_size(world: World) -> None:
    """Gloo does not support it. Rank r sends r + s elements of value 10 r + s to rank s."""
    sent = [torch.full((world.rank + s,), 10.0 * world.rank + s) for s in range(world.size)]
    received = [torch.empty(r + world.rank) for r in range(world.size)]
    dist.all_to_all(received, sent, group=world.group)
    for r, tensor in enumerate(received):
        assert torch.equal(tensor, torch.full((r + world.rank,), 10.0 * r + world.rank))


@cases.add()
def chunks_of_one_buffer_are_not_copied(world: World) -> None:
    from parlab.runtime.torch_mpi.buffers import flat, room_for

    whole = torch.zeros(world.size, 4)
    chunks = list(whole.unbind())
    assert flat(chunks).data_ptr() == room_for(chunks).data_ptr() == whole.data_ptr()
    apart = [chunks[1], chunks[0], *chunks[2:]]
    assert flat(apart).data_ptr() != apart[0].data_ptr()
    assert flat([whole[0, :2], whole[1, 2:]]).tolist() == [0.0] * 4
    dist.all_gather(chunks, torch.full((4,), float(world.rank)), group=world.group)
    assert whole[:, 0].tolist() == [float(r) for r in range(world.size)]
    dist.all_gather(apart, torch.full((4,), float(world.rank)), group=world.group)
    assert whole[:2, 0].tolist() == [1.0, 0.0]
    part = torch.empty(4)
    dist.reduce_scatter(part, chunks, group=world.group)
    assert part[0] == world.size * whole[world.rank, 0]
    separate = [torch.zeros(4) for _ in chunks]  # perhaps adjacent, but of different storages
    dist.all_gather(separate, torch.full((4,), float(world.rank)), group=world.group)
    assert [t[0].item() for t in separate] == [float(r) for r in range(world.size)]


@cases.add()
def uneven_sizes(world: World) -> None:
    own_rows = torch.full((world.rank + 1,), float(world.rank))
    outputs = [torch.empty(r + 1) for r in range(world.size)]
    dist.all_gather(outputs, own_rows, group=world.group)
    for r, tensor in enumerate(outputs):
        assert torch.equal(tensor, torch.full((r + 1,), float(r)))
    part = torch.empty(world.rank + 1)
    dist.reduce_scatter(part, [torch.full((r + 1,), r + 1.0) for r in range(world.size)],
                        group=world.group)  # fmt: skip
    assert torch.equal(part, torch.full((world.rank + 1,), (world.rank + 1.0) * world.size))


@cases.add(dtype=COMPLEX)
def complex_where_gloo_has_none(world: World, dtype: torch.dtype) -> None:
    root, everyone = world.size - 1, [numbers(dtype, r, 4, 3) for r in range(world.size)]
    outputs = [torch.empty(4, 3, dtype=dtype) for _ in everyone] if world.rank == root else None
    # Conjugating only sets a flag on the tensor. Its memory does not change.
    dist.gather(everyone[world.rank].conj(), outputs, dst=root, group=world.group)
    for got, sent in zip(outputs or [], everyone, strict=False):
        assert torch.equal(got, sent.conj())
    total = everyone[world.rank].clone()
    dist.reduce(total, dst=root, group=world.group)
    assert torch.equal(total, sum(everyone) if world.rank == root else everyone[world.rank])


@cases.add()
def all_gather_of_rows(world: World) -> None:
    stacked = torch.empty(world.size, 5)
    dist.all_gather_single(stacked, torch.full((5,), float(world.rank)), group=world.group)
    assert stacked[:, 0].tolist() == [float(r) for r in range(world.size)]
    assert torch.equal(stacked, stacked[:, :1].expand(-1, 5))
