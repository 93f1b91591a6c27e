"""A process group that does everything as late as allowed, and records its calls.

A real network may be fast or slow. This one is as slow as the rules allow: collectives and receives
happen in `wait()`, and a message is sent only after its receiver has made its call. A function that
forgets to wait therefore fails in every run, not just occasionally.
"""

import functools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI
from torch.distributed import distributed_c10d

from parlab.checks.base import refused_calls
from parlab.checks.base.paused_comm import no_pauses
from parlab.ledger import Call, Ledger
from parlab.ledger.calls import RECEIVES, SENDS
from parlab.ledger.torch_calls import group_call
from parlab.runtime.torch_mpi.group import BACKEND, MPIGroup
from parlab.runtime.torch_mpi.work import PointToPointWork

COLLECTIVES = (
    "allreduce",
    "allreduce_coalesced",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_single_coalesced",
    "broadcast",
    "gather",
    "scatter",
    "allgather",
    "allgather_coalesced",
    "all_gather_single",
    "all_gather_single_coalesced",
    "alltoall",
    "all_to_all_single",
    "barrier",
)
# The names of these operations in torch.distributed before 2.13. Libraries still use them.
OLD_NAMES = {
    "_allgather_base": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "alltoall_base": "all_to_all_single",
}
MESSAGES = (*SENDS, *RECEIVES)


@dataclass(frozen=True)
class Event:
    """Something that happened on this rank.

    Attributes:
        kind: "start" or "wait" for an operation of the group, or the kind of a check's own note.
        what: the number of the operation, from 0 in the order of their starts; or what was noted.
        contiguous: whether all tensors of the operation are contiguous.
    """

    kind: str
    what: Any = None
    op: str = ""
    bytes: int = 0
    address: int = 0
    contiguous: bool = True


def places(events: Sequence[Event], kind: str) -> list[int]:
    """Return the indices in `events` of all events of a kind."""
    return [place for place, event in enumerate(events) if event.kind == kind]


class LateWork(dist.Work):
    """The handle of an operation that is carried out by `wait()`."""

    def __init__(
        self,
        group: "RecordingGroup",
        number: int,
        call: Call,
        tensors: Iterable[torch.Tensor],
        do: Callable,
        arrived: Callable[[], bool],
    ) -> None:
        super().__init__()
        self._arrived = arrived
        self._group, self._number, self._call, self._do = group, number, call, do
        self._tensors = list(tensors)
        self.done = False

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._group.note("wait", self._number)
        self._group.complete(self)
        return True

    @property
    def op(self) -> str:
        return self._call.op

    def carry_out(self) -> None:
        self.done = True
        if any(_lacks(tensor) for tensor in self._tensors):
            raise RuntimeError(f"{self._call.op}: {refused_calls.FREED_BEFORE_WAIT}")
        self._work = self._do()
        self._work.wait()
        self._call.end = time.perf_counter()

    def is_completed(self) -> bool:
        if not self.done and not self._arrived():
            return False
        self._group.complete(self)
        return True

    def is_success(self) -> bool:
        return self.done

    def synchronize(self) -> None:
        self.wait()

    def result(self) -> list[torch.Tensor]:
        self.wait()
        return self._work.result()

    def get_future(self) -> torch.futures.Future:
        """Wait, and return a completed future, because no thread could complete it later."""
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self.result())
        return future

    def _source_rank(self) -> Any:  # torch.distributed.recv asks for it by this name
        return self._work._source_rank()


