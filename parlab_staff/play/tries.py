"""What `Run` executes under each exercise: a few lines that call the function and print."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from parlab.costs import collectives
from parlab.costs.collectives import Cost

MOST_RANKS = 8


@dataclass(frozen=True)
class Try:
    """The lines that try a function, and what they must cost by the book's formula.

    `note` is Markdown below the exercise's text, about what is different in a browser.
    `cost(size, n)` is for `size` bytes on n ranks, and `data(n)` returns that size. The rank that
    sends most sends as many messages as the cost has rounds, and as many bytes.
    """

    code: str
    note: str = ""
    formula: str = ""
    cost: Callable[[float, int], Cost] | None = None
    data: Callable[[int], int] | None = None

    def costs(self) -> list[dict[str, float]]:
        """Return messages and bytes for 1 to `MOST_RANKS` ranks, or nothing without a formula."""
        if self.cost is None or self.data is None:
            return []
        costs = [self.cost(self.data(n), n) for n in range(1, MOST_RANKS + 1)]
        return [{"messages": cost.rounds, "bytes": cost.bytes} for cost in costs]


def _sum_of_digits(name: str) -> str:
    """Return the lines that call a function which adds arrays of all ranks in place."""
    return f"""\
x = np.full(world_size, 10**rank, dtype=np.int64)  # digits show the ranks in a sum
{name}(x, comm)
print("  ".join(f"{{number:0{{world_size}}d}}" for number in x))"""


TRIES: Mapping[str, Try] = MappingProxyType(
    {
        "ping_pong": Try(
            """\
for size in (8, 1_000, 100_000):
    seconds = ping_pong(size, 20, comm)
    if rank == 0:
        print(f"{size:>7,} bytes: {1e6 * seconds:,.0f} µs")""",
            note="**In the browser,** a message takes much longer than on the lab's real ranks: "
            "Python is slower here, and a rank that waits needs time to wake up. The check "
            "works on this page, but measure α and β in the lab.",
        ),
        "fit_alpha_beta": Try(
            """\
sizes = [8 * 4**k for k in range(11)]
seconds = [2e-6 + size / 4e9 for size in sizes]  # without errors
if rank == 0:
    print("α = {:.3g} s, β = {:.3g} s per byte".format(*fit_alpha_beta(sizes, seconds)))"""
        ),
        "ring_shift": Try(
            """\
received = ring_shift(np.full(4, float(rank)), comm)
print(received)""",
            formula="one message of S bytes",
            cost=lambda size, n: collectives.message(size),
            data=lambda n: 32,
        ),
        "predict_broadcast": Try(
            """\
if rank == 0:
    for n in (2, 5, 64):
        print(n, "ranks:", predict_broadcast(n))"""
        ),
        "binomial_broadcast": Try(
            """\
x = np.full(4, float(rank))
binomial_broadcast(x, 0, comm)
print(x)""",
            formula="⌈log₂ N⌉ messages of S bytes from the root",
            cost=collectives.binomial_broadcast,
            data=lambda n: 32,
        ),
        "ring_reduce_scatter": Try(
            _sum_of_digits("ring_reduce_scatter"),
            formula="N − 1 messages, (N − 1)/N · S bytes",
            cost=collectives.ring_reduce_scatter,
            data=lambda n: 8 * n,
        ),
        "ring_all_gather": Try(
            """\
x = np.zeros(world_size, dtype=np.int64)
x[rank] = 10**rank
ring_all_gather(x, comm)
print(x)""",
            formula="N − 1 messages, (N − 1)/N · S bytes",
            cost=collectives.ring_all_gather,
            data=lambda n: 8 * n,
        ),
        "predict_ring": Try(
            """\
if rank == 0:
    for n in (2, 5, 64):
        print(n, "ranks:", predict_ring(n))"""
        ),
        "ring_all_reduce": Try(
            _sum_of_digits("ring_all_reduce"),
            formula="2(N − 1) messages, 2(N − 1)/N · S bytes",
            cost=collectives.ring_all_reduce,
            data=lambda n: 8 * n,
        ),
        "grid_communicators": Try(
            """\
rows = 2 if world_size % 2 == 0 else 1
row, column = grid_communicators(rows, world_size // rows, comm)
print(f"{row.rank} of {row.size} in the row, {column.rank} of {column.size} in the column")"""
        ),
    }
)
