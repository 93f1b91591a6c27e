"""Triton compiles kernels for GPUs that this machine lacks, and `parlab.compiled` reads them."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from parlab.runtime.paths import ROOT

# This runs in its own process: other tests select the interpreter, and kernels that were decorated
# after that cannot be compiled.
PROGRAM = """
import json
import triton
import triton.language as tl
from parlab.compiled import compiled


@triton.jit
def double(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n)
    tl.store(y_ptr + places, 2 * x, mask=places < n)


@triton.jit
def centred(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + places, mask=places < n, other=0.0)
    tl.store(y_ptr + places, tl.exp(x - tl.sum(x, 0)), mask=places < n)


@triton.jit
def looped(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    total = tl.load(x_ptr + places)
    for first in range(0, n, BLOCK):
        total = tl.sqrt(total) + tl.load(x_ptr + first + places)
    tl.store(y_ptr + places, tl.sqrt(total))


TYPES = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32"}
found = {}
for name, kernel, block, odd in [
    ("double", double, 1024, ()), ("odd", double, 1024, ("n",)),
    ("short", centred, 1024, ()), ("long", centred, 65536, ()), ("looped", looped, 128, ()),
]:
    made = compiled(kernel, TYPES, {"BLOCK": block}, 90, warps=4, odd=odd)
    found[name] = {
        "wide": made.count("ld.global.v4"), "narrow": made.count("ld.global.b32"),
        "stores": made.count("st.global"), "instructions": dict(made.instructions),
        "registers": made.registers, "spilled": made.spilled_bytes, "shared": made.shared_bytes,
        "tensor": made.tensor_memory_columns, "target": made.target,
        "roots": [made.count("sqrt"), made.count_in_loops("sqrt")],
    }
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    return run(PROGRAM, tmp_path_factory.mktemp("compiled"))


def run(program: str, folder: Path, **environment: str) -> dict:
    file = folder / "program.py"  # Triton reads the source of a kernel from its file
    file.write_text(program)
    rest = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, cwd=ROOT, timeout=240,
        env=rest | {"PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(folder / "cache")}
        | environment,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_loads_are_wide_if_the_size_is_a_multiple_of_16(found: dict[str, dict]) -> None:
    # With 1024 numbers, each of 128 threads has 8: two loads of four, or eight of one.
    assert (found["double"]["wide"], found["double"]["narrow"]) == (2, 0)
    assert (found["odd"]["wide"], found["odd"]["narrow"]) == (0, 8)
    assert (found["double"]["stores"], found["odd"]["stores"]) == (2, 8)


def test_every_instruction_is_counted_once(found: dict[str, dict]) -> None:
    sums = [found["double"]["instructions"].get(f"{how}.f32", 0) for how in ("add", "mul")]
    assert sum(sums) == 8  # the compiler chooses 2x or x + x
    assert found["double"]["instructions"]["ret"] == 1
    assert not [name for name in found["double"]["instructions"] if name.startswith(".")]


def test_instructions_inside_a_loop_are_counted_apart(found: dict[str, dict]) -> None:
    assert found["looped"]["roots"] == [2, 1]  # one number on each of 128 threads
    assert found["double"]["roots"] == [0, 0]


def test_the_target_is_read_from_the_ptx(found: dict[str, dict]) -> None:
    assert found["double"]["target"] == "sm_90a"


def test_registers_run_out(found: dict[str, dict]) -> None:
    assert found["short"]["spilled"] == 0
    assert 8 < found["short"]["registers"] < 100
    assert found["long"]["spilled"] > 4 * found["short"]["registers"]  # 512 numbers a thread
    assert found["short"]["shared"] > 0  # warps exchange their sums
    assert found["double"]["shared"] == found["double"]["tensor"] == 0


def test_an_interpreted_kernel_is_refused(tmp_path: Path) -> None:
    program = (
        PROGRAM.split("TYPES =")[0]
        + """
try:
    compiled(double, {}, {}, 90)
except TypeError as error:
    print(json.dumps(str(error)))
"""
    )
    printed = run(program, tmp_path, TRITON_INTERPRET="1")
    assert "double is interpreted" in printed


def test_an_interpreted_kernel_is_compiled_in_another_process(tmp_path: Path) -> None:
    program = (
        PROGRAM.split("TYPES =")[0].replace("import compiled\n", "import compiled_versions\n")
        + """
@triton.jit
def twice(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    double(x_ptr, y_ptr, n, BLOCK)


TYPES = {"x_ptr": "*fp32", "y_ptr": "*fp32", "n": "i32"}
versions = compiled_versions(twice, TYPES, [({"BLOCK": 1024}, 4), ({"BLOCK": 1024}, 8)], 90)
try:
    compiled_versions(twice, TYPES, [({"BLOCK": 1000}, 4)], 90)
except RuntimeError as error:
    message = str(error)
print(json.dumps([type(twice).__name__, [of.count("st.global") for of in versions], message]))
"""
    )
    kind, stores, message = run(program, tmp_path, TRITON_INTERPRET="1")
    # 1,024 numbers on 128 threads are two stores of four, and on 256 threads one.
    assert (kind, stores) == ("InterpretedFunction", [2, 1])
    assert "twice does not compile" in message and "power of 2" in message


@pytest.mark.parametrize("mode", ["compiled", "interpreted"])
def test_the_stub_of_a_kernel_is_found(mode: str, tmp_path: Path) -> None:
    program = (
        PROGRAM.split("TYPES =")[0]
        + """
@triton.jit
def stub(x_ptr, n):
    raise NotImplementedError("exercise attention: not done yet")


@triton.jit
def calls_stub(x_ptr, n):
    stub(x_ptr, n)


try:
    if isinstance(stub, triton.JITFunction):
        compiled(calls_stub, {"x_ptr": "*fp32", "n": "i32"}, {}, 90)
    else:
        calls_stub[(1,)](0, 1)
except Exception as error:
    from parlab.kernels.errors import cause_of  # later: it turns the interpreter on

    print(json.dumps([type(error).__name__, repr(cause_of(error))]))
"""
    )
    environment = {"TRITON_INTERPRET": "1"} if mode == "interpreted" else {}
    kind, cause = run(program, tmp_path, **environment)
    assert kind == {"compiled": "CompilationError", "interpreted": "InterpreterError"}[mode]
    assert cause == "NotImplementedError('exercise attention: not done yet')"
