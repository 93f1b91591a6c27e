"""Triton's kernels. They run in its interpreter, but parlab treats them as compiled kernels."""

import importlib
import os
import sys


def change(module):
    """Interpret kernels, and refuse CPU tensors as a compiled kernel does."""
    import torch
    from triton.runtime.interpreter import InterpretedFunction

    os.environ["TRITON_INTERPRET"] = "1"
    for name in ("triton.language.standard", "triton.language.random", "triton.language"):
        importlib.reload(sys.modules[name])
    module._correct()
    interpret = InterpretedFunction.run

    def run(self, *given, grid, warmup, **named):
        arguments = dict(zip(self.arg_names, given, strict=False)) | named
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor) and value.device.type != "cuda":
                raise ValueError(
                    f"Pointer argument ({name}) cannot be accessed from Triton (cpu tensor?)"
                )
        return interpret(self, *given, grid=grid, warmup=warmup, **named)

    InterpretedFunction.run = run
