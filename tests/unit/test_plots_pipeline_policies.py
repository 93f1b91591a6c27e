"""The ranks' rules produce the papers' schedules, with their idle times and activations."""

import pytest

from parlab.costs import pipeline_parallel as costs
from parlab.pipeline import Span, bubble, live, simulate, texts
from parlab.plots import pipeline_policies as policies

SHAPES = [(ranks, m) for ranks in (1, 2, 3, 4, 8) for m in (1, 2, 3, 7, 8, 16)]


@pytest.mark.parametrize(("ranks", "m"), SHAPES)
def test_gpipe_and_1f1b_have_equal_bubbles_and_hold_m_and_p_minus_rank(ranks: int, m: int) -> None:
    for policy in ("gpipe", "1f1b"):
        spans = simulate(policies.schedule(policy, ranks, m))
        assert bubble(spans) == pytest.approx(costs.bubble(ranks, m))
        for rank, held in enumerate(live(spans)):
            one = costs.live_1f1b(ranks, rank, m)
            assert held == (one if policy == "1f1b" else costs.live_gpipe(m))


@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
@pytest.mark.parametrize(("ranks", "turns"), [(1, 2), (2, 1), (2, 4), (3, 2), (4, 1), (4, 4)])
def test_interleaved_stages_divide_the_bubble_and_hold_as_the_formula_says(
    ranks: int, turns: int, chunks: int
) -> None:
    m = ranks * turns
    schedule = policies.schedule("interleaved", ranks, m, chunks)
    spans = simulate(schedule, 1 / chunks, 2 / chunks)
    assert bubble(spans) == pytest.approx(costs.bubble(ranks, m, chunks))
    held = [costs.live_interleaved(ranks, rank, m, chunks) for rank in range(ranks)]
    assert live(spans) == held


def test_the_order_equals_that_of_the_papers_figure() -> None:
    """Narayanan et al., figure 4, upper half: rank 2 of 4, from its first to its last action."""
    assert texts(policies.schedule("1f1b", 4, 8)[2], 4) == (
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"
    )


@pytest.mark.parametrize(("ranks", "m"), [(1, 1), (2, 4), (3, 7), (4, 8), (8, 24)])
@pytest.mark.parametrize("policy", policies.ZERO_BUBBLE)
def test_zero_bubble_schedules_follow_the_papers_table(policy: str, ranks: int, m: int) -> None:
    spans = policies.zero_bubble(policy, ranks, m)
    row = costs.zero_bubble(ranks, 1, 1, 1)[policy]
    assert max(policies.idle(spans)) == row.bubble
    held = [most_held([span for span in spans if span.rank == rank]) for rank in range(ranks)]
    assert held == [row.held] * ranks
    assert len({(span.rank, *span.action) for span in spans}) == len(spans) == 3 * ranks * m


def most_held(spans: list[Span]) -> int:
    """Return the peak of a rank's micro-batches, from forward passes to weight gradients."""
    held, largest = 0, 0
    for span in spans:
        held += {"forward": 1, "backward": 0, "weights": -1}[span.action.kind]
        largest = max(largest, held)
    return largest


@pytest.mark.parametrize(("ranks", "m"), [(2, 3), (3, 5), (4, 7), (8, 15)])
def test_zb_h2_has_no_idle_time_with_enough_micro_batches(ranks: int, m: int) -> None:
    first, second = (policies.zero_bubble(policy, ranks, m) for policy in policies.ZERO_BUBBLE)
    assert max(span.end for span in first) == max(span.end for span in second)
    assert max(policies.idle(second)) == 0
    assert max(policies.idle(policies.zero_bubble("ZB-H2", ranks, m - 1))) > 0


@pytest.mark.parametrize("policy", policies.ZERO_BUBBLE)
def test_each_part_of_a_backward_pass_runs_after_what_it_needs(policy: str) -> None:
    spans = policies.zero_bubble(policy, 3, 7)
    ends = {tuple(span.action): span.end for span in spans}
    for span in spans:
        kind, stage, m = span.action
        before = {
            "forward": [("forward", stage - 1, m)],
            "backward": [("forward", stage, m), ("backward", stage + 1, m)],
            "weights": [("backward", stage, m)],
        }[kind]
        assert all(ends[one] <= span.start for one in before if 0 <= one[1] < 3)


def test_an_unknown_zero_bubble_policy_is_refused() -> None:
    with pytest.raises(ValueError, match="no policy '1f1b': use one of ZB-H1, ZB-H2"):
        policies.zero_bubble("1f1b", 2, 2)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("naive", 4, 4), "no policy 'naive': use one of gpipe, 1f1b, interleaved"),
        (("interleaved", 4, 6, 2), "6 is no multiple"),
        (("1f1b", 4, 4, 2), "1f1b has one stage on a rank, not 2"),
    ],
)
def test_invalid_arguments_are_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policies.schedule(*arguments)
