"""How something ended."""

from collections.abc import Iterable
from typing import NamedTuple

# From good to bad. `differs` means other numbers than stored, or fewer lines: another backend may
# add in another order, and count other bytes. Somebody must look at it.
STATUSES = ("skipped", "passed", "differs", "timed out", "failed", "crashed")
BAD = STATUSES[3:]


class Outcome(NamedTuple):
    """A status, and the reason in words."""

    status: str
    why: str


def worst(statuses: Iterable[str]) -> str:
    """Return the worst; `passed` is worse than `skipped`. Without any, it is `skipped`."""
    return max(statuses, key=STATUSES.index, default="skipped")
