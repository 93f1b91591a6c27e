"""The formulas of mixed precision, compared with the papers and with rounding in torch."""

import math
from collections import Counter

import pytest
import torch

from parlab.costs import mixed_precision as costs
from parlab.costs import tensor_parallel, zero
from parlab.costs.tensor_parallel import Layer
from parlab.formats import BF16, E4M3, E5M2, FP16, Format


def test_both_recipes_take_sixteen_bytes_per_parameter() -> None:
    """ZeRO, section 3.1, and float32."""
    totals = {name: recipe.total for name, recipe in costs.RECIPES.items()}
    assert list(totals.values()) == [16, 16, 18, 18, 8]
    assert costs.RECIPES["16-bit weights and gradients, master weights"] == zero.MIXED_ADAM


@pytest.mark.parametrize("layer", [Layer(1, 2048, 12288, 96), Layer(4, 128, 256, 8)])
def test_activations_in_16_bits_are_the_papers(layer: Layer) -> None:
    """sbh(34 + 5as/h), Korthikanti et al., equation 1. In 32 bits, masks still take one byte."""
    half, whole = (costs.activation_bytes(layer, size) for size in (2, 4))
    assert half == pytest.approx(tensor_parallel.activation_bytes(layer))
    masks = layer.numbers * 2 + layer.heads * layer.sequence**2 * layer.batch
    assert whole - masks == 2 * (half - masks)


@pytest.mark.parametrize(("of", "dtype"), [(FP16, torch.float16), (BF16, torch.bfloat16)])
@pytest.mark.parametrize("scale", [1.0, 2.0**-12, 2.0**8, 2.0**20])
def test_shares_are_those_of_rounding(of: Format, dtype: torch.dtype, scale: float) -> None:
    draw = torch.Generator().manual_seed(1)
    x = torch.exp2(torch.rand(20_000, generator=draw, dtype=torch.float64) * 60 - 45)
    counted = Counter((torch.frexp(x).exponent - 1).tolist())
    found = costs.shares(counted, of, scale)
    # Round from float32, which can represent all of these numbers, like a backward pass.
    rounded = (x * scale).to(torch.float32).to(dtype).double()
    assert found.lost == pytest.approx((rounded == 0).double().mean().item(), abs=1e-4)
    assert found.overflow == pytest.approx(rounded.isinf().double().mean().item(), abs=1e-3)
    normal = rounded.isfinite() & (rounded >= of.smallest_normal)
    # Just below the smallest normal number some are rounded up to it.
    assert found.normal == pytest.approx(normal.double().mean().item(), abs=1e-3)
    assert found.lost + found.subnormal + found.normal + found.overflow == pytest.approx(1)


def test_the_papers_factor_of_8_moves_the_limit_from_24_to_27() -> None:
    below = {-28: 1.0, -27: 1.0, -25: 1.0}  # from 2^-25 on fp16 rounds up
    assert costs.shares(below, FP16).lost == pytest.approx(2 / 3)
    assert costs.shares(below, FP16, 8.0).lost == 0
    assert costs.shares(below, FP16, 8.0).subnormal == 1
    assert costs.shares({-29: 1.0}, FP16, 8.0).lost == 1


@pytest.mark.parametrize("of", [FP16, BF16, E4M3, E5M2], ids=lambda of: of.name)
@pytest.mark.parametrize("most_lost", [0.0, 0.3])
def test_scales_between(of: Format, most_lost: float) -> None:
    exponents = {-30: 1.0, -21: 3.0, -20: 6.0, -3: 0.0}
    low, high = costs.scales_between(exponents, of, most_lost)
    assert costs.shares(exponents, of, low).lost <= most_lost
    assert costs.shares(exponents, of, low / 2).lost > most_lost
    assert 2.0**-19 * high <= of.largest < 2.0**-18 * high


@pytest.mark.parametrize("of", [FP16, BF16, E4M3], ids=lambda of: of.name)
def test_the_error_of_one_rounding(of: Format) -> None:
    draw = torch.Generator().manual_seed(2)
    x = torch.exp2(torch.rand(200_000, generator=draw, dtype=torch.float64))
    rounded = torch.round(x / of.epsilon) * of.epsilon
    error = ((rounded - x) / x).square().mean().sqrt().item()
    assert costs.rounding_error(of) == pytest.approx(error, rel=0.02)


def test_errors_of_sums_by_hand() -> None:
    c = costs.rounding_error(BF16)
    assert costs.sum_error(BF16, 1) == costs.tree_sum_error(BF16, 1) == c
    # Two inputs with error 1 each, and the sum's rounding error, 2, divided by the sum, 2.
    assert costs.sum_error(BF16, 2) == pytest.approx(c * math.sqrt(2))
    assert costs.tree_sum_error(BF16, 2) == pytest.approx(c * math.sqrt(2))
    # (4 + 2 + 3 + 4) / 4 on a chain, (4 + 2 + 2 + 4) / 4 on a tree.
    assert costs.sum_error(BF16, 4) == pytest.approx(c * math.sqrt(13 / 4))
    assert costs.tree_sum_error(BF16, 4) == pytest.approx(c * math.sqrt(3))
    assert costs.sum_error(FP16, 64) * 8 == pytest.approx(costs.sum_error(BF16, 64))


def test_most_ranks() -> None:
    assert costs.most_ranks(FP16, 1.0) == 65519  # 65520 is halfway to infinity, and is rounded up
    assert costs.most_ranks(FP16, -65504.0) == 1
    assert costs.most_ranks(E4M3, 1.0) == 464  # also halfway, but rounded down to 448
    assert costs.swallowed_from(FP16) == 2048
    assert costs.swallowed_from(BF16) == 256


def test_reduction_windows() -> None:
    """On 16 ranks, of a format from 1 to 1,024: the six cases of chapter 06."""
    right = {
        (16, True): (16, 1024), (1, True): (1, 64), (4, True): (4, 256),
        (16, False): (16, 1024), (1, False): (4, 256), (4, False): (4, 1024),
    }  # fmt: skip
    for (before, equal), window in right.items():
        assert costs.reduction_window(1.0, 1024.0, 16, before, equal=equal) == window


def test_invalid_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="power of two here, not 3"):
        costs.shares({0: 1.0}, FP16, 3.0)
    with pytest.raises(ValueError, match="no shares of nothing"):
        costs.shares({}, FP16)
    with pytest.raises(ValueError, match="never overflows"):
        costs.most_ranks(FP16, 0.0)
    with pytest.raises(ValueError, match="at least one rank"):
        costs.sum_error(FP16, 0)
    with pytest.raises(ValueError, match="at least one rank"):
        costs.tree_sum_error(FP16, 0)
