"""What `Run` executes under each exercise: a few lines that call the function and print."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from parlab.costs import collectives
from parlab_staff.play.formulas import Formula, one_message


@dataclass(frozen=True)
class Try:
    """The lines that try a function, and what they must cost by the book's formula.

    `note` is Markdown below the exercise's text, about what is different in a browser.
    """

    code: str
    note: str = ""
    formula: Formula | None = None


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
            formula=one_message(lambda n: 32),
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
            formula=Formula(
                "⌈log₂ N⌉ messages of S bytes from the root",
                collectives.binomial_broadcast,
                lambda n: 32,
            ),
        ),
        "ring_reduce_scatter": Try(
            _sum_of_digits("ring_reduce_scatter"),
            formula=Formula(
                "N − 1 messages, (N − 1)/N · S bytes",
                collectives.ring_reduce_scatter,
                lambda n: 8 * n,
            ),
        ),
        "ring_all_gather": Try(
            """\
x = np.zeros(world_size, dtype=np.int64)
x[rank] = 10**rank
ring_all_gather(x, comm)
print(x)""",
            formula=Formula(
                "N − 1 messages, (N − 1)/N · S bytes",
                collectives.ring_all_gather,
                lambda n: 8 * n,
            ),
        ),
        "predict_ring": Try(
            """\
if rank == 0:
    for n in (2, 5, 64):
        print(n, "ranks:", predict_ring(n))"""
        ),
        "ring_all_reduce": Try(
            _sum_of_digits("ring_all_reduce"),
            formula=Formula(
                "2(N − 1) messages, 2(N − 1)/N · S bytes",
                collectives.ring_all_reduce,
                lambda n: 8 * n,
            ),
        ),
        "grid_communicators": Try(
            """\
rows = 2 if world_size % 2 == 0 else 1
row, column = grid_communicators(rows, world_size // rows, comm)
print(f"{row.rank} of {row.size} in the row, {column.rank} of {column.size} in the column")"""
        ),
    }
)
