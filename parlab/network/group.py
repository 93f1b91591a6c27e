"""A torch.distributed process group over an emulated network, for CPU tensors."""

import functools
import threading
from array import array
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from parlab.costs.networks import Network
from parlab.network.clock import now
from parlab.network.links import Links
from parlab.network.progress_thread import Background, Collectives
from parlab.network.rendezvous import Meetings
from parlab.network.shared_sum import MemoryComm
from parlab.network.work import CollectiveWork, MessageWork
from parlab.runtime.torch_mpi.group import MPIGroup
from parlab.runtime.torch_mpi.observers import observed
from parlab.runtime.torch_mpi.work import PointToPointWork

BACKEND = "emulated"

# The time at which a message ends is sent in a second message, with this number added to the tag.
_END_TAG = 1 << 20

Tensors = list[torch.Tensor]


class EmulatedGroup(MPIGroup):
    """A group over `comm` whose rank i is rank `members[i]` of a network with these `links`.

    It has the operations of `MPIGroup`, but they complete at the modeled times, and collectives
    with `async_op=True` continue in the background. Making a group is collective over `comm`.
    """

    def __init__(self, comm: MPI.Intracomm, links: Links, members: Sequence[int]) -> None:
        super().__init__(comm)
        self.links, self.members = links, tuple(members)
        self.background = Background()
        self.messages = threading.Lock()  # only one thread at a time may test MPI's requests
        self._reset()

    def _reset(self) -> None:
        """Start without any operations."""
        self.real = MPIGroup(MemoryComm(self.comm))  # exchanges the data
        self.collectives = Collectives(Meetings(self.comm, self.links, self.members))

    @property
    def network(self) -> Network:
        """The network that is emulated."""
        return self.links.network

    def getBackendName(self) -> str:
        return BACKEND

    def __repr__(self) -> str:
        rank = f"rank {self.comm.rank} of {self.comm.size}"
        return f"<EmulatedGroup, {rank}, on emulated {self.network}>"

    def collective(
        self,
        called: float,
        name: str,
        size: int,
        exchange: Callable[[], dist.Work],
        in_background: bool,
    ) -> dist.Work:
        """Take part in a collective of `size` bytes, which this rank called at `called` (s).

        With `in_background`, it continues while the rank does something else.
        """
        seconds = self.network.collective(name, size, self.members).seconds
        work = CollectiveWork(
            self.comm, self.background.look_after, seconds, exchange, self.collectives.advance
        )
        self.collectives.join(work, called, seconds)
        if in_background:
            self.background.look_after(work)
        return work

    @observed
    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        called, size = now(), _total(tensors)
        sender, receiver = self.members[self.comm.rank], self.members[dst]
        end = array("d", [self.links.message(called, size, sender, receiver)])
        with self.messages:
            # First the message, which refuses tensors that cannot be sent.
            real: PointToPointWork = MPIGroup.send.__wrapped__(self, tensors, dst, tag)
            announcement = self.comm.Isend(end, dst, tag + _END_TAG)
        return self._message(real, tensors, dst, lambda: _when(announcement, end))

    @observed
    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        end = array("d", [0.0])
        with self.messages:
            real: PointToPointWork = MPIGroup.recv.__wrapped__(self, tensors, src, tag)
            announcement = None
            if src != MPI.ANY_SOURCE:  # otherwise, `end_of` receives it when the source is known
                announcement = self.comm.Irecv(end, src, tag + _END_TAG)

        def end_of() -> float:
            request = announcement or self.comm.Irecv(end, real.source_rank(), tag + _END_TAG)
            return _when(request, end)

        return self._message(real, tensors, src, end_of)

    def _message(
        self, real: PointToPointWork, tensors: Tensors, peer: int, end_of: Callable[[], float]
    ) -> dist.Work:
        other = self.members[peer if peer >= 0 else 0]
        seconds = self.network.message(_total(tensors), self.members[self.comm.rank], other)
        work = MessageWork(
            real, self.background.look_after, tensors, seconds, end_of, self.messages
        )
        self.background.look_after(work)
        return work

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        for work in self.background.works():  # a batch is complete when all of its calls are
            work.wait()
        return super()._end_coalescing(device)

    # Freeing and renewal

    def give_up(self) -> None:
        """Make all incomplete operations fail, after the communicator was revoked."""
        self.background.forget()
        self.collectives.give_up()

    def renew(self, links: Links) -> None:
        """Start again on the renewed communicator, without any operations. Collective."""
        self.links = links
        self._reset()


def _when(request: MPI.Request, end: array) -> float:
    request.Wait()  # returns soon, because the time is sent right after the message
    return end[0]


def _total(value: Any) -> int:
    """Return the bytes of all tensors in nested lists."""
    if isinstance(value, torch.Tensor):
        return value.numel() * value.element_size()  # works for sparse tensors, refused later
    return sum(_total(item) for item in value)


# For each collective method of a process group: its operation, the position of the argument whose
# bytes count, and whether these bytes count once for each rank of the group.
_METHODS: dict[str, tuple[str, int | None, bool]] = {
    "allreduce": ("all_reduce", 0, False),
    "allreduce_coalesced": ("all_reduce", 0, False),
    "reduce": ("reduce", 0, False),
    "reduce_scatter": ("reduce_scatter", 1, False),
    "reduce_scatter_single": ("reduce_scatter", 1, False),
    "reduce_scatter_single_coalesced": ("reduce_scatter", 1, False),
    "broadcast": ("broadcast", 0, False),
    "gather": ("gather", 1, True),
    "scatter": ("scatter", 0, True),
    "allgather": ("all_gather", 0, False),
    "allgather_coalesced": ("all_gather", 0, False),
    "all_gather_single": ("all_gather", 0, False),
    "all_gather_single_coalesced": ("all_gather", 0, False),
    "alltoall": ("all_to_all", 1, False),
    "all_to_all_single": ("all_to_all", 1, False),
    "barrier": ("barrier", None, False),
}
_OLD_NAMES = {
    "_allgather_base": "all_gather_single",
    "allgather_into_tensor_coalesced": "all_gather_single_coalesced",
    "_reduce_scatter_base": "reduce_scatter_single",
    "reduce_scatter_tensor_coalesced": "reduce_scatter_single_coalesced",
    "alltoall_base": "all_to_all_single",
}


def _emulated(name: str, collective: str, argument: int | None, each: bool) -> Callable:
    """Return a version of `MPIGroup`'s method `name` that takes as long as the model says."""
    method = getattr(MPIGroup, name).__wrapped__

    @functools.wraps(method)
    def call(self: EmulatedGroup, *args: Any, **kwargs: Any) -> dist.Work:
        called = now()
        size = 0 if argument is None else _total(args[argument])
        opts = [option for option in (*args, *kwargs.values()) if hasattr(option, "asyncOp")]
        return self.collective(
            called,
            collective,
            size * self.comm.size if each else size,
            lambda: method(self.real, *args, **kwargs),
            in_background=all(option.asyncOp for option in opts),
        )

    return observed(call)


for _name, _of in _METHODS.items():
    setattr(EmulatedGroup, _name, _emulated(_name, *_of))
for _old, _new in _OLD_NAMES.items():
    setattr(EmulatedGroup, _old, getattr(EmulatedGroup, _new))
