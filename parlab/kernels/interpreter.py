"""Triton's interpreter, which runs kernels with NumPy if there is no GPU.

It tests correctness, not speed: a launch takes milliseconds, instead of microseconds on a GPU. This
module corrects differences between the interpreter of triton 3.7.1 and a GPU. The interpreter
truncates a float32 instead of rounding it to the nearest bfloat16, and it computes with the bits of
bfloat16 numbers as if they were integers.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import ir
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

from parlab.kernels.mode import INTERPRETED

Handle = interpreter.TensorHandle


def to_bfloat16(numbers: np.ndarray) -> np.ndarray:
    """Round float32 numbers to the nearest bfloat16, ties to even. Return their bits as uint16."""
    bits = np.ascontiguousarray(numbers, np.float32).view(np.uint32)
    rounded = (bits + (0x7FFF + (bits >> 16 & 1))) >> 16
    return np.where(np.isnan(numbers), 0x7FC0, rounded).astype(np.uint16)


def from_bfloat16(bits: np.ndarray) -> np.ndarray:
    """Return the numbers of bfloat16 `bits`, uint16, as float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _is_bfloat16(handle: Any) -> bool:
    return isinstance(handle, Handle) and handle.dtype.scalar == tl.bfloat16


def _widened(handle: Any) -> Any:
    return Handle(from_bfloat16(handle.data), tl.float32) if _is_bfloat16(handle) else handle


def _in_float32(operation: Callable) -> Callable:
    """Compute in float32 if an argument is bfloat16, and round the result to bfloat16."""

    def corrected(self: Any, *arguments: Any) -> Any:
        if not any(map(_is_bfloat16, arguments)):
            return operation(self, *arguments)
        result = operation(self, *map(_widened, arguments))
        if result.data.dtype == np.float32:
            return Handle(to_bfloat16(result.data), tl.bfloat16)
        return result

    return corrected


def _casts(cast: Callable) -> Callable:
    def corrected(self: Any, source: Any, wanted: Any, *mode: Any) -> Any:
        old, new = source.dtype.scalar, wanted.scalar
        if (old, new) == (tl.float32, tl.bfloat16):
            return Handle(to_bfloat16(source.data), new)
        if _is_bfloat16(source) and new != tl.bfloat16:
            return (
                cast(self, _widened(source), wanted, *mode)
                if new != tl.float32
                else _widened(source)
            )
        if new == tl.bfloat16 and old != tl.bfloat16 and not old.is_fp8():
            return Handle(to_bfloat16(source.data.astype(np.float32)), new)
        return cast(self, source, wanted, *mode)

    return corrected


def _dot(dot: Callable) -> Callable:
    def corrected(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, _widened(a), _widened(b), *rest)

    return corrected


def _reduces(apply: Callable) -> Callable:
    """Reduce or scan bfloat16 in float32, and round the results to bfloat16.

    A GPU rounds after each step of its tree, so it may differ in the last bit.
    """

    def corrected(self: Any, given: Any) -> Any:
        if not isinstance(given, tuple):
            return corrected(self, (given,))[0]
        narrow = [_is_bfloat16(tensor.handle) for tensor in given]
        if not any(narrow):
            return apply(self, given)
        results = apply(self, tuple(_of_type(tensor, _widened(tensor.handle)) for tensor in given))
        return tuple(
            _of_type(result, Handle(to_bfloat16(result.handle.data), tl.bfloat16))
            if back
            else result
            for result, back in zip(results, narrow, strict=False)
        )

    return corrected


def _atomics(update: Callable) -> Callable:
    """Add bfloat16 numbers one after the other, because several may have the same address."""

    def corrected(self: Any, op: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        if not _is_bfloat16(value) or op != ir.ATOMIC_OP.FADD:
            return update(self, op, pointers, value, mask, *rest)
        old = np.zeros_like(value.data)
        for at in np.ndindex(old.shape):
            place, inside = pointers.data[at].reshape(1), mask.data[at].reshape(1)
            bits = interpreter._interpreter.load(
                place, inside, np.zeros(1, np.uint16), np.dtype(np.uint16)
            )
            total = from_bfloat16(bits) + from_bfloat16(value.data[at])
            interpreter._interpreter.store(place, to_bfloat16(total), inside)
            old[at] = bits[0]
        return Handle(old, tl.bfloat16)

    return corrected


def _of_type(tensor: tl.tensor, handle: Any) -> tl.tensor:
    """Return a tensor of the same shape with other numbers."""
    shape = [int(size) for size in tensor.shape]
    return tl.tensor(handle, tl.block_type(handle.dtype, shape) if shape else handle.dtype)


def _constant(self: Any, value: float) -> Any:
    return Handle(to_bfloat16(np.array([value], np.float32)), tl.bfloat16)


def _correct() -> None:
    builder = interpreter.InterpreterBuilder
    builder.get_bf16 = _constant
    builder.create_atomic_rmw = _atomics(builder.create_atomic_rmw)
    shared = interpreter.ReduceScanOpInterface
    shared.apply = _reduces(shared.apply)
    for name in ("binary_op", "unary_op"):
        setattr(builder, name, _in_float32(getattr(builder, name)))
    builder.create_fma = _in_float32(builder.create_fma)
    builder.cast_impl = _casts(builder.cast_impl)
    builder.create_fp_to_fp = _casts(builder.create_fp_to_fp)
    builder.create_dot = _dot(builder.create_dot)


def _interpret() -> None:
    """Also interpret kernels that were decorated before the interpreter was selected."""

    @functools.cache
    def twin(kernel: JITFunction) -> interpreter.InterpretedFunction:
        return interpreter.InterpretedFunction(kernel.fn)

    JITFunction.run = lambda self, *given, **named: twin(self).run(*given, **named)
    JITFunction.__call__ = lambda self, *given, **named: twin(self)(*given, **named)


if INTERPRETED:
    _correct()
    _interpret()
