"""Schedules: their times, compared with numbers by hand, and schedules that cannot run."""

import pytest

from parlab.pipeline import (
    Deadlock,
    Incomplete,
    backward,
    bubble,
    forward,
    live,
    simulate,
    sizes,
    text,
    texts,
)


def all_forward_first(ranks: int, micro_batches: int) -> list:
    return [
        [forward(rank, i) for i in range(micro_batches)]
        + [backward(rank, i) for i in range(micro_batches)]
        for rank in range(ranks)
    ]


TWO_RANKS_1F1B = [
    [forward(0, 0), forward(0, 1), backward(0, 0), forward(0, 2), backward(0, 1), backward(0, 2)],
    [forward(1, 0), backward(1, 0), forward(1, 1), backward(1, 1), forward(1, 2), backward(1, 2)],
]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("micro_batches", [1, 2, 5, 8])
def test_forward_first_has_the_papers_bubble(ranks: int, micro_batches: int) -> None:
    spans = simulate(all_forward_first(ranks, micro_batches))
    assert bubble(spans) == pytest.approx((ranks - 1) / micro_batches)
    assert live(spans) == [micro_batches] * ranks


def test_times_by_hand() -> None:
    spans = simulate(TWO_RANKS_1F1B)
    assert [(s.start, s.end) for s in spans if s.rank == 0] == [
        (0, 1),
        (1, 2),
        (4, 6),
        (6, 7),
        (7, 9),
        (10, 12),
    ]
    assert bubble(spans) == pytest.approx(1 / 3)
    assert live(spans) == [2, 1]


def test_a_message_takes_time_between_ranks_only() -> None:
    spans = simulate(all_forward_first(2, 1), message=0.5)
    assert [(s.start, s.end) for s in spans] == [(0, 1), (5, 7), (1.5, 2.5), (2.5, 4.5)]
    alone = simulate([[forward(0, 0), forward(1, 0), backward(1, 0), backward(0, 0)]], message=9)
    assert bubble(alone) == 0


def test_stages_of_one_rank_count_their_share() -> None:
    one = [[forward(0, 0), forward(1, 0), forward(2, 0)]]
    one[0] += [backward(2, 0), backward(1, 0), backward(0, 0)]
    assert sizes(one) == (1, 3, 1)
    assert live(simulate(one)) == [1]


def test_a_deadlock_names_its_cycle() -> None:
    schedule = [
        [forward(0, 0), backward(0, 0), forward(0, 1), backward(0, 1)],
        [forward(1, 0), forward(1, 1), backward(1, 0), backward(1, 1)],
    ]
    with pytest.raises(Deadlock) as error:
        simulate(schedule)
    assert str(error.value) == (
        "deadlock: rank 0 waits at B0 for B0 of rank 1; rank 1 waits at F1 for F1 of rank 0"
    )
    assert [wait.rank for wait in error.value.cycle] == [0, 1]


def test_a_rank_that_waits_for_itself() -> None:
    with pytest.raises(Deadlock, match="rank 0 waits at B0 for its own F0, which it runs later"):
        simulate([[backward(0, 0), forward(0, 0)]])


def test_a_rank_outside_the_cycle_is_not_in_it() -> None:
    schedule = all_forward_first(3, 1)
    schedule[2].reverse()
    with pytest.raises(Deadlock) as error:
        simulate(schedule)
    assert [wait.rank for wait in error.value.cycle] == [2]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda s: s[1].pop(), "B1 of rank 1 is missing"),
        (lambda s: s[0].append(forward(0, 0)), "F0 of rank 0 occurs 2 times"),
        (lambda s: s[0].append(forward(1, 5)), "F5@1 is on rank 0, and stage 1 is on rank 1"),
        (lambda s: s[0].append(("sideways", 0, 0)), "not an action"),
        (lambda s: s[0].append(None), "not an action"),
        (lambda s: [own.clear() for own in s], "no action"),
    ],
)
def test_incomplete_schedules(change, text: str) -> None:  # type: ignore[no-untyped-def]
    schedule = all_forward_first(2, 2)
    change(schedule)
    with pytest.raises(Incomplete, match=text):
        simulate(schedule)


def test_short_texts() -> None:
    assert texts([forward(0, 0), backward(1, 3)], 2) == "F0 B3"
    assert texts([forward(0, 0), backward(2, 3)], 2) == "F0@0 B3@2"
    assert text(forward(3, 1)) == "F1@3"
