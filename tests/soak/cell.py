"""A cell of the soak with its expected result, and the helpers of all kinds of cells."""

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from tests.soak.programs import RANKS

# Modules that cells write.
OWN_FILES = re.compile(r"mine_|__pycache__")
FOREVER = 600  # seconds; only a cell that hangs reaches this deadline
IMPORTS = (
    "%%px\nimport os, time\nfrom mpi4py import MPI\nfrom parlab.rank import comm, rank, world_size"
)
PATIENCE = 10.0  # seconds that C code gets to finish after a press of the stop button


@dataclass
class Cell:
    """A cell for the notebook, and the result that it must have.

    Attributes:
        code: the text of the cell.
        ends_within: seconds within which it must end, before any allowance is added.
        keeps: True if the variables of the ranks must be kept, unless a rank died. False if they
            may be lost, and the notebook must say so. None if the cell asks for new ranks.
        before: cells that run before it, without a time limit.
        after: cells that run after it, without a time limit.
        presses: seconds after which the stop button is pressed.
        shows: text that it must show.
        busy: True if other processes use all cores while it runs.
        kind: its kind.
    """

    code: str
    ends_within: float = FOREVER
    keeps: bool | None = True
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    presses: list[float] = field(default_factory=list)
    shows: str = ""
    busy: bool = False
    kind: str = ""


Make = Callable[[Random], Cell]
KINDS: dict[str, tuple[float, Make]] = {}  # by name: the weight, and the function that makes a cell


def kind(weight: float) -> Callable[[Make], Make]:
    """Register a function as a kind of cell that is drawn in proportion to `weight`."""

    def register(make: Make) -> Make:
        KINDS[make.__name__] = (weight, make)
        return make

    return register


def stopped(random: Random, body: str, **expected) -> Cell:
    """Return a cell with a random deadline."""
    seconds = round(random.uniform(0.5, 3), 1)
    return Cell(f"%%px --timeout {seconds}\n{body}", ends_within=seconds, **expected)


def _indented(body: str) -> str:
    return "\n".join(f"    {line}" for line in body.splitlines())


def some_of_the_ranks(random: Random, body: str) -> str:
    """Return a program in which only some ranks run `body`."""
    ranks = sorted(random.sample(range(RANKS), random.randint(1, RANKS)))
    return f"if rank in {ranks}:\n{_indented(body)}"
