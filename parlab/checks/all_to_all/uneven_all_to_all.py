"""Exercise `uneven_all_to_all`."""

import math
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
from parlab.checks.base.compare import equal, explained, has_parts
from parlab.checks.base.messages import no_pickles, of_bytes, only_messages
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusals
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged

MISTAKES = Mistakes(
    **EXCHANGE,
    order_of_arrival=(
        "the rows are in the order of their arrival. Sort them by the rank that they came from"
    ),
)

# Lowest and highest count, and the type and shape of a row.
FORMS: dict[str, tuple[int, int, type, tuple[int, ...]]] = {
    "all parts have rows": (1, 5, np.float64, (3,)),
    "some parts are empty": (0, 3, np.float32, (2, 3)),
    "rows that are numbers": (0, 4, np.int64, ()),
    "no rows at all": (0, 1, np.float32, (4,)),
    "one rank gets all rows": (-1, 5, np.int16, (5,)),
}


@check_of(MISTAKES)
def uneven_all_to_all(check: Check) -> str:
    """Check rows, counts, messages, and rounds on any number of ranks, with unbuffered messages."""
    for trial in check.trials(unbuffered=True):
        for _, (low, high, dtype, shape) in trial.cases(FORMS):
            counts = random_counts(trial, low, high)
            rows = [random_rows(trial.draw, (n, *shape), dtype) for n in counts.sum(axis=1)]
            parts = [np.split(x, np.cumsum(n)[:-1]) for x, n in zip(rows, counts, strict=True)]
            x, own_counts = rows[trial.rank].copy(), counts[trial.rank].copy()
            arriving = [part[trial.rank] for part in parts]
            got = trial.run(x, own_counts, trial.comm)
            trial.require(
                lambda: unchanged("`x`", x, rows[trial.rank]),
                lambda: unchanged("`counts`", own_counts, counts[trial.rank]),
                lambda: only_messages(trial),
                lambda: no_pickles(trial),
                lambda: rows_and_counts(got, arriving, trial.rank),
                lambda: new_array(MISTAKES, got[0], x, "the array of received rows"),
                lambda: new_array(MISTAKES, got[1], own_counts, "the array of received counts"),
                lambda: none_to_itself(MISTAKES, trial),
                lambda: count_and_rows_to_each(trial, counts, x.itemsize * math.prod(shape)),
                lambda: sent_at_once(MISTAKES, trial, 2 * (trial.size - 1)) if low > 0 else None,
            )
        refuses(trial)
    return (
        f"rows and counts from every rank on 1 to {check.world_size} ranks, also if parts are "
        "empty; one message of one count and at most one of rows to each other rank; wrong counts "
        "are refused"
    )


def random_counts(trial: Trial, low: int, high: int) -> np.ndarray:
    """Draw how many rows each rank sends to each rank, from `low` to `high` − 1.

    If `low` is 0, one rank gets no rows. If it is negative, one rank gets all rows.
    """
    draw, n = trial.draw, trial.size
    counts = np.array([[draw.randrange(max(low, 0), high) for _ in range(n)] for _ in range(n)])
    if low <= 0:
        alone = np.arange(n) == draw.randrange(n)
        counts[:, alone if low == 0 else ~alone] = 0
    return counts


def rows_and_counts(got: Any, arriving: list[np.ndarray], rank: int) -> Finding | None:
    if found := has_parts(got, "received, received_counts"):
        return found
    n, right = len(arriving), np.concatenate(arriving)
    in_steps = (
        ("order_of_arrival", np.concatenate([arriving[(rank - s) % n] for s in steps]))
        for steps in (range(n), range(1, n + 1))
    )
    counts = np.array([len(part) for part in arriving])
    return explained(got[0], right, in_steps, MISTAKES, "the array of rows") or equal(
        got[1], counts, "the array of counts"
    )


def count_and_rows_to_each(trial: Trial, counts: np.ndarray, row: int) -> Finding | None:
    """Require a message of one count to each other rank, and one of rows if there are any."""
    for rank in range(trial.size):
        sent = [(call.to, call.bytes_sent) for call in trial.sends(rank) if call.to is not None]
        if not sent and trial.size > 1:
            return COMMON.nothing_sent()
        for to in (other for other in range(trial.size) if other != rank):
            rows = int(counts[rank, to])
            got = sorted(size for dest, size in sent if dest == to)
            right = sorted([counts.itemsize, *([rows * row] if rows else [])])
            if got != right:
                return observed(
                    f"rank {rank} sends {of_bytes(got)} to rank {to}, expected {of_bytes(right)}: "
                    f"one int64, the count for this rank, and {rows} rows of {row} bytes, without "
                    "padding, and without a message if there are none"
                )
    return None


def refuses(trial: Trial) -> None:
    n = trial.size
    x = np.zeros((2 * n, 3))
    wrong = {
        "a sum that is too large": np.array([3] + [2] * (n - 1)),
        "a sum that is too small": np.array([2] * (n - 1) + [1]),
        "one more number": np.array([2] * n + [0]),
        "one number less": np.array([2] * (n - 2) + [4] if n > 1 else [], dtype=np.int64),
    }
    calls = {f"`counts` with {what}": (x, counts, trial.comm) for what, counts in wrong.items()}
    require_refusals(trial, calls, "counts")
