"""Agrees among the ranks of a group when each of its collectives starts and ends."""

import time
from collections.abc import Sequence

from mpi4py import MPI

from parlab.network.links import Links
from parlab.runtime.shared_memory import SharedNumbers

# Collectives that may be under way at once; a rank that is further ahead waits.
_PLACES = 1024
# Of each place: ranks that have come, when the last of them called (s), the longest time that one
# of them expects it to take (s), when it ends (s; 0 until all have come), and ranks that know.
_COME, _CALLED, _SECONDS, _END, _KNOW = range(5)
_OF_A_PLACE = 5
_FULL_POLL = 1e-3


class Meetings:
    """The collectives of a group, by number. Making them is collective over `comm`, its ranks.

    `members` are the group's ranks as the network numbers them.
    """

    def __init__(self, comm: MPI.Intracomm, links: Links, members: Sequence[int]) -> None:
        self._links, self._members = links, members
        self._shared = SharedNumbers(comm, _PLACES * _OF_A_PLACE)
        self._left = 0  # meetings that this rank is done with

    def come(self, number: int, called: float, seconds: float) -> None:
        """This rank comes to meeting `number`, one more than the last, taking `seconds`.

        It did when it made the call, at `called` (s): what it takes to get from there to here is
        no part of the model. Whoever is the last here decides for all: every rank reads one end.
        """
        at = number % _PLACES * _OF_A_PLACE
        while not self._free(number, at):
            time.sleep(_FULL_POLL)
        with self._links.shared.locked():
            places = self._shared.numbers
            places[at + _COME] += 1
            places[at + _CALLED] = max(places[at + _CALLED], called)
            places[at + _SECONDS] = max(places[at + _SECONDS], seconds)
            if places[at + _COME] == len(self._members):
                places[at + _END] = self._links.collective(
                    places[at + _CALLED], places[at + _SECONDS], self._members
                )

    def _free(self, number: int, at: int) -> bool:
        """Whether all ranks are done with the meeting that had this place before."""
        return number < _PLACES or (
            self._left > number - _PLACES and not self._shared.numbers[at + _KNOW]
        )

    def end(self, number: int) -> float:
        """When meeting `number` ends; 0 while not all have come."""
        return self._shared.numbers[number % _PLACES * _OF_A_PLACE + _END]

    def leave(self, number: int) -> None:
        """This rank knows the end of meeting `number`, and asks no more."""
        at = number % _PLACES * _OF_A_PLACE
        with self._links.shared.locked():
            places = self._shared.numbers
            places[at + _KNOW] += 1
            if places[at + _KNOW] == len(self._members):
                for i in range(_OF_A_PLACE):
                    places[at + i] = 0.0
        self._left = number + 1
