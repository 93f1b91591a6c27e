"""Lab 07's kernels against PyTorch's, and against the copy rate of a GPU. They need a GPU.

They were written without one: until a record says otherwise, none of them has run.

A kernel that does little with each number is limited by memory. Its peers are the library's
function, and a copy of as many bytes as the kernel must move (half are read, and half are written).
The inverse of the second ratio is the kernel's share of the device's copy rate.

Numbers are random, because zeros take less power and run faster. Times are measured on the GPU
alone (see `benchmarks.gpu`).
"""

import functools
import itertools
from collections.abc import Callable
from typing import Any

from benchmarks import Pair, benchmark
from benchmarks.gpu import pair, randoms, same

COPY = "a copy of as many bytes"
ADAM_SIZES = {"1M": 10**6, "10M": 10**7, "100M": 10**8, "1G": 10**9}
SETTINGS = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8}
# GPT-2's 148 tensors (Radford et al. 2019): embeddings, 12 layers of 12 tensors, a last LayerNorm.
LAYER = (768, 768, 2304 * 768, 2304, 768 * 768, 768, 768, 768, 3072 * 768, 3072, 768 * 3072, 768)
GPT2 = (50257 * 768, 1024 * 768, *12 * LAYER, 768, 768)
LAB_TILE = 32
SMALL = 3001  # the size of a vector in a rehearsal


@functools.cache
def lab() -> dict[str, Any]:
    """Return the functions of the lab's reference."""
    import parlab.kernels  # noqa: F401 - before the first kernel
    from parlab.runtime.paths import ROOT
    from parlab_staff.course.definitions import definitions_in
    from parlab_staff.course.lab import read_notebook

    return definitions_in(read_notebook(ROOT / "solutions" / "07_triton.ipynb"))


def register(
    name: str, peer: str, work: str, target: float | None, set_up: Callable[[bool], Pair]
) -> None:
    def function(small: bool = False) -> Pair:
        return set_up(small)

    function.__name__ = name
    benchmark(peer=peer, work=work, target=target, ranks=0, gpu=True)(function)


# A sum


def vector_add(count: int, copy: bool, small: bool) -> Pair:
    import torch

    count = SMALL if small else count
    x, y = randoms(count, small), randoms(count, small)
    same(lab()["vector_add"](x, y), x + y, 0.0)

    def call(add: Callable[..., Any]) -> Callable[[], Callable[[], Any]]:
        def make() -> Callable[[], Any]:
            a, b = randoms(count, small), randoms(count, small)
            return lambda: add(a, b)

        return make

    theirs = None if copy else call(torch.add)
    return pair(call(lab()["vector_add"]), theirs, 12 * count, small)


for _copy, _peer, _target in ((False, "torch.add", 1.05), (True, COPY, None)):
    register(
        f"add_100M_{'copy' if _copy else 'torch'}",
        _peer,
        "sum of two vectors of 100 M float32",
        _target,
        functools.partial(vector_add, 10**8, _copy),
    )


# Softmax


