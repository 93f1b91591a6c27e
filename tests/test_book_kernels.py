"""The kernels that chapter 07 prints compute what it says: run in Triton's interpreter."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parlab.files import ROOT

PAGE = ROOT / "book" / "07_triton.md"
# Sizes that no block divides.
PROGRAM = """
import sys
import torch
import triton
import triton.language as tl

{kernels}

torch.manual_seed(0)
close = torch.testing.assert_close


def vectors():
    x, y, out = torch.randn(1000), torch.randn(1000), torch.zeros(1003)
    add_kernel[(4,)](x, y, out, 1000, BLOCK=256)
    close(out[:1000], x + y)
    assert not out[1000:].any()  # what lies beyond the end stays


def gathered():
    x, y, out = torch.randn(900), torch.randn(900), torch.zeros(300)
    gather_kernel[(2,)](x, y, out, 300, 3, BLOCK=256)
    close(out, x[::3] + y[::3])


def rows():
    x, y = torch.randn(5, 100), torch.empty(5, 100)
    softmax_kernel[(5,)](y, x, 100, BLOCK=128)
    close(y, x.softmax(1))


def product():
    a, b, c = torch.randn(40, 50), torch.randn(50, 70), torch.empty(40, 70)
    matmul_kernel[(2, 3)](a, b, c, 40, 70, 50, BM=32, BN=32, BK=16)
    close(c, a @ b, rtol=1e-4, atol=1e-4)


def described():
    a, b = torch.randn(64, 48).bfloat16().float(), torch.randn(48, 32).bfloat16().float()
    c = torch.empty(64, 32, dtype=torch.bfloat16)
    described_kernel[(2, 1)](a, b, c, 64, 32, 48, BM=32, BN=32, BK=16)
    close(c.float(), a @ b, rtol=1e-2, atol=5e-2)


globals()[sys.argv[1]]()
"""


def kernels() -> str:
    cells = re.findall(r"```\{code-cell\}[^\n]*\n(.*?)```", PAGE.read_text(), re.S)
    bodies = [re.sub(r"\A(---.*?---\n|:tags:[^\n]*\n)", "", cell, flags=re.S) for cell in cells]
    return "\n\n".join(body for body in bodies if body.strip().startswith("@triton.jit"))


@pytest.mark.parametrize("kernel", ["vectors", "gathered", "rows", "product", "described"])
def test_a_kernel_of_the_page_computes_what_it_says(kernel: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"  # Triton reads the source of a kernel from its file
    file.write_text(PROGRAM.replace("{kernels}", kernels()))
    ran = subprocess.run(
        [sys.executable, file, kernel],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert ran.returncode == 0, ran.stderr
