"""Compiles Triton kernels for a GPU, which this machine need not have.

    made = compiled(add_kernel, {"x_ptr": "*fp32", "n": "i32"}, {"BLOCK": 1024}, capability=90)
    made.instructions["ld.global"], made.shared_bytes

Only running a kernel needs a GPU. Triton includes the assembler that it compiles with.
"""

import inspect
import json
import os
import pickle
import re
import runpy
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# An instruction of PTX: perhaps a label of a predicate, then the operation with its modifiers.
_INSTRUCTION = re.compile(r"^\s+(?:@!?%\w+ )?([a-z]\w*(?:[.:]+\w+)*)(?=[\s;])", re.MULTILINE)
# LLVM starts each basic block with a label or a comment, and notes there if a loop contains it.
_BLOCK = re.compile(r"^(?=\$L__BB\d+_\d+:|// %bb\.\d+:)", re.MULTILINE)
_IN_LOOP = re.compile(r"in Loop: Header|Loop Header")


@dataclass(frozen=True)
class Compiled:
    """A kernel in PTX, NVIDIA's assembly language, and the resources that it uses."""

    ptx: str
    registers: int  # of each thread, 4 bytes each
    spilled_bytes: int  # of each thread, in memory because there were too few registers
    shared_bytes: int
    tensor_memory_columns: int
    instructions: Counter[str]  # by the whole name, such as "ld.global.v4.b32"
    loop_instructions: Counter[str]  # only those inside loops

    def count(self, prefix: str) -> int:
        """Return the number of instructions whose names begin with `prefix`."""
        return _sum(self.instructions, prefix)

    def count_in_loops(self, prefix: str) -> int:
        """Count these instructions inside loops: one iteration, without what precedes the loop."""
        return _sum(self.loop_instructions, prefix)

    @property
    def target(self) -> str:
        """The architecture that the PTX is for, such as "sm_90a"."""
        found = re.search(r"^\.target (\w+)", self.ptx, re.MULTILINE)
        assert found, "PTX without a .target line"
        return found[1]


def _sum(instructions: Counter[str], prefix: str) -> int:
    return sum(n for name, n in instructions.items() if name.startswith(prefix))


def compiled(
    kernel: Any,
    types: Mapping[str, str],
    constants: Mapping[str, int],
    capability: int,
    warps: int = 4,
    stages: int = 3,
    odd: Collection[str] = (),
) -> Compiled:
    """Compile a `triton.jit` function for NVIDIA's compute capability (90 for 9.0, an H100).

    `types` has the type of each argument ("*fp32" is a pointer to float32), and `constants` has the
    values of `tl.constexpr` arguments. The compiler assumes that all addresses and sizes are
    multiples of 16, except for those named in `odd`. (At a launch, Triton checks this itself.)
    Raises TypeError if the kernel is interpreted, and Triton's CompilationError.
    """
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    if not isinstance(kernel, triton.JITFunction):
        raise TypeError(
            f"{kernel.fn.__name__} is interpreted, since TRITON_INTERPRET was set when it was "
            "decorated: compile it in a process without that"
        )
    names = [parameter.name for parameter in kernel.params]
    signature = {name: types.get(name, "constexpr") for name in names}
    multiples = {
        (names.index(name),): [["tt.divisibility", 16]] for name in types if name not in odd
    }
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, values, multiples)
    options = {"num_warps": warps, "num_stages": stages}
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    ptx = made.asm["ptx"]
    in_loops = "".join(block for block in _BLOCK.split(ptx) if _IN_LOOP.search(block))
    registers, spilled = _resources(made.asm["cubin"], triton.knobs.nvidia.cuobjdump.path)
    return Compiled(
        ptx=ptx,
        registers=registers,
        spilled_bytes=spilled,
        shared_bytes=made.metadata.shared,
        tensor_memory_columns=getattr(made.metadata, "tmem_size", None) or 0,
        instructions=Counter(_INSTRUCTION.findall(ptx)),
        loop_instructions=Counter(_INSTRUCTION.findall(in_loops)),
    )


def compiled_versions(
    kernel: Any,
    types: Mapping[str, str],
    versions: Sequence[tuple[Mapping[str, int], int]],
    capability: int,
) -> list[Compiled]:
    """Compile a kernel, interpreted or not, once for each pair of constants and number of warps.

    The other arguments and the errors are the same as in `compiled`. An interpreted kernel is
    compiled in another process, from its source and the sources of the kernels that it calls. If
    that fails, this raises RuntimeError.
    """
    from triton.runtime.interpreter import InterpretedFunction

    if not isinstance(kernel, InterpretedFunction):
        return [compiled(kernel, types, given, capability, warps) for given, warps in versions]
    with tempfile.TemporaryDirectory() as folder:
        source, made = Path(folder, "kernel.py"), Path(folder, "made")
        source.write_text(_source(kernel), encoding="utf-8")
        arguments = json.dumps(
            [str(source), str(made), kernel.fn.__name__, types, versions, capability]
        )
        ran = subprocess.run(
            [sys.executable, "-c", "from parlab.compiled import _in_process; _in_process()",
             arguments],
            env={name: of for name, of in os.environ.items() if name != "TRITON_INTERPRET"},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8", errors="replace",
        )  # fmt: skip
        if ran.returncode:
            raise RuntimeError(f"{kernel.fn.__name__} does not compile:\n{ran.stdout.strip()}")
        return pickle.loads(made.read_bytes())


def _source(kernel: Any) -> str:
    """Return a module with the kernel and the kernels that it calls."""
    sources: dict[str, str] = {}

    def add(function: Any) -> None:
        name = function.fn.__name__
        if name not in sources:
            sources[name] = inspect.getsource(function.fn)
            for called in map(function.fn.__globals__.get, function.fn.__code__.co_names):
                if isinstance(called, type(kernel)):
                    add(called)

    add(kernel)
    return "\n\n".join(["import triton\nimport triton.language as tl", *sources.values()])


def _in_process() -> None:
    source, made, name, types, versions, capability = json.loads(sys.argv[1])
    kernel = runpy.run_path(source)[name]
    found = compiled_versions(kernel, types, versions, capability)
    Path(made).write_bytes(pickle.dumps(found))


def _resources(program: bytes, cuobjdump: str) -> tuple[int, int]:
    """Return the registers and the bytes of stack of each thread of an assembled kernel."""
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(program)
        file.flush()
        command = [cuobjdump, "-res-usage", file.name]
        output = subprocess.run(
            command, capture_output=True, encoding="utf-8", errors="replace", check=True
        ).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", output)
    if found is None:
        raise RuntimeError(f"cuobjdump does not say what registers the kernel uses:\n{output}")
    return int(found[1]), int(found[2])
