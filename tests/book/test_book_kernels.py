"""The kernels in chapter 07 are right. They run in Triton's interpreter."""

import json
import os
import re
import subprocess
import sys

import pytest

from parlab.runtime.paths import ROOT

PAGE = ROOT / "book" / "07_triton.md"
# Sizes that no block divides.
PROGRAM = """
import json
import sys
import traceback
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


def attention():
    for length in (5, 77):  # fewer than a tile, and more than two
        q, k, v = torch.randn(3, length, 32)
        out = torch.zeros(length + 3, 32)
        attention_kernel[(triton.cdiv(length, 32),)](
            q, k, v, out, length, 32**-0.5, D=32, BM=32, BN=16
        )
        right = torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]
        close(out[:length], right, rtol=1e-4, atol=1e-5)
        assert not out[length:].any()


def norm():
    x, w, b = torch.randn(7, 50), torch.randn(50), torch.randn(50)
    for tensor in (x, w, b):
        tensor.requires_grad_()
    dy = torch.randn(7, 50)
    torch.nn.functional.layer_norm(x, (50,), w, b).backward(dy)
    mean, variance = x.detach().mean(1), x.detach().var(1, unbiased=False)
    dx, (dw, db) = torch.empty(7, 50), torch.full((2, 3, 50), 9.0)
    norm_backward_kernel[(3,)](
        x.detach(), dy, w.detach(), mean, (variance + 1e-5).rsqrt(), dx, dw, db, 7, 50, BLOCK=64
    )
    for got, tensor in ((dx, x), (dw.sum(0), w), (db.sum(0), b)):
        close(got, tensor.grad, rtol=1e-4, atol=1e-5)


def table():
    w, g, m, v = (torch.randn(300).abs() for _ in range(4))
    new_m, new_v = 0.9 * m + 0.1 * g, 0.8 * v + 0.2 * g * g
    right = w - 0.5 * new_m / (new_v.sqrt() + 0.01)
    right[256:] = w[256:]  # the kernel leaves what does not fill a block
    addresses = torch.tensor([tensor.data_ptr() for tensor in (w, g, m, v)])
    table_kernel[(1,)](addresses, 300, 0.5, 0.1, 0.2, 0.01, ALIGNED=0, BLOCK=128)
    close(w, right, rtol=1e-4, atol=1e-5)


wrong = {}
for name in sys.argv[1:]:
    try:
        globals()[name]()
    except Exception:
        wrong[name] = traceback.format_exc()
print(json.dumps(wrong))
"""
KERNELS = ["vectors", "gathered", "rows", "product", "described", "attention", "norm", "table"]


def kernels() -> str:
    cells = re.findall(r"```\{code-cell\}[^\n]*\n(.*?)```", PAGE.read_text(), re.S)
    bodies = [re.sub(r"\A(---.*?---\n|:tags:[^\n]*\n)", "", cell, flags=re.S) for cell in cells]
    return "\n\n".join(body for body in bodies if body.strip().startswith("@triton.jit"))


@pytest.fixture(scope="module")
def wrong(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The errors of all kernels by name, from one process, because each would import PyTorch."""
    file = tmp_path_factory.mktemp("kernels") / "program.py"  # Triton reads a kernel's source there
    file.write_text(PROGRAM.replace("{kernels}", kernels()))
    ran = subprocess.run(
        [sys.executable, file, *KERNELS],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


@pytest.mark.xdist_group("kernels of chapter 07")
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_kernel_of_the_page_computes_what_it_says(kernel: str, wrong: dict[str, str]) -> None:
    assert kernel not in wrong, wrong[kernel]
