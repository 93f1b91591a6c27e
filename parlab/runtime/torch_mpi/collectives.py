"""The collectives of the mpi4py group. Each takes the communicator and whole tensors.

They check the shapes on this rank, because MPI itself would write past a buffer's end or deadlock.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from mpi4py import MPI

from parlab.runtime.torch_mpi.buffers import (
    blocks,
    copy_back,
    dense,
    finish_reduction,
    flat,
    message,
    operand,
    pieces,
    prepare_reduction,
    reduction,
    room_for,
    unflatten,
)

Tensors = list[torch.Tensor]


def all_reduce(comm: MPI.Intracomm, tensor: torch.Tensor, op: dist.ReduceOp) -> None:
    """Reduce `tensor` over the ranks, in place on all ranks."""
    how = reduction(op, tensor.dtype)
    working = prepare_reduction(tensor, how, in_place=True)
    for piece in pieces(working):
        comm.Allreduce(MPI.IN_PLACE, operand(piece), how.op)
    copy_back(finish_reduction(working, how, comm.size), tensor)


def reduce(comm: MPI.Intracomm, tensor: torch.Tensor, op: dist.ReduceOp, root: int) -> None:
    """Reduce `tensor` over the ranks, in place on the root. Other ranks' tensors do not change."""
    how = reduction(op, tensor.dtype)
    is_root = comm.rank == root
    working = prepare_reduction(tensor, how, in_place=is_root)
    for piece in pieces(working):
        if is_root:
            comm.Reduce(MPI.IN_PLACE, operand(piece), how.op, root)
        else:
            comm.Reduce(operand(piece), None, how.op, root)
    if is_root:
        copy_back(finish_reduction(working, how, comm.size), tensor)


def reduce_scatter(
    comm: MPI.Intracomm, output: torch.Tensor, inputs: Tensors, op: dist.ReduceOp
) -> None:
    """Reduce each of `inputs`, one for each rank. `output` receives this rank's result."""
    check_one_each(comm, inputs, "input_list")
    counts = [t.numel() for t in inputs]
    if counts[comm.rank] != output.numel():
        raise ValueError(
            f"output has {output.numel()} elements, and this rank's tensor in input_list has "
            f"{counts[comm.rank]}"
        )
    _reduce_scatter(comm, output, flat(inputs), counts, op)


def reduce_scatter_single(
    comm: MPI.Intracomm, output: torch.Tensor, tensor: torch.Tensor, op: dist.ReduceOp
) -> None:
    """Reduce `tensor`, which has equal parts, one for each rank. `output` gets this rank's part."""
    _check_whole(comm, tensor, output, "input", "output")
    _reduce_scatter(comm, output, tensor, [output.numel()] * comm.size, op)


def _reduce_scatter(
    comm: MPI.Intracomm,
    output: torch.Tensor,
    tensor: torch.Tensor,
    counts: list[int],
    op: dist.ReduceOp,
) -> None:
    how = reduction(op, tensor.dtype)
    whole = prepare_reduction(tensor, how, in_place=False)
    apart = output.untyped_storage().data_ptr() != tensor.untyped_storage().data_ptr()
    fits = output.dtype is how.dtype and output.is_contiguous() and apart
    part = dense(output) if fits else torch.empty(output.numel(), dtype=how.dtype)
    comm.Reduce_scatter(operand(whole), operand(part), counts, how.op)
    copy_back(finish_reduction(part, how, comm.size), output)


def broadcast(comm: MPI.Intracomm, tensor: torch.Tensor, root: int) -> None:
    """Copy the root's `tensor` into the `tensor` of all ranks."""
    working = dense(tensor)
    for piece in pieces(working):
        comm.Bcast(message(piece), root)
    if comm.rank != root:
        copy_back(working, tensor)


def gather(comm: MPI.Intracomm, outputs: Tensors | None, tensor: torch.Tensor, root: int) -> None:
    """Copy every rank's `tensor` into the root's `outputs`, one for each rank.

    On other ranks, `outputs` is None.
    """
    sent = dense(tensor)
    if outputs is None:
        comm.Gatherv(message(sent), None, root)
        return
    whole, counts = _room_for(comm, outputs, "gather_list")
    comm.Gatherv(message(sent), blocks(whole, counts), root)
    unflatten(whole, outputs)


