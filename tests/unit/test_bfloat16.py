"""Each operation on bfloat16 numbers has the same result as on these numbers in float32.

Without a GPU, Triton's interpreter sometimes computes with the bits of bfloat16 numbers, which
`parlab.kernels.interpreter` corrects.
"""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
import torch

from parlab.kernels import INTERPRETED

pytestmark = pytest.mark.skipif(not INTERPRETED, reason="a GPU computes with bfloat16 itself")

NUMBERS = torch.tensor([-2.0, 1.0, -0.5, 3.0, 0.75, -1.25, 2.5, 0.125])
N = len(NUMBERS)
# Expressions of `x`, which has N numbers, and the size of their results; 0 for a scalar.
SCALARS = {
    "tl.sum(x, axis=0)": 0,
    "tl.sum(x, axis=0, dtype=tl.float32)": 0,
    "tl.sum(tl.reshape(x, (2, N // 2)))": 0,
    "tl.sum(tl.reshape(x, (2, N // 2)), axis=1)": 2,
    "tl.sum(tl.broadcast_to(x[None, :], (2, N)), axis=0)": N,
    "tl.max(x, axis=0)": 0,
    "tl.max(x, axis=0, return_indices=True)[1]": 0,
    "tl.min(x, axis=0)": 0,
    "tl.argmax(x, axis=0)": 0,
    "tl.argmin(x, axis=0)": 0,
    "tl.reduce(x, 0, add)": 0,
    "tl.reduce(x, 0, larger)": 0,
    "tl.reduce((x, x * 2), 0, larger_of_pairs)[1]": 0,
}
SCANS = {
    "tl.cumsum(x, axis=0)": N,
    "tl.cumsum(x, axis=0, reverse=True)": N,
    "tl.cumprod(x, axis=0)": N,
    "tl.associative_scan(x, 0, add)": N,
    "tl.associative_scan(x, 0, larger)": N,
    "tl.associative_scan(x, 0, add, reverse=True)": N,
    "tl.sort(x)": N,
    "tl.topk(x, 4)": 4,
}
EACH = dict.fromkeys(
    [
        *("-x", "x * x", "x / 3", "x % 0.75", "2 - x", "x + 1.0", "x + 1", "x + tl.arange(0, N)"),
        *("tl.abs(x)", "tl.fma(x, x, x)", "tl.fdiv(x, x + 5)", "x * (x > 0)", "x * tl.load(p)"),
        *("tl.maximum(x, 0.25)", "tl.minimum(x, x * 2)", "tl.clamp(x, -0.6, 0.9)", "tl.softmax(x)"),
        *("tl.where(x > 0.3, x, 0.0)", "(x <= 1).to(tl.float32)", "(x == 1).to(tl.float32)"),
        *("tl.zeros((N,), x.dtype) + x", "tl.full((N,), 1.5, x.dtype) + x", "x.to(tl.int32)"),
        *("x.to(tl.float16) + 1", "x.to(tl.float64)", "x.to(tl.int32).to(tl.bfloat16)"),
        "tl.load(p + tl.arange(0, N), mask=tl.arange(0, N) < 5, other=0.5)",
        *("tl.sum(tl.join(x, x), axis=1)", "tl.gather(x, (tl.arange(0, N) + 1) % N, 0)"),
    ],
    N,
) | {
    "tl.split(tl.reshape(x, (N // 2, 2)))[0]": N // 2,
    "tl.interleave(x, x)": 2 * N,
    "tl.dot(tl.broadcast_to(x[None, :], (16, N)), tl.broadcast_to(x[:, None], (N, 16)))": 256,
}
EXPRESSIONS = SCALARS | SCANS | EACH
HEAD = """
import triton
import triton.language as tl

@triton.jit
def add(a, b):
    return a + b

@triton.jit
def larger(a, b):
    return tl.maximum(a, b)

@triton.jit
def larger_of_pairs(a, c, b, d):
    return tl.where(a > b, a, b), tl.where(a > b, c, d)

@triton.jit
def add_all(p, out, N: tl.constexpr):
    old = tl.atomic_add(out + tl.arange(0, N) % 2, tl.load(p + tl.arange(0, N)))
    tl.store(p + tl.arange(0, N), old)
"""
KERNEL = """
@triton.jit
def kernel_{number}(p, out, N: tl.constexpr):
    x = tl.load(p + tl.arange(0, N))
    tl.store(out{places}, {value})
"""


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: pytest.TempPathFactory) -> ModuleType:
    """A module with a kernel for each expression: Triton reads kernels from files."""
    text = HEAD
    for number, (value, size) in enumerate(EXPRESSIONS.items()):
        places = f" + tl.arange(0, {size})" if size else ""
        value = f"tl.reshape({value}, ({size},))" if size == 256 else value
        text += KERNEL.format(number=number, value=value, places=places)
    file = tmp_path_factory.mktemp("kernels") / "bfloat16_kernels.py"
    file.write_text(text, encoding="utf-8")
    return loaded(file)


def loaded(file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_operation_has_the_result_of_float32(expression: str, kernels: ModuleType) -> None:
    kernel = getattr(kernels, f"kernel_{list(EXPRESSIONS).index(expression)}")
    results = []
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.full((max(EXPRESSIONS[expression], 1),), torch.nan)
        kernel[(1,)](NUMBERS.to(dtype), out, N)
        results.append(out)
    expected, got = results
    assert expected.isfinite().all()
    torch.testing.assert_close(got, expected, rtol=2**-7, atol=2**-7)


def test_atomic_additions_to_one_address_add_up(kernels: ModuleType) -> None:
    x, out = NUMBERS.bfloat16(), torch.ones(2, dtype=torch.bfloat16)
    kernels.add_all[(1,)](x, out, N)
    assert out.tolist() == [1.75, 3.875]
    assert x.tolist() == [1.0, 1.0, -1.0, 2.0, -1.5, 5.0, -0.75, 3.75]
