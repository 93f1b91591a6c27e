"""The book's formulas for what ranks send, with values for each number of ranks on a page."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from parlab.costs import algorithms, collectives
from parlab.costs.collectives import Cost

MOST_RANKS = 8


@dataclass(frozen=True)
class Formula:
    """The messages and bytes of the rank that sends most.

    `cost(size, n)` is the cost for `size` bytes on n ranks, and `data(n)` returns that size. The
    rank sends as many messages as the cost has rounds, and as many bytes as the cost has.
    """

    text: str
    cost: Callable[[float, int], Cost]
    data: Callable[[int], int]

    def costs(self) -> list[dict[str, float]]:
        """Return messages and bytes for 1 to `MOST_RANKS` ranks."""
        costs = [self.cost(self.data(n), n) for n in range(1, MOST_RANKS + 1)]
        return [{"messages": cost.rounds, "bytes": cost.bytes} for cost in costs]


def one_message(data: Callable[[int], int]) -> Formula:
    """Return the formula of a program in which each rank sends at most one message."""
    return Formula("one message of S bytes", lambda size, n: collectives.message(size), data)


# The formulas of examples that send and receive messages.
EXAMPLES: Mapping[str, Formula] = MappingProxyType(
    {
        "deadlock": one_message(lambda n: 32),
        "message_order": one_message(lambda n: 8 * (n - 1)),  # the last rank sends the longest one
    }
)

_TREE = "⌈log₂ N⌉ rounds, ⌈log₂ N⌉ · S bytes"
_CHUNKS = "(N − 1)/N · S bytes"
_COLLECTIVES: dict[str, tuple[str, str, Callable[[float, int], Cost]]] = {
    "Bcast": ("binomial tree", _TREE, collectives.binomial_broadcast),
    "Reduce": ("binomial tree", _TREE, collectives.binomial_reduce),
    "Scatter": ("binomial tree", f"⌈log₂ N⌉ rounds, {_CHUNKS}", algorithms.binomial_scatter),
    "Gather": ("binomial tree", f"⌈log₂ N⌉ rounds, {_CHUNKS}", algorithms.binomial_gather),
    "Allgather": ("ring", f"N − 1 rounds, {_CHUNKS}", collectives.ring_all_gather),
    "Reduce_scatter": ("ring", f"N − 1 rounds, {_CHUNKS}", collectives.ring_reduce_scatter),
    "Reduce_scatter_block": ("ring", f"N − 1 rounds, {_CHUNKS}", collectives.ring_reduce_scatter),
    "Allreduce": ("ring", f"2(N − 1) rounds, 2{_CHUNKS}", collectives.ring_all_reduce),
    "Alltoall": ("pairs of ranks", f"N − 1 rounds, {_CHUNKS}", algorithms.pairwise_all_to_all),
}


def algorithms_of_collectives() -> dict[str, dict[str, Any]]:
    """Return an algorithm of each collective: its name, its formula, and its costs for one byte.

    The costs are for the slowest chain of messages, and `messages` is the number of rounds.
    """
    return {
        api: {"algorithm": name, "formula": text, "costs": Formula(text, cost, lambda n: 1).costs()}
        for api, (name, text, cost) in _COLLECTIVES.items()
    }
