"""Counts the rounds of schedules with a known number of rounds."""

import pytest

from parlab.checks.base.rounds import Step, rounds


def flat(n: int) -> list[list[Step]]:
    """Return a schedule in which rank 0 sends to every other rank."""
    return [[Step(to=r) for r in range(1, n)], *[[Step(source=0)] for _ in range(1, n)]]


def chain(n: int) -> list[list[Step]]:
    """Return a schedule in which every rank sends to the next one."""
    programs: list[list[Step]] = [[] for _ in range(n)]
    for r in range(n - 1):
        programs[r].append(Step(to=r + 1))
        programs[r + 1].insert(0, Step(source=r))
    return programs


def binomial(n: int) -> list[list[Step]]:
    programs: list[list[Step]] = [[] for _ in range(n)]
    reached = 1
    while reached < n:
        for r in range(min(reached, n - reached)):
            programs[r].append(Step(to=r + reached))
            programs[r + reached].append(Step(source=r))
        reached *= 2
    return programs


def shift(n: int) -> list[list[Step]]:
    return [[Step(to=(r + 1) % n, source=(r - 1) % n)] for r in range(n)]


@pytest.mark.parametrize("n", [2, 3, 4, 5, 8, 13])
def test_broadcasts(n: int) -> None:
    assert rounds(flat(n)) == n - 1
    assert rounds(chain(n)) == n - 1
    assert rounds(binomial(n)) == (n - 1).bit_length()


@pytest.mark.parametrize("n", [1, 2, 3, 8])
def test_a_shift_at_once_takes_one_round(n: int) -> None:
    assert rounds(shift(n)) == 1
    assert rounds([program * 5 for program in shift(n)]) == 5


@pytest.mark.parametrize("n", [2, 4, 5, 8])
def test_a_shift_in_which_one_rank_receives_first_is_serial(n: int) -> None:
    def program(r: int) -> list[Step]:
        there, here = Step(to=(r + 1) % n), Step(source=(r - 1) % n)
        return [here, there] if r == 0 else [there, here]

    assert rounds([program(r) for r in range(n)]) == n


def test_even_and_odd_take_two_rounds() -> None:
    def program(r: int) -> list[Step]:
        there, here = Step(to=(r + 1) % 4), Step(source=(r - 1) % 4)
        return [there, here] if r % 2 == 0 else [here, there]

    assert rounds([program(r) for r in range(4)]) == 2


def test_sending_without_waiting_does_not_make_room_on_the_wire() -> None:
    sends = [[Step(to=r, blocking=False) for r in range(1, 4)]]
    assert rounds(sends + [[Step(source=0)] for _ in range(3)]) == 3


def test_a_deadlock_has_no_rounds() -> None:
    assert rounds([[Step(to=1), Step(source=1)], [Step(to=0), Step(source=0)]]) is None
    assert rounds([[Step(source=1)], []]) is None


def test_no_messages_no_rounds() -> None:
    assert rounds([[], []]) == 0
