"""Reductions of every dtype by the mpi4py group, compared with one rank's result and with Gloo."""

from typing import Any

import torch
import torch.distributed as dist

from tests.support.on_ranks import Cases, World, expecting

cases = Cases()

FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
INTEGERS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8]
COMPLEX = [torch.complex64, torch.complex128]
DTYPES = [*FLOATS, *INTEGERS, torch.bool, *COMPLEX]
OPS = ["SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"]


def numbers(dtype: torch.dtype, seed: int, *shape: int) -> torch.Tensor:
    """Return small integers, whose sums and products of four are exact in every dtype."""
    drawn = torch.randint(0, 4, shape, generator=torch.Generator().manual_seed(seed))
    if dtype.is_complex:
        return torch.complex(drawn.double(), drawn.flip(0).double() + 1).to(dtype)
    return drawn.to(dtype)


def expected(op: str, tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """Return the reduction of all ranks' tensors, computed on one rank, or None if undefined."""
    dtype = tensors[0].dtype
    bitwise = {"BAND": torch.bitwise_and, "BOR": torch.bitwise_or, "BXOR": torch.bitwise_xor}
    if dtype is torch.bool:
        op = {"SUM": "BOR", "MAX": "BOR", "PRODUCT": "BAND", "MIN": "BAND"}.get(op, op)
        if op == "AVG":
            return None
    if op in bitwise:
        if dtype.is_floating_point or dtype.is_complex:
            return None
        result = tensors[0]
        for tensor in tensors[1:]:
            result = bitwise[op](result, tensor)
        return result
    if op in ("MIN", "MAX", "PRODUCT") and dtype.is_complex:
        return None
    stacked = torch.stack(tensors)
    if op in ("MIN", "MAX"):
        return getattr(stacked, f"a{op.lower()}")(0)
    if op == "PRODUCT":
        return stacked.prod(0, dtype=dtype)
    total = stacked.sum(0, dtype=dtype)
    if op == "AVG":
        whole = not (dtype.is_floating_point or dtype.is_complex)
        return total.div(len(tensors), rounding_mode="trunc" if whole else None).to(dtype)
    return total


@cases.add(dtype=DTYPES, op=OPS)
def all_reduce(world: World, dtype: torch.dtype, op: str) -> None:
    tensors = [numbers(dtype, r, 5, 3) for r in range(world.size)]
    right = expected(op, tensors)
    reduce_op = getattr(dist.ReduceOp, op)
    ours = tensors[world.rank].clone()
    if right is None:
        with expecting(ValueError):
            dist.all_reduce(ours, reduce_op, group=world.group)
        return
    dist.all_reduce(ours, reduce_op, group=world.group)
    if op == "AVG":  # a third is rounded, perhaps differently
        torch.testing.assert_close(ours, right)
    else:
        assert torch.equal(ours, right), (ours, right)
    compare_with_gloo(world, ours, tensors[world.rank], reduce_op)


def compare_with_gloo(world: World, ours: torch.Tensor, given: torch.Tensor, op: Any) -> None:
    theirs = given.clone()
    try:
        dist.all_reduce(theirs, op)
    except (RuntimeError, ValueError):  # Gloo does not support this operation, on any rank
        return
    if given.dtype is torch.bool:
        return  # Gloo adds bytes: 1 + 1 is a "bool" of 2
    torch.testing.assert_close(ours, theirs)


@cases.add(dtype=[torch.uint16, torch.uint32, torch.uint64])
def all_reduce_of_unsigned(world: World, dtype: torch.dtype) -> None:
    tensor = torch.tensor([1, 2, world.rank], dtype=torch.int64).to(dtype)
    dist.all_reduce(tensor, group=world.group)
    total = world.size * (world.size - 1) // 2
    assert tensor.tolist() == [world.size, 2 * world.size, total]


@cases.add(dtype=FLOATS, factor=[0.5, torch.tensor(3.0)])
def premul_sum(world: World, dtype: torch.dtype, factor: float | torch.Tensor) -> None:
    op = dist._make_nccl_premul_sum(factor)
    tensors = [numbers(dtype, r, 7) for r in range(world.size)]
    right = sum(t.float() * factor for t in tensors).to(dtype)
    ours = tensors[world.rank].clone()
    dist.all_reduce(ours, op, group=world.group)
    assert torch.equal(ours, right)
    ours = tensors[world.rank].clone()
    dist.reduce(ours, 0, op, group=world.group)
    assert torch.equal(ours, tensors[world.rank] if world.rank else right)
    whole = torch.stack([t.repeat(world.size) for t in tensors])[world.rank]
    kept, part = whole.clone(), torch.empty(7, dtype=dtype)
    dist.reduce_scatter_single(part, whole, op, group=world.group)
    assert torch.equal(part, right)
    assert torch.equal(whole, kept), "the input has changed"


@cases.add(dtype=[torch.float16, torch.bfloat16])
def sixteen_bits_are_added_in_float32(world: World, dtype: torch.dtype) -> None:
    """In float16, 2048 + 1 is 2048. In bfloat16, 256 + 1 is 256."""
    big = 2048.0 if dtype is torch.float16 else 256.0
    tensor = torch.tensor([big if world.rank == 0 else 1.0], dtype=dtype)
    dist.all_reduce(tensor, group=world.group)
    assert tensor.item() == torch.tensor(big + world.size - 1).to(dtype).item()


@cases.add(dtype=FLOATS)
def reduce_scatter_into_its_own_input(world: World, dtype: torch.dtype) -> None:
    whole = torch.cat([numbers(dtype, world.rank + r, 7) for r in range(world.size)])
    parts = [numbers(dtype, r + world.rank, 7).float() for r in range(world.size)]
    part = whole.chunk(world.size)[world.rank]
    dist.reduce_scatter_single(part, whole, group=world.group)
    assert torch.equal(part, sum(parts).to(dtype))
