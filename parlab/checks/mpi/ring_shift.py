"""Exercise `ring_shift`."""

from typing import Any

import numpy as np

from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained, same
from parlab.checks.base.messages import no_pickles, only_messages, rounds_of
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged
from parlab.checks.mpi._arrays import random_numbers

MAX_ROUNDS = 3  # one if all ranks send at once, two or three if even and odd ranks take turns

# Two vectors have the same form, so that a reused result array would hold the second result.
FORMS: dict[str, tuple[type, tuple[int, ...]]] = {
    "a vector": (np.float64, (7,)),
    "a matrix": (np.int32, (3, 5)),
    "another vector": (np.float64, (7,)),
    "one element": (np.float32, (1,)),
    "no elements": (np.complex128, (2, 0, 3)),
    "no dimensions": (np.int16, ()),
}

MISTAKES = Mistakes(
    wrong_source=(
        "the result is the right neighbor's array. Receive from the left neighbor, and send to the "
        "right one"
    ),
    array_used_again=(
        "the array that an earlier call returned has changed. Return a new array in each call"
    ),
    sent_again="rank {rank} sends {got} messages, expected 1: all of `x`, to its right neighbor",
    one_after_the_other=(
        "the messages pass one after the other, in {rounds} rounds. Let every rank send and "
        "receive at the same time, or even and odd ranks in turn"
    ),
)


@check_of(MISTAKES)
def ring_shift(check: Check) -> str:
    """Check results and rounds on any number of ranks, with messages that are never buffered."""
    for trial in check.trials(unbuffered=True):
        earlier: list[tuple[Any, np.ndarray]] = []
        for _, (dtype, shape) in trial.cases(FORMS):
            arrays = random_numbers(trial.draw, trial.size, shape, dtype)
            x = arrays[trial.rank].copy()
            left, right = (arrays[(trial.rank + step) % trial.size] for step in (-1, 1))
            got = trial.run(x, trial.comm)
            trial.require(
                lambda: unchanged("`x`", x, arrays[trial.rank]),
                lambda: only_messages(trial),
                lambda: no_pickles(trial),
                lambda: explained(got, left, {"wrong_source": right}, MISTAKES),
                lambda: earlier_results_unchanged(earlier),
                lambda: one_message_each(trial, x.nbytes),
                lambda: sent_at_once(trial),
            )
            earlier.append((got, left))
    return (
        f"every rank holds its left neighbor's array on 1 to {check.world_size} ranks, with "
        "messages that are never buffered and are sent at the same time"
    )


def earlier_results_unchanged(earlier: list[tuple[Any, np.ndarray]]) -> Finding | None:
    unchanged_results = all(same(array, right) for array, right in earlier)
    return None if unchanged_results else MISTAKES.array_used_again()


def one_message_each(trial: Trial, size: int) -> Finding | None:
    """Require one message from each rank. Allow no messages if there is nothing to send."""
    for rank in range(trial.size):
        if (got := len(trial.sends(rank))) > 1:
            return MISTAKES.sent_again(rank=rank, got=got)
        if not got and size and trial.size > 1:
            return COMMON.nothing_sent()
    return None


def sent_at_once(trial: Trial) -> Finding | None:
    rounds = rounds_of(trial)
    late = rounds is not None and rounds > MAX_ROUNDS
    return MISTAKES.one_after_the_other(rounds=rounds) if late else None