def scatter(comm: MPI.Intracomm, tensor: torch.Tensor, inputs: Tensors | None, root: int) -> None:
    """Copy the root's `inputs`, one for each rank, into every rank's `tensor`.

    On other ranks, `inputs` is None.
    """
    part = dense(tensor)
    if inputs is None:
        comm.Scatterv(None, message(part), root)
    else:
        check_one_each(comm, inputs, "scatter_list")
        whole = flat(inputs)
        comm.Scatterv(blocks(whole, [t.numel() for t in inputs]), message(part), root)
    copy_back(part, tensor)


def all_gather(comm: MPI.Intracomm, outputs: Tensors, tensor: torch.Tensor) -> None:
    """Copy every rank's `tensor` into `outputs`, one for each rank. Sizes may differ."""
    whole, counts = _room_for(comm, outputs, "tensor_list")
    sent = dense(tensor)
    comm.Allgatherv(message(sent), blocks(whole, counts))
    unflatten(whole, outputs)


def all_gather_single(comm: MPI.Intracomm, output: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy every rank's `tensor` into `output`, in the order of ranks.

    `tensor` may be this rank's part of `output`.
    """
    _check_whole(comm, output, tensor, "output", "input")
    whole, sent = dense(output), dense(tensor)
    # MPI requires IN_PLACE if a rank sends its part of `output`. NCCL allows it without that.
    own = whole.data_ptr() + comm.rank * sent.nbytes
    given = MPI.IN_PLACE if sent.numel() and sent.data_ptr() == own else message(sent)
    comm.Allgather(given, blocks(whole, sent.numel()))
    copy_back(whole, output)


def all_to_all(comm: MPI.Intracomm, outputs: Tensors, inputs: Tensors) -> None:
    """Send `inputs[r]` to each rank r, and receive `outputs[r]` from it. Sizes may differ."""
    check_one_each(comm, inputs, "input_tensor_list")
    received, counts = _room_for(comm, outputs, "output_tensor_list")
    sent = flat(inputs)
    comm.Alltoallv(blocks(sent, [t.numel() for t in inputs]), blocks(received, counts))
    unflatten(received, outputs)


def all_to_all_single(
    comm: MPI.Intracomm,
    output: torch.Tensor,
    tensor: torch.Tensor,
    output_splits: list[int],
    input_splits: list[int],
) -> None:
    """Send parts of `tensor` to all ranks, and receive parts of `output` from them.

    The splits are numbers of rows for each rank. An empty list means equal parts.
    """
    sent, received = dense(tensor), dense(output)
    comm.Alltoallv(
        blocks(sent, _counts(comm, sent, input_splits, "input")),
        blocks(received, _counts(comm, received, output_splits, "output")),
    )
    copy_back(received, output)


def check_one_each(comm: MPI.Intracomm, items: Sequence[Any], name: str) -> None:
    """Raise ValueError unless `items` has one item for each rank."""
    if len(items) != comm.size:
        raise ValueError(f"{name} needs one tensor a rank ({comm.size}), not {len(items)}")


def _check_whole(
    comm: MPI.Intracomm, whole: torch.Tensor, part: torch.Tensor, whole_name: str, part_name: str
) -> None:
    if whole.dtype is not part.dtype:
        raise ValueError(f"{whole_name} is {whole.dtype} and {part_name} is {part.dtype}")
    if whole.numel() != part.numel() * comm.size:
        raise ValueError(
            f"{whole_name} has {whole.numel()} elements: with {comm.size} ranks and "
            f"{part_name} of {part.numel()} it needs {part.numel() * comm.size}"
        )


def _room_for(comm: MPI.Intracomm, tensors: Tensors, name: str) -> tuple[torch.Tensor, list[int]]:
    check_one_each(comm, tensors, name)
    return room_for(tensors), [t.numel() for t in tensors]


def _counts(comm: MPI.Intracomm, tensor: torch.Tensor, splits: list[int], name: str) -> list[int]:
    """Convert the number of rows for each rank to the number of elements."""
    rows = tensor.shape[0] if tensor.dim() else 1
    if not splits:
        if rows % comm.size:
            raise ValueError(
                f"{name} has {rows} rows, which do not split evenly over {comm.size} ranks: "
                f"pass {name}_split_sizes"
            )
        splits = [rows // comm.size] * comm.size
    if len(splits) != comm.size or sum(splits) != rows:
        raise ValueError(
            f"{name}_split_sizes must be {comm.size} numbers that sum to {rows}, the rows of "
            f"{name}; got {list(splits)}"
        )
    return [split * (tensor.numel() // max(rows, 1)) for split in splits]
