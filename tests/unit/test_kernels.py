"""Instruments for kernels: launches, guards, loads and stores, bfloat16."""

import pytest
import torch
import triton
import triton.language as tl

from parlab.kernels import INTERPRETED
from parlab.kernels.accesses import recorded
from parlab.kernels.buffers import GUARD, Arena
from parlab.kernels.launches import Launch, launches
from parlab.kernels.simulated_gpu import SimulatedGPU
from parlab.kernels.tables import chunk_table, to_device
from parlab.kernels.traffic import traffic

DEVICE = "cpu" if INTERPRETED else "cuda"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="a GPU tells no addresses")


@triton.jit
def copy(source, target, n, first, BLOCK: tl.constexpr):
    place = first + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    number = tl.load(source + place, mask=place < n).to(tl.float32)
    tl.store(target + place, number, mask=place < n)


@triton.jit
def copy_by_address(table, target, n, BLOCK: tl.constexpr):
    source = tl.load(table).to(tl.pointer_type(tl.float32))
    place = tl.arange(0, BLOCK)
    tl.store(target + place, tl.load(source + place, mask=place < n), mask=place < n)


@triton.jit
def doubled(x, n, BLOCK: tl.constexpr = 32):
    place = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + place, 2 * tl.load(x + place, mask=place < n), mask=place < n)


@triton.jit
def through_descriptor(x, count):
    whole = tl.make_tensor_descriptor(x, shape=[4, 16], strides=[16, 1], block_shape=[4, 16])
    whole.store([0, 0], 2 * whole.load([0, 0]))
    tl.atomic_cas(count, 0, 1)


@triton.jit
def swapped(count, distance):
    tl.atomic_cas(count + distance, 0, 1)


@triton.jit
def total(x, y, out, n, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    a, b = tl.load(x + place, mask=place < n, other=0), tl.load(y + place, mask=place < n, other=0)
    tl.store(out, tl.sum((a * b).to(tl.float32), axis=0))


def test_launches_are_counted_with_their_programs() -> None:
    x = torch.randn(100, device=DEVICE)
    with launches() as made:
        copy[(4,)](x, torch.empty_like(x), 100, 0, BLOCK=32)
        copy[lambda meta: (triton.cdiv(100, meta["BLOCK"]), 1)](x, x, 100, 0, BLOCK=64)
        copy.warmup(x, x, 100, 0, BLOCK=64, grid=(4,))  # compiles it, and launches nothing
    copy[(1,)](x, x, 100, 0, BLOCK=128)
    assert [(one.kernel, one.grid, one.programs) for one in made] == [
        ("copy", (4,), 4),
        ("copy", (2, 1), 2),
    ]
    assert Launch("matmul", (2, 3)).programs == 6


def test_a_grid_gets_the_defaults_of_the_kernel() -> None:
    x = torch.randn(100, device=DEVICE)
    with launches() as made:
        doubled[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, 100)
    assert [one.grid for one in made] == [(4,)]


@interpreted
def test_descriptors_and_swaps_are_recorded() -> None:
    arena = Arena()
    x, count = arena.place("x", torch.randn(4, 16)), arena.place("count", torch.zeros(1).int())
    with recorded(arena) as accesses:
        through_descriptor[(1,)](x, count)
    assert accesses.outside is None and int(count) == 1
    with recorded(arena) as accesses:
        swapped[(1,)](count, 10**9)
    assert accesses.outside is not None and accesses.outside.stores


def test_traffic_counts_operations_but_no_views() -> None:
    x = torch.ones(6, 4, device=DEVICE)
    with traffic() as moved:
        x.view(4, 6).t().exp()
    assert (moved.operations, moved.bytes) == (1, 2 * x.nbytes)


@interpreted
def test_accesses_inside_are_counted_in_bytes_and_elements() -> None:
    arena = Arena()
    x, y = arena.place("x", torch.randn(40)), torch.empty(40)
    with recorded(arena) as accesses:
        copy[(1,)](x, y, 30, 0, BLOCK=32)
    assert (accesses.loaded, accesses.stored, accesses.outside) == (120, 120, None)
    assert accesses.stored_in(y).tolist() == [i < 30 for i in range(40)]
    assert accesses.loaded_from(x).sum() == 30
    assert accesses.stored_twice() == 0


@interpreted
@pytest.mark.parametrize(
    ("n", "first", "buffer", "distance"), [(41, 0, "x", 40), (40, -1, "x", -1), (64, 0, "x", 40)]
)
def test_a_load_outside_is_recorded_and_not_carried_out(n, first, buffer, distance) -> None:
    arena = Arena()
    x, y = arena.place("x", torch.randn(40)), arena.place("y", torch.zeros(40))
    with recorded(arena) as accesses:
        copy[(2,)](x, y, n, first, BLOCK=32)
    assert (accesses.outside.stores, accesses.outside.buffer) == (False, buffer)
    assert accesses.outside.distance == distance
    assert arena.overwritten() is None


@triton.jit
def sum_of_all(x, out, n, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    place = tl.arange(0, BLOCK)
    if OTHER:
        numbers = tl.load(x + place, mask=place < n, other=0)
    else:
        numbers = tl.load(x + place, mask=place < n)
    tl.store(out, tl.sum(numbers.to(tl.float32), axis=0))


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_masked_elements_are_nan_without_other(dtype: torch.dtype) -> None:
    x, out = torch.ones(30).to(dtype), torch.zeros(1)
    for other, n, undefined in [(True, 30, False), (False, 32, False), (False, 30, True)]:
        undefined = undefined and dtype.is_floating_point
        with recorded(Arena()) as accesses:
            sum_of_all[(1,)](torch.ones(32).to(dtype) if n == 32 else x, out, n, other, BLOCK=32)
        assert (bool(out.isnan()), accesses.undefined) == (undefined, undefined)
        assert undefined or out.item() == n


@interpreted
def test_gaps_between_rows_are_outside() -> None:
    arena = Arena()
    x = arena.place("x", torch.randn(3, 5), strides=(8, 1))
    with recorded(arena) as accesses:
        copy[(1,)](x, torch.empty(16), 6, 0, BLOCK=8)
    assert (accesses.outside.distance, accesses.outside.count) == (5, 1)


@interpreted
def test_memory_of_all_living_tensors_is_inside_and_freed_memory_is_not() -> None:
    arena = Arena()
    hidden, out = torch.randn(8), torch.empty(8)
    table = torch.tensor([hidden.data_ptr()])
    with recorded(arena) as accesses:
        copy_by_address[(1,)](table, out, 8, BLOCK=8)
    assert accesses.outside is None and torch.equal(out, hidden)
    del hidden
    with recorded(arena) as accesses:
        copy_by_address[(1,)](table, out, 8, BLOCK=8)
    assert accesses.outside is not None and accesses.outside.buffer is None


@interpreted
def test_two_programs_that_store_the_same_element_are_recorded() -> None:
    y = torch.empty(8)
    with recorded(Arena()) as accesses:
        copy[(3,)](torch.randn(8), y, 8, 0, BLOCK=4)
        copy[(2,)](torch.randn(8), y, 8, 0, BLOCK=4)
    assert accesses.stored_twice() == 0
    with recorded(Arena()) as accesses:
        total[(2,)](y, y, y, 8, BLOCK=8)
    assert accesses.stored_twice() == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize("strides", [None, (16, 2)])
def test_a_changed_guard_is_reported(dtype, strides) -> None:
    arena = Arena(DEVICE)
    values = torch.arange(15).view(3, 5).to(dtype)
    x = arena.place("x", values, strides)
    assert torch.equal(x.cpu(), values) and arena.overwritten() is None
    x.mul_(2)
    assert arena.overwritten() is None
    arena.buffers[0].whole[GUARD - 1] = 1
    assert arena.overwritten() == ("x", -1)


def test_bfloat16_is_rounded_to_the_nearest_and_widened() -> None:
    numbers = torch.randn(2048) * torch.exp2(torch.randint(-30, 30, (2048,)))
    numbers[:6] = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 0.0, -0.0, float("inf"), 3.3999e38])
    x, y = numbers.to(DEVICE), torch.empty(2048, dtype=torch.bfloat16, device=DEVICE)
    copy[(1,)](x, y, 2048, 0, BLOCK=2048)
    assert torch.equal(y.cpu(), numbers.bfloat16())
    z = torch.empty(2048, device=DEVICE)
    copy[(1,)](y, z, 2048, 0, BLOCK=2048)
    assert torch.equal(z.cpu(), numbers.bfloat16().float())


