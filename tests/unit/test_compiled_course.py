"""The course's kernels, compiled without a GPU: registers, spills, and accesses to 16 bytes."""

import json
import os
import re
import subprocess
import sys

import pytest

from parlab.runtime.paths import ROOT

CAPABILITIES = (80, 90, 100)
# This runs in its own process, which has no GPU either, but must not select the interpreter.
PROGRAM = """
import json
import runpy
import sys

import torch

torch.cuda.device_count, torch.cuda.is_available = lambda: 1, lambda: True

import triton.language as tl

from parlab.compiled import compiled
from parlab.runtime.paths import ROOT
from parlab_staff.course.references import definitions

lab = definitions("07_triton")
example = runpy.run_path(str(ROOT / "examples" / "07_triton.py"))


def typed(kind, names):
    return dict.fromkeys(names.split(), kind)


STATE = typed("*fp32", "p_pointer g_pointer m_pointer v_pointer")
RULE = typed("fp32", "lr share1 share2 eps decay")
BOTH = typed("fp32", "correction1 correction2")
TABLES = typed("*i64", "tensors chunks") | typed("*fp32", "corrections")
CHUNKS = {"DECOUPLED": 1, "CHUNK": 16_384, "BLOCK": 1024}
VECTORS = typed("*fp32", "x_pointer y_pointer out_pointer") | typed("i32", "n")
ROWS = typed("*fp32", "x_pointer out_pointer") | typed("i32", "x_stride out_stride columns")
MATRICES = typed("*bf16", "a_pointer b_pointer c_pointer")
SIZES = typed("i32", "m n k a_row a_column b_row b_column")
HEADS = "q_pointer k_pointer v_pointer out_pointer"
LENGTH, TILES = {"length": "i32", "scale": "fp32"}, {"CAUSAL": 1, "TILE": 32}
STATISTICS = "mean_pointer rstd_pointer"
NORM = typed("*fp32", f"x_pointer w_pointer b_pointer y_pointer {STATISTICS}")
NORM |= {"columns": "i32", "eps": "fp32"}
GRADIENTS = f"x_pointer dy_pointer w_pointer {STATISTICS} dx_pointer dw_pointer db_pointer"
NORM_BACKWARD = typed("*fp32", GRADIENTS) | typed("i32", "rows columns")
KERNELS = {
    "add_kernel": (lab["add_kernel"], VECTORS, {"BLOCK": 1024}),
    "softmax_kernel": (lab["softmax_kernel"], ROWS, {"BLOCK": 4096}),
    "adam_kernel": (
        lab["adam_kernel"], STATE | RULE | BOTH | typed("i32", "n"), {"DECOUPLED": 1, "BLOCK": 1024}
    ),
    "adam_group_kernel": (
        lab["adam_group_kernel"], TABLES | RULE, CHUNKS | {"DTYPE": tl.float32, "ALIGNED": 1}
    ),
    "adam_group_kernel, not aligned": (
        lab["adam_group_kernel"], TABLES | RULE, CHUNKS | {"DTYPE": tl.float32, "ALIGNED": 0}
    ),
    "adam_group_kernel, bfloat16": (
        lab["adam_group_kernel"], TABLES | RULE, CHUNKS | {"DTYPE": tl.bfloat16, "ALIGNED": 1}
    ),
    "online_softmax_kernel": (lab["online_softmax_kernel"], ROWS, {"BLOCK": 1024}),
    "attention_kernel, bfloat16": (
        lab["attention_kernel"], typed("*bf16", HEADS) | LENGTH, TILES | {"WIDTH": 128}
    ),
    "attention_kernel, float32": (
        lab["attention_kernel"], typed("*fp32", HEADS) | LENGTH, TILES | {"WIDTH": 64}
    ),
    "norm_kernel": (lab["norm_kernel"], NORM, {"BLOCK": 1024}),
    "norm_backward_kernel": (lab["norm_backward_kernel"], NORM_BACKWARD, {"BLOCK": 1024}),
    "matmul_kernel": (lab["matmul_kernel"], MATRICES | SIZES, {"GROUP": 4, "TILE": 32}),
    "example": (
        example["adam_kernel"],
        typed("*fp32", "w_ptr g_ptr m_ptr v_ptr") | typed("i32", "n")
        | typed("fp32", "rate shrink share1 share2 correction1 correction2 epsilon"),
        {"BLOCK": 1024},
    ),
}
found = {}
for name, (kernel, types, constants) in KERNELS.items():
    made = compiled(kernel, types, constants, int(sys.argv[1]))
    found[name] = {
        "registers": made.registers,
        "spilled": made.spilled_bytes,
        "loads": made.count("ld.global.v4"),
        "stores": made.count("st.global.v4"),
        "tf32": "tf32" in made.ptx,
        "products": made.count("mma.sync"),
        "in loops": [made.count_in_loops(f"{what}.global.v4") for what in ("ld", "st")],
    }
print(json.dumps(found))
"""
# Loads and stores of 16 bytes for a block, on 128 threads. An access for each four float32 numbers
# or eight bfloat16 numbers of a thread. (Loads in the loops of products are `cp.async`.)
WIDE = {
    "add_kernel": (4, 2),
    "softmax_kernel": (8, 8),
    "adam_kernel": (8, 6),
    "adam_group_kernel": (8, 6),
    "adam_group_kernel, not aligned": (0, 0),
    "adam_group_kernel, bfloat16": (6, 5),
    "online_softmax_kernel": (4, 2),  # in two passes
    "attention_kernel, bfloat16": (4, 4),
    "attention_kernel, float32": (4, 4),
    "norm_kernel": (6, 2),
    "norm_backward_kernel": (6, 6),
    "matmul_kernel": (0, 1),
    "example": (8, 6),
}
# If a program has 128 threads, 6 programs with 80 registers fit on a multiprocessor, 4 with 128.
MOST_REGISTERS = dict.fromkeys(WIDE, 80) | {
    "attention_kernel, bfloat16": 128,
    "attention_kernel, float32": 104,
}