class RecordingGroup(MPIGroup):
    """A late process group over the ranks of `comm`, which records calls in `events` and `ledger`.

    `ranks` are the members' numbers in the lab, which `dist.get_rank(group)` and others need.
    `pause` is called before each message.
    """

    def __init__(
        self, comm: MPI.Intracomm, ranks: list[int], ledger: Ledger, pause: Callable = no_pauses
    ) -> None:
        super().__init__(comm)
        self.events: list[Event] = []
        self._ledger, self._started, self._pause = ledger, 0, pause
        self._pending: list[LateWork] = []
        world = distributed_c10d._world
        world.pg_group_ranks[self] = {rank: number for number, rank in enumerate(ranks)}
        world.pg_map[self] = (BACKEND, None)
        world.pg_names[self] = f"check-{id(self)}"

    def close(self) -> None:
        """Remove this group from the tables of torch.distributed."""
        world = distributed_c10d._world
        for table in (world.pg_group_ranks, world.pg_map, world.pg_names):
            table.pop(self, None)

    def note(self, kind: str, what: Any = None) -> None:
        """Record an event that is not an operation of the group."""
        self.events.append(Event(kind, what))

    def take_events(self) -> list[Event]:
        """Return the events since the last call, and number operations from 0 again."""
        taken, self.events, self._started = self.events, [], 0
        return taken

    def start(
        self,
        name: str,
        arguments: tuple[Any, ...],
        do: Callable[[], dist.Work],
        arrived: Callable[[], bool] = lambda: True,
    ) -> LateWork:
        """Record the start of an operation, which `do` carries out when the caller waits for it.

        `arrived` returns whether a message has arrived, for callers that test instead of waiting.
        """
        call = group_call(self, name, arguments, None, time.perf_counter(), None)
        tensors = list(_tensors(arguments))
        for tensor in tensors:
            if lacking := _lacks(tensor):
                raise RuntimeError(f"{call.op}: {refused_calls.NO_MEMORY} ({lacking})")
        self._ledger.enter(call)
        number, self._started = self._started, self._started + 1
        address = tensors[0].data_ptr() if tensors else 0
        contiguous = all(tensor.is_contiguous() for tensor in tensors)
        self.events.append(Event("start", number, call.op, call.bytes, address, contiguous))
        work = LateWork(self, number, call, tensors, do, arrived)
        self._pending.append(work)
        return work

    def complete(self, work: LateWork) -> None:
        """Carry out `work`. For a collective, first carry out all collectives started before it.

        All ranks then run collectives in the same order. A message does not wait for others.
        """
        if work.op in MESSAGES:
            if not work.done:
                self._pending.remove(work)
                work.carry_out()
            return
        while not work.done:
            first = next(one for one in self._pending if one.op not in MESSAGES)
            self._pending.remove(first)
            first.carry_out()

    def _keep(self, transfer: PointToPointWork) -> PointToPointWork:
        return transfer  # `_pending` keeps it until the wait, and nothing else should

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> LateWork:
        # Start the send now, unbuffered. Only its completion is late.
        self._pause()
        tensor = _require_contiguous("send", tensors)
        sent = tensor.detach().clone()
        work = MPIGroup.send.__wrapped__(self, tensors, dst, tag)

        def leave() -> dist.Work:
            changed = not _same_bytes(tensor, sent)
            work.wait()  # before raising: MPI reads the memory until then
            if changed:
                raise RuntimeError(f"send: {refused_calls.CHANGED_BEFORE_WAIT}")
            return work

        return self.start("send", (tensors, dst, tag), leave, work.is_completed)

    def _start_send(self, memory: list[Any], dst: int, tag: int) -> MPI.Request:
        return self.comm.Issend(memory, dst, tag)

    def recv(self, tensors: list[torch.Tensor], src: int, tag: int = 0) -> LateWork:
        tensor = _require_contiguous("recv", tensors)
        arrived = torch.empty_like(tensor)
        work = super().recv([arrived], src, tag)

        def land() -> dist.Work:
            work.wait()
            tensor.detach().copy_(arrived)  # as with Gloo, the tensor may require a gradient
            return work

        return self.start("recv", (tensors, src, tag), land, work.is_completed)


def _require_contiguous(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the only tensor. Raise RuntimeError unless it is contiguous: Gloo and NCCL need it."""
    (tensor,) = tensors
    if not tensor.is_contiguous():
        raise RuntimeError(f"{op}: {refused_calls.NOT_CONTIGUOUS}, with strides {tensor.stride()}")
    return tensor


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two contiguous tensors have the same bits, so that NaN can equal NaN."""
    flat = (t.detach().resolve_conj().resolve_neg().view(-1) for t in (one, other))
    return torch.equal(*(t.view(torch.uint8) for t in flat))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _lacks(tensor: torch.Tensor) -> str:
    """Describe by how much a tensor's storage is too small; return "" if it is large enough.

    MPI would read or write beyond the storage, which can crash the process.
    """
    if not tensor.numel() or tensor.layout != torch.strided:
        return ""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = tensor.storage_offset() + sum((n - 1) * stride for n, stride in steps)
    got, right = tensor.untyped_storage().nbytes(), (last + 1) * tensor.element_size()
    return f"{got:,} bytes where {right:,} are needed" if got < right else ""


def _late(name: str) -> Callable[..., LateWork]:
    inner = getattr(MPIGroup, name)

    @functools.wraps(inner)
    def operation(self: RecordingGroup, *arguments: Any, **named: Any) -> LateWork:
        # Torch may pass the options, which are the last argument, by keyword.
        arguments = (*arguments, *named.values())
        return self.start(name, arguments, lambda: inner(self, *arguments))

    return operation


for _name in COLLECTIVES:
    setattr(RecordingGroup, _name, _late(_name))
for _old, _new in OLD_NAMES.items():
    setattr(RecordingGroup, _old, getattr(RecordingGroup, _new))
