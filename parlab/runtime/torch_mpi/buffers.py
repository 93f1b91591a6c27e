"""Converts torch tensors to MPI buffers, and ReduceOps to MPI's operations and types."""

import functools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from mpi4py import MPI

# MPI counts elements with an int. Longer tensors are sent in pieces or refused.
MAX_COUNT = 2**31 - 1

# An operation that only moves data needs only the size of an element. So it can also send bfloat16
# and bool, which MPI does not have.
_MOVED_AS = {1: MPI.BYTE, 2: MPI.INT16_T, 4: MPI.INT32_T, 8: MPI.INT64_T, 16: MPI.C_DOUBLE_COMPLEX}
_REDUCED_AS = {
    torch.float32: MPI.FLOAT,
    torch.float64: MPI.DOUBLE,
    torch.complex64: MPI.C_FLOAT_COMPLEX,
    torch.complex128: MPI.C_DOUBLE_COMPLEX,
    torch.int8: MPI.INT8_T,
    torch.int16: MPI.INT16_T,
    torch.int32: MPI.INT32_T,
    torch.int64: MPI.INT64_T,
    torch.uint8: MPI.UINT8_T,
    torch.uint16: MPI.UINT16_T,
    torch.uint32: MPI.UINT32_T,
    torch.uint64: MPI.UINT64_T,
}
_WIDENED = {torch.float16: torch.float32, torch.bfloat16: torch.float32}

_Op = dist.ReduceOp.RedOpType
_OPS = {
    _Op.SUM: MPI.SUM,
    _Op.AVG: MPI.SUM,
    _Op.PREMUL_SUM: MPI.SUM,
    _Op.PRODUCT: MPI.PROD,
    _Op.MIN: MPI.MIN,
    _Op.MAX: MPI.MAX,
    _Op.BAND: MPI.BAND,
    _Op.BOR: MPI.BOR,
    _Op.BXOR: MPI.BXOR,
}
# A bool is a byte that is 0 or 1, also in the result. So the sum is "or", and the product is "and".
_BOOL_OPS = {
    _Op.SUM: MPI.MAX,
    _Op.PRODUCT: MPI.MIN,
    _Op.MIN: MPI.MIN,
    _Op.MAX: MPI.MAX,
    _Op.BAND: MPI.BAND,
    _Op.BOR: MPI.BOR,
    _Op.BXOR: MPI.BXOR,
}
_BITWISE = (_Op.BAND, _Op.BOR, _Op.BXOR)
_ORDERED = (_Op.MIN, _Op.MAX)


class Reduction(NamedTuple):
    """How MPI computes a `ReduceOp` on tensors of one dtype."""

    kind: Any  # the ReduceOp's RedOpType
    op: MPI.Op
    dtype: torch.dtype  # of MPI's operands; not the tensor's dtype for bool and 16-bit floats
    factor: float | torch.Tensor | None  # PREMUL_SUM: multiply each rank's tensor by this first


def reduction(op: dist.ReduceOp, dtype: torch.dtype) -> Reduction:
    """Return the reduction for a `ReduceOp` and a dtype. Raises ValueError if there is none."""
    kind, mpi_op, reduced_dtype = _reduction(op.op, dtype)
    factor = op.__getstate__()[1] if kind == _Op.PREMUL_SUM else None
    return Reduction(kind, mpi_op, reduced_dtype, factor)


@functools.cache
def _reduction(kind: Any, dtype: torch.dtype) -> tuple[Any, MPI.Op, torch.dtype]:
    name = f"ReduceOp.{kind.name}"
    if dtype is torch.bool:
        if kind not in _BOOL_OPS:
            raise ValueError(f"{name} of bool tensors has no meaning: convert to a float first")
        return kind, _BOOL_OPS[kind], torch.uint8
    reduced_dtype = _WIDENED.get(dtype, dtype)
    if reduced_dtype not in _REDUCED_AS:
        raise ValueError(f"the mpi4py group cannot reduce {dtype}: convert to float32 first")
    if kind in _BITWISE and (dtype.is_floating_point or dtype.is_complex):
        raise ValueError(f"{name} is for integers and bool, not for {dtype}")
    if kind in _ORDERED and dtype.is_complex:
        raise ValueError(f"{name} needs an order, and {dtype} has none")
    return kind, _OPS[kind], reduced_dtype


def prepare_reduction(tensor: torch.Tensor, how: Reduction, in_place: bool) -> torch.Tensor:
    """Return MPI's operand: contiguous, of `how.dtype`, and multiplied by the factor.

    It shares the memory of `tensor` if no value changes, or if `in_place` is True and the dtype and
    the layout can stay the same.
    """
    ready = dense(tensor)
    if how.dtype is not ready.dtype:
        ready = ready.view(torch.uint8) if ready.dtype is torch.bool else ready.to(how.dtype)
    if how.factor is not None:
        own = in_place or ready.data_ptr() != tensor.data_ptr()
        ready = ready.mul_(how.factor) if own else ready * how.factor
    return ready


