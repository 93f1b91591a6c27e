# %% [markdown]
# # Lab 07: Triton kernels
#
# A GPU computes far faster than it reads numbers from its memory. Each PyTorch operation reads its inputs and writes its
# result, so three operations in a row move the same numbers three times. A *fused* kernel does everything in one trip to
# memory. In this lab, you write such kernels in [Triton](https://triton-lang.org), a language like
# Python for blocks of numbers. You write a sum, a softmax, Adam for a whole model in **one
# launch**, a matrix product, attention that never stores its scores, and a layer norm with its
# backward pass. Then you measure your Adam against PyTorch's.
#
# | | |
# |---|---|
# | **You will be able to** | write a kernel whose programs share the work, with masks where a block is not full; fuse a softmax into one trip to memory, and compute what this saves; update all tensors of a model in one launch; write an optimizer that can replace `torch.optim.Adam`; multiply matrices in tiles, and see how tiles use registers; compute a softmax in pieces, and attention without storing its scores; connect a kernel with autograd; write a benchmark that you can trust |
# | **Time** | 190 minutes: 173 for exercises, 12 for reading, 5 for the library |
# | **You need** | PyTorch; [lab 03](03_zero.ipynb), or basic knowledge of ranks and shards. No GPU |
# | **Background** | [chapter 07](../book/07_triton.md) of the book explains what you build here |
#
# After Part A, you can do the parts in any order, and in several sittings. Only Part C and the last part need the Adam of Part B.
# The last part also needs the first code cell of Part C, which defines the batches and the settings of Adam.
#
# First start the ranks. They are four processes, and each has its own Python. Cells that begin with `%%px` run on all ranks.
# Other cells run in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px --timeout 120
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

from parlab import models, plots, training
from parlab.checks import triton as check
from parlab.costs.kernels import Device
from parlab.kernels import INTERPRETED
from parlab.kernels.accesses import recorded
from parlab.kernels.buffers import Arena
from parlab.kernels.launches import launches
from parlab.kernels.tables import chunk_table, to_device
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference
from parlab.reference_tables import load

# %% [markdown]
# Without a GPU, your kernels run in Triton's **interpreter**: NumPy does what the GPU would do, one program after another. The
# interpreter is slow, so its times mean nothing. Its numbers agree with a GPU's up to rounding. In the interpreter, the checks look at
# every address that a kernel uses, so they find an access that is outside a tensor's memory by a single element.
#
# If you are stuck on an exercise, run `use_reference("its_name")` in a `%%px` cell. It puts a solution in place, and you can
# continue.
#
# # Part A: one trip to memory
#
# ## 1. A sum
#
# *Difficulty 2/5, 15 minutes.*
#
# A *kernel* is a function that many **programs** run at the same time, each on its own block of numbers. The launch
# `kernel[grid](arguments)` sets how many programs there are: `grid` is a tuple, such as `(12,)` for twelve. Inside the kernel,
# `tl.program_id(0)` is the program's number. Everything else is the same for all programs.
#
# A tensor arrives in the kernel as a **pointer**, the address of its first element. Pointer plus 3 is the address of the
# element three places further. `tl.arange(0, BLOCK)` is a block of integers. Pointer plus such a block is a block of addresses,
# and `tl.load` of it is a block of numbers. The size of a block is a power of two that is known when the kernel is compiled
# (`tl.constexpr`).
#
# The last block is rarely full, and the memory after the tensor belongs to something else. `mask=` is a block of booleans. It
# selects the elements that a `tl.load` or `tl.store` may touch.
#
# Write the kernel and the function that launches it. `x` and `y` are contiguous. They have the same shape, with any number of
# dimensions and at least one element, and the same dtype: float32, float16, bfloat16, or int32.
#
# - The result is a new tensor, and `x` and `y` do not change.
# - There is one launch. Each program takes `block` elements, and there are no more programs than necessary.
# - The kernel, not PyTorch, computes the sum, and it computes each element once.
#
# **Predict**: how many programs are there for 1,000 elements in blocks of 256? How many elements does the last one compute?
#
# <details><summary>Hint 1</summary>
#
# `offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)` are the indices of this program's elements.
# `offsets < n` selects those that exist. (The program's number has 32 bits, so without `.to(tl.int64)`, the indices
# overflow in tensors with more than 2³¹ elements.)
# </details>
#
# <details><summary>Hint 2</summary>
#
# `triton.cdiv(n, block)` is n/block, rounded up. `torch.empty_like(x)` is memory for the result. Pass it to the kernel like `x`
# and `y`.
# </details>


# %% tags=["exercise"] exercise="vector_add"
# %%px
@triton.jit
def add_kernel(x_pointer, y_pointer, out_pointer, n, BLOCK: tl.constexpr):
    """Each program adds x and y at the indices of its block that are below `n`."""
    # BEGIN SOLUTION
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    x = tl.load(x_pointer + offsets, mask=mask)
    y = tl.load(y_pointer + offsets, mask=mask)
    tl.store(out_pointer + offsets, x + y, mask=mask)
    # END SOLUTION


def vector_add(x: torch.Tensor, y: torch.Tensor, block: int = 1024) -> torch.Tensor:
    """x + y as a new tensor, by one launch; each program has `block` elements, a power of two."""
    # BEGIN SOLUTION
    out = torch.empty_like(x)
    n = x.numel()
    add_kernel[(triton.cdiv(n, block),)](x, y, out, n, BLOCK=block)
    return out
    # END SOLUTION


# %% tags=["check"] exercise="vector_add" points=2
# %%px --timeout 120
check.vector_add(vector_add)


# %% tags=["hidden-check"] exercise="vector_add" points=1
# %%px --timeout 60
def added(size, block):
    x = torch.arange(size, dtype=torch.float32, device=device) + rank
    with launches() as made:
        found = vector_add(x, 2 * x, block)
    return [int(found.sum()), found[-1].item(), len(made), made[0].programs]


check.show_values(added=[added(size, block) for size, block in [(7, 16), (48, 16), (133, 32)]])

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 1,000 / 256 is 3.9, so there are four programs. Three have full blocks, and the last one computes 1,000 − 3 · 256 = 232
# elements. The other 24 elements of its block are masked.
# </details>

# %% [markdown]
# ## 2. A softmax in one trip
#
# *Difficulty 3/5, 15 minutes.*
#
# The softmax of a row is $e^{x_i} / \sum_j e^{x_j}$. $e^{89}$ is too large for a float32, so we first subtract the row's maximum.
# This divides the numerator and the denominator by the same number, so the result stays the same. In PyTorch, the softmax takes five
# operations, and each of them reads and writes memory:
#
#     highest = x.amax(1, keepdim=True)
#     shifted = x - highest
#     powers = shifted.exp()
#     total = powers.sum(1, keepdim=True)
#     y = powers / total
#
# In a kernel, a program loads a row once, does all five operations in registers, and stores the result once. `tl.max` and
# `tl.sum` reduce a block. `other=` is the value that a masked load returns for elements that it does not load.
#
# `x` has the shape (rows, columns), with at least one of each, in float32, float16, or bfloat16.
#
# - The result is a new tensor with `x`'s shape and dtype.
# - There is one launch. Each number is loaded once and stored once.
# - The numbers of a row are adjacent, but the rows need not be: `x` may be some columns of a wider tensor. `x.stride(0)` is the
#   distance from one row to the next. Read `x` where it is, and do not make a contiguous copy.
# - Compute in float32, whatever the dtype of `x`, and round once, when you store.
#
# The check also tries:
#
# - **Rows of any length**, from one element to many thousands.
# - **Large numbers and −∞.** Each row has at least one finite number, and no NaN or +∞.
#
# <details><summary>Hint 1</summary>
#
# The size of a block is a power of two: `triton.next_power_of_2(columns)` is large enough for a row. What does the rest of the
# block do to the maximum and to the sum? Choose `other` so that it changes neither.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Use one program for each row: `x_pointer + row * row_stride + columns`. Convert with `.to(tl.float32)` after the load.
# `tl.store` rounds to the dtype of its pointer. e to the power of `-float("inf")` is 0.
# </details>


# %% tags=["exercise"] exercise="softmax"
# %%px
@triton.jit
def softmax_kernel(x_pointer, out_pointer, x_stride, out_stride, columns, BLOCK: tl.constexpr):
    """Each program does a row; rows begin `x_stride` and `out_stride` elements apart."""
    # BEGIN SOLUTION
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_pointer + row * x_stride + column, mask=mask, other=-float("inf"))
    x = x.to(tl.float32)
    powers = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_pointer + row * out_stride + column, powers / tl.sum(powers, axis=0), mask=mask)
    # END SOLUTION