def test_bfloat16_arithmetic_uses_the_numbers_not_their_bits() -> None:
    x, y = torch.randn(2, 32, device=DEVICE).bfloat16()
    out = torch.empty(1, device=DEVICE)
    total[(1,)](x, y, out, 32, BLOCK=32)
    right = (x * y).float().sum()
    assert abs(out.item() - right.item()) < 1e-2


@triton.jit
def product(a, b, c, N: tl.constexpr):
    rows, columns = tl.arange(0, N)[:, None], tl.arange(0, N)[None, :]
    place = rows * N + columns
    tl.store(c + place, tl.dot(tl.load(a + place), tl.load(b + place)))


def test_dot_of_bfloat16() -> None:
    a, b = torch.randn(2, 16, 16, device=DEVICE).bfloat16()
    c = torch.empty(16, 16, device=DEVICE)
    product[(1,)](a, b, c, N=16)
    assert torch.allclose(c.cpu(), a.float().cpu() @ b.float().cpu(), atol=1e-4)


def test_a_chunk_table_covers_every_tensor() -> None:
    table = chunk_table((1, 8, 9), 4, torch.device(DEVICE))
    assert table.tolist() == [[0, 0], [1, 0], [1, 4], [2, 0], [2, 4], [2, 8]]
    assert table.dtype == torch.int64
    assert to_device(table.cpu(), torch.device(DEVICE)).tolist() == table.tolist()


@interpreted
def test_a_changed_table_is_not_reused() -> None:
    chunk_table((5,), 4, torch.device("cpu")).zero_()
    assert chunk_table((5,), 4, torch.device("cpu")).tolist() == [[0, 0], [0, 4]]


def test_a_simulated_gpu_works_after_a_launch_returns() -> None:
    gpu = SimulatedGPU(interrupted=[3], slower=0.1)
    step = gpu.optimizer("Adam", seconds=1.0, first=9.0)(gpu.make_parameters())
    gpu.synchronize()
    times = []
    for _ in range(3):
        start = gpu.clock()
        step()
        assert gpu.clock() - start < 1e-3
        gpu.synchronize()
        times.append(gpu.clock() - start)
    # The first step takes 10 s. After that, the GPU is twice as slow, and then slightly slower.
    assert times == pytest.approx([10.0, 2.0, 9 * 2.2], rel=1e-3)
    assert [event.busy for event in gpu.events if event.kind == "step"] == 3 * [True]
    assert [event.busy for event in gpu.events if event.kind == "synchronize"] == 4 * [False]
