"""Lets the ranks of a group agree on the time at which each collective ends."""

import time
from collections.abc import Sequence

from mpi4py import MPI

from parlab.network.links import Links
from parlab.runtime.shared_memory import SharedNumbers

# The number of collectives that can be incomplete at the same time. A rank that is further ahead
# waits.
_PLACES = 1024
# Fields of each place: the number of ranks that have joined; when the last of them called (s); the
# longest duration that one of them expects (s); when the collective ends (s; 0 until all ranks have
# joined); the number of ranks that have read this end.
_JOINED, _CALLED, _SECONDS, _END, _LEFT = range(5)
_FIELDS_PER_PLACE = 5
_FULL_POLL = 1e-3


class Meetings:
    """The collectives of a group, by number. Making this object is collective over `comm`.

    `members` are the network's numbers of the group's ranks.
    """

    def __init__(self, comm: MPI.Intracomm, links: Links, members: Sequence[int]) -> None:
        self._links, self._members = links, members
        self._shared = SharedNumbers(comm, _PLACES * _FIELDS_PER_PLACE)
        self._left = 0  # number of meetings that this rank has left

    def join(self, number: int, called: float, seconds: float) -> None:
        """Join meeting `number`, which must be the next one. It takes `seconds`.

        The rank made the call at `called` (s). The time between that and this function is not part
        of the model. The last rank to join computes the end, so that all ranks read the same one.
        """
        at = number % _PLACES * _FIELDS_PER_PLACE
        while not self._is_free(number, at):
            time.sleep(_FULL_POLL)
        with self._links.shared.locked():
            places = self._shared.numbers
            places[at + _JOINED] += 1
            places[at + _CALLED] = max(places[at + _CALLED], called)
            places[at + _SECONDS] = max(places[at + _SECONDS], seconds)
            if places[at + _JOINED] == len(self._members):
                places[at + _END] = self._links.collective(
                    places[at + _CALLED], places[at + _SECONDS], self._members
                )

    def _is_free(self, number: int, at: int) -> bool:
        """Return True if all ranks have left the meeting that used this place before."""
        return number < _PLACES or (
            self._left > number - _PLACES and not self._shared.numbers[at + _LEFT]
        )

    def end(self, number: int) -> float:
        """Return when meeting `number` ends (s), or 0 until all ranks have joined."""
        return self._shared.numbers[number % _PLACES * _FIELDS_PER_PLACE + _END]

    def leave(self, number: int) -> None:
        """Leave meeting `number`, after reading its end. The last rank clears its place."""
        at = number % _PLACES * _FIELDS_PER_PLACE
        with self._links.shared.locked():
            places = self._shared.numbers
            places[at + _LEFT] += 1
            if places[at + _LEFT] == len(self._members):
                for i in range(_FIELDS_PER_PLACE):
                    places[at + i] = 0.0
        self._left = number + 1
