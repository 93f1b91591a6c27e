"""The lines that `Run` executes under each exercise: they call the function and print."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from parlab.costs import collectives, pipeline_parallel
from parlab.costs.collectives import Cost
from parlab_staff.play.formulas import Formula, one_message


@dataclass(frozen=True)
class Try:
    """The lines that try a function, and their cost by the book's formula.

    `note` is Markdown below the exercise's text, about what is different in a browser.
    """

    code: str
    note: str = ""
    formula: Formula | None = None


def _sum_of_digits(name: str) -> str:
    """Return the lines that call a function that adds the arrays of all ranks in place."""
    return f"""\
x = np.full(world_size, 10**rank, dtype=np.int64)  # digits show the ranks in a sum
{name}(x, comm)
print("  ".join(f"{{number:0{{world_size}}d}}" for number in x))"""


def _schedule(call: str) -> str:
    """Return the lines that run a schedule with messages. Passes only take time."""
    return f"""\
schedule, requests = {call}, []
print(texts(schedule[rank], world_size))
stages = 1 + max(action.stage for actions in schedule for action in actions)
comm.Barrier()
start = time.perf_counter()
for number, (kind, stage, micro_batch) in enumerate(schedule[rank]):
    if kind == "backward" and forward(stage, micro_batch) not in schedule[rank][:number]:
        raise ValueError(f"backward({{stage}}, {{micro_batch}}) comes before its forward pass")
    step = 1 if kind == "forward" else -1  # activations go to the next stage, gradients back
    before, after = stage - step, stage + step
    data, tag = np.zeros(8), 2 * (stages * micro_batch + stage) + (kind == "backward")
    if 0 <= before < stages:
        comm.Recv(data, source=before % world_size, tag=tag)
    time.sleep(0.04 if kind == "forward" else 0.08)
    if 0 <= after < stages:
        requests.append(comm.Isend(data, dest=after % world_size, tag=tag + 2 * step))
MPI.Request.Waitall(requests)
print(f"done after {{1000 * (time.perf_counter() - start):.0f}} ms")"""


_DRAWN = (
    "`forward(s, i)` makes the action of a forward pass: that of micro-batch i through stage s. "
    "`backward(s, i)` makes that of its backward pass.\n\n"
    "**In the browser,** Run executes the schedule with messages, and each pass only takes time. "
    "Show the picture to scale. The check looks at the lists alone, as in the lab."
)
_MICRO_BATCHES = 4


def _most_sent(size: float, n: int) -> Cost:
    sent = (pipeline_parallel.sent_by(rank, n, _MICRO_BATCHES, size) for rank in range(n))
    return max(sent, key=lambda cost: cost.rounds)


_SENT = Formula(
    "2m messages of S bytes, and m of them on the first and on the last rank",
    _most_sent,
    lambda n: 64,
)


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
        "predict_stages": Try(
            """\
if rank == 0:
    print(predict_stages(1_000_000, world_size))"""
        ),
        "predict_traffic": Try(
            """\
if rank == 0:
    print(predict_traffic(1_000_000, world_size))"""
        ),
        "predict_bubble": Try(
            """\
if rank == 0:
    for m in (1, 8, 64):
        print(f"m = {m}:", predict_bubble(4, m, 2))"""
        ),
        "gpipe": Try(_schedule(f"gpipe(world_size, {_MICRO_BATCHES})"), _DRAWN, _SENT),
        "one_f_one_b": Try(_schedule(f"one_f_one_b(world_size, {_MICRO_BATCHES})"), _DRAWN, _SENT),
        "predict_live": Try(
            """\
print(predict_live(world_size, 8, 2, rank))"""
        ),
        "interleaved": Try(_schedule("interleaved(world_size, world_size, 2)"), _DRAWN),
    }
)