@pytest.fixture(scope="module", params=CAPABILITIES)
def found(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("compiled")
    rest = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    ran = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(request.param)],
        capture_output=True, text=True, cwd=ROOT, timeout=600,
        env=rest
        | {"LOCAL_WORLD_SIZE": "1", "PYTHONPATH": str(ROOT), "TRITON_CACHE_DIR": str(folder)},
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_no_kernel_spills_or_needs_many_registers(found: dict) -> None:
    assert {name: of["spilled"] for name, of in found.items()} == dict.fromkeys(WIDE, 0)
    registers = {name: of["registers"] for name, of in found.items()}
    assert {name: n for name, n in registers.items() if n > MOST_REGISTERS[name]} == {}


def test_kernels_access_16_bytes_at_once(found: dict) -> None:
    assert {name: (of["loads"], of["stores"]) for name, of in found.items()} == WIDE


def test_the_loop_over_a_chunk_accesses_16_bytes_at_once(found: dict) -> None:
    assert found["adam_group_kernel"]["in loops"] == [8, 6]


def test_products_of_float32_are_not_rounded_to_tf32(found: dict) -> None:
    assert not any(of["tf32"] for of in found.values())
    assert found["attention_kernel, bfloat16"]["products"] == 32  # on tensor cores


def test_every_kernel_of_the_lab_is_compiled_here() -> None:
    kernels = re.findall(r"^def (\w+_kernel)\(", source("solutions"), re.MULTILINE)
    assert set(kernels) == {name.split(",")[0] for name in WIDE} - {"example"}
    assert source("examples").count("@triton.jit") == 1


def source(folder: str) -> str:
    return (ROOT / folder / "07_triton.py").read_text()
