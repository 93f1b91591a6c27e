"""How something ended."""

from collections.abc import Iterable
from typing import NamedTuple

# From good to bad. What `differs` printed other numbers than stored, or fewer lines: another
# backend may add up in another order, and count other bytes. Somebody has to look.
STATUSES = ("skipped", "passed", "differs", "timed out", "failed", "crashed")
BAD = STATUSES[3:]


class Outcome(NamedTuple):
    """A status, and the reason in words."""

    status: str
    why: str


def worst(statuses: Iterable[str]) -> str:
    """The worst of them; `passed` is worse than `skipped`. None at all is `skipped`."""
    return max(statuses, key=STATUSES.index, default="skipped")
