"""Extends a cell's deadline by the time in which ranks import modules or have not begun.

A first `import torch` takes two seconds on an idle machine and a minute on a busy one, and a rank
that is stopped inside an import is lost. Imports therefore extend the deadline, by at most
`LIMIT_SECONDS`, because an import that takes longer hangs. The time that a learner's own module
computes during its import does count, because the module may train, or wait for another rank.

A busy machine may not run a rank for seconds. If a rank has not begun its cell at the deadline, the
others may be waiting for it, so the cell's time starts again. This happens once, and then again
only until `BEGIN_SECONDS` have passed, because a rank may also be unable to begin.
"""

import time

from parlab.cluster.channel import Channel
from parlab.cluster.locations import has_not_begun, is_importing

LIMIT_SECONDS = 300.0
BEGIN_SECONDS = 10.0
# A rank whose import holds Python's lock answers after 0.3 s, and later on a busy machine.
# A rank that does not answer in time may still be importing, so it is asked again.
ANSWER_SECONDS = 1.0
ASKED_AGAIN = 3


class ImportTime:
    """Finds out at the deadline whether ranks are importing or have not begun.

    If so, the cell's time starts again.

    It does not ask earlier, because a request for a stack interrupts the rank, and a cell that
    finishes in time should not be disturbed. All the time before the request counts as imports,
    because imports are usually the first lines of a cell.
    """

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._started = time.monotonic()
        self._importing = False  # at the last request
        self._unanswered = 0  # number of consecutive requests that a rank did not answer
        self.stacks: dict[int, str] = {}  # answers to the last request
        self.seconds = 0.0  # time that does not count

    @property
    def was_importing(self) -> bool:
        """Return True if a rank was importing at the last request."""
        return self._importing

    def extends_deadline(self, ranks: list[int]) -> bool:
        """Return True if one of `ranks` is importing, or was at the last request, or has not begun.

        In that case, the time up to now does not count. Also return True if a rank has not answered
        yet.
        """
        before = self._importing
        self.stacks = stacks = self._channel.stacks(ranks, ANSWER_SECONDS)
        self._importing = any(map(is_importing, stacks.values()))
        if not self._importing and not all(stacks.values()) and self._unanswered < ASKED_AGAIN:
            self._importing = before
            self._unanswered += 1
            return True
        self._unanswered = 0
        passed = time.monotonic() - self._started
        late = any(map(has_not_begun, stacks.values())) and (
            self.seconds == 0 or passed < BEGIN_SECONDS
        )
        if not (self._importing or before or late):
            return False
        self.seconds = passed
        return self.seconds < LIMIT_SECONDS
