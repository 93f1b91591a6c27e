"""Records what each rank does and when, on one clock, and draws it with one row for each rank.

    timeline = Timeline(comm)                        # on all ranks: compares their clocks
    with timeline.span("forward", "compute"):
        loss = model(x)
    timeline.add_calls(ledger.calls)                 # what a ledger recorded, as communication
    spans = timeline.gather()                        # the spans of all ranks, on every rank
    draw(with_idle(spans), "Rank 3 waits for the others")

Times are in seconds, as from `time.perf_counter`. `gather` returns times since the first start on
any rank. On a GPU, kernels run later than they are called, so `span` and `now` mark the moments at
which the GPU reaches them.
"""

import contextlib
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    import torch
    from mpi4py import MPI

    from parlab.ledger import Call

Moment: TypeAlias = "float | torch.cuda.Event"

KINDS = ("compute", "communication", "idle")
CLOCK_ROUNDS = 50  # number of exchanges, the fastest of which measures the clocks' difference
LABEL_SHARE = 0.0085  # share of the picture's width that a letter of a span's name needs


@dataclass(frozen=True)
class Span:
    """An activity of a rank from `start` to `end` (s). `kind` is one of `KINDS`."""

    rank: int
    name: str
    kind: str
    start: float
    end: float

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"no kind {self.kind!r} of span: use one of {', '.join(KINDS)}")

    @property
    def seconds(self) -> float:
        return self.end - self.start


class Timeline:
    """Records what this rank does. Making one is collective over the ranks of `comm`."""

    def __init__(self, comm: "MPI.Intracomm") -> None:
        self._comm = comm
        self._recorded: list[tuple[str, str, Moment, Moment]] = []  # name, kind, start, end
        self._offset = _shared_clock_offset(comm)

    @staticmethod
    def now() -> Moment:
        """Return this moment. On a GPU, it is an event that the current stream will reach."""
        torch = sys.modules.get("torch")  # lab 01 begins without torch
        if torch is None or not torch.cuda.is_initialized():
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    @contextlib.contextmanager
    def span(self, name: str, kind: str = "compute") -> Iterator[None]:
        """Record a span for the block."""
        start = self.now()
        try:
            yield
        finally:
            self.add(name, kind, start, self.now())

    def add(self, name: str, kind: str, start: Moment, end: Moment) -> None:
        """Record a span that was timed elsewhere, with `now` or `time.perf_counter`."""
        self._recorded.append((name, kind, start, end))

    def add_calls(self, calls: Iterable["Call"]) -> None:
        """Record the complete calls of a ledger, as communication."""
        for call in calls:
            if call.end is not None:
                self.add(call.op, "communication", call.start, call.end)

    def clear(self) -> None:
        """Forget what was recorded."""
        self._recorded.clear()

    def gather(self) -> list[Span]:
        """Return the spans of all ranks, in order of rank and start, on every rank. Collective."""
        moments = [moment for *_, start, end in self._recorded for moment in (start, end)]
        times = iter([time + self._offset for time in _seconds(moments)])
        rank = self._comm.rank
        own = [
            Span(rank, name, kind, next(times), next(times)) for name, kind, *_ in self._recorded
        ]
        spans = [span for spans in self._comm.allgather(own) for span in spans]
        zero = min((span.start for span in spans), default=0.0)
        moved = (replace(s, start=s.start - zero, end=s.end - zero) for s in spans)
        return sorted(moved, key=lambda span: (span.rank, span.start))


def _seconds(moments: list[Moment]) -> list[float]:
    """Convert moments to times of `time.perf_counter`. Wait for the GPU if it recorded some."""
    if all(isinstance(moment, float) for moment in moments):
        return moments
    import torch

    torch.cuda.synchronize()
    anchor = torch.cuda.Event(enable_timing=True)
    anchor.record()
    anchor.synchronize()
    end = time.perf_counter()
    return [m if isinstance(m, float) else end - 1e-3 * m.elapsed_time(anchor) for m in moments]


def records(spans: Iterable[Span]) -> list[dict[str, Any]]:
    """Return the spans as plain data, for JSON."""
    return [asdict(span) for span in spans]


def with_idle(spans: Iterable[Span]) -> list[Span]:
    """Return the spans, and idle spans that fill each rank's gaps.

    Every rank is filled from the first start to the last end of any rank.
    """
    spans = list(spans)
    if not spans:
        return []
    first, last = min(s.start for s in spans), max(s.end for s in spans)
    filled = []
    for rank in sorted({s.rank for s in spans}):
        busy_until = first
        for span in sorted((s for s in spans if s.rank == rank), key=lambda s: s.start):
            if span.start > busy_until:
                filled.append(Span(rank, "", "idle", busy_until, span.start))
            filled.append(span)
            busy_until = max(busy_until, span.end)
        if busy_until < last:
            filled.append(Span(rank, "", "idle", busy_until, last))
    return filled


