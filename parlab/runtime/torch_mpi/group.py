"""A torch.distributed process group over an mpi4py communicator.

    register()
    group = dist.new_group(backend="mpi4py")
    dist.all_reduce(tensor, group=group)
    DistributedDataParallel(model, process_group=group)

On the CPUs of one machine it is many times faster than Gloo, and ranks that are stuck in it can
be freed (`group.comm.Revoke()`), which Gloo's cannot. CUDA tensors travel through the host's memory
(see `staging`), so ranks may share a GPU, tags count, and messages arrive in any order, none of
which NCCL offers. What differs from Gloo:

- A collective is complete when its call returns, also with `async_op=True`: the returned Work is
  done, nothing overlaps, and no rank goes on before the others have come. `isend`, `irecv` and
  `batch_isend_irecv` do not block.
- float16 and bfloat16 are reduced in float32 and rounded once: twice the bytes, a better sum.
- bool is reduced logically: SUM and MAX are "or", PRODUCT and MIN are "and".
- Tensors need not be contiguous; those that are not are copied. Lists of tensors travel as one
  message, and without a copy where they are the chunks of one buffer.
- There is no time-out but that of `work.wait(timeout)`, for sends and receives.

FSDP2, DTensor and pipelining run on it too, where they are told to
(`DeviceMesh.from_group(group, "cpu")`, `PipelineStage(…, group=group)`).
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
    """A process group over `comm`, an mpi4py communicator; its rank and size are `comm`'s.

    The group reads `comm` at each call: where its handle is renewed in place, the group goes on
    with the new one. The methods are those that torch.distributed calls; use its functions.
    """

    backend_name = BACKEND

    def __init__(self, comm: MPI.Intracomm) -> None:
        super().__init__(comm.rank, comm.size)
        self.comm = comm
        self._under_way: list[PointToPointWork] = []

    def abort(self) -> None:
        """Make every call on this group fail, on every rank, for good."""
        self.comm.Revoke()

    def shutdown(self) -> None:
        """Nothing to do: the communicator belongs to whoever made the group."""

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
        work = PointToPointWork(self.comm, requests, working, tensor, ended=self._let_go)
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
        work = PointToPointWork(self.comm, requests, working, tensor, arrived, self._let_go)
        return self._keep(work)

    def recv_anysource(self, tensors: Tensors, tag: int = 0) -> dist.Work:
        return self.recv(tensors, MPI.ANY_SOURCE, tag)

    def _keep(self, transfer: PointToPointWork) -> PointToPointWork:
        # A Work that its caller drops must not free memory that MPI still reads or writes.
        for dropped in list(self._under_way):
            dropped.has_ended()  # which lets it go
        self._under_way.append(transfer)
        return transfer

    def _let_go(self, transfer: PointToPointWork) -> None:
        if transfer in self._under_way:
            self._under_way.remove(transfer)

    # The names by which torch.distributed called these before 2.13, still used by libraries.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    def _start_coalescing(self, device: torch.device) -> None:
        """Nothing to prepare: each operation of a batch is carried out as it comes."""

    def _end_coalescing(self, device: torch.device) -> dist.Work:
        return CompletedWork([])


_handed_out: list[MPIGroup] = []  # at most one: what the next group over all ranks will be
_world: MPI.Intracomm = MPI.COMM_WORLD


def register(existing: MPIGroup | None = None) -> None:
    """Make torch.distributed know `backend="mpi4py"`.

    Args:
        existing: becomes the next group that is made over all its ranks, instead of a new object.
            After `destroy_process_group` and a new `init_process_group`, whoever holds it can so
            go on with it. Groups over some of the ranks are made from its communicator.
            Without it, groups are made from `MPI.COMM_WORLD`.

    Ranks of torch.distributed must be those of that communicator, in the same order.
    """
    global _world
    _handed_out[:] = [existing] if existing is not None else []
    _world = existing.comm if existing is not None else MPI.COMM_WORLD
    dist.Backend.register_backend(BACKEND, _make_group, extended_api=True, devices=["cpu", "cuda"])


def _make_group(options: Any, backend_options: Any) -> MPIGroup:
    """Called by torch.distributed on the ranks of the new group, and on no others."""
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    if ranks[options.group_rank] != _world.rank:
        raise ValueError(
            f"rank {ranks[options.group_rank]} of torch.distributed is rank {_world.rank} of MPI: "
            "pass comm.rank and comm.size to init_process_group"
        )
    if _handed_out and ranks == list(range(_world.size)):
        return _handed_out.pop()
    members = _world.group.Incl(ranks)
    return MPIGroup(_world.Create_group(members))
