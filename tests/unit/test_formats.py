"""Number formats, compared with torch: sizes, all numbers of 8 and 16 bits, and rounding."""

import itertools
import math

import pytest
import torch

from parlab.costs import mixed_precision as costs
from parlab.formats import BF16, E4M3, E5M2, FORMATS, FP16, FP32, TF32, Format
from parlab.formats.measured import (
    accurate_sizes,
    lost_updates,
    mean_over_ranks,
    relative_error,
    scaled,
)

DTYPES = {
    FP32: torch.float32,
    FP16: torch.float16,
    BF16: torch.bfloat16,
    E4M3: torch.float8_e4m3fn,
    E5M2: torch.float8_e5m2,
}
SMALL = [of for of in DTYPES if of.bits <= 16]
HALVES = [FP16, BF16]
by_name = pytest.mark.parametrize("of", DTYPES, ids=lambda of: of.name)


def all_numbers(of: Format) -> torch.Tensor:
    """Return the number for each bit pattern of a format, in float64."""
    integers = torch.arange(2**of.bits, dtype=torch.int32)
    integers = integers.to(torch.uint8) if of.bits == 8 else integers.to(torch.int16)
    return integers.view(DTYPES[of]).double()


@by_name
def test_sizes_are_those_of_torch(of: Format) -> None:
    known = torch.finfo(DTYPES[of])
    assert (of.bits, of.largest, of.smallest_normal, of.epsilon) == (
        known.bits, known.max, known.smallest_normal, known.eps,
    )  # fmt: skip


@pytest.mark.parametrize("of", SMALL, ids=lambda of: of.name)
def test_every_number_is_a_spacing_from_the_next(of: Format) -> None:
    """The numbers from zero to the largest have no gaps, so the format has no others."""
    found = all_numbers(of)
    positive = sorted(set(found[found.isfinite() & (found >= 0)].tolist()))
    assert positive[1] == of.smallest_subnormal
    assert positive[-1] == of.largest
    for low, high in itertools.pairwise(positive):
        assert low + of.spacing(low) == high == low + of.spacing(-low)


def test_e4m3_has_no_infinity_and_one_nan_for_each_sign() -> None:
    numbers = all_numbers(E4M3)
    assert numbers.isinf().sum() == 0
    assert numbers.isnan().sum() == 2
    assert all_numbers(E5M2).isinf().sum() == 2
    assert all_numbers(E5M2).isnan().sum() == 6


def test_tf32_has_the_range_of_one_and_the_steps_of_the_other() -> None:
    assert TF32.bits == 19
    assert TF32.smallest_normal == BF16.smallest_normal == FP32.smallest_normal
    assert TF32.epsilon == FP16.epsilon
    assert TF32.largest == (2 - 2.0**-10) * 2.0**127


@pytest.mark.parametrize("of", FORMATS, ids=lambda of: of.name)
def test_there_is_no_spacing_beyond_the_largest(of: Format) -> None:
    for x in (2 * of.largest, math.inf, -math.inf, math.nan):
        with pytest.raises(ValueError, match="ends at"):
            of.spacing(x)


def test_updates_vanish_below_the_papers_limit_and_not_above() -> None:
    for of in HALVES:
        dtype, limit = DTYPES[of], of.epsilon / 2
        assert lost_updates(dtype, limit / 2) == 1
        assert 0 < lost_updates(dtype, limit / 1.5) < 1
        assert lost_updates(dtype, 1.01 * limit) == 0
        # At the limit, only 1 does not change, and only for positive updates, which are a tie.
        assert lost_updates(dtype, limit) == of.epsilon / 2
        assert costs.largest_lost_update(of, 1.0) == limit


@pytest.mark.parametrize("of", HALVES, ids=lambda of: of.name)
@pytest.mark.parametrize("ranks", [2, 8, 64, 512])
def test_the_error_of_a_sum_follows_the_formula(of: Format, ranks: int) -> None:
    draw = torch.Generator().manual_seed(ranks)
    values = torch.randn(ranks, 4096, generator=draw)
    means = [mean_over_ranks(values, DTYPES[of], divide_before=first) for first in (ranks, 1)]
    error = relative_error(means[0], values.double().mean(0))
    assert error == pytest.approx(costs.sum_error(of, ranks), rel=0.15)
    assert relative_error(means[1], values.double().mean(0)) == pytest.approx(error, rel=0.01)


def test_before_and_after_differ_at_the_ends_of_the_range() -> None:
    ones = torch.ones(256, 8)
    large, small = 1024 * ones, 2.0**-22 * ones
    assert mean_over_ranks(large, torch.float16, divide_before=1).isinf().all()
    assert (mean_over_ranks(large, torch.float16, divide_before=256) == 1024).all()
    assert (mean_over_ranks(small, torch.float16, divide_before=256) == 0).all()
    assert (mean_over_ranks(small, torch.float16, divide_before=1) == 2.0**-22).all()
    infinite = mean_over_ranks(torch.tensor([[1e5], [-1e5]]), torch.float16, divide_before=2)
    assert relative_error(infinite, torch.ones(1)) == math.inf


@pytest.mark.parametrize("equal", [True, False])
@pytest.mark.parametrize("divide_before", [1, 8, 64])
def test_a_reduction_is_accurate_in_the_window_of_the_formula(
    equal: bool, divide_before: int
) -> None:
    ranks = 64
    values = torch.randn(ranks, 1024, generator=torch.Generator().manual_seed(3))
    reduced = values[:1].expand(ranks, -1) if equal else values
    scales = [2.0 ** (quarter / 4) for quarter in range(-100, 68)]
    limits = accurate_sizes(values[:1], torch.float16, scales, divide_before=1)
    window = costs.reduction_window(*limits, ranks, divide_before, equal=equal)
    found = accurate_sizes(reduced, torch.float16, scales, divide_before=divide_before)
    for right, end in zip(window, found, strict=True):
        assert abs(math.log2(end / right)) <= 0.75  # powers of two


def test_no_size_is_accurate_enough() -> None:
    with pytest.raises(ValueError, match="below 1e-06"):
        accurate_sizes(
            torch.full((2, 1), 0.1), torch.float16, [1.0], divide_before=1, tolerance=1e-6
        )


def test_a_sum_of_equal_numbers_stops_growing_as_computed() -> None:
    most_ranks_at_1000 = costs.most_ranks(FP16, 1000.0)
    for ranks, finite in ((most_ranks_at_1000, True), (most_ranks_at_1000 + 1, False)):
        exact = torch.tensor(1000.0 * ranks, dtype=torch.float64)
        assert exact.to(torch.float16).isfinite() == finite


def test_scales_for_blocks_keep_numbers_that_a_single_scale_loses() -> None:
    values = torch.linspace(0.1, 1, 64)
    values[40] = 9e5
    one, two = (scaled(values, torch.float8_e4m3fn, block) for block in (64, 32))
    assert (one[:32] == 0).all()
    # Half a step of E4M3, relative to the smallest number of an octave.
    assert torch.allclose(two[:32], values[:32].double(), rtol=2.0**-4, atol=0)
    assert two[40] == pytest.approx(9e5, rel=2.0**-4)
    assert scaled(torch.full((32,), 1.9), torch.float8_e4m3fn, 32)[0] == 1.75  # 486 is cut to 448
