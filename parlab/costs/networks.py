"""Networks of nodes: fast links inside a node, slower ones between nodes.

    network = Network(
        nodes=2, ranks_per_node=4,
        inside=Link.of(alpha=5e-6, bandwidth=100e9),
        between=Link.of(alpha=20e-6, bandwidth=10e9),
        call=10e-6,
    )
    network.collective("all_reduce", 25e6)        # Choice(algorithm="hierarchical: …", seconds=…)
    network.message(1e6, source=0, destination=4)   # seconds

Every rank has a link inside its node and its own network card. A collective over ranks of several
nodes is either *flat* or *hierarchical*, whichever is faster. In a flat collective, all links count
as links between nodes, because each round waits for its slowest message. Each step of a
hierarchical collective is inside the nodes, or connects ranks with the same position on each node.
"""

import functools
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from parlab.costs.algorithms import Choice, best
from parlab.costs.collectives import Link
from parlab.costs.collectives import message as one_message
from parlab.units import sized, timed


class Step(NamedTuple):
    """A step of a hierarchical collective: its collective, its links, and its part of the data.

    The size of a step is the whole size, or that size divided by the number of ranks per node or of
    nodes, depending on `part`.
    """

    collective: str
    where: str  # "inside" or "between"
    part: str = "whole"  # or "per rank of a node", "per node"


_PER_RANK, _PER_NODE = "per rank of a node", "per node"

HIERARCHIES: dict[str, list[list[Step]]] = {
    "all_reduce": [
        [
            Step("reduce_scatter", "inside"),
            Step("all_reduce", "between", _PER_RANK),
            Step("all_gather", "inside"),
        ],
        [Step("all_reduce", "inside"), Step("all_reduce", "between")],
    ],
    "reduce_scatter": [
        [Step("reduce_scatter", "inside"), Step("reduce_scatter", "between", _PER_RANK)]
    ],
    "all_gather": [[Step("all_gather", "between", _PER_RANK), Step("all_gather", "inside")]],
    "broadcast": [
        [
            Step("scatter", "inside"),
            Step("broadcast", "between", _PER_RANK),
            Step("all_gather", "inside"),
        ],
        [Step("broadcast", "between"), Step("broadcast", "inside")],
    ],
    "reduce": [
        [
            Step("reduce_scatter", "inside"),
            Step("reduce", "between", _PER_RANK),
            Step("gather", "inside"),
        ],
        [Step("reduce", "inside"), Step("reduce", "between")],
    ],
    "gather": [[Step("gather", "inside", _PER_NODE), Step("gather", "between")]],
    "scatter": [[Step("scatter", "between"), Step("scatter", "inside", _PER_NODE)]],
    "all_to_all": [[Step("all_to_all", "inside"), Step("all_to_all", "between")]],
    "barrier": [[Step("barrier", "inside"), Step("barrier", "between")]],
}


@dataclass(frozen=True)
class Network:
    """`nodes` of `ranks_per_node` ranks each, numbered node after node.

    `inside` is the link of a rank to another rank on its node, `between` the link to a rank on
    another node, and `call` the constant overhead of each call in seconds. Raises ValueError, with
    one line that says what is wrong, for invalid values.
    """

    nodes: int
    ranks_per_node: int
    inside: Link
    between: Link
    call: float = 0.0

    def __post_init__(self) -> None:
        for name in ("nodes", "ranks_per_node"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"Network: {name} is a whole number, 1 or more, not {value!r}")
        for name in ("inside", "between"):
            _check_link(name, getattr(self, name))
        _check_seconds("call", self.call)

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.nodes * self.ranks_per_node

    def node_of(self, rank: int) -> int:
        """Return the number of the node of `rank`."""
        return rank // self.ranks_per_node

    def link(self, source: int, destination: int) -> Link:
        """Return the link between these two ranks."""
        return self.inside if self.node_of(source) == self.node_of(destination) else self.between

    def message(self, size: float, source: int, destination: int) -> float:
        """Return the seconds of one message of `size` bytes."""
        return self.call + one_message(size).seconds(self.link(source, destination))

    def collective(self, name: str, size: float, members: Iterable[int] | None = None) -> Choice:
        """Return the fastest algorithm of a collective over `members` (default: all ranks).

        `size` in bytes and `name` are as in `parlab.costs.algorithms`, as is the ValueError.
        """
        ranks = range(self.ranks) if members is None else members
        return _fastest(self, name, size, self.layout(ranks))

    def layout(self, members: Iterable[int]) -> tuple[int, ...]:
        """Return how many of these ranks each node has, largest number first, without zeros."""
        counts = Counter(self.node_of(rank) for rank in members).values()
        return tuple(sorted(counts, reverse=True))

    def __str__(self) -> str:
        nodes = _times(self.nodes, "node") + " of " + _times(self.ranks_per_node, "rank")
        links = f"{_described(self.inside)} inside"
        if self.nodes > 1:
            links += f", {_described(self.between)} between"
        return f"{nodes}: {links}" + (f", {timed(self.call)} a call" if self.call else "")

    def as_dict(self) -> dict[str, Any]:
        """Return the description as plain data for JSON, which `from_dict` reads."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Network":
        """Return the network that `as_dict` described."""
        links = {name: Link(**data[name]) for name in ("inside", "between")}
        return cls(**{**data, **links})


def _check_link(name: str, link: Any) -> None:
    if not isinstance(link, Link):
        raise ValueError(
            f"Network: {name} is a Link, as in Link.of(alpha=20e-6, bandwidth=10e9), not {link!r}"
        )
    for part in ("alpha", "beta", "gamma"):
        _check_seconds(f"{name}.{part}", getattr(link, part))


def _check_seconds(name: str, value: Any) -> None:
    # Not `value < 0`, because NaN must be refused, too.
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 3600:
        raise ValueError(f"Network: {name} is in seconds, from 0 to an hour, not {value!r}")


def _times(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


def _described(link: Link) -> str:
    return f"{timed(link.alpha)} and {sized(link.bandwidth) if link.beta else 'any'}" + (
        "/s" if link.beta else " bandwidth"
    )


@functools.lru_cache(maxsize=4096)
def _fastest(network: Network, name: str, size: float, layout: tuple[int, ...]) -> Choice:
    several = len(layout) > 1
    flat = best(name, size, sum(layout), network.between if several else network.inside)
    choices = [flat, *_hierarchical(network, name, size, layout)]
    fastest = min(choices, key=lambda choice: choice.seconds)
    return fastest._replace(seconds=network.call + fastest.seconds)


def _hierarchical(
    network: Network, name: str, size: float, layout: tuple[int, ...]
) -> Iterator[Choice]:
    """Yield the hierarchical algorithms if all nodes have the same number of ranks, at least 2."""
    nodes, per_node = len(layout), layout[0]
    if nodes == 1 or per_node == 1 or layout[-1] != per_node:
        return
    parts = {"whole": size, _PER_RANK: size / per_node, _PER_NODE: size / nodes}
    for steps in HIERARCHIES[name]:
        chosen = [
            best(step.collective, parts[step.part], per_node, network.inside)
            if step.where == "inside"
            else best(step.collective, parts[step.part], nodes, network.between)
            for step in steps
        ]
        names = ", ".join(
            f"{choice.algorithm} {step.where}" for choice, step in zip(chosen, steps, strict=True)
        )
        yield Choice(f"hierarchical: {names}", sum(choice.seconds for choice in chosen))
