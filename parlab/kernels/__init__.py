"""Triton kernels on any machine, and instruments that see what they do.

asking       where there is no GPU, kernels run in Triton's interpreter
interpreter  what that does otherwise than a GPU, mended
launches     counts the launches of kernels
buffers      tensors with guards around their memory
accesses     what the kernels load and store, and what of it is outside (in the interpreter)
traffic      what PyTorch's own operations move

Import it before the first `@triton.jit`: a kernel is compiled or interpreted as the environment
says when it is decorated.
"""

import parlab.kernels.interpreter  # noqa: F401
from parlab.kernels.asking import INTERPRETED

__all__ = ["INTERPRETED"]
