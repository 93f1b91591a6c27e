"""The outcome of an item of the check, or of a cell."""

from collections.abc import Iterable
from typing import NamedTuple

# From good to bad. `differs` means that numbers differ from the stored ones, or that lines are
# missing. The cause may be that another backend adds in another order, or counts bytes differently.
# A person must look at it.
STATUSES = ("skipped", "passed", "differs", "timed out", "failed", "crashed")
BAD = STATUSES[3:]


class Outcome(NamedTuple):
    """A status and its reason in words."""

    status: str
    why: str


def worst(statuses: Iterable[str]) -> str:
    """Return the worst status. `passed` is worse than `skipped`, the result for no statuses."""
    return max(statuses, key=STATUSES.index, default="skipped")