def softmax(columns: int, peer: str, small: bool) -> Pair:
    import torch

    rows, columns = (7, min(columns, 130)) if small else (2**27 // columns, columns)
    x = randoms(rows * columns, small).view(rows, columns)
    same(lab()["softmax"](x), x.softmax(1), 1e-6)

    def five(x: torch.Tensor) -> torch.Tensor:
        powers = (x - x.amax(1, keepdim=True)).exp()
        return powers / powers.sum(1, keepdim=True)

    def call(function: Callable[..., Any]) -> Callable[[], Callable[[], Any]]:
        def make() -> Callable[[], Any]:
            own = randoms(rows * columns, small).view(rows, columns)
            return lambda: function(own)

        return make

    functions = {
        "eager": five,
        "torch": functools.partial(torch.softmax, dim=1),
        "compiled": five if small else torch.compile(five),
        "copy": None,
    }
    function = functions[peer]
    if function is not None:
        same(function(x), x.softmax(1), 1e-6)
    theirs = None if function is None else call(function)
    return pair(call(lab()["softmax"]), theirs, 8 * rows * columns, small)


SOFTMAX_PEERS = {
    "eager": ("the lab's five operations", 1.0),
    "torch": ("torch.softmax", 1.0),
    "compiled": ("torch.compile of the five operations", 1.0),
    "copy": (COPY, 1 / 0.9),
}
for _columns, (_name, (_peer, _target)) in itertools.product(
    (1024, 4096, 16384), SOFTMAX_PEERS.items()
):
    register(
        f"softmax_{_columns // 1024}K_{_name}",
        _peer,
        f"softmax of {2**27 // _columns:,} rows of {_columns:,} float32",
        _target,
        functools.partial(softmax, _columns, _name),
    )


# Adam


def adam(counts: tuple[int, ...], peer: str, small: bool) -> Pair:
    """Compare steps of the lab's `FusedAdam` and a peer on tensors of these sizes."""
    import torch

    if small:
        counts = tuple(min(count, SMALL // len(counts) + 1) for count in counts)

    def made() -> list[torch.Tensor]:
        parameters = [randoms(count, small).requires_grad_() for count in counts]
        for parameter in parameters:
            parameter.grad = randoms(parameter.numel(), small)
        return parameters

    def ours(parameters: list[torch.Tensor]) -> Callable[[], Any]:
        return lab()["FusedAdam"](parameters, **SETTINGS).step

    def theirs(parameters: list[torch.Tensor]) -> Callable[[], Any]:
        if peer == "compiled":
            step = torch.optim.Adam(parameters, **SETTINGS).step
            return step if small else torch.compile(step)
        return torch.optim.Adam(parameters, **{peer: True}, **SETTINGS).step

    compared = made()
    copies = [parameter.detach().clone().requires_grad_() for parameter in compared]
    for parameter, copied in zip(compared, copies, strict=True):
        copied.grad = parameter.grad
    step, right = ours(compared), torch.optim.Adam(copies, **SETTINGS).step
    for _ in range(3):
        step()
        right()
    for parameter, copied in zip(compared, copies, strict=True):
        same(parameter.detach(), copied.detach(), 1e-5)
    del compared, copies, step, right
    make_theirs = None if peer == "copy" else lambda: theirs(made())
    return pair(lambda: ours(made()), make_theirs, 28 * sum(counts), small)


ADAM_PEERS = {
    "fused": "torch.optim.Adam(fused=True)",
    "foreach": "torch.optim.Adam(foreach=True)",
    "compiled": "torch.optim.Adam under torch.compile",
    "copy": COPY,
}
for _peer, _text in ADAM_PEERS.items():
    for _name, _count in ADAM_SIZES.items():
        _target = {"fused": 1.0, "copy": 1 / 0.92 if _name == "100M" else None}.get(_peer)
        register(
            f"adam_{_name}_{_peer}",
            _text,
            f"a step of FusedAdam, {_name} parameters in one float32 tensor",
            _target,
            functools.partial(adam, (_count,), _peer),
        )
    register(
        f"adam_gpt2_{_peer}",
        _text,
        f"a step of FusedAdam for the {len(GPT2)} float32 tensors of GPT-2, in one launch",
        None,
        functools.partial(adam, GPT2, _peer),
    )


# A product


def matmul(size: int, tile: int, small: bool) -> Pair:
    """Use the lab's own launch for tiles of 32. For other tiles, use its kernel with more warps."""
    import torch
    import triton

    as_in_lab = tile == LAB_TILE
    size, tile = (70, LAB_TILE) if small else (size, tile)
    dtype, tolerance = ("float32", 1e-4) if small else ("bfloat16", 2e-2)

    def operands() -> tuple[torch.Tensor, torch.Tensor]:
        a, b = (randoms(size * size, small, dtype).view(size, size) for _ in range(2))
        return a, b / size**0.5

    def large(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        c = torch.empty_like(a)
        # Three stages need at least two pairs of tiles in shared memory, and some GPUs have less.
        room = 0 if small else torch.cuda.get_device_properties().shared_memory_per_block_optin
        stages = 3 if room >= 4 * tile * tile * a.itemsize else 2
        sizes, strides = (size, size, size), (*a.stride(), *b.stride())
        lab()["matmul_kernel"][(triton.cdiv(size, tile) ** 2,)](
            *(a, b, c, *sizes, *strides), GROUP=8, TILE=tile, num_warps=8, num_stages=stages
        )
        return c

    ours = lab()["matmul"] if as_in_lab else large
    a, b = operands()
    same(ours(a, b), a @ b, tolerance)

    def call(function: Callable[..., Any]) -> Callable[[], Callable[[], Any]]:
        def make() -> Callable[[], Any]:
            own = operands()
            return lambda: function(*own)

        return make

    moved = 3 * a.nbytes
    return pair(call(ours), call(torch.matmul), moved, small, flop=2.0 * size**3)


for _size, _tile in itertools.product((4096, 8192), (LAB_TILE, 128)):
    register(
        f"matmul_{_size}_tiles_{_tile}",
        "cuBLAS (torch.matmul)",
        f"product of two {_size} × {_size} matrices of bfloat16, in tiles of {_tile}"
        + (", as the lab launches it" if _tile == LAB_TILE else ", with 8 warps"),
        None if _tile == LAB_TILE else 1 / 0.9,
        functools.partial(matmul, _size, _tile),
    )
