"""Peaks and FLOPs of plans of recomputation, and the measured step of a GPT."""

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from parlab import memory, models, segments
from parlab.costs.recomputation import Segment, all_plans, peak_bytes, recomputed_flops

CHAIN = [Segment(1, 10, 12, 5), Segment(2, 8, 30, 7), Segment(3, 4, 6, 11)]


@pytest.mark.parametrize(
    ("keep", "peak", "flops"),
    [
        ((True, True, True), 40, 0),
        ((False, True, True), 31, 5),
        ((False, False, True), 31, 12),
        ((False, False, False), 31, 23),
        ((True, False, True), 40, 7),
    ],
)
def test_finished_segments_hold_nothing(keep: tuple[bool, ...], peak: int, flops: int) -> None:
    assert peak_bytes(CHAIN, keep) == peak
    assert recomputed_flops(CHAIN, keep) == flops


def test_each_segment_is_kept_or_recomputed() -> None:
    assert len(set(all_plans(CHAIN))) == 8


def recompute(function: segments.Function, x: torch.Tensor) -> torch.Tensor:
    return checkpoint(function, x, use_reentrant=True)


def test_a_measured_step_has_the_peak_and_the_flops_of_its_plan() -> None:
    torch.manual_seed(0)
    model = models.GPT(models.GPTConfig(sequence_length=32, hidden_size=32, layers=2))
    tokens, targets = torch.randint(256, (2, 2, 32))
    functions = segments.of_gpt(model, targets)
    profile = segments.measured(functions, segments.embedded(model, tokens), model, recompute)

    def step(keep: tuple[bool, ...]) -> None:
        segments.run(functions, keep, segments.embedded(model, tokens), recompute).backward()

    flops = {}
    for keep in (
        (True,) * 5,
        (False,) * 5,
        (True, False) * 2 + (True,),
        (False,) * 2 + (True,) * 3,
    ):
        segments.zero_gradients(model)
        with memory.Peak() as peak:
            step(keep)
        assert peak.bytes == pytest.approx(peak_bytes(profile, keep), rel=0.05)
        with segments.count_flops() as counter:
            step(keep)
        flops[keep] = counter.get_total_flops()
    for keep, total in flops.items():
        assert total - flops[(True,) * 5] == recomputed_flops(profile, keep)


def test_the_segments_are_the_model() -> None:
    model = models.GPT()
    tokens, targets = torch.randint(256, (2, 2, 64))
    x = segments.embedded(model, tokens)
    loss = segments.run(segments.of_gpt(model, targets), [True] * 5, x, recompute)
    right = torch.nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
    assert torch.equal(loss, right)


def test_attention_counts() -> None:
    q = torch.randn(1, 2, 8, 4, requires_grad=True)
    product = 2 * 2 * 8 * 8 * 4  # queries × keys, or scores × values
    with segments.count_flops() as counter:
        output = torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    assert counter.get_total_flops() == 2 * product
    with segments.count_flops() as counter:
        output.sum().backward()
    assert (
        counter.get_total_flops() == 5 * product
    )  # the scores once more, and two for each product
