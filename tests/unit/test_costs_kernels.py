"""Bytes and arithmetic of kernels, compared with numbers by hand and with PyTorch's operations."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from parlab import reference_tables
from parlab.costs import kernels as costs

H200 = costs.Device("H200", 989.5e12, 4.8e12)


class Moved(TorchDispatchMode):
    """Counts the numbers that each operation reads and writes: each tensor once, no scalars."""

    def __init__(self) -> None:
        super().__init__()
        self.operations: list[tuple[int, int]] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        given = {id(a): a.numel() for a in args if isinstance(a, Tensor) and a.dim()}
        if given and isinstance(result, Tensor):
            self.operations.append((sum(given.values()), result.numel()))
        return result


def moved(run: Callable[[], object]) -> list[tuple[int, int]]:
    with Moved() as record:
        run()
    return record.operations


def listed(operations, numbers: dict[str, int]) -> list[tuple[int, int]]:
    return [
        (sum(numbers[name] for name in of.reads), sum(numbers[name] for name in of.writes))
        for of in operations
    ]


@pytest.mark.parametrize(("optimizer", "first"), [("Adam", ()), ("AdamW", (costs.WEIGHT_DECAY,))])
def test_eager_adam_moves_as_much_as_torchs(optimizer: str, first: tuple) -> None:
    weight = torch.nn.Parameter(torch.randn(7))
    weight.grad = torch.randn(7)
    step = getattr(torch.optim, optimizer)([weight], foreach=False).step
    step()  # the first makes the moments
    right = listed([*first, *costs.EAGER_ADAM], dict.fromkeys("wgmvd", 7))
    assert moved(step) == right


def test_eager_softmax_moves_as_much_as_torchs() -> None:
    x = torch.randn(3, 5)

    def eager() -> Tensor:
        powers = (x - x.amax(1, keepdim=True)).exp()
        return powers / powers.sum(1, keepdim=True)

    sizes = {"x": 15, "shifted": 15, "powers": 15, "y": 15, "highest": 3, "total": 3}
    assert moved(eager) == listed(costs.EAGER_SOFTMAX, sizes)


def test_softmax_follows_the_formula_of_tritons_tutorial() -> None:
    m, n = 4096, 781
    eager = costs.softmax(costs.EAGER_SOFTMAX, m, n)
    assert eager.read == 4 * (5 * m * n + 2 * m)
    assert eager.written == 4 * (3 * m * n + 2 * m)
    fused = costs.softmax(costs.FUSED_SOFTMAX, m, n)
    assert (fused.read, fused.written) == (4 * m * n, 4 * m * n)
    assert eager.flop == fused.flop == 5 * m * n
    half = costs.softmax(costs.FUSED_SOFTMAX, m, n, element_bytes=2)
    assert half.intensity == 2 * fused.intensity


def test_bytes_of_adam() -> None:
    assert costs.adam(costs.EAGER_ADAM).bytes == 72
    assert costs.adam([costs.WEIGHT_DECAY, *costs.EAGER_ADAM]).bytes == 80
    fused = costs.adam(costs.FUSED_ADAM, 1000)
    assert (fused.read, fused.written) == (16_000, 12_000)
    assert fused.intensity == 13 / 28


def test_intensities_by_hand() -> None:
    assert costs.add(10).intensity == 1 / 12
    # Each result takes n multiplications and n additions. The three matrices have 2-byte numbers.
    assert costs.matmul(300, 300, 300).intensity == pytest.approx(300 / 3)
    assert costs.matmul(1, 4096, 4096).intensity == pytest.approx(1, rel=1e-3)


def test_tiles_load_each_matrix_once_for_each_tile_across() -> None:
    one = costs.tiled_matmul(256, 256, 64, (256, 256))
    assert one == costs.matmul(256, 256, 64)
    four = costs.tiled_matmul(256, 256, 64, (128, 128))
    assert four.read == 2 * one.read
    assert four.written == one.written
    # Without the result, the intensity of a tile is mn/(m + n) FLOP a byte, whatever K is.
    deep = costs.tiled_matmul(1024, 1024, 1 << 20, (128, 64))
    assert deep.flop / deep.read == pytest.approx(128 * 64 / (128 + 64))
    edge = costs.tiled_matmul(130, 130, 8, (128, 128))
    assert edge.read == 2 * 8 * (130 * 2 + 130 * 2)


def test_the_roofline_has_its_ridge_where_the_ceilings_meet() -> None:
    assert H200.attainable(H200.ridge) == pytest.approx(H200.flop_per_second)
    assert H200.attainable(H200.ridge / 2) == pytest.approx(H200.flop_per_second / 2)
    assert H200.attainable(10 * H200.ridge) == H200.flop_per_second
    for of in (costs.add(1e9), costs.matmul(8192, 8192, 8192)):
        assert of.flop / H200.seconds(of) == pytest.approx(H200.attainable(of.intensity))
    assert costs.launch_bound_below(5e-6, H200) == pytest.approx(24e6)


def test_programs_cover_all_numbers() -> None:
    assert [costs.programs(n, 8) for n in (0, 1, 8, 9, 30)] == [0, 1, 1, 2, 4]
    with pytest.raises(ValueError, match="power of two of numbers, not 12"):
        costs.programs(30, 12)


def test_registers_and_warps_limit_the_programs_of_a_multiprocessor() -> None:
    assert costs.programs_at_once(23, 4) == 16  # 64 warps
    assert costs.programs_at_once(94, 4) == 5  # 96 registers of 128 threads
    assert costs.programs_at_once(255, 8) == 1
    assert costs.programs_at_once(64, 32) == 1
    assert costs.programs_at_once(16, 1) == 32


def test_sectors_that_a_warp_touches() -> None:
    assert [costs.sectors(stride) for stride in (0, 1, 2, 4, 8, 1000)] == [1, 4, 8, 16, 32, 32]
    assert costs.sectors(1, start=4) == 5  # not aligned
    assert costs.sectors(1, element_bytes=2) == 2
    assert costs.load_efficiency(1) == 1
    assert costs.load_efficiency(8) == 1 / 8
    assert costs.load_efficiency(1, start=4) == pytest.approx(4 / 5)
    with pytest.raises(ValueError, match="stride of -1"):
        costs.sectors(-1)


@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
def test_stages_overlap_loads_until_arithmetic_is_the_limit(stages: int) -> None:
    load, compute = 5.0, 2.0
    loads, computes = costs.staged(100, load, compute, stages)
    assert loads[0] == (0, load)
    for step, ((_, arrived), (begun, ended)) in enumerate(zip(loads, computes, strict=True)):
        assert begun >= arrived
        assert ended == begun + compute
        if step >= stages:
            assert loads[step][0] == computes[step - stages][1]  # its buffer is free
    taken = computes[90][1] - computes[20][1]
    assert taken == pytest.approx(70 * max(compute, (load + compute) / stages), rel=0.05)
    with pytest.raises(ValueError, match="at least one stage, not 0"):
        costs.staged(1, load, compute, 0)


def test_grouped_tiles_load_54_blocks_and_rows_90() -> None:
    """The example of Triton's tutorial: nine tiles of a result, matrices of 9 by 9 blocks."""
    assert costs.blocks_loaded(costs.row_major(9, 9)[:9], 9) == 90
    assert costs.blocks_loaded(costs.grouped(9, 9, 3)[:9], 9) == 54


@pytest.mark.parametrize("group", [1, 2, 3, 5, 8])
def test_every_order_takes_each_tile_once(group: int) -> None:
    order = costs.grouped(5, 4, group)
    assert sorted(order) == costs.row_major(5, 4)
    if group == 1:
        assert order == costs.row_major(5, 4)
    else:
        assert order[:2] == [(0, 0), (1, 0)]


def test_an_empty_group_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one row, not 0"):
        costs.grouped(3, 3, 0)


def test_data_sheets_have_the_ceilings_that_the_papers_print() -> None:
    rows = {row["device"]: row for row in reference_tables.load("gpu_datasheets").rows}
    assert rows["A100 (40 GB)"]["bf16_tflops"] == 16 * rows["A100 (40 GB)"]["fp32_tflops"]
    # H200 is H100 with another memory.
    apart = {"device", "memory_gb", "bandwidth_tb", "citation"}
    one, other = ({k: v for k, v in rows[d].items() if k not in apart} for d in list(rows)[1:])
    assert one == other
