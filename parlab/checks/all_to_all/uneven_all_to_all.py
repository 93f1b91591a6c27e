"""Exercise `uneven_all_to_all`."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from parlab.checks.all_to_all._rows import EXCHANGE, none_to_itself, random_rows, sent_at_once
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained, has_type
from parlab.checks.base.messages import no_pickles, only_messages
from parlab.checks.base.mistakes import COMMON, Finding, Mistakes, observed
from parlab.checks.base.refusals import require_refusal
from parlab.checks.base.trial import Trial
from parlab.checks.base.unchanged import unchanged

MISTAKES = Mistakes(
    **EXCHANGE,
    order_of_arrival=(
        "the rows are in the order of their arrival. Sort them by the rank that they came from"
    ),
    own_counts=(
        "the received counts are those that this rank sent. Return how many rows came from each "
        "rank"
    ),
    padded=(
        "rank {rank} sends {got} bytes of rows to rank {to}, but the rows for it have {right}. "
        "Send them without padding"
    ),
    all_counts=(
        "rank {rank} sends all of its {n} counts to rank {to}, which needs only the one for itself"
    ),
    empty_message=(
        "rank {rank} sends an empty message to rank {to}. The counts already say that no rows will "
        "come"
    ),
    shares_memory="{name} is an argument, or a view of one. Return new arrays",
    not_refused="it accepts {what}. Raise a ValueError that names `counts`",
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
                lambda: rows_and_counts(got, arriving, own_counts, trial.rank),
                lambda: new_arrays(got, x, own_counts),
                lambda: none_to_itself(MISTAKES, trial),
                lambda: count_and_rows_to_each(trial, counts, x.itemsize * size(shape)),
                lambda: sent_at_once(MISTAKES, trial, 2 * (trial.size - 1)) if low > 0 else None,
            )
        refuses(trial)
    return (
        f"rows and counts from every rank on 1 to {check.world_size} ranks, also if parts are "
        "empty; one message of one count and at most one of rows to each other rank; wrong counts "
        "are refused"
    )


def size(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def random_counts(trial: Trial, low: int, high: int) -> np.ndarray:
    """Draw how many rows each rank has for each rank, from `low` to `high` − 1.

    If `low` is 0, one rank gets no rows. If it is negative, one rank gets all rows.
    """
    draw, n = trial.draw, trial.size
    counts = np.array([[draw.randrange(max(low, 0), high) for _ in range(n)] for _ in range(n)])
    if low <= 0:
        alone = np.arange(n) == draw.randrange(n)
        counts[:, alone if low == 0 else ~alone] = 0
    return counts


def rows_and_counts(
    got: Any, arriving: list[np.ndarray], sent: np.ndarray, rank: int
) -> Finding | None:
    counts = np.array([len(part) for part in arriving])
    wrong = has_type(got, tuple, "a tuple: the rows, and their counts")
    if wrong is not None or len(got) != 2:
        return wrong or observed(
            f"it returns {len(got)} values, expected the rows and their counts"
        )
    received, received_counts = got

    def arrived() -> Iterator[tuple[str, np.ndarray]]:
        for first in (0, 1):
            order = [(rank - step - first) % len(arriving) for step in range(len(arriving))]
            yield "order_of_arrival", np.concatenate([arriving[source] for source in order])

    found = explained(received, np.concatenate(arriving), arrived(), MISTAKES, "the array of rows")
    variants = {"own_counts": sent}
    return found or explained(received_counts, counts, variants, MISTAKES, "the array of counts")


def new_arrays(
    got: tuple[np.ndarray, np.ndarray], x: np.ndarray, counts: np.ndarray
) -> Finding | None:
    for name, result, argument in zip(("rows", "counts"), got, (x, counts), strict=True):
        if np.shares_memory(result, argument):
            return MISTAKES.shares_memory(name=f"the array of received {name}")
    return None


def count_and_rows_to_each(trial: Trial, counts: np.ndarray, row: int) -> Finding | None:
    """Require a message of one count to each other rank, and one of rows if there are any."""
    one, all_counts = counts.itemsize, counts[0].nbytes
    for rank in range(trial.size):
        sent = [(call.to, call.bytes_sent) for call in trial.sends(rank) if call.to is not None]
        if not sent and trial.size > 1:
            return COMMON.nothing_sent()
        for to in (other for other in range(trial.size) if other != rank):
            rows = int(counts[rank, to]) * row
            got = sorted(size for dest, size in sent if dest == to)
            right = sorted([one, *([rows] if rows else [])])
            if got == right:
                continue
            if 0 in got:
                return MISTAKES.empty_message(rank=rank, to=to)
            if all_counts in got and one not in got:
                return MISTAKES.all_counts(rank=rank, n=trial.size, to=to)
            if len(got) == 2 and got[0] == one and got[1] > rows and got[1] != all_counts:
                return MISTAKES.padded(rank=rank, got=got[1], to=to, right=rows)
            return observed(
                f"rank {rank} sends messages of {got} bytes to rank {to}, expected {right}: one "
                f"int64 for the count, and {counts[rank, to]} rows of {row} bytes"
            )
    return None


def refuses(trial: Trial) -> None:
    n = trial.size
    x = np.zeros((2 * n, 3))
    wrong = {
        "a count too much": np.array([3] + [2] * (n - 1)),
        "a count too few": np.array([2] * (n - 1) + [1]),
        "one more number": np.array([2] * n + [0]),
        "one number less": np.array([2] * (n - 2) + [4] if n > 1 else [], dtype=np.int64),
    }
    for what, counts in wrong.items():
        require_refusal(
            trial,
            lambda: trial.check.function(x, counts, trial.comm),
            MISTAKES.not_refused(what=f"`counts` with {what}"),
            what=f"`counts` with {what}",
            names="counts",
        )
