"""The links of an emulated network, and the times until which messages occupy them."""

from collections.abc import Iterator, Sequence

from mpi4py import MPI

from parlab.costs.networks import Network
from parlab.runtime.shared_memory import SharedNumbers

# Each rank has a link inside its node and a link to other nodes, each with two directions.
INSIDE, BETWEEN = 0, 2
OUT, IN = 0, 1
_FIELDS_PER_RANK = 4


class Links:
    """The links of all ranks of `network`. Making them is collective over `comm`.

    Raises ValueError if `comm` does not have as many ranks as the network.
    """

    def __init__(self, network: Network, comm: MPI.Intracomm) -> None:
        if comm.size != network.ranks:
            raise ValueError(
                f"the network has {network.nodes} × {network.ranks_per_node} ranks, and "
                f"{comm.size} are running: describe one of {comm.size}, or start {network.ranks}"
            )
        self.network = network
        self.shared = SharedNumbers(comm, network.ranks * _FIELDS_PER_RANK)

    def message(self, called: float, size: float, source: int, destination: int) -> float:
        """Put a message of `size` bytes, sent at `called` (s), into the queues of both ends.

        Return the time at which it arrives (s).
        """
        seconds = self.network.message(size, source, destination)
        same_node = self.network.node_of(source) == self.network.node_of(destination)
        link = INSIDE if same_node else BETWEEN
        ends = [source * _FIELDS_PER_RANK + link + OUT, destination * _FIELDS_PER_RANK + link + IN]
        with self.shared.locked() as free:
            return _occupy(free, ends, called, seconds)

    def collective(self, called: float, seconds: float, members: Sequence[int]) -> float:
        """Occupy all links that a collective of these ranks uses. Return when it is complete (s).

        `called` is the time at which the last rank called it (s). The caller must hold the lock of
        `shared`.
        """
        return _occupy(self.shared.numbers, list(self._used(members)), called, seconds)

    def _used(self, members: Sequence[int]) -> Iterator[int]:
        layout = self.network.layout(members)
        kinds = [INSIDE] * (layout[0] > 1) + [BETWEEN] * (len(layout) > 1)
        for rank in members:
            for link in kinds:
                yield from (rank * _FIELDS_PER_RANK + link + way for way in (OUT, IN))


def _occupy(free: memoryview, links: Sequence[int], called: float, seconds: float) -> float:
    """Occupy all `links` for `seconds`, as soon as all are free. Return when this ends (s)."""
    end = max([called, *(free[link] for link in links)]) + seconds
    for link in links:
        free[link] = end
    return end