def softmax(x: torch.Tensor) -> torch.Tensor:
    """Return the softmax of each row of `x`, (rows, columns), as a new tensor of its dtype."""
    # BEGIN SOLUTION
    rows, columns = x.shape
    out = torch.empty((rows, columns), dtype=x.dtype, device=x.device)
    block = triton.next_power_of_2(columns)
    softmax_kernel[(rows,)](x, out, x.stride(0), out.stride(0), columns, BLOCK=block)
    return out
    # END SOLUTION


# %% tags=["check"] exercise="softmax" points=3
# %%px --timeout 120
check.softmax(softmax)


# %% tags=["hidden-check"] exercise="softmax" points=1
# %%px --timeout 60
def softmaxed(columns, high):
    wide = torch.arange(5 * 40, dtype=torch.float32, device=device).view(5, 40).sin() * 3 + high
    found = softmax(wide[:, :columns])
    return [[round(x, 3) for x in found[row].tolist()] for row in (0, rank)]


check.show_values(softmaxed=[softmaxed(3, 0.0), softmaxed(5, 500.0), softmaxed(9, -200.0)])

# %% [markdown]
# ## 3. What a trip costs
#
# *Difficulty 2/5, 8 minutes.*
#
# `torch.optim.Adam(foreach=False)` updates a tensor `p` with its gradient `g` and its moments `m` and `v` by seven operations:
#
#     m.lerp_(g, 1 - beta1)
#     v.mul_(beta2)
#     v.addcmul_(g, g, value=1 - beta2)
#     d = v.sqrt()
#     d = d / (1 - beta2**t) ** 0.5
#     d.add_(eps)
#     p.addcdiv_(m, d, value=-lr / (1 - beta1**t))
#
# An operation reads each of its inputs once (even `g` in the third one), including an input that it
# changes. It writes what it changes or creates. **Predict in numbers**:
#
# - `softmax`: the number of bytes that the five operations of exercise 2 move (read and write), for a matrix of `rows` × `columns`
#   numbers with `size` bytes each. `highest` and `total` have one number for each row.
# - `softmax_fused`: the number of bytes that your kernel moves
# - `intensity`: the number of FLOP for each byte that your kernel moves, if each of the five operations is one FLOP for each
#   number of the matrix
# - `adam`: the number of bytes that the seven operations move for each parameter, all in float32
# - `adam_fused`: the same for a single kernel that reads `p`, `g`, `m`, and `v` and writes what changes
#
# The check counts what torch's operations move, and compares.


# %% tags=["exercise"] exercise="predict_fusion"
# %%px
def predict_fusion(rows: int, columns: int, size: int) -> dict[str, float]:
    """Return the bytes that softmax and Adam move, eager and fused, and the softmax's FLOP/byte."""
    # BEGIN SOLUTION
    matrix, column = rows * columns * size, rows * size
    reads = 5 * matrix + 2 * column
    writes = 3 * matrix + 2 * column
    return {
        "softmax": reads + writes,
        "softmax_fused": 2 * matrix,
        "intensity": 5 * rows * columns / (2 * matrix),
        "adam": 4 * (11 + 7),
        "adam_fused": 4 * (4 + 3),
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_fusion" points=2
# %%px --timeout 120
check.predict_fusion(predict_fusion)

# %% tags=["hidden-check"] exercise="predict_fusion" points=1
# %%px --timeout 20
check.show_values(
    predicted=[
        [round(float(x), 2) for _, x in sorted(predict_fusion(*given).items())]
        for given in [(1000, 50, 4), (7 + rank, 4096, 2), (1, 1, 4)]
    ]
)

# %% [markdown]
# The next cell compares your softmax with your predictions. In the interpreter, it counts the bytes load by load.

# %%
# %%px --timeout 60
x = torch.randn(64, 300, device=device)
predicted = predict_fusion(64, 300, x.element_size())
with launches() as made, recorded(Arena(device)) as accesses:
    y = softmax(x)
if rank == 0:
    print(f"as torch's: {torch.allclose(y, x.softmax(1), atol=1e-6)}; launches: {len(made)}")
    if accesses.known:
        moved = accesses.loaded + accesses.stored
        print(f"{moved:,} bytes moved, {predicted['softmax_fused']:,} predicted")
    print(f"eager moves {predicted['softmax'] / predicted['softmax_fused']:.2f} times as many")

# %% [markdown]
# The next cell applies the *roofline* model to some GPUs, with the numbers of their data sheets. It prints how much of a GPU's
# arithmetic a kernel of this intensity can use at most, and how long it takes at least, if all of its bytes move between the GPU and its
# memory. (A GPU's cache can keep some of them from one operation to the next.) This works for any kernel: count its FLOP and its bytes
# before you make it faster.

# %%
# %%px
if rank == 0:
    size = 4  # float32
    predicted = predict_fusion(4096, 4096, size)
    for sheet in load("gpu_datasheets").rows:
        of = Device(sheet["device"], sheet["fp32_tflops"] * 1e12, sheet["bandwidth_tb"] * 1e12)
        used = of.attainable(predicted["intensity"]) / of.flop_per_second
        times = [1e6 * predicted[way] / of.bytes_per_second for way in ("softmax", "softmax_fused")]
        print(
            f"{of.name}: ridge at {of.ridge:.0f} FLOP/byte; softmax can use {used:.0%} of its fp32; "
            f"4096 × 4096 take at least {times[0]:.0f} µs eager, {times[1]:.0f} µs fused"
        )

# %% [markdown]
# # Part B: Adam
#
# ## 4. The update rule
#
# *Difficulty 3/5, 15 minutes.*
#
# With the gradient $g$, the parameter $w$, the moments $m$ and $v$, and $t$ steps including this one:
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1) g \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 \qquad
# w \leftarrow w - \eta\, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}$$
#
# Weight decay $\lambda$ comes first, in one of two ways. If it is *decoupled* (AdamW), then $w \leftarrow w - \eta \lambda w$.
# Otherwise, $g \leftarrow g + \lambda w$, which also changes the moments.
#
# A kernel can call another function with `@triton.jit`. Write three functions:
#
# - `adam_rule`, the rule, computes with blocks of numbers.
# - `adam_block` loads the elements at `offsets`, calls the rule, and stores the result. `mask` selects the elements that
#   exist. If all of them exist, `mask` is `None`, which `tl.load` and `tl.store` accept.
# - `adam_step` launches `adam_kernel`, which calls `adam_block` for the elements of its program.
#
# The requirements are:
#
# - `parameter`, `exp_avg` ($m$), and `exp_avg_sq` ($v$) change in place, and `gradient` does not change. All are contiguous and
#   have the same shape.
# - Parameter and gradient have the same dtype: float32, float16, or bfloat16. The moments are float32. Compute in float32, and
#   round the parameter once, when you store it.
# - `step` is 1 in the first step.
# - There is one launch, which loads and stores each number once.
#
# **Predict**: before the first step, the moments are zero. There is no weight decay, and ε is tiny. How far does each weight move?
#
# <details><summary>Hint 1</summary>
#
# The two corrections are the same for all elements. Compute `1 - beta1**step` in Python, and pass it as a float. (Triton
# compiles a kernel again for some values of an *integer* argument, such as 1.) The kernel also gets
# 1 − β instead of β, because 1 − β is inaccurate in float32: for β = 0.999, it has a relative error
# of 13 parts per million.
# </details>
#
# <details><summary>Hint 2</summary>
#
# An `if` with a `tl.constexpr` is decided when the kernel is compiled. Apply `p.to(tl.float32)` after you load the parameter and
# the gradient. A function with `@triton.jit` may return three blocks.
# </details>


# %% tags=["exercise"] exercise="adam_step"
# %%px
@triton.jit
def adam_rule(
    p, g, m, v, lr, share1, share2, correction1, correction2, eps, decay, DECOUPLED: tl.constexpr
):
    """Return p, m, and v after a step, in float32; share1 = 1 − β₁, correction1 = 1 − β₁ᵗ."""
    # BEGIN SOLUTION
    if DECOUPLED:
        p = p - lr * decay * p
    else:
        g = g + decay * p
    m = (1 - share1) * m + share1 * g
    v = (1 - share2) * v + share2 * g * g
    p = p - lr * (m / correction1) / (tl.sqrt(v / correction2) + eps)
    return p, m, v
    # END SOLUTION


@triton.jit
def adam_block(
    p_pointer, g_pointer, m_pointer, v_pointer, offsets, mask,
    lr, share1, share2, correction1, correction2, eps, decay, DECOUPLED: tl.constexpr,
):  # fmt: skip
    """Load the elements at `offsets`, take a step with them, and store what changes."""
    # BEGIN SOLUTION
    p = tl.load(p_pointer + offsets, mask=mask).to(tl.float32)
    g = tl.load(g_pointer + offsets, mask=mask).to(tl.float32)
    m = tl.load(m_pointer + offsets, mask=mask)
    v = tl.load(v_pointer + offsets, mask=mask)
    p, m, v = adam_rule(
        p, g, m, v, lr, share1, share2, correction1, correction2, eps, decay, DECOUPLED
    )
    tl.store(p_pointer + offsets, p, mask=mask)
    tl.store(m_pointer + offsets, m, mask=mask)
    tl.store(v_pointer + offsets, v, mask=mask)
    # END SOLUTION


