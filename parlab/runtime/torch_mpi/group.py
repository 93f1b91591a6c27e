"""A torch.distributed process group over an mpi4py communicator.

    register()
    group = dist.new_group(backend="mpi4py")
    dist.all_reduce(tensor, group=group)
    DistributedDataParallel(model, process_group=group)

On the CPUs of one machine, it is many times faster than Gloo. Ranks that are stuck in it can be
freed (`group.comm.Revoke()`), which is impossible with Gloo. CUDA tensors are copied through the
host's memory (see `staging`). Therefore, unlike with NCCL, ranks can share a GPU, messages have
tags, and they can arrive in any order. Differences from Gloo:

- A collective is complete when its call returns, even with `async_op=True`. Nothing overlaps, and
  ranks wait for each other in the call. `isend`, `irecv`, and `batch_isend_irecv` do not block.
- float16 and bfloat16 are reduced in float32 and rounded once. This sends twice the bytes, and the
  sum is more accurate.
- bool is reduced logically: SUM and MAX are "or", PRODUCT and MIN are "and".
- Tensors that are not contiguous are allowed, and are copied. A list of tensors is sent as one
  message, without a copy if its tensors are the chunks of one buffer.
- The only timeout is that of `work.wait(timeout)`, for sends and receives.

FSDP2, DTensor, and pipelining can use it as well (`DeviceMesh.from_group(group, "cpu")`,
`PipelineStage(…, group=group)`).
"""

from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from parlab.runtime.torch_mpi import collectives
from parlab.runtime.torch_mpi.buffers import copy_back, dense, flat, message, pieces, unflatten
from parlab.runtime.torch_mpi.named import NamedGroup
from parlab.runtime.torch_mpi.observers import observed
from parlab.runtime.torch_mpi.staging import through_host
from parlab.runtime.torch_mpi.work import CompletedWork, PointToPointWork

Tensors = list[torch.Tensor]

BACKEND = "mpi4py"


