"""Exercise `ring_shift`."""

from typing import Any

import numpy as np

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.messages import no_pickles, only_messages, rounds_of
from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.mpi.numbers import random_numbers
from parlab.checks.trial import Trial
from parlab.checks.untouched import unchanged

# One round for all at once, two or three where even and odd ranks take turns.
MOST_ROUNDS = 3

# The first comes twice: whoever keeps one array for all results would give it away twice.
FORMS: list[tuple[type, tuple[int, ...]]] = [
    (np.float64, (7,)),
    (np.int32, (3, 5)),
    (np.float64, (7,)),
    (np.float32, (1,)),
    (np.complex128, (2, 0, 3)),
    (np.int16, ()),
]

MISTAKES = Mistakes(
    wrong_source=(
        "the result is the array of rank {got}, where that of the left neighbour, rank {right}, "
        "is right"
    ),
    array_used_again=(
        "the array that an earlier call returned has changed: return an array of its own each time"
    ),
    sent_again="rank {rank} sends {got} messages where one is right: `x`, to its right neighbour",
    one_after_the_other=(
        "the messages pass one after the other, in {rounds} rounds: one rank receives first and "
        "all others wait in a chain. Let every rank send and receive at the same time"
    ),
)


@check_of(MISTAKES)
def ring_shift(check: Check) -> str:
    """Check that all ranks send at once, whatever the message size, on any number of ranks."""
    for trial in check.trials(unbuffered=True):
        earlier: list[tuple[Any, np.ndarray]] = []
        for dtype, shape in FORMS:
            numbers = random_numbers(trial.draw, trial.size, shape, dtype)
            x = numbers[trial.rank].copy()
            got = trial.run(x, trial.comm)
            trial.require(
                lambda: unchanged("`x`", x, numbers[trial.rank]),
                lambda: only_messages(trial),
                lambda: no_pickles(trial),
                lambda: left_neighbours(got, numbers, trial.rank),
                lambda: still_there(earlier),
                lambda: at_once(trial),
                lambda: one_message_each(trial),
            )
            if trial.here:
                earlier.append((got, numbers[trial.rank - 1]))
    return (
        f"every rank holds its left neighbour's array on 1 to {check.world_size} ranks, with "
        "messages that are never buffered, and all of them under way at the same time"
    )


def left_neighbours(got: Any, numbers: list[np.ndarray], rank: int) -> Finding | None:
    left = (rank - 1) % len(numbers)
    finding = equal(got, numbers[left])
    if finding is None or not isinstance(got, np.ndarray):
        return finding
    for source, array in enumerate(numbers):
        if got.dtype == array.dtype and same(got, array):
            return MISTAKES.wrong_source(got=source, right=left)
    return finding


def still_there(earlier: list[tuple[Any, np.ndarray]]) -> Finding | None:
    for array, right in earlier:
        if not same(array, right):
            return MISTAKES.array_used_again()
    return None


def one_message_each(trial: Trial) -> Finding | None:
    for rank in range(trial.size):
        if (got := len(trial.sends(rank))) > 1:
            return MISTAKES.sent_again(rank=rank, got=got)
    return None


def at_once(trial: Trial) -> Finding | None:
    rounds = rounds_of(trial)
    if rounds is not None and rounds > MOST_ROUNDS:
        return MISTAKES.one_after_the_other(rounds=rounds)
    return None