def finish_reduction(reduced: torch.Tensor, how: Reduction, size: int) -> torch.Tensor:
    """Finish the operation on MPI's result over `size` ranks, in place, and return it."""
    if how.kind == _Op.AVG:
        integer = not (reduced.dtype.is_floating_point or reduced.dtype.is_complex)
        reduced.div_(size, rounding_mode="trunc" if integer else None)
    return reduced


def dense(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` itself if MPI can read its memory, otherwise a contiguous copy.

    Raises ValueError if the tensor is sparse or not on the CPU.
    """
    if not tensor.is_cpu:
        raise ValueError(
            f"the mpi4py group carries tensors of the CPU and of CUDA devices, and this one is on "
            f"{tensor.device}: pass tensor.cpu()"
        )
    if tensor.layout is not torch.strided:
        raise ValueError("the mpi4py group carries dense tensors: call .to_dense() first")
    if tensor.requires_grad:
        tensor = tensor.detach()
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor.contiguous()


def copy_back(result: torch.Tensor, tensor: torch.Tensor) -> None:
    """Copy `result` into `tensor`, unless they share memory."""
    if result.data_ptr() != tensor.data_ptr():
        if tensor.dtype is torch.bool:
            result = result.view(torch.bool)
        tensor.detach().copy_(result.view(tensor.shape))


def message(tensor: torch.Tensor) -> list[Any]:
    """Return mpi4py's [memory, count, type] for sending or receiving a contiguous tensor."""
    return [_memory(tensor), _count(tensor), _MOVED_AS[tensor.element_size()]]


def blocks(tensor: torch.Tensor, counts: int | Sequence[int]) -> list[Any]:
    """Return mpi4py's [memory, counts, type] for a contiguous tensor with a block for each rank.

    `counts` is the number of elements of each block. It is a list if the name of mpi4py's call ends
    in v.
    """
    _count(tensor)
    return [_memory(tensor), counts, _MOVED_AS[tensor.element_size()]]


def operand(tensor: torch.Tensor) -> list[Any]:
    """Return mpi4py's [memory, count, type] for reducing a contiguous tensor."""
    return [_memory(tensor), _count(tensor), _REDUCED_AS[tensor.dtype]]


def pieces(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """Split a contiguous tensor into pieces that MPI can count. There is almost always only one."""
    if tensor.numel() <= MAX_COUNT:
        yield tensor
    else:
        yield from tensor.view(-1).split(MAX_COUNT)


def _memory(tensor: torch.Tensor) -> MPI.buffer:
    return MPI.buffer.fromaddress(tensor.data_ptr(), tensor.nbytes)


def _count(tensor: torch.Tensor) -> int:
    count = tensor.numel()
    if count > MAX_COUNT:
        raise ValueError(f"{count} elements are more than MPI counts ({MAX_COUNT}): split it")
    return count


def flat(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the elements of all `tensors` in one tensor. It is a view if they are contiguous."""
    view = _contiguous_view(tensors)
    return torch.cat([dense(t).view(-1) for t in tensors]) if view is None else view


def room_for(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return a buffer for receiving `tensors`. It is their own memory if they are contiguous.

    Afterward, `unflatten` copies the buffer into `tensors`.
    """
    view = _contiguous_view(tensors)
    total = sum(t.numel() for t in tensors)
    return torch.empty(total, dtype=tensors[0].dtype) if view is None else view


def unflatten(buffer: torch.Tensor, tensors: Sequence[torch.Tensor]) -> None:
    """Copy `buffer`, in the layout of `flat`, into `tensors`, unless it is their memory."""
    for part, tensor in zip(buffer.split([t.numel() for t in tensors]), tensors, strict=True):
        copy_back(part, tensor)


def _contiguous_view(tensors: Sequence[torch.Tensor]) -> torch.Tensor | None:
    """Return a flat view of `tensors` if they are contiguous in memory, otherwise None.

    For example, the chunks of a buffer are contiguous.
    """
    first = dense(tensors[0])
    storage, end = first.untyped_storage().data_ptr(), tensors[0].data_ptr()
    for tensor in tensors:
        as_it_is = tensor.is_contiguous() and not (tensor.is_conj() or tensor.is_neg())
        follows = tensor.data_ptr() == end and tensor.untyped_storage().data_ptr() == storage
        if not (as_it_is and follows and tensor.dtype is first.dtype):
            return None
        end += tensor.nbytes
    return first.as_strided((sum(t.numel() for t in tensors),), (1,))