class MPIGroup(NamedGroup):
    """A process group over `comm`, an mpi4py communicator, with its rank and size.

    Each call reads the handle of `comm`. After the handle is renewed in place, the group uses the
    new one. torch.distributed calls these methods. Use its functions instead.
    """

    backend_name = BACKEND

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm.rank, comm.size)
        self.comm = comm
        self._incomplete: list[PointToPointWork] = []

    def abort(self) -> None:
        """Make all current and later calls on this group fail, on every rank."""
        self.comm.Revoke()

    def shutdown(self) -> None:
        """Do nothing, because the communicator belongs to the code that made the group."""

    @observed
    @through_host(receives=[0], sends=[0])
    def allreduce(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        op = (opts or dist.AllreduceOptions()).reduceOp
        for tensor in tensors:
            collectives.all_reduce(self.comm, tensor, op)
        return CompletedWork(tensors)

    @observed
    @through_host(receives=[0], sends=[0])
    def allreduce_coalesced(self, tensors: Tensors, opts: Any = None) -> dist.Work:
        together = flat(tensors)
        op = (opts or dist.AllreduceCoalescedOptions()).reduceOp
        collectives.all_reduce(self.comm, together, op)
        unflatten(together, tensors)
        return CompletedWork(tensors)

    @observed
    @through_host(receives=[0], sends=[0])
    def reduce(self, tensors: Tensors, opts: Any) -> dist.Work:
        collectives.reduce(self.comm, *tensors, opts.reduceOp, opts.rootRank)
        return CompletedWork(tensors)

    @observed
    @through_host(receives=[0], sends=[1])
    def reduce_scatter(
        self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any = None
    ) -> dist.Work:
        op = (opts or dist.ReduceScatterOptions()).reduceOp
        collectives.reduce_scatter(self.comm, *output_tensors, *input_tensors, op)
        return CompletedWork(output_tensors)

    @observed
    @through_host(receives=[0], sends=[1])
    def reduce_scatter_single(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        op = (opts or dist.ReduceScatterOptions()).reduceOp
        collectives.reduce_scatter_single(self.comm, output_tensor, input_tensor, op)
        return CompletedWork([output_tensor])

    @observed
    @through_host(receives=[0], sends=[1])
    def reduce_scatter_single_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> dist.Work:
        op = (opts or dist.ReduceScatterOptions()).reduceOp
        for output, tensor in zip(output_tensors, input_tensors, strict=True):
            collectives.reduce_scatter_single(self.comm, output, tensor, op)
        return CompletedWork(output_tensors)

    @observed
    @through_host(receives=[0], sends=[0])
    def broadcast(self, tensors: Tensors, opts: Any) -> dist.Work:
        collectives.broadcast(self.comm, *tensors, opts.rootRank)
        return CompletedWork(tensors)

    @observed
    @through_host(receives=[0], sends=[1])
    def gather(self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any) -> dist.Work:
        outputs = output_tensors[0] if self.comm.rank == opts.rootRank else None
        collectives.gather(self.comm, outputs, *input_tensors, opts.rootRank)
        return CompletedWork(outputs or [])

    @observed
    @through_host(receives=[0], sends=[1])
    def scatter(
        self, output_tensors: Tensors, input_tensors: list[Tensors], opts: Any
    ) -> dist.Work:
        inputs = input_tensors[0] if self.comm.rank == opts.rootRank else None
        collectives.scatter(self.comm, *output_tensors, inputs, opts.rootRank)
        return CompletedWork(output_tensors)

    @observed
    @through_host(receives=[0], sends=[1])
    def allgather(
        self, output_tensors: list[Tensors], input_tensors: Tensors, opts: Any = None
    ) -> dist.Work:
        collectives.all_gather(self.comm, *output_tensors, *input_tensors)
        return CompletedWork(output_tensors[0])

    @observed
    @through_host(receives=[0], sends=[1])
    def allgather_coalesced(
        self, output_lists: list[Tensors], input_list: Tensors, opts: Any = None
    ) -> dist.Work:
        collectives.check_one_each(self.comm, output_lists, "output_tensor_lists")
        for i, tensor in enumerate(input_list):
            collectives.all_gather(self.comm, [outputs[i] for outputs in output_lists], tensor)
        return CompletedWork([tensor for outputs in output_lists for tensor in outputs])

    @observed
    @through_host(receives=[0], sends=[1])
    def all_gather_single(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, opts: Any = None
    ) -> dist.Work:
        collectives.all_gather_single(self.comm, output_tensor, input_tensor)
        return CompletedWork([output_tensor])

    @observed
    @through_host(receives=[0], sends=[1])
    def all_gather_single_coalesced(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> dist.Work:
        for output, tensor in zip(output_tensors, input_tensors, strict=True):
            collectives.all_gather_single(self.comm, output, tensor)
        return CompletedWork(output_tensors)

    @observed
    @through_host(receives=[0], sends=[1])
    def alltoall(
        self, output_tensors: Tensors, input_tensors: Tensors, opts: Any = None
    ) -> dist.Work:
        collectives.all_to_all(self.comm, output_tensors, input_tensors)
        return CompletedWork(output_tensors)

    @observed
    @through_host(receives=[0], sends=[1])
    def all_to_all_single(
        self,
        output_tensor: torch.Tensor,
        input_tensor: torch.Tensor,
        output_split_sizes: list[int],
        input_split_sizes: list[int],
        opts: Any = None,
    ) -> dist.Work:
        collectives.all_to_all_single(
            self.comm, output_tensor, input_tensor, output_split_sizes, input_split_sizes
        )
        return CompletedWork([output_tensor])

    @observed
    def barrier(self, opts: Any = None) -> dist.Work:
        self.comm.Barrier()
        return CompletedWork([])

    @observed
    @through_host(sends=[0])
    def send(self, tensors: Tensors, dst: int, tag: int = 0) -> dist.Work:
        (tensor,) = tensors
        working = dense(tensor)
        requests = [self._start_send(message(piece), dst, tag) for piece in pieces(working)]
        work = PointToPointWork(self.comm, requests, working, tensor, ended=self._release)
        return self._keep(work)

    def _start_send(self, memory: list[Any], dst: int, tag: int) -> MPI.Request:
        return self.comm.Isend(memory, dst, tag)

    @observed
    @through_host(receives=[0])
    def recv(self, tensors: Tensors, src: int, tag: int = 0) -> dist.Work:
        (tensor,) = tensors
        working = dense(tensor)
        requests = [self.comm.Irecv(message(piece), src, tag) for piece in pieces(working)]
        arrived = lambda: copy_back(working, tensor)  # noqa: E731
        work = PointToPointWork(self.comm, requests, working, tensor, arrived, self._release)
        return self._keep(work)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    def _keep(self, transfer: PointToPointWork) -> PointToPointWork:
        # If the caller drops a Work, keep its memory until MPI no longer uses it.
        for earlier in list(self._incomplete):
            earlier.has_ended()  # calls `_release` if it has
        self._incomplete.append(transfer)
        return transfer

    def _release(self, transfer: PointToPointWork) -> None:
        if transfer in self._incomplete:
            self._incomplete.remove(transfer)

    # torch.distributed used these names before 2.13, and libraries still use them.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _start_coalescing(self, device: torch.device) -> None:
        """Do nothing, because each operation of a batch runs when it is called."""

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return CompletedWork([])


_existing: list[MPIGroup] = []  # at most one group, which becomes the next group of all ranks
_world: MPI.Intracomm = MPI.COMM_WORLD


def register(existing: MPIGroup | None = None) -> None:
    """Register `backend="mpi4py"` with torch.distributed.

    Args:
        existing: when torch.distributed makes the next group of all ranks, it gets this object
            instead of a new one. Objects that hold it can therefore still use it after
            `destroy_process_group` and `init_process_group`. Groups of some ranks are made from its
            communicator. By default, groups are made from `MPI.COMM_WORLD`.

    The ranks of torch.distributed must be those of the communicator, in the same order.
    """
    global _world
    _existing[:] = [existing] if existing is not None else []
    _world = existing.comm if existing is not None else MPI.COMM_WORLD
    dist.Backend.register_backend(BACKEND, _make_group, extended_api=True, devices=["cpu", "cuda"])


def _make_group(options: Any, backend_options: Any) -> MPIGroup:
    """Make a group. torch.distributed calls this only on the ranks of the new group."""
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    if ranks[options.group_rank] != _world.rank:
        raise ValueError(
            f"rank {ranks[options.group_rank]} of torch.distributed is rank {_world.rank} of MPI: "
            "pass comm.rank and comm.size to init_process_group"
        )
    if _existing and ranks == list(range(_world.size)):
        return _existing.pop()
    members = _world.group.Incl(ranks)
    return MPIGroup(_world.Create_group(members))