# Clocks


class Offset(NamedTuple):
    """The number of seconds to add to this rank's clock to get rank 0's clock, and its `error`.

    The sum is wrong by at most `error` seconds.
    """

    seconds: float
    error: float


def clock_offset(comm: "MPI.Intracomm", clock: Callable[[], float] = time.perf_counter) -> Offset:
    """Return how this rank's clock differs from rank 0's. Collective.

    Each rank asks rank 0 for the time. The answer was correct at some moment between the request
    and the answer, so the fastest exchange has the smallest error (Cristian 1989).
    """
    best = Offset(0.0, 0.0)
    for rank in range(1, comm.size):
        if comm.rank == 0:
            for _ in range(CLOCK_ROUNDS):
                comm.recv(source=rank)
                comm.send(clock(), rank)
        elif comm.rank == rank:
            best = min((_ask(comm, clock) for _ in range(CLOCK_ROUNDS)), key=lambda o: o.error)
    return best


def _ask(comm: "MPI.Intracomm", clock: Callable[[], float]) -> Offset:
    sent = clock()
    comm.send(None, 0)
    remote = comm.recv(source=0)
    answered = clock()
    return Offset(remote - (sent + answered) / 2, (answered - sent) / 2)


def _shared_clock_offset(comm: "MPI.Intracomm") -> float:
    from mpi4py import MPI  # not at the top, because drawing recorded spans does not need MPI

    # perf_counter counts from the machine's start, so ranks of one machine have the same clock.
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    one_machine = comm.allreduce(node.size == comm.size, op=MPI.LAND)
    node.Free()
    return 0.0 if one_machine else clock_offset(comm).seconds


# Picture


def draw(spans: Iterable[Span], title: str, time_label: str | None = None) -> tuple[Any, Any]:
    """Draw one row for each rank, with rank 0 at the top. Return matplotlib's figure and axes.

    `time_label` is the label of the time axis, which is in ms. By default, it says if the times are
    emulated. If a rank computes and communicates at the same time, the upper half of each row shows
    computation, and the lower half shows communication.
    """
    from parlab import plots
    from parlab.network import labels

    spans = list(spans)
    ranks = sorted({span.rank for span in spans})
    width = max((span.end for span in spans), default=1.0) or 1.0
    halves = _overlap(spans)
    figure, axes = plots.subplots(title, figsize=(9.0, 1.2 + 0.55 * max(len(ranks), 1)))
    labelled = set()
    for span in spans:
        row = ranks.index(span.rank)
        bottom, height = _lane(span.kind, halves)
        style = plots.hatched(span.kind)
        if span.kind != "idle":
            style["linewidth"] = 0.6  # separates consecutive spans
        if span.kind in labelled:
            style.pop("label")
        labelled.add(span.kind)
        axes.broken_barh([(span.start * 1e3, span.seconds * 1e3)], (row + bottom, height), **style)
        end = _visible_until(span, spans)
        if span.name and (end - span.start) / width > LABEL_SHARE * (len(span.name) + 1.5):
            middle = ((span.start + end) / 2 * 1e3, row + bottom + height / 2)
            plate = {"boxstyle": "round,pad=0.15", "facecolor": style["facecolor"], "linewidth": 0}
            axes.text(*middle, span.name, ha="center", va="center", color="white", fontsize=9,
                      bbox=plate)  # fmt: skip
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks])
    axes.set_ylim(max(len(ranks), 1) - 0.5, -0.5)
    axes.set_xlim(0, width * 1e3)
    axes.set_xlabel(time_label or labels.time_label("time (ms)"))
    if labelled:
        figure.legend(
            loc="outside lower right",
            ncols=len(labelled),
            frameon=False,
            labelcolor=plots.NEUTRAL,
        )
    return figure, axes


def _visible_until(span: Span, spans: Iterable[Span]) -> float:
    """Return the start of the first span that is drawn over `span`, or the end of `span`."""
    over = [s.start for s in spans if (s.rank, s.kind) == (span.rank, span.kind)]
    return min((start for start in over if span.start < start < span.end), default=span.end)


def _lane(kind: str, halves: bool) -> tuple[float, float]:
    """Return the bottom and the height of a span in its row. The axis points down."""
    if not halves or kind == "idle":
        return -0.4, 0.8
    return (-0.4, 0.4) if kind == "compute" else (0.0, 0.4)


def _overlap(spans: list[Span]) -> bool:
    """Return True if a rank computes and communicates at the same time."""
    return any(
        a.rank == b.rank and a.start < b.end and b.start < a.end
        for a in spans
        if a.kind == "compute"
        for b in spans
        if b.kind == "communication"
    )