@triton.jit
def adam_kernel(
    p_pointer, g_pointer, m_pointer, v_pointer, n,
    lr, share1, share2, correction1, correction2, eps, decay,
    DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program takes a step with the elements of its block, those that are below `n`."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    adam_block(
        p_pointer, g_pointer, m_pointer, v_pointer, offsets, offsets < n,
        lr, share1, share2, correction1, correction2, eps, decay, DECOUPLED,
    )  # fmt: skip


def adam_step(
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    step: int,
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> None:
    """Take step number `step` of Adam, in place, in one launch; `decoupled` is True for AdamW."""
    # BEGIN SOLUTION
    n, (beta1, beta2) = parameter.numel(), betas
    adam_kernel[(triton.cdiv(n, 1024),)](
        parameter, gradient, exp_avg, exp_avg_sq, n,
        lr, 1 - beta1, 1 - beta2, 1 - beta1**step, 1 - beta2**step, eps, weight_decay,
        DECOUPLED=decoupled, BLOCK=1024,
    )  # fmt: skip
    # END SOLUTION


# %% tags=["check"] exercise="adam_step" points=3
# %%px --timeout 120
check.adam_step(adam_step)


# %% tags=["hidden-check"] exercise="adam_step" points=1
# %%px --timeout 60
def stepped(steps, *settings):
    p = torch.linspace(-2, 2, 1030, device=device)
    m, v = torch.zeros_like(p), torch.zeros_like(p)
    for step in range(1, steps + 1):
        adam_step(p, p.sin() * (rank + 1), m, v, step, *settings)
    return [round(x, 3) for x in (p[0].item(), p[-1].item(), p[700].item(), m[5].item())]


check.show_values(
    stepped=[
        stepped(1, 0.125, (0.9, 0.99), 0.5, 0.25, False),
        stepped(3, 0.125, (0.8, 0.99), 0.5, 0.25, True),
    ]
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# It moves by η, whatever the size of its gradient (if this is not 0): $m / (1 - \beta_1)$ is $g$, and the root of
# $v / (1 - \beta_2)$ is $|g|$. Only the sign of the gradient is left. Without the corrections, it would move
# $(1 - \beta_1) / \sqrt{1 - \beta_2}$ times as far, which is 3.2 with the usual betas.
# </details>

# %% [markdown]
# ## 5. All tensors in one launch
#
# *Difficulty 3/5, 15 minutes.*
#
# A model has hundreds of tensors, and many of them are small. A launch takes a GPU some microseconds, even if there is little to
# do. So update **all tensors in one launch**. A kernel has a fixed list of arguments, so it cannot take hundreds of pointers. The
# function `adam_group` below passes *tables* to it instead. It is complete. Write the kernel.
#
# A tensor may be large, so it is cut into *chunks* of 16,384 elements, and each program works on one chunk. The tables are
# tensors, row after row:
#
# - `chunks` has two integers for each program: the number of its tensor, and the first element of its chunk.
# - `tensors` has five integers for each tensor: the addresses of its parameter, gradient, `exp_avg`, and `exp_avg_sq`, and the
#   number of its elements. `.to(tl.pointer_type(tl.float32))` converts an address back to a pointer.
# - `corrections` has two floats for each tensor, since each tensor has its own step count.
#
# All parameters and gradients have the same dtype, `DTYPE` in the kernel. Moments are float32. The kernel loads and stores each
# number of them once. It may load from tables as often as you like.
#
# The check also tries:
#
# - **Tensors of any size**, from one element to several chunks. The last chunk and the last block can be incomplete.
# - **Tensors that begin at any address**, such as views into a flat buffer.
# - **Later calls** with other tensors and step counts.
#
# **Predict**: how many programs are there for tensors of 1, 1,000, and 50,000 elements?
#
# <details><summary>Hint 1</summary>
#
# `tl.load(table + i)` loads one integer. `row = tensors + 5 * tensor` is the row of a tensor. Add the first element of the chunk
# to each pointer. The chunk has `tl.minimum(size - first, CHUNK)` elements.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Four numbers for each element of a whole chunk do not fit into registers, so go through the chunk in blocks:
# `for start in range(0, n, BLOCK)`, with `adam_block` from exercise 4.
# </details>
#
# <details><summary>For a GPU: how to make it fast</summary>
#
# A thread can load four adjacent float32 numbers with one instruction if their address is a multiple of 16 bytes. If a pointer is
# an argument, Triton finds out whether this is the case. The compiler does not know it about an address from a table. `ALIGNED` says
# whether all addresses qualify. If so, promise it with `pointer = tl.multiple_of(pointer, 16)`, **after** you have added the first
# element of the chunk to the pointer. That number also comes from a table, so adding it later makes the promise useless. A mask can also
# prevent such accesses. So call `adam_block` with `mask=None` for full blocks, and once more with a mask for the rest.
# </details>


# %% tags=["exercise"] exercise="adam_group"
# %%px
@triton.jit
def adam_group_kernel(
    tensors, corrections, chunks, lr, share1, share2, eps, decay, DTYPE: tl.constexpr,
    DECOUPLED: tl.constexpr, ALIGNED: tl.constexpr, CHUNK: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program takes a step with one chunk of one tensor, block by block."""
    # BEGIN SOLUTION
    tensor = tl.load(chunks + 2 * tl.program_id(0))
    first = tl.load(chunks + 2 * tl.program_id(0) + 1)
    row = tensors + 5 * tensor
    p_pointer = tl.load(row).to(tl.pointer_type(DTYPE)) + first
    g_pointer = tl.load(row + 1).to(tl.pointer_type(DTYPE)) + first
    m_pointer = tl.load(row + 2).to(tl.pointer_type(tl.float32)) + first
    v_pointer = tl.load(row + 3).to(tl.pointer_type(tl.float32)) + first
    if ALIGNED:  # the compiler cannot know this about an address from a table
        p_pointer, g_pointer = tl.multiple_of(p_pointer, 16), tl.multiple_of(g_pointer, 16)
        m_pointer, v_pointer = tl.multiple_of(m_pointer, 16), tl.multiple_of(v_pointer, 16)
    correction1 = tl.load(corrections + 2 * tensor)
    correction2 = tl.load(corrections + 2 * tensor + 1)
    n = tl.minimum(tl.load(row + 4) - first, CHUNK).to(tl.int32)
    whole = n // BLOCK * BLOCK
    for start in range(0, whole, BLOCK):
        adam_block(
            p_pointer, g_pointer, m_pointer, v_pointer, start + tl.arange(0, BLOCK), None,
            lr, share1, share2, correction1, correction2, eps, decay, DECOUPLED,
        )  # fmt: skip
    if whole < n:
        rest = whole + tl.arange(0, BLOCK)
        adam_block(
            p_pointer, g_pointer, m_pointer, v_pointer, rest, rest < n,
            lr, share1, share2, correction1, correction2, eps, decay, DECOUPLED,
        )  # fmt: skip
    # END SOLUTION


def adam_group(
    parameters: list[torch.Tensor],
    gradients: list[torch.Tensor],
    exp_avgs: list[torch.Tensor],
    exp_avg_sqs: list[torch.Tensor],
    steps: list[int],
    lr: float,
    betas: tuple[float, float],
    eps: float,
    weight_decay: float,
    decoupled: bool,
) -> None:
    """Take a step of Adam on all tensors, in place, in one launch: step `steps[i]` of tensor i."""
    chunk, dtype, device = 16_384, parameters[0].dtype, parameters[0].device
    lists = zip(parameters, gradients, exp_avgs, exp_avg_sqs, strict=True)
    rows = [[*(t.data_ptr() for t in four), four[0].numel()] for four in lists]
    aligned = all(address % 16 == 0 for row in rows for address in row[:4])
    tensors = to_device(torch.tensor(rows), device)
    corrections = [[1 - beta**step for beta in betas] for step in steps]
    corrections = to_device(torch.tensor(corrections), device)
    chunks = chunk_table(tuple(row[4] for row in rows), chunk, device)
    known = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
    adam_group_kernel[(len(chunks),)](
        tensors, corrections, chunks, lr, 1 - betas[0], 1 - betas[1], eps, weight_decay,
        DTYPE=known[dtype], DECOUPLED=decoupled, ALIGNED=aligned, CHUNK=chunk, BLOCK=1024,
    )  # fmt: skip


# %% tags=["check"] exercise="adam_group" points=4
# %%px --timeout 120
check.adam_group(adam_group)


# %% tags=["hidden-check"] exercise="adam_group" points=2
# %%px --timeout 60
def group_stepped(sizes, steps, dtype):
    ones = [torch.linspace(1, 2, n, device=device) for n in sizes]
    p, g = [x.to(dtype) for x in ones], [(x * (rank + 1)).to(dtype) for x in ones]
    m, v = [x / 2 for x in ones], [x * x for x in ones]
    with launches() as made:
        adam_group(p, g, m, v, steps, 0.25, (0.5, 0.75), 0.125, 0.5, decoupled=bool(rank % 2))
    values = [round(x, 2) for x in (p[0][0].item(), p[-1][-1].item(), m[1][-1].item())]
    return [len(made), *values]


check.show_values(
    stepped=[
        group_stepped([3, 20_000], [1, 4], torch.float32),
        group_stepped([4097, 1, 70], [9, 2, 3], torch.float16),
    ]
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# There are six: one for each of the first two tensors, because a program works on only one tensor, and four for the last one,
# because 50,000 / 16,384 is 3.1.
# </details>

# %% [markdown]
# ## 6. An optimizer like torch's
#
# *Difficulty 3/5, 10 minutes.*
#
# Complete an optimizer that a training script can use instead of `torch.optim.Adam`. It is a subclass of `torch.optim.Optimizer`,
# which already has `param_groups`, `state`, `zero_grad`, and more. The settings and the loading of a state are given. Write two
# methods:
#
# - `step(closure=None)` calls `update` for the parameters that have a gradient. If there is a closure, `step` calls it first, with
#   gradients enabled, and returns its loss.
# - `update(parameters, settings)` updates parameters of one dtype in **one launch**, with `adam_group`. `step` calls it once for
#   each group and each dtype in it.
#
# Each parameter has a state, `self.state[p]`, a dict that is empty at first. It has torch's names: `step` (a float32 tensor of
# shape `()`), `exp_avg`, and `exp_avg_sq`. The moments are float32, whatever the dtype of the parameter. So `torch.optim.Adam` with
# its default `amsgrad` and `maximize` can load your `state_dict()`.
#
# The check also tries:
#
# - **A parameter without a gradient.** It does not change, and its step count does not increase.
# - **Settings that change** between steps, like a learning rate. Each group has its own settings.
# - **Gradients with any strides.** They stay the same tensors with the same numbers. Parameters are contiguous.
#
# <details><summary>Hint</summary>
#
# `adam_group` needs contiguous gradients. `p.grad.contiguous()` copies only if necessary. Keep a reference to a copy until the
# kernel is launched. `torch.enable_grad()` enables gradients inside `@torch.no_grad()`.
# </details>


# %% tags=["exercise"] exercise="fused_adam"
# %%px
class FusedAdam(torch.optim.Optimizer):
    """Adam with the interface of `torch.optim.Adam`, a launch for each group and dtype."""

    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0,
        decoupled_weight_decay=False,
    ):  # fmt: skip
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, settings)

    @torch.no_grad()
    def step(self, closure=None):
        """Update the parameters that have a gradient; return the closure's loss, if there is one."""
        # BEGIN SOLUTION
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for settings in self.param_groups:
            used = [p for p in settings["params"] if p.grad is not None]
            for dtype in {p.dtype: None for p in used}:
                self.update([p for p in used if p.dtype == dtype], settings)
        return loss
        # END SOLUTION

    def update(self, parameters: list[torch.Tensor], settings: dict) -> None:
        """Take a step with these parameters, all of one dtype, in one launch."""
        # BEGIN SOLUTION
        states = [self.state[p] for p in parameters]
        for p, state in zip(parameters, states, strict=True):
            if not state:
                state["step"] = torch.tensor(0.0)
                state["exp_avg"] = torch.zeros_like(p, dtype=torch.float32)
                state["exp_avg_sq"] = torch.zeros_like(p, dtype=torch.float32)
            state["step"] += 1
        adam_group(
            parameters,
            [p.grad.contiguous() for p in parameters],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [int(state["step"]) for state in states],
            settings["lr"],
            settings["betas"],
            settings["eps"],
            settings["weight_decay"],
            settings["decoupled_weight_decay"],
        )
        # END SOLUTION

    def load_state_dict(self, state_dict: dict) -> None:
        """Continue from a state of this class or of torch.optim.Adam, with moments in float32."""
        super().load_state_dict(state_dict)  # casts moments to the parameters' dtype
        numbers = [n for part in state_dict["param_groups"] for n in part["params"]]
        own_parameters = [p for part in self.param_groups for p in part["params"]]
        for number, p in zip(numbers, own_parameters, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if name != "step":
                    self.state[p][name] = value.to(p.device, torch.float32, copy=True)


# %% tags=["check"] exercise="fused_adam" points=4
# %%px --timeout 120
check.fused_adam(FusedAdam)


# %% tags=["hidden-check"] exercise="fused_adam" points=2
# %%px --timeout 60
def trained(dtype, **settings):
    p = [nn.Parameter(torch.linspace(1, 2, n, device=device).to(dtype)) for n in (3, 50)]
    optimizer = FusedAdam([{"params": p[:1], "lr": 0.25}, {"params": p[1:]}], **settings)
    counts = []
    for step in range(3):
        p[0].grad = p[0].detach() * (rank + 1)
        p[1].grad = None if step == 1 else p[1].detach() - 1.5
        with launches() as made:
            optimizer.step()
        counts.append(len(made))
    saved = optimizer.state_dict()
    steps = [int(saved["state"][i]["step"]) for i in (0, 1)]
    moment = saved["state"][0]["exp_avg"]
    values = [round(x, 2) for x in (p[0][0].item(), p[1][-1].item(), moment[1].item())]
    return [counts, steps, str(moment.dtype), *values]


check.show_values(
    trained=[
        trained(torch.float32, weight_decay=0.5),
        trained(torch.bfloat16, lr=0.125, eps=0.5, decoupled_weight_decay=True),
    ]
)

# %% [markdown]
# # Part C: on several ranks
#
# In [lab 03](03_zero.ipynb), each rank has the optimizer states of a part of the parameters, its *shard*, and updates only this part.
# A shard is a vector, so your Adam works for it without a change. The next cells train a small MLP on MNIST, with images averaged down
# to 7 × 7. In each step, the ranks reduce-scatter the mean of their gradients, each rank updates its shard in one launch, and an
# all-gather puts the parameters together again.

# %%
# %%px --timeout 100
batches = training.mnist_batches(1280, 64, device)
pairs = [(F.avg_pool2d(images, 4), labels) for images, labels in batches]
SETTINGS = {"lr": 0.02, "weight_decay": 0.01, "decoupled_weight_decay": True}


def fresh_model():
    torch.manual_seed(0)
    return models.mlp(32, inputs=49).to(device)


def flat(tensors):
    """All tensors in one vector, padded to a multiple of the number of ranks."""
    whole = torch.cat([tensor.detach().flatten() for tensor in tensors])
    return F.pad(whole, (0, -len(whole) % world_size))


# %%
# %%px --timeout 100
model = fresh_model()
parameters = list(model.parameters())
shard = nn.Parameter(flat(parameters).chunk(world_size)[rank].clone())
optimizer = FusedAdam([shard], **SETTINGS)


def sharded_step(x, y):
    """A step on this rank's samples of a batch; the mean loss over all of them."""
    own = slice(rank, None, world_size)
    model.zero_grad()
    loss = F.cross_entropy(model(x[own]), y[own]) * (world_size * len(x[own]) / len(x))
    loss.backward()
    whole = flat([p.grad for p in parameters]) / world_size
    shard.grad = torch.empty_like(shard)
    dist.reduce_scatter_single(shard.grad, whole, group=group)
    optimizer.step()
    dist.all_gather_single(whole, shard.detach(), group=group)
    nn.utils.vector_to_parameters(whole, parameters)
    return comm.allreduce(loss.item()) / world_size


# %% [markdown]
# `torch.optim.Adam` trains the same model on one rank with the whole batch. The losses must be the same, up to rounding.

# %%
# %%px --timeout 100
runs = {
    "one rank": training.plain_losses(fresh_model(), partial(torch.optim.Adam, **SETTINGS), pairs),
    "sharded": [sharded_step(*pair) for pair in pairs],
}
held = optimizer.state[shard]["exp_avg"].nbytes * 2
if rank == 0:
    whole = 8 * models.parameter_count(model)
    print(f"Adam's moments take {held:,} bytes on a rank, {whole:,} whole")
    training.print_same({"MNIST": runs}, 1e-4)
    print(f"it learns: {runs['sharded'][-1] < runs['sharded'][0] / 2}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
title = "A fused Adam on shards follows the curve of one rank"
drawn, axes = plots.same_curves(title, {"MNIST": runs})

# %% [markdown]
# # Part D: a product
#
# ## 7. Tiles
#
# *Difficulty 3/5, 15 minutes.*
#
# A matrix product uses each number many times, so reading it from memory for each use would take most of the time. A program computes
# a **tile** of the result, here of 32 × 32, and moves along $k$ in steps of 32. In each step, it loads a tile of $a$ and a tile of $b$,
# and `tl.dot` adds their product to the sums. Each number that it loads is used 32 times.
#
# Programs with neighboring numbers run at the same time and share a cache. If the programs go through the result row by row, a row of
# tiles needs one row of $a$ and **all** of $b$. So they go through it in *groups* of `group` rows of tiles. Inside a group, they go
# column by column, each from top to bottom. The last group may have fewer rows. The programs of a group share what they load of
# $a$, and neighbors share what they load of $b$. `tile_of` returns the tile of a program. Write the rest.
#
# - `a` is (m, k) and `b` is (k, n), of any sizes, with **any strides** and the same dtype: float32, float16, or bfloat16.
# - The result is a new, contiguous tensor of this dtype. Sums are float32 and are rounded once.
# - There is one launch, with a program for each tile, in the order above. A program stores its tile once, after its last step.
#
# **Predict**: there are 5 × 3 tiles in groups of 2 rows. Which tile does program 7 compute?
#
# <details><summary>Hint</summary>
#
# `rows[:, None] * stride + columns[None, :]` is a block with two dimensions. Masks have two conditions, and masked elements must add nothing
# to the sums. `tl.dot(a, b, total, input_precision="ieee")` multiplies float32 numbers as float32, on a GPU, too.
# </details>


# %% tags=["exercise"] exercise="matmul"
# %%px
@triton.jit
def tile_of(program, rows, columns, GROUP: tl.constexpr):
    """Row and column of a program's tile, of `rows` × `columns` tiles in groups of GROUP rows."""
    first = program // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)
    inside = program % (GROUP * columns)
    return first + inside % height, inside // height


@triton.jit
def matmul_kernel(
    a_pointer, b_pointer, c_pointer, m, n, k, a_row, a_column, b_row, b_column,
    GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Each program computes a tile of c; a_row is how far apart the rows of a are, and so on."""
    # BEGIN SOLUTION
    row, column = tile_of(tl.program_id(0), tl.cdiv(m, TILE), tl.cdiv(n, TILE), GROUP)
    rows = (row.to(tl.int64) * TILE + tl.arange(0, TILE))[:, None]
    columns = (column.to(tl.int64) * TILE + tl.arange(0, TILE))[None, :]
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for first in range(0, k, TILE):
        inner = (first + tl.arange(0, TILE)).to(tl.int64)
        along, down = inner[None, :], inner[:, None]
        a_places = a_pointer + rows * a_row + along * a_column
        b_places = b_pointer + down * b_row + columns * b_column
        a = tl.load(a_places, mask=(rows < m) & (along < k), other=0.0)
        b = tl.load(b_places, mask=(down < k) & (columns < n), other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    tl.store(c_pointer + rows * n + columns, total, mask=(rows < m) & (columns < n))
    # END SOLUTION


def matmul(a: torch.Tensor, b: torch.Tensor, group: int = 4) -> torch.Tensor:
    """a @ b, (m, k) times (k, n), as a new tensor; tiles of 32 × 32 in groups of `group` rows."""
    # BEGIN SOLUTION
    (m, k), n = a.shape, b.shape[1]
    c = torch.empty((m, n), dtype=a.dtype, device=a.device)
    grid = (triton.cdiv(m, 32) * triton.cdiv(n, 32),)
    matmul_kernel[grid](a, b, c, m, n, k, *a.stride(), *b.stride(), GROUP=group, TILE=32)
    return c
    # END SOLUTION


# %% tags=["check"] exercise="matmul" points=3
# %%px --timeout 120
check.matmul(matmul)


# %% tags=["hidden-check"] exercise="matmul" points=1
# %%px --timeout 60
def multiplied(m, k, n, tiles):
    a = torch.arange(m * k, device=device).view(k, m).t().sin()
    b = torch.arange(k * n, device=device).view(k, n).cos() * (rank + 1)
    with launches() as made:
        c = matmul(a, b, tiles)
    return [len(made), made[0].programs, *(round(x, 2) for x in (c[0, 0].item(), c.sum().item()))]


check.show_values(multiplied=[multiplied(3, 40, 70, 1), multiplied(100, 5, 33, 2)])

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The first group has 2 · 3 = 6 programs, 0 to 5. Program 7 is the second one of the next group. Inside it, programs go from top to bottom,
# so program 7 computes the tile in row 3, column 0.
# </details>
#
# ## Tuning: registers and spills
#
# Larger tiles use each loaded number more often. A program keeps its sums in registers, and a thread can use at most 255 registers.
# If it needs more, the compiler *spills* numbers to memory. The compiler needs no GPU, so the next cell compiles your kernel for an H100.
# **Predict** which of these configurations spill, and then try others.

# %%
# %%px --targets 0 --timeout 100
from parlab.compiled import compiled_versions

CONFIGS = [(32, 4), (64, 4), (128, 2), (128, 4), (128, 8), (256, 8)]  # rows of a tile, and warps
TYPES = dict.fromkeys(["a_pointer", "b_pointer", "c_pointer"], "*bf16")
TYPES |= dict.fromkeys(["m", "n", "k", "a_row", "b_row"], "i32")
adjacent = {"a_column": 1, "b_column": 1, "GROUP": 4}
versions = [(adjacent | {"TILE": tile}, warps) for tile, warps in CONFIGS]
for (tile, warps), of in zip(
    CONFIGS, compiled_versions(matmul_kernel, TYPES, versions, 90), strict=True
):
    print(
        f"tile {tile}, {warps} warps: {of.registers} registers and {of.spilled_bytes} bytes spilled "
        f"for each thread; {of.shared_bytes // 1024} KiB of shared memory"
    )

# %% [markdown]
# <details><summary>What you see</summary>
#
# With our kernel, two configurations spill. A tile of 128 × 128 has 16,384 sums. Two warps have 64 threads, so each thread would need
# 256 registers for its sums alone. With four warps, it needs 128 of them, and nothing spills. Tiles of 256 × 256 are too large even for
# eight warps, because each thread would again need 256 registers for its sums. These tiles also need 768 KiB of shared memory, but an
# H100 has 228 KiB on each multiprocessor, so this configuration cannot run at all. Triton's autotuner skips such configurations.
# </details>
#
# Only a measurement shows which configuration is the fastest. On a GPU, the next cell lets Triton time the same configurations
# (`triton.autotune`) and measures the best one (`do_bench`). In the interpreter, it does nothing. It has not run on a GPU yet.

# %% tags=["nbval-ignore-output"]
# %%px --targets 0 --timeout 100
if not INTERPRETED:
    size = 4096
    configs = [triton.Config({"TILE": tile}, num_warps=warps) for tile, warps in CONFIGS]
    tuned = triton.autotune(configs, key=["m", "n", "k"])(matmul_kernel)
    a, b = (torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(2))
    c, strides = torch.empty_like(a), (*a.stride(), *b.stride())
    tiled = partial(
        tuned[lambda config: (triton.cdiv(size, config["TILE"]) ** 2,)],
        *(a, b, c, size, size, size, *strides), GROUP=8,
    )  # fmt: skip
    ours, theirs = (triton.testing.do_bench(run) for run in (tiled, lambda: a @ b))
    print(f"best: {tuned.best_config}; torch's product takes {theirs / ours:.2f} times as long")

# %% [markdown]
# # Part E: attention
#
# ## 8. A softmax in pieces
#
# *Difficulty 3/5, 15 minutes.*
#
# The softmax of exercise 2 keeps a whole row in registers, so its rows cannot be very long. *Online softmax* goes through a row in
# blocks, and keeps two running values: the largest number so far, and the sum of $e^{x_i - \text{largest}}$ so far. If a block has a
# larger number, the old sum must be corrected: multiply it by $e^{\text{old largest} - \text{new largest}}$.
#
# Write a kernel that reads each row twice. The first pass finds the two values. The second pass computes the softmax and stores it.
# The function that launches it is given.
#
# - `x` and the result are those of exercise 2: (rows, columns) in float32, float16, or bfloat16, a new tensor of the same dtype,
#   computed in float32 and rounded once. Read `x` where it is, with rows `x.stride(0)` elements apart.
# - There is one launch with one program for each row. No load has more than `block` elements, and `block` is a power of two.
# - Each number is loaded twice and stored once.
#
# The check also tries:
#
# - **Blocks of −∞.** All numbers of a block can be −∞, even those of the first one. Each row has at least one finite number.
# - **Short rows**, with fewer elements than a block.
#
# **Predict**: the numbers so far are 0 and 1, and the next one is 3. What are the largest number and the sum then?
#
# <details><summary>Hint 1</summary>
#
# Start with −∞ and 0. In each step, compute the new largest number first, then the factor, and then the new sum. The old largest
# number is needed until the end of the step.
# </details>
#
# <details><summary>Hint 2</summary>
#
# −∞ − (−∞) is NaN. As long as the largest number is −∞, subtract 0 instead: `tl.where(larger > -float("inf"), larger, 0.0)`.
# </details>


# %% tags=["exercise"] exercise="online_softmax"
# %%px
@triton.jit
def online_softmax_kernel(
    x_pointer, out_pointer, x_stride, out_stride, columns, BLOCK: tl.constexpr
):
    """Each program does a row in blocks of BLOCK elements, and goes through it twice."""
    # BEGIN SOLUTION
    x_pointer += tl.program_id(0).to(tl.int64) * x_stride
    out_pointer += tl.program_id(0).to(tl.int64) * out_stride
    highest = tl.full((), -float("inf"), tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        x = tl.load(x_pointer + column, mask=column < columns, other=-float("inf")).to(tl.float32)
        larger = tl.maximum(highest, tl.max(x, axis=0))
        shift = tl.where(larger > -float("inf"), larger, 0.0)
        total = total * tl.exp(highest - shift) + tl.sum(tl.exp(x - shift), axis=0)
        highest = larger
    for first in range(0, columns, BLOCK):
        column = first + tl.arange(0, BLOCK)
        mask = column < columns
        x = tl.load(x_pointer + column, mask=mask, other=-float("inf")).to(tl.float32)
        tl.store(out_pointer + column, tl.exp(x - highest) / total, mask=mask)
    # END SOLUTION


def online_softmax(x: torch.Tensor, block: int = 1024) -> torch.Tensor:
    """Return the softmax of each row of `x`, (rows, columns), in blocks of `block` columns."""
    out = torch.empty_like(x, memory_format=torch.contiguous_format)
    grid, strides = (len(x),), (x.stride(0), out.stride(0))
    online_softmax_kernel[grid](x, out, *strides, x.shape[1], BLOCK=block)
    return out


# %% tags=["check"] exercise="online_softmax" points=3
# %%px --timeout 120
check.online_softmax(online_softmax)


# %% tags=["hidden-check"] exercise="online_softmax" points=1
# %%px --timeout 60
def in_pieces(columns, block, high):
    wide = torch.arange(4 * 90, dtype=torch.float32, device=device).view(4, 90).cos() * 3 + high
    wide[1, :17] = -torch.inf
    with launches() as made:
        found = online_softmax(wide[:, :columns], block)
    return [
        len(made),
        made[0].programs,
        [round(x, 3) for x in found[:, columns - 1 - rank].tolist()],
    ]


check.show_values(
    pieces=[in_pieces(23, 16, 0.0), in_pieces(70, 16, 400.0), in_pieces(33, 32, -90.0)]
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The largest number is 3. The old sum is $e^{-1} + 1 = 1.37$. It becomes $1.37 \cdot e^{1 - 3} + 1 = 1.19$.
# </details>

# %% [markdown]
# ## 9. Attention in tiles
#
# *Difficulty 5/5, 30 minutes.*
#
# Attention is a softmax between two matrix products, $\operatorname{softmax}(qk^\top / \sqrt{D})\,v$. The scores $qk^\top$ have a row
# for each query and a column for each key, so they are much larger than the rest if the sequence is long. *FlashAttention* does not
# store them at all. Each program has a tile of 32 queries and goes through the keys and values in tiles of 32. In each step, it
#
# 1. computes a tile of scores, 32 × 32;
# 2. updates the largest number and the sum **of each query**, as in exercise 8;
# 3. multiplies its result so far by the same factor, and adds the product of the tile's $e^{\text{score} - \text{largest}}$ and $v$.
#
# At the end, it divides the result by the sum. Write the kernel of the forward pass. The function that launches it is given.
#
# - `q`, `k`, and `v` are (heads, length, $D$), contiguous, and have the same dtype: float32, float16, or bfloat16. $D$ is 16, 32, 64, or
#   128. The result is a new tensor of this shape and dtype.
# - If `causal` is true, query $i$ uses only the keys 0 to $i$. End the loop at the diagonal: a program does not load tiles of keys that
#   none of its queries uses.
# - There is one launch with a program for each tile of queries of each head. It loads its queries once, and a tile of keys and values
#   once in each step. It stores only the result.
# - Scores and sums are float32. The second product may round its weights to the dtype of `v`.
#
# The check also tries:
#
# - **Any length**, from 1 on. The last tile of queries, keys, and values can be incomplete.
# - **Large scores**, up to several hundred.
#
# **Predict**: a head has 8,192 tokens with $D$ = 128. How many times as large are the scores as
# `q`, `k`, and `v` together?
#
# <details><summary>Hint 1</summary>
#
# `tl.dot(q, tl.trans(k), input_precision="ieee")` is a tile of $qk^\top$. (By default, a GPU rounds float32 inputs of `tl.dot` to 10 bits
# of mantissa, TF32. The interpreter does not show that.) A grid can have two axes: `tl.program_id(0)` for the tile of queries, and
# `tl.program_id(1)` for the head.
# </details>
#
# <details><summary>Hint 2</summary>
#
# A key that does not exist, or that is after the query, must have the score −∞: `tl.where(allowed, scores, -float("inf"))`. Its weight
# is then 0. But 0 times NaN is NaN, so load the row of `v` of a key that does not exist as 0, with `other=0.0`. The first tile has key 0,
# which all queries use, so the largest number is finite after the first step.
# </details>


# %% tags=["exercise"] exercise="attention"
# %%px
@triton.jit
def attention_kernel(
    q_pointer, k_pointer, v_pointer, out_pointer, length, scale,
    WIDTH: tl.constexpr, CAUSAL: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Each program computes the result for a tile of queries of one head."""
    # BEGIN SOLUTION
    head = tl.program_id(1).to(tl.int64) * length * WIDTH
    column = tl.arange(0, WIDTH)[None, :]
    begin = tl.program_id(0) * TILE
    query = begin + tl.arange(0, TILE)[:, None]
    q_places = head + query * WIDTH + column
    q = tl.load(q_pointer + q_places, mask=query < length, other=0.0)
    highest = tl.full((TILE,), -float("inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    result = tl.zeros((TILE, WIDTH), tl.float32)
    end = length
    if CAUSAL:
        end = tl.minimum(begin + TILE, length)
    for first in range(0, end, TILE):
        key = first + tl.arange(0, TILE)
        k_places = head + key[:, None] * WIDTH + column
        k = tl.load(k_pointer + k_places, mask=key[:, None] < length, other=0.0)
        v = tl.load(v_pointer + k_places, mask=key[:, None] < length, other=0.0)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        allowed = key[None, :] < length
        if CAUSAL:
            allowed = allowed & (key[None, :] <= query)
        scores = tl.where(allowed, scores, -float("inf"))
        larger = tl.maximum(highest, tl.max(scores, axis=1))
        factor = tl.exp(highest - larger)
        powers = tl.exp(scores - larger[:, None])
        total = total * factor + tl.sum(powers, axis=1)
        result = result * factor[:, None]
        result = tl.dot(powers.to(v.dtype), v, result, input_precision="ieee")
        highest = larger
    tl.store(out_pointer + q_places, result / total[:, None], mask=query < length)
    # END SOLUTION


def attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool = False
) -> torch.Tensor:
    """softmax(q kᵀ / √D) v for each head, (heads, length, D), in tiles of 32 × 32."""
    heads, length, width = q.shape
    out = torch.empty_like(q)
    attention_kernel[(triton.cdiv(length, 32), heads)](
        q, k, v, out, length, width**-0.5, WIDTH=width, CAUSAL=causal, TILE=32
    )
    return out


# %% tags=["check"] exercise="attention" points=4
# %%px --timeout 120
check.attention(attention)


# %% tags=["hidden-check"] exercise="attention" points=2
# %%px --timeout 60
def attended(heads, length, width, causal):
    q = torch.arange(heads * length * width, device=device).view(heads, length, width).sin()
    k, v = (2 * q + rank).cos(), q.flip(1) + rank
    with launches() as made:
        found = attention(4 * q, k, v, causal)
    values = found[0, 0, 0].item(), found[-1, -1, -1].item(), found.sum().item()
    return [len(made), made[0].programs, *(round(x, 2) for x in values)]


check.show_values(attended=[attended(2, 45, 16, causal=True), attended(1, 70, 32, causal=False)])

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The scores have 8,192 · 8,192 numbers, and the three tensors have 3 · 8,192 · 128. The ratio is 8,192 / 384, which is 21.
# </details>
#
# The next cell compares your function with PyTorch's `F.scaled_dot_product_attention`. In the interpreter, it also counts the bytes that
# your kernel moves. Three kernels (product, softmax, product) would also write the scores, read
# them for the softmax, write its result, and read that. The printed number for these three kernels
# counts each matrix once per kernel, so without a mask, it is the least that they can move. (With
# the causal mask, it is the same number, although they could leave out almost half of the scores.)
# The number for your kernel counts the keys and values again for each tile of queries.

# %%
# %%px --targets 0 --timeout 100
q, k, v = (torch.randn(4, 200, 32, device=device) for _ in range(3))
stored = (4 * q.numel() + 4 * 4 * 200 * 200) * q.element_size()
for causal in (False, True):
    with recorded(Arena(device)) as accesses:
        ours = attention(q, k, v, causal)
    theirs = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    name = "causal" if causal else "without a mask"
    print(f"{name}, as torch's: {torch.allclose(ours, theirs, atol=1e-5)}")
    if accesses.known:
        moved = accesses.loaded + accesses.stored
        print(f"  {moved:,} bytes moved; with stored scores: {stored:,}")

# %% [markdown]
# # Part F: a backward pass
#
# ## 10. Layer norm
#
# *Difficulty 4/5, 25 minutes.*
#
# Autograd cannot differentiate a Triton kernel. You write a second kernel for the backward pass, and a `torch.autograd.Function` connects
# the two. For a row of $N$ numbers $x_j$, let $\mu$ be their mean and $\sigma = \sqrt{\text{variance} + \varepsilon}$. The variance is
# the mean of $(x_j - \mu)^2$. With weights $w$ and biases $b$, the layer norm is
#
# $$y_j = w_j\,\tilde x_j + b_j, \qquad \tilde x_j = \frac{x_j - \mu}{\sigma} .$$
#
# Let $\dot y$ be the gradient with respect to $y$, and $\delta_j = w_j\,\dot y_j$. A bar is the mean over the row. Then
#
# $$\dot x_j = \frac{1}{\sigma}\left(\delta_j - \overline{\delta} - \tilde x_j\; \overline{\delta \tilde x}\right), \qquad
# \dot w_j = \sum_\text{rows} \dot y_j\,\tilde x_j, \qquad \dot b_j = \sum_\text{rows} \dot y_j .$$
#
# The sums over rows are the difficulty: if two programs load, add to, and store the same number at
# the same time, terms are lost. So at most 128 programs share the rows. For example, program $i$ of
# $P$ handles the rows $i$, $i + P$, $i + 2P$, and so on. It adds up its terms of $\dot w$ and
# $\dot b$ in registers, and stores them as *its own row* of partial sums. PyTorch then adds up these
# $P$ rows.
#
# Write both kernels and the class. `layer_norm` is given.
#
# - `x` is (rows, columns), `weight` and `bias` are (columns,). All have the same dtype: float32, float16, or bfloat16. They are
#   contiguous, and so are the results, which have this dtype. Compute and add up in float32.
# - The forward pass has one launch, with one program for each row. It loads `x` once. It stores the result and, in float32, $\mu$ and
#   $1/\sigma$ of each row, and nothing else.
# - The backward pass has one launch. It loads `x` and the gradient of the result once.
#
# The check also tries:
#
# - **Rows of any length**, also of one element, and more rows than there are programs.
# - **Numbers around 200.** Compute the variance from $x - \mu$. The difference between the mean of $x^2$ and $\mu^2$ is too
#   inaccurate for them.
# - **A gradient with any strides.** `y.sum().backward()` passes one whose elements share their memory.
#
# **Predict**: `x` is 4,096 × 4,096 in float32. How many bytes does the backward pass move? How many of them are partial sums of 128
# programs?
#
# <details><summary>Hint 1</summary>
#
# A masked element of `x` is 0, but $x - \mu$ is $-\mu$ there. `tl.where(mask, x - mean, 0.0)` excludes it from the variance.
# `torch.empty(2, rows, device=x.device)` is memory for $\mu$ and $1/\sigma$.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `for row in range(tl.program_id(0), rows, tl.num_programs(0))` goes through the rows of a program. `ctx.save_for_backward(…)` keeps
# tensors, and `ctx.saved_tensors` returns them. `backward` returns a gradient for each argument of `forward` after `ctx`, and `None`
# for `eps`.
# </details>


# %% tags=["exercise"] exercise="layer_norm"
# %%px
@triton.jit
def norm_kernel(
    x_pointer, w_pointer, b_pointer, y_pointer, mean_pointer, rstd_pointer, columns, eps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program does a row, and stores the row's mean and 1/σ."""
    # BEGIN SOLUTION
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_pointer + row * columns + column, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, axis=0) / columns
    distance = tl.where(mask, x - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(distance * distance, axis=0) / columns + eps)
    w = tl.load(w_pointer + column, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(b_pointer + column, mask=mask, other=0.0).to(tl.float32)
    tl.store(y_pointer + row * columns + column, w * (distance * rstd) + b, mask=mask)
    tl.store(mean_pointer + row, mean)
    tl.store(rstd_pointer + row, rstd)
    # END SOLUTION


@triton.jit
def norm_backward_kernel(
    x_pointer, dy_pointer, w_pointer, mean_pointer, rstd_pointer, dx_pointer, dw_pointer, db_pointer,
    rows, columns, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program does some rows of dx, and stores a row of partial sums of dw and of db."""
    # BEGIN SOLUTION
    column = tl.arange(0, BLOCK)
    mask = column < columns
    w = tl.load(w_pointer + column, mask=mask, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    db = tl.zeros((BLOCK,), tl.float32)
    for row in range(tl.program_id(0).to(tl.int64), rows, tl.num_programs(0)):
        places = row * columns + column
        x = tl.load(x_pointer + places, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(dy_pointer + places, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(rstd_pointer + row)
        normal = (x - tl.load(mean_pointer + row)) * rstd
        delta = w * dy
        mean = tl.sum(delta, axis=0) / columns
        product = tl.sum(delta * normal, axis=0) / columns
        tl.store(dx_pointer + places, rstd * (delta - mean - normal * product), mask=mask)
        dw += dy * normal
        db += dy
    own = tl.program_id(0) * columns + column
    tl.store(dw_pointer + own, dw, mask=mask)
    tl.store(db_pointer + own, db, mask=mask)
    # END SOLUTION


class LayerNorm(torch.autograd.Function):
    """Both kernels, as a function that autograd can differentiate."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps):
        """Return the layer norm of each row of `x`, (rows, columns)."""
        # BEGIN SOLUTION
        rows, columns = x.shape
        y = torch.empty_like(x)
        mean, rstd = torch.empty(2, rows, device=x.device)
        block = triton.next_power_of_2(columns)
        norm_kernel[(rows,)](x, weight, bias, y, mean, rstd, columns, eps, BLOCK=block)
        ctx.save_for_backward(x, weight, mean, rstd)
        return y
        # END SOLUTION

    @staticmethod
    def backward(ctx, dy):
        """Return the gradients of x, weight, and bias, and None for eps."""
        # BEGIN SOLUTION
        x, weight, mean, rstd = ctx.saved_tensors
        rows, columns = x.shape
        programs = min(rows, 128)
        dx = torch.empty_like(x)
        dw, db = torch.empty(2, programs, columns, device=x.device)
        norm_backward_kernel[(programs,)](
            x, dy.contiguous(), weight, mean, rstd, dx, dw, db, rows, columns,
            BLOCK=triton.next_power_of_2(columns),
        )  # fmt: skip
        return dx, dw.sum(0).to(weight.dtype), db.sum(0).to(weight.dtype), None
        # END SOLUTION


def layer_norm(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, eps: float = 1e-5
) -> torch.Tensor:
    """F.layer_norm of each row of `x`, (rows, columns), with gradients."""
    return LayerNorm.apply(x, weight, bias, eps)


# %% tags=["check"] exercise="layer_norm" points=4
# %%px --timeout 120
check.layer_norm(layer_norm)


# %% tags=["hidden-check"] exercise="layer_norm" points=2
# %%px --timeout 60
def norm_and_gradients(rows, columns, around, eps):
    x = torch.arange(rows * columns, device=device).view(rows, columns).sin() + around
    w, b = (
        torch.linspace(1, 2, columns, device=device),
        torch.linspace(-1, rank, columns, device=device),
    )
    with launches() as made:
        y = layer_norm(*(tensor.requires_grad_() for tensor in (x, w, b)), eps)
        y.square().sum().backward()
    numbers = y[-1, 0], y[0, -1], x.grad[-1, 0], w.grad[-1], w.grad[0], b.grad[0]
    return [len(made), *(round(number.item(), 2) + 0.0 for number in numbers)]


check.show_values(
    normed=[norm_and_gradients(3, 20, 0.0, 0.25), norm_and_gradients(130, 9, 8.0, 1e-5)]
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# It moves `x`, the gradient of the result, and the gradient of `x`: 3 · 4,096 · 4,096 · 4 bytes, 201 MB. In addition, the kernel
# stores 2 · 128 · 4,096 · 4 bytes of partial sums, 4 MB, and PyTorch reads them, which is 8 MB in total. Each program also loads the
# weights, 128 · 4,096 · 4 bytes or 2 MB in total, but a GPU's cache provides most of them. The other vectors are much smaller.
# </details>
#
# The next cell compares your function with PyTorch's `F.layer_norm`, forward and backward. In the interpreter, it also counts the bytes
# that the kernels store: the result, $\mu$ and $1/\sigma$ of each row, the gradient of `x`, and the partial sums of 128 programs, which
# matter less if there are more rows.

# %%
# %%px --targets 0 --timeout 100
x, w, b, dy = (
    torch.randn(size, device=device) for size in [(300, 200), (200,), (200,), (300, 200)]
)
inputs = [tensor.requires_grad_() for tensor in (x, w, b)]
with recorded(Arena(device)) as accesses:
    ours = layer_norm(*inputs)
    gradients = torch.autograd.grad(ours, inputs, dy)
theirs = F.layer_norm(x, (200,), w, b)
pairs_of = zip([ours, *gradients], [theirs, *torch.autograd.grad(theirs, inputs, dy)], strict=True)
print(f"as torch's: {all(torch.allclose(*pair, rtol=1e-4, atol=1e-4) for pair in pairs_of)}")
if accesses.known:
    print(
        f"the kernels store {accesses.stored:,} bytes; y and the gradient of x have {2 * x.nbytes:,}"
    )

# %% [markdown]
# # Against the library
#
# ## 11. A fair benchmark
#
# *Difficulty 3/5, 10 minutes.*
#
# Is your Adam faster than PyTorch's? A wrong benchmark gives a wrong answer. Write one that compares optimizers:
#
# - **The same work.** Each optimizer gets its own parameters, from its own call of `make_parameters()`. `makers[name](parameters)`
#   returns a function that takes one step.
# - **Warm-up.** Each optimizer first takes `warm_up` steps that do not count. The first step creates the moments, and may compile a kernel.
# - **Wait.** A launch returns at once, and the GPU works later. `synchronize()` waits until it has finished. Call it before each reading of
#   the clock, `clock()`.
# - **Take turns.** A GPU gets slower when it gets hot. In each of `rounds` rounds, time a single step of each optimizer, so that this affects
#   all of them alike.
# - **The median.** If another program interrupts a step, the mean is wrong. Return the median of the times for each optimizer.
#
# The check runs your function on a *simulated* GPU, which has its own clock: it gets hot, some steps are interrupted, and the first ones are
# slow.
#
# **Predict**: a step has 7 launches, each of which takes the host 5 µs and the GPU 1 ms. What does a benchmark without waiting measure?
#
# <details><summary>Hint</summary>
#
# First make all steps and take the warm-up steps. Then, for each round and each step: `synchronize()`, `start = clock()`, the step,
# `synchronize()`, and `clock() - start`. `statistics.median` returns the median of a list.
# </details>


# %% tags=["exercise"] exercise="fair_benchmark"
# %%px
import statistics


def fair_benchmark(
    makers, make_parameters, rounds, warm_up, clock, synchronize
) -> dict[str, float]:
    """Return the median seconds of a step of each optimizer, by its name.

    Args:
        makers: by name, functions that take parameters and return a step, which is a function.
        make_parameters: returns new parameters with gradients, the same numbers in each call.
        rounds: how many steps of each optimizer to time.
        warm_up: how many steps of each to take before.
        clock: returns the time in seconds, like `time.perf_counter`.
        synchronize: waits until the GPU has finished, like `torch.cuda.synchronize`.
    """
    # BEGIN SOLUTION
    steps = {name: make(make_parameters()) for name, make in makers.items()}
    for step in steps.values():
        for _ in range(warm_up):
            step()
    times = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            synchronize()
            start = clock()
            step()
            synchronize()
            times[name].append(clock() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}
    # END SOLUTION


# %% tags=["check"] exercise="fair_benchmark" points=2
# %%px --timeout 20
check.fair_benchmark(fair_benchmark)


# %% tags=["hidden-check"] exercise="fair_benchmark" points=1
# %%px --timeout 20
from parlab.kernels.simulated_gpu import SimulatedGPU


def simulated(rounds, warm_up, interrupted, **seconds):
    gpu = SimulatedGPU(interrupted)
    makers = {name: gpu.optimizer(name, time) for name, time in seconds.items()}
    tools = gpu.make_parameters, rounds, warm_up, gpu.clock, gpu.synchronize
    found = fair_benchmark(makers, *tools)
    return {name: round(found[name], 3) for name in sorted(found)}


check.show_values(
    times=[simulated(5, 1, [4, 6], a=1 + rank, b=2.5), simulated(1, 2, [], c=0.25, d=0.5, e=1)]
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 35 µs, the time of seven launches. The step takes 7 ms.
# </details>
#
# A fair comparison starts with equal results. The next cell trains the same model on one rank, for 20 steps with the same batches: with
# `FusedAdam`, and with each of the three versions of `torch.optim.Adam` (a loop over tensors, `foreach`, and fused).

# %%
# %%px --targets 0 --timeout 100
PEERS = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def twenty_steps(make):
    torch.manual_seed(0)
    model = models.mlp(16, inputs=49).to(device)
    training.plain_losses(model, partial(make, **SETTINGS), pairs[:20])
    return torch.cat([p.detach().flatten() for p in model.parameters()])


ours = twenty_steps(FusedAdam)
for name, settings in PEERS.items():
    theirs = twenty_steps(partial(torch.optim.Adam, **settings))
    gap = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    print(f"after 20 steps, next to torch's {name}: the same parameters to 1e-4: {gap < 1e-4}")

# %% [markdown]
# Now your benchmark measures them on 60 tensors. Without a GPU, it compares only PyTorch's three
# versions of Adam, on the CPU, because the interpreter's times mean nothing. On a GPU, your Adam
# and a compiled one take part. No GPU result is recorded for this lab, and only some of its cells
# have run on a GPU.


# %%
# %%px --targets 0
import time


def make_parameters():
    torch.manual_seed(0)
    size = 2**14 if INTERPRETED else 2**18
    p = [nn.Parameter(torch.randn(size, device=device)) for _ in range(60)]
    for parameter in p:
        parameter.grad = torch.randn_like(parameter)
    return p


def step_of(p, make=torch.optim.Adam, **settings):
    return make(p, **SETTINGS, **settings).step


# %% tags=["nbval-ignore-output"]
# %%px --targets 0 --timeout 100
makers = {name: partial(step_of, **settings) for name, settings in PEERS.items()}
wait = (lambda: None) if INTERPRETED else torch.cuda.synchronize
if not INTERPRETED:
    makers["ours"] = partial(step_of, make=FusedAdam)
    makers["compiled"] = lambda p: torch.compile(step_of(p))
seconds = fair_benchmark(makers, make_parameters, 9, 2, time.perf_counter, wait)
for name, median in seconds.items():
    print(f"{name}: {1e3 * median:.1f} ms, {median / seconds['fused']:.2f} times as long as fused")

# %% [markdown]
# What to look for:
#
# - **The same rule.** All versions update the parameters in the same way, up to the rounding of float32.
# - **Launches, not arithmetic.** On a GPU, the loop over tensors launches eight kernels for each tensor: the seven of exercise 3,
#   and one for the weight decay. `foreach` launches about as many kernels for all tensors together,
#   and more for a long list of tensors, which it splits. Each kernel still reads and writes whole
#   tensors. On a CPU, `foreach` saves little or nothing, because it runs one operation for each
#   tensor there, too. `fused` first increases the step counts in a launch of their own, and then
#   updates all tensors in one launch (or a few, if there are many tensors), with 28 bytes for each
#   parameter in float32.
# - **What is left.** Your code makes the table of addresses again in each step, on the host. A library can keep
#   it as long as the tensors stay where they are.
#
# # Going further
#
# - Keep the table of addresses of `adam_group` between steps. What must you check to know that it is still right?
# - Let the kernel of exercise 5 divide by a loss scale, and skip its stores if a flag in memory is set. Then lab 06's step does not need to read
#   and write the gradients for unscaling.
# - Which block and number of warps are best for the sum? Which are best for the softmax of 100,000 columns, which fit into a block of
#   131,072, but not into the registers of a program?
# - Add dropout to the softmax. `tl.rand(seed, offsets)` returns random numbers that depend only on its arguments.
