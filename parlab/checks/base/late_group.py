"""A process group that works as late as it may, and records its calls.

A real network may be fast or slow. This one is as slow as the rules allow: a collective and a
receive happen in `wait()`, and a message leaves only when its receiver has called. So a function
that forgets to wait reads wrong numbers in every run.
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

from parlab.checks.base.refused_calls import (
    CHANGED_BEFORE_WAIT,
    FREED_BEFORE_WAIT,
    NO_MEMORY,
    NOT_CONTIGUOUS,
)
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
# The names by which torch.distributed called these before 2.13, still used by libraries.
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

    kind: "start" and "wait" of an operation of the group, or what a check notes itself. `what`
    numbers the group's operations from 0, in the order of their starts, or names what was noted.
    `contiguous` says whether all tensors of an operation are.
    """

    kind: str
    what: Any = None
    op: str = ""
    bytes: int = 0
    address: int = 0
    contiguous: bool = True


def places(events: Sequence[Event], kind: str) -> list[int]:
    """Where in `events` those of a kind are."""
    return [place for place, event in enumerate(events) if event.kind == kind]


class LateWork(dist.Work):
    """The handle of an operation that happens when it is waited for."""

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
            raise RuntimeError(f"{self._call.op}: {FREED_BEFORE_WAIT}")
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
        """A future that is done: nobody could complete it later."""
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(self.result())
        return future

    def _source_rank(self) -> Any:  # torch.distributed.recv asks for it by this name
        return self._work._source_rank()


class RecordingGroup(MPIGroup):
    """torch.distributed on the ranks of `comm`, late; `events` and `ledger` have what was asked.

    `ranks` are the members' numbers in the lab, for `dist.get_rank(group)` and its like.
    """

    def __init__(self, comm: MPI.Intracomm, ranks: list[int], ledger: Ledger) -> None:
        super().__init__(comm)
        self.events: list[Event] = []
        self._ledger, self._started = ledger, 0
        self._pending: list[LateWork] = []
        world = distributed_c10d._world
        world.pg_group_ranks[self] = {rank: number for number, rank in enumerate(ranks)}
        world.pg_map[self] = (BACKEND, None)
        world.pg_names[self] = f"check-{id(self)}"

    def close(self) -> None:
        """Let torch.distributed forget this group."""
        world = distributed_c10d._world
        for table in (world.pg_group_ranks, world.pg_map, world.pg_names):
            table.pop(self, None)

    def note(self, kind: str, what: Any = None) -> None:
        """Add an event of the check's own."""
        self.events.append(Event(kind, what))

    def take_events(self) -> list[Event]:
        """The events since the last call; operations are numbered from 0 again."""
        taken, self.events, self._started = self.events, [], 0
        return taken

    def start(
        self,
        name: str,
        arguments: tuple[Any, ...],
        do: Callable[[], dist.Work],
        arrived: Callable[[], bool] = lambda: True,
    ) -> LateWork:
        """Enter an operation; `do` carries it out when it is waited for.

        `arrived` says whether a message is at its end, for those who ask instead of waiting.
        """
        call = group_call(self, name, arguments, None, time.perf_counter(), None)
        tensors = list(_tensors(arguments))
        for tensor in tensors:
            if lacking := _lacks(tensor):
                raise RuntimeError(f"{call.op}: {NO_MEMORY} ({lacking})")
        self._ledger.enter(call)
        number, self._started = self._started, self._started + 1
        address = tensors[0].data_ptr() if tensors else 0
        contiguous = all(tensor.is_contiguous() for tensor in tensors)
        self.events.append(Event("start", number, call.op, call.bytes, address, contiguous))
        work = LateWork(self, number, call, tensors, do, arrived)
        self._pending.append(work)
        return work

    def complete(self, work: LateWork) -> None:
        """Carry out `work`: a collective after those started before it, as on all ranks.

        A message goes alone: what was sent before it may be under way still.
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
        return transfer  # `_pending` keeps it until it is waited for, and nothing keeps it longer

    def send(self, tensors: list[torch.Tensor], dst: int, tag: int = 0) -> LateWork:
        # It leaves at once, unbuffered: only its end is late.
        tensor = _require_contiguous("send", tensors)
        sent = tensor.detach().clone()
        work = MPIGroup.send.__wrapped__(self, tensors, dst, tag)

        def leave() -> dist.Work:
            changed = not _same_bytes(tensor, sent)
            work.wait()  # first: MPI reads the memory until then
            if changed:
                raise RuntimeError(f"send: {CHANGED_BEFORE_WAIT}")
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
            tensor.copy_(arrived)
            return work

        return self.start("recv", (tensors, src, tag), land, work.is_completed)


def _require_contiguous(op: str, tensors: list[torch.Tensor]) -> torch.Tensor:
    """Return the one tensor. Gloo and NCCL need a contiguous one; MPI would take any."""
    (tensor,) = tensors
    if not tensor.is_contiguous():
        raise RuntimeError(f"{op}: {NOT_CONTIGUOUS}, with strides {tensor.stride()}")
    return tensor


def _same_bytes(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two contiguous tensors have the same bits: NaN is itself."""
    flat = (t.detach().resolve_conj().resolve_neg().view(-1) for t in (one, other))
    return torch.equal(*(t.view(torch.uint8) for t in flat))


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _lacks(tensor: torch.Tensor) -> str:
    """What the tensor's storage lacks of its numbers' bytes, in words; "" where all are there.

    MPI would read or write beyond it, which ends the process.
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
        # torch names the options of some; they come last.
        arguments = (*arguments, *named.values())
        return self.start(name, arguments, lambda: inner(self, *arguments))

    return operation


for _name in COLLECTIVES:
    setattr(RecordingGroup, _name, _late(_name))
for _old, _new in OLD_NAMES.items():
    setattr(RecordingGroup, _old, getattr(RecordingGroup, _new))
