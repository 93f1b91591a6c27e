"""Schedules that ranks find by their rules are those of the papers: idle time, activations held."""

import pytest

from parlab.costs import pipeline_parallel as costs
from parlab.pipeline import Span, bubble, live, simulate, texts
from parlab.plots import pipeline_policies as policies

SHAPES = [(ranks, m) for ranks in (1, 2, 3, 4, 8) for m in (1, 2, 3, 7, 8, 16)]


@pytest.mark.parametrize(("ranks", "m"), SHAPES)
def test_gpipe_and_1f1b_idle_alike_and_hold_m_and_p_less_the_rank(ranks: int, m: int) -> None:
    for policy in ("gpipe", "1f1b"):
        spans = simulate(policies.schedule(policy, ranks, m))
        assert bubble(spans) == pytest.approx(costs.bubble(ranks, m))
        for rank, held in enumerate(live(spans)):
            one = costs.live_1f1b(ranks, rank, m)
            assert held == (one if policy == "1f1b" else costs.live_gpipe(m))


@pytest.mark.parametrize("chunks", [1, 2, 3, 4])
@pytest.mark.parametrize(("ranks", "turns"), [(1, 2), (2, 1), (2, 4), (3, 2), (4, 1), (4, 4)])
def test_interleaved_stages_idle_a_vth_and_hold_what_the_formula_says(
    ranks: int, turns: int, chunks: int
) -> None:
    m = ranks * turns
    schedule = policies.schedule("interleaved", ranks, m, chunks)
    spans = simulate(schedule, 1 / chunks, 2 / chunks)
    assert bubble(spans) == pytest.approx(costs.bubble(ranks, m, chunks))
    held = [costs.live_interleaved(ranks, rank, m, chunks) for rank in range(ranks)]
    assert live(spans) == held


def test_the_order_is_that_of_the_papers_picture() -> None:
    """Narayanan et al., figure 4, upper half: rank 2 of 4, from its first to its last action."""
    assert texts(policies.schedule("1f1b", 4, 8)[2], 4) == (
        "F0 F1 B0 F2 B1 F3 B2 F4 B3 F5 B4 F6 B5 F7 B6 B7"
    )


def idle(spans: list[Span]) -> list[float]:
    """Of each rank: from its first start to its last end, less what it computes."""
    by_rank: dict[int, list[Span]] = {}
    for span in spans:
        by_rank.setdefault(span.rank, []).append(span)
    return [
        own[-1].end - own[0].start - sum(span.end - span.start for span in own)
        for own in by_rank.values()
    ]


@pytest.mark.parametrize(("ranks", "m"), [(2, 4), (3, 7), (4, 8), (8, 24)])
def test_zero_bubbles_first_schedule_idles_a_third_and_holds_no_more(ranks: int, m: int) -> None:
    spans = policies.zero_bubble(ranks, m)
    assert max(idle(spans)) == costs.zero_bubble(ranks, 1, 1, 1)["ZB-H1"].bubble
    for rank in range(ranks):
        held = most = 0
        for span in (s for s in spans if s.rank == rank):
            held += {"forward": 1, "backward": 0, "weights": -1}[span.action.kind]
            most = max(most, held)
        assert most <= ranks  # until the gradients of the weights are there
    done = {(span.rank, *span.action) for span in spans}
    assert len(done) == len(spans) == 3 * ranks * m


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("naive", 4, 4), "no policy 'naive': use one of gpipe, 1f1b, interleaved"),
        (("interleaved", 4, 6, 2), "6 is no multiple"),
        (("1f1b", 4, 4, 2), "1f1b has one stage on a rank, not 2"),
    ],
)
def test_what_is_refused(arguments: tuple, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        policies.schedule(*arguments)
