"""Measures how long ranks import modules in a cell, so that the deadline does not count that time.

A first `import torch` takes two seconds on an idle machine and a minute on a busy one, and a rank
that is stopped inside an import is lost. So the deadline waits for imports, for `LIMIT_SECONDS` at
most: an import that takes longer hangs. The time that a learner's own module computes while it is
imported does count, because the module may train, or wait for another rank.
"""

import time

from parlab.cluster.channel import Channel
from parlab.cluster.locations import is_importing

LIMIT_SECONDS = 300.0
# A rank whose import holds Python's lock answers after half a second, and later on a busy machine;
# that nothing was heard of a rank is no news of what it does, so it is asked again.
ANSWER_SECONDS = 1.0
ASKED_AGAIN = 3


class ImportTime:
    """Looks, when the deadline has come, whether ranks are importing: the cell's time starts anew.

    Not before: asking a rank for its stack interrupts it anywhere, and a healthy cell is left
    alone. Imports mostly stand first in a cell, so what went before was imports, too.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._started = time.monotonic()
        self._importing = False  # at the last look
        self._unanswered = 0  # looks in a row
        self.stacks: dict[int, str] = {}  # at the last look
        self.seconds = 0.0  # that do not count

    @property
    def is_at_work(self) -> bool:
        """Whether a rank was importing at the last look."""
        return self._importing

    def goes_on(self, ranks: list[int]) -> bool:
        """Whether one of `ranks` imports, or did at the last look: the time up to now is off.

        Also where one of them has not answered yet.
        """
        before = self._importing
        self.stacks = stacks = self._channel.stacks(ranks, ANSWER_SECONDS)
        self._importing = any(map(is_importing, stacks.values()))
        if not self._importing and not all(stacks.values()) and self._unanswered < ASKED_AGAIN:
            self._importing = before
            self._unanswered += 1
            return True
        self._unanswered = 0
        if not (self._importing or before):
            return False
        self.seconds = time.monotonic() - self._started
        return self.seconds < LIMIT_SECONDS
