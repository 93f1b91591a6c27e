"""Exercise `pairwise_all_to_all`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from parlab.checks.all_to_all._rows import (
    EXCHANGE,
    new_array,
    none_to_itself,
    random_rows,
    sent_at_once,
)
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained
from parlab.checks.base.messages import no_pickles, only_messages
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged

MISTAKES = Mistakes(
    **EXCHANGE,
    order_of_arrival=(
        "the rows are in the order of their arrival. Row i of the result is the row from rank i"
    ),
    other_order=(
        "message {step} of rank {rank} goes to rank {got}, expected {right}. If ranks use another "
        "order than r + 1, r + 2, …, several ranks may send to the same one"
    ),
)

# The type and shape of a row. A reused result array would hold the "other rows of 5 elements".
FORMS: dict[str, tuple[type, tuple[int, ...]]] = {
    "rows of 5 elements": (np.float64, (5,)),
    "rows that are matrices": (np.int32, (2, 3)),
    "other rows of 5 elements": (np.float64, (5,)),
    "rows that are numbers": (np.float32, ()),
    "rows without elements": (np.complex64, (3, 0)),
}


@check_of(MISTAKES)
def pairwise_all_to_all(check: Check) -> str:
    """Check rows, messages, and rounds on any number of ranks, with unbuffered messages."""
    for trial in check.trials(unbuffered=True):
        earlier: list[Any] = []
        for _, (dtype, shape) in trial.cases(FORMS):
            rows = random_rows(trial.draw, (trial.size, trial.size, *shape), dtype)
            x = rows[trial.rank].copy()
            right = rows[:, trial.rank].copy()
            got = trial.run(x, trial.comm)
            trial.require(
                lambda: unchanged("`x`", x, rows[trial.rank]),
                lambda: only_messages(trial),
                lambda: no_pickles(trial),
                lambda: explained(got, right, in_steps(right, trial), MISTAKES),
                lambda: new_array(MISTAKES, got, x, "the result"),
                lambda: not_earlier(got, earlier),
                lambda: none_to_itself(MISTAKES, trial),
                lambda: one_row_to_each(trial, x[:1].nbytes),
                lambda: sent_at_once(MISTAKES, trial, trial.size - 1),
            )
            earlier.append(got)
        n, comm = trial.size, trial.comm
        wrong = {f"an `x` with {m} rows": (np.zeros((m, 2)), comm) for m in (n + 1, n - 1, 2 * n)}
        require_refusals(trial, wrong, "x")
    return (
        f"row i came from rank i on 1 to {check.world_size} ranks; N−1 messages a rank, each of "
        "one row, in N−1 rounds; an `x` of another size is refused"
    )


def in_steps(right: np.ndarray, trial: Trial) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the rows in the order in which they arrive."""
    for steps in (range(trial.size), range(1, trial.size + 1)):
        yield "order_of_arrival", right[[(trial.rank - step) % trial.size for step in steps]]


def not_earlier(got: np.ndarray, earlier: list[Any]) -> Finding | None:
    if any(np.shares_memory(got, array) for array in earlier):
        return observed("the result shares memory with that of an earlier call: return a new array")
    return None


def one_row_to_each(trial: Trial, row: int) -> Finding | None:
    """Require the messages of each rank in the order of the steps. Empty rows may be sent."""
    for rank in range(trial.size):
        calls = trial.sends(rank)
        if not calls and row and trial.size > 1:
            return COMMON.nothing_sent()
        if other := {call.bytes_sent for call in calls} - {row}:
            return observed(f"rank {rank} sends {min(other)} bytes in one message, a row has {row}")
        for step, call in enumerate(calls, 1):
            if call.to != (right := (rank + step) % trial.size):
                return MISTAKES.other_order(step=step, rank=rank, got=call.to, right=right)
        if row and len(calls) != trial.size - 1:
            return observed(f"rank {rank} sends {len(calls)} messages, expected {trial.size - 1}")
    return None
