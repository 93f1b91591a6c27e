"""Triton kernels on any machine, and instruments that show what they do.

mode         selects Triton's interpreter if there is no GPU
interpreter  patches the interpreter where it differs from a GPU
launches     records the launches of kernels
buffers      tensors with guards around their memory
addresses    which addresses belong to a tensor
accesses     what kernels load and store, and what is outside of all tensors (in the interpreter)
tables       which program works where, as tensors that a kernel can read
traffic      what PyTorch's own operations move
errors       the error that a kernel raises, in the interpreter or in the compiler
simulated_gpu  a GPU with its own clock, on which a benchmark can be tried

Import this package before the first `@triton.jit`. The environment at that moment decides whether
a kernel is compiled or interpreted.
"""

import parlab.kernels.interpreter  # noqa: F401
from parlab.kernels.mode import INTERPRETED

__all__ = ["INTERPRETED"]
