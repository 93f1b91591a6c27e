# %% [markdown]
# # Lab 07: Triton kernels
#
# A GPU computes far faster than it fetches numbers from its memory. PyTorch's operations each fetch
# their inputs and put their result back, so that three of them in a row move the same numbers three
# times. A *fused* kernel does all of it in one trip. You write such kernels in
# [Triton](https://triton-lang.org), which is Python with blocks of numbers: a sum, a softmax, Adam
# for a whole model in **one launch**, and a product of matrices. Then each rank updates its shard
# with your Adam.
#
# | | |
# |---|---|
# | **You will be able to** | write a kernel whose programs share the work, with masks where a block is not full; fuse a softmax into one trip to memory, and say what that saves; update all tensors of a model in one launch; write an optimizer that trades states with `torch.optim.Adam`; update a shard on each rank; multiply matrices by tiles |
# | **Time** | 145 minutes |
# | **You need** | PyTorch; [lab 03](03_zero.ipynb), or the knowledge of what a rank and a shard are. No GPU |
# | **Background** | [chapter 07](../book/07_triton.md) of the book explains what you build here |
#
# Start the ranks: four processes, each with a Python of its own. Cells that begin with `%%px` run
# on all of them, other cells in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px --timeout 120
import statistics
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
import triton
import triton.language as tl
from torch import nn

from parlab import models, plots
from parlab.checks import triton as check
from parlab.costs.kernels import Device
from parlab.data import mnist
from parlab.kernels import INTERPRETED
from parlab.kernels.accesses import recorded
from parlab.kernels.buffers import Arena
from parlab.kernels.launches import launches
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference
from parlab.reference_tables import load

# %% [markdown]
# Where there is no GPU, your kernels run in Triton's **interpreter**: NumPy does what the GPU would
# do, program after program. It is slow, so no time that it takes means anything; but it computes the
# same numbers. The checks look at each address that a kernel asks it for: what leaves a tensor's memory
# by one element is found.
#
# If you are stuck on an exercise, `use_reference("its_name")` in a `%%px` cell puts a solution in its
# place, and you go on.
#
# # Part A: one trip to memory
#
# ## 1. A sum
#
# *Difficulty 2/5, 15 minutes.*
#
# A *kernel* is a function that many **programs** run at the same time, each on a block of its own. The
# launch `kernel[grid](arguments)` says how many: `grid` is a tuple, `(12,)` for twelve. Inside,
# `tl.program_id(0)` is the program's number, and everything else is the same for all of them.
#
# A tensor that you pass arrives as a **pointer**, the address of its first element. Pointer plus 3 is the
# address of the element three further. `tl.arange(0, BLOCK)` is a block of integers, so pointer plus
# a block is a block of addresses, and `tl.load` of that a block of numbers. A block's size is a power of
# two, known when the kernel is compiled: `tl.constexpr`.
#
# The last block is rarely full. What lies behind the tensor belongs to somebody else: `mask=`, a block of
# booleans, says which elements a `tl.load` or `tl.store` may touch.
#
# Write the kernel and the function that launches it. `x` and `y` are contiguous, of the same shape, any
# number of dimensions, and the same dtype, float32, float16, bfloat16 or int32; there is at least one
# element.
#
# - The result is a new tensor; `x` and `y` stay as they are.
# - One launch, in which each program takes `block` elements: as few programs as that allows.
# - A kernel computes the sum, and each element of it once.
#
# **Predict**: how many programs are there for 1,000 elements in blocks of 256, and how many elements
# does the last one compute?
#
# <details><summary>Hint 1</summary>
#
# `offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)` are the indices of this program's elements.
# `offsets < n` are those that exist.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `triton.cdiv(n, block)` is n/block rounded up. `torch.empty_like(x)` has the memory of the result; its
# pointer is an argument like those of `x` and `y`.
# </details>


# %% tags=["exercise"] exercise="vector_add"
# %%px
@triton.jit
def add_kernel(x_pointer, y_pointer, out_pointer, n, BLOCK: tl.constexpr):
    """Each program adds up the elements of its block, those that are below `n`."""
    # BEGIN SOLUTION
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
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
# 1,000 / 256 is 3.9, so there are four programs. Three have full blocks, and the last one computes
# 1,000 − 3 · 256 = 232 elements; the other 24 of its block are masked.
# </details>

# %% [markdown]
# ## 2. A softmax in one trip
#
# *Difficulty 3/5, 15 minutes.*
#
# The softmax of a row is $e^{x_i} / \sum_j e^{x_j}$. Since $e^{89}$ is no float32 any more, the row's
# maximum is subtracted first, which cancels. In PyTorch that is five operations, each with its trip to
# memory and back:
#
#     highest = x.amax(1, keepdim=True)
#     shifted = x - highest
#     powers = shifted.exp()
#     total = powers.sum(1, keepdim=True)
#     y = powers / total
#
# In a kernel a program loads a row once, does all five in registers, and stores the result once. `tl.max`
# and `tl.sum` reduce a block; `other=` is what a masked load gives where nothing is loaded.
#
# `x` has the shape (rows, columns), at least one of each, in float32, float16 or bfloat16.
#
# - The numbers of a row are adjacent. The rows need not be: `x` may be some columns of a wider tensor, and
#   `x.stride(0)` says how far the next row is.
# - The result is a new tensor of `x`'s shape and dtype, and `x` stays as it is.
# - Inside it is float32, whatever `x` is: rounded once, at the store.
# - A row may hold large numbers and −∞, but neither NaN nor +∞. At least one of its numbers is finite.
# - One launch, which reads `x` where it lies: no contiguous copy first. Each number is loaded once and
#   stored once.
#
# <details><summary>Hint 1</summary>
#
# A block's size is a power of two: `triton.next_power_of_2(columns)` holds a row. What does the rest of the
# block do to the maximum, and to the sum? Choose `other` so that it does nothing.
# </details>
#
# <details><summary>Hint 2</summary>
#
# A program for each row: `x_pointer + row * row_stride + columns`. `.to(tl.float32)` after the load;
# `tl.store` rounds by itself to the dtype that the pointer is of. e to the power of `-float("inf")` is 0.
# </details>


# %% tags=["exercise"] exercise="softmax"
# %%px
@triton.jit
def softmax_kernel(x_pointer, out_pointer, x_stride, out_stride, columns, BLOCK: tl.constexpr):
    """Each program does a row; rows begin `x_stride` and `out_stride` elements apart."""
    # BEGIN SOLUTION
    row = tl.program_id(0)
    column = tl.arange(0, BLOCK)
    mask = column < columns
    x = tl.load(x_pointer + row * x_stride + column, mask=mask, other=-float("inf"))
    x = x.to(tl.float32)
    powers = tl.exp(x - tl.max(x, axis=0))
    tl.store(out_pointer + row * out_stride + column, powers / tl.sum(powers, axis=0), mask=mask)
    # END SOLUTION


def softmax(x: torch.Tensor) -> torch.Tensor:
    """The softmax of each row of `x`, (rows, columns), as a new tensor of its dtype."""
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
# *Difficulty 2/5, 5 minutes.*
#
# **Predict in numbers**, for a matrix of `rows` × `columns` numbers of `size` bytes each. An operation
# reads each of its inputs from memory, and writes its result there; `highest` and `total` are one number for
# each row.
#
# - `eager`: bytes that the five operations above read and write;
# - `fused`: bytes that your kernel reads and writes;
# - `intensity`: FLOP for each byte that your kernel moves, where each of the five operations is one FLOP for
#   each number of the matrix;
# - `programs`: of exercise 1, for as many numbers as the matrix has, in blocks of 1,024.
#
# The check counts what torch's operations and kernels move, and compares.


# %% tags=["exercise"] exercise="predict_softmax"
# %%px
def predict_softmax(rows: int, columns: int, size: int) -> dict[str, float]:
    """Bytes that a softmax moves, `eager` and `fused`; FLOP/byte; and the `programs` of a sum."""
    # BEGIN SOLUTION
    matrix, column = rows * columns * size, rows * size
    reads = 5 * matrix + 2 * column
    writes = 3 * matrix + 2 * column
    return {
        "eager": reads + writes,
        "fused": 2 * matrix,
        "intensity": 5 * rows * columns / (2 * matrix),
        "programs": triton.cdiv(rows * columns, 1024),
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_softmax" points=2
# %%px --timeout 120
check.predict_softmax(predict_softmax)

# %% tags=["hidden-check"] exercise="predict_softmax" points=1
# %%px --timeout 20
check.show_values(
    predicted=[
        [round(float(x), 2) for _, x in sorted(predict_softmax(*given).items())]
        for given in [(1000, 50, 4), (7 + rank, 4096, 2), (1, 1, 4)]
    ]
)

# %% [markdown]
# Your softmax, beside what you predicted. In the interpreter the bytes are counted load by load.

# %%
# %%px --timeout 60
x = torch.randn(64, 300, device=device)
predicted = predict_softmax(64, 300, x.element_size())
with launches() as made, recorded(Arena(device)) as seen:
    y = softmax(x)
if rank == 0:
    print(f"as torch's: {torch.allclose(y, x.softmax(1), atol=1e-6)}; launches: {len(made)}")
    if seen.known:
        moved = seen.loaded + seen.stored
        print(f"{moved:,} bytes moved, {predicted['fused']:,} predicted")
    print(f"eager moves {predicted['eager'] / predicted['fused']:.2f} times as many")

# %% [markdown]
# And under the *roofline* of a GPU, from the numbers of its data sheet: what a kernel of this intensity
# can compute at most, and how long it takes at least, whoever writes it. It is the same exercise with other
# numbers for any kernel: count its FLOP and its bytes before you make it faster.

# %%
# %%px
if rank == 0:
    size = 4  # float32
    predicted = predict_softmax(4096, 4096, size)
    for sheet in load("gpu_datasheets").rows:
        of = Device(sheet["device"], sheet["fp32_tflops"] * 1e12, sheet["bandwidth_tb"] * 1e12)
        used = of.attainable(predicted["intensity"]) / of.flop_per_second
        times = [1e6 * predicted[way] / of.bytes_per_second for way in ("eager", "fused")]
        print(
            f"{of.name}: ridge at {of.ridge:.0f} FLOP/byte; softmax can use {used:.0%} of its fp32; "
            f"4096 × 4096 take at least {times[0]:.0f} µs eager, {times[1]:.0f} µs fused"
        )

# %% [markdown]
# # Part B: Adam
#
# ## 4. The update rule
#
# *Difficulty 3/5, 20 minutes.*
#
# With gradient $g$, parameter $w$, moments $m$ and $v$, and $t$ steps, this one among them:
#
# $$m \leftarrow \beta_1 m + (1 - \beta_1) g \qquad v \leftarrow \beta_2 v + (1 - \beta_2) g^2 \qquad
# w \leftarrow w - \eta\, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}$$
#
# Weight decay $\lambda$ comes first, in one of two ways: *decoupled* (AdamW), $w \leftarrow w - \eta \lambda w$;
# else $g \leftarrow g + \lambda w$, which goes into the moments.
#
# Write it in three pieces: the **rule**, on blocks of numbers; the **kernel**, which loads a block, calls the
# rule, and stores; and the **PyTorch function** that launches the kernel. A kernel may call another function
# under `@triton.jit`.
#
# - `parameter`, `exp_avg` ($m$) and `exp_avg_sq` ($v$) change in place; `gradient` stays as it is. All are
#   contiguous and of one shape.
# - Parameter and gradient have the same dtype, float32, float16 or bfloat16; the moments are float32.
#   Compute in float32, and round the parameter once, at the store.
# - `step` is 1 at the first step.
# - One launch, which loads and stores each number once.
#
# **Predict**: in the first step, from moments of zero and with a tiny ε, how far does each weight move?
#
# <details><summary>Hint 1</summary>
#
# The two corrections are the same for all elements: compute `1 - beta1**step` in Python, and pass it. (As a
# float. Triton compiles a kernel anew for some values of an *integer* argument, among them 1.)
# </details>
#
# <details><summary>Hint 2</summary>
#
# A `tl.constexpr` may decide an `if` when the kernel is compiled. `p.to(tl.float32)` goes behind the loads of
# parameter and gradient, and a function under `@triton.jit` may return three blocks.
# </details>


# %% tags=["exercise"] exercise="adam_step"
# %%px
@triton.jit
def adam_rule(
    p, g, m, v, lr, beta1, beta2, correction1, correction2, eps, decay, DECOUPLED: tl.constexpr
):
    """Parameter and moments after a step, all blocks of float32; correction1 is 1 − β₁ᵗ."""
    # BEGIN SOLUTION
    if DECOUPLED:
        p = p - lr * decay * p
    else:
        g = g + decay * p
    m = beta1 * m + (1 - beta1) * g
    v = beta2 * v + (1 - beta2) * g * g
    p = p - lr * (m / correction1) / (tl.sqrt(v / correction2) + eps)
    return p, m, v
    # END SOLUTION


@triton.jit
def adam_kernel(
    p_pointer, g_pointer, m_pointer, v_pointer, n,
    lr, beta1, beta2, correction1, correction2, eps, decay,
    DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program takes a step with the elements of its block, those that are below `n`."""
    # BEGIN SOLUTION
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offsets < n
    p = tl.load(p_pointer + offsets, mask=mask).to(tl.float32)
    g = tl.load(g_pointer + offsets, mask=mask).to(tl.float32)
    m = tl.load(m_pointer + offsets, mask=mask)
    v = tl.load(v_pointer + offsets, mask=mask)
    p, m, v = adam_rule(
        p, g, m, v, lr, beta1, beta2, correction1, correction2, eps, decay, DECOUPLED
    )
    tl.store(p_pointer + offsets, p, mask=mask)
    tl.store(m_pointer + offsets, m, mask=mask)
    tl.store(v_pointer + offsets, v, mask=mask)
    # END SOLUTION


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
    """Step number `step` of Adam, in place, in one launch; `decoupled` is the weight decay."""
    # BEGIN SOLUTION
    n, (beta1, beta2) = parameter.numel(), betas
    adam_kernel[(triton.cdiv(n, 1024),)](
        parameter, gradient, exp_avg, exp_avg_sq, n,
        lr, beta1, beta2, 1 - beta1**step, 1 - beta2**step, eps, weight_decay,
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
# By η, whatever the size of its gradient: $m / (1 - \beta_1)$ is $g$, and the root of $v / (1 - \beta_2)$ is
# $|g|$. Only the sign is left. Without the corrections it would be $(1 - \beta_1) / \sqrt{1 - \beta_2}$ times
# that, 3.2 with the usual betas.
# </details>
#
# ## 5. What Adam moves
#
# *Difficulty 2/5, 5 minutes.*
#
# `torch.optim.Adam(foreach=False)` without weight decay calls seven operations for each tensor:
#
#     m.lerp_(g, 1 - beta1)
#     v.mul_(beta2)
#     v.addcmul_(g, g, value=1 - beta2)
#     d = v.sqrt()
#     d = d / (1 - beta2**t) ** 0.5
#     d.add_(eps)
#     p.addcdiv_(m, d, value=-lr / (1 - beta1**t))
#
# An operation reads each tensor that it needs once (g in the third too), also one that it then changes,
# and writes what it changes or makes. **Predict in numbers**, for a model of so many tensors:
#
# - `launches`: of those seven operations, each a kernel, in one step;
# - `eager`: bytes that they move for each parameter, all in float32;
# - `fused`: bytes that your kernel moves for each parameter, all in float32;
# - `fused_bfloat16`: the same with parameters and gradients in bfloat16, moments in float32.


# %% tags=["exercise"] exercise="predict_adam"
# %%px
def predict_adam(tensors: int) -> dict[str, float]:
    """`launches` of a step, and bytes for each parameter: `eager`, `fused`, `fused_bfloat16`."""
    # BEGIN SOLUTION
    reads, writes = 2 + 1 + 2 + 1 + 1 + 1 + 3, 7
    return {
        "launches": 7 * tensors,
        "eager": 4 * (reads + writes),
        "fused": 4 * (4 + 3),
        "fused_bfloat16": (2 + 2 + 4 + 4) + (2 + 4 + 4),
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_adam" points=2
# %%px --timeout 120
check.predict_adam(predict_adam)

# %% tags=["hidden-check"] exercise="predict_adam" points=1
# %%px --timeout 20
check.show_values(
    predicted=[
        [round(float(x)) for _, x in sorted(predict_adam(tensors).items())]
        for tensors in (1, 148 + rank)
    ]
)

# %% [markdown]
# ## 6. All tensors in one launch
#
# *Difficulty 4/5, 25 minutes.*
#
# A model has hundreds of tensors, many of them small, and a launch takes a GPU some microseconds however
# little there is to do. So update **all of them in one launch**. A kernel has a fixed list of arguments,
# and cannot take hundreds of pointers: put the addresses, `tensor.data_ptr()`, into a tensor of int64, a *table*,
# and pass that. In the kernel, `.to(tl.pointer_type(tl.float32))` makes a pointer of such an integer again.
#
# The arguments are those of exercise 4, as lists with an entry for each tensor.
#
# - **One launch**, however many tensors there are, of whatever sizes. Each has one element or more.
# - All parameters and gradients have the same dtype, float32, float16 or bfloat16; moments are float32. All
#   are contiguous.
# - Each tensor has a step count of its own, in `steps`.
# - The kernel works on the tensors where they are: nothing is copied into one long vector and back. Each
#   number of parameters, gradients and moments is loaded and stored once; tables, as often as you like.
#
# **Predict**: how many programs are there for tensors of 1, 1,000 and 5,000 elements, in blocks of 4,096?
#
# <details><summary>Hint 1</summary>
#
# The host knows all sizes, so let it say who does what: a list of blocks, each with the number of its tensor
# and the first element. `tl.load(table + i)` loads one integer. Its program gets five from the tables: four
# addresses, and how many elements the tensor has.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Pointers to parameter and gradient are of their dtype, which is known when the kernel is compiled: give it
# as a `tl.constexpr`, `{torch.float32: tl.float32, …}[dtype]`. Corrections are floats, so they need a table of
# their own. `torch.repeat_interleave(torch.arange(n), counts)` lists the tensor of each block.
# </details>


# %% tags=["exercise"] exercise="adam_group"
# %%px
@triton.jit
def adam_group_kernel(
    tensors, corrections, blocks, lr, beta1, beta2, eps, decay,
    DTYPE: tl.constexpr, DECOUPLED: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Each program takes a step with one block of one tensor, as the tables say."""
    # BEGIN SOLUTION
    tensor = tl.load(blocks + 2 * tl.program_id(0))
    first = tl.load(blocks + 2 * tl.program_id(0) + 1)
    p_pointer = tl.load(tensors + 5 * tensor).to(tl.pointer_type(DTYPE))
    g_pointer = tl.load(tensors + 5 * tensor + 1).to(tl.pointer_type(DTYPE))
    m_pointer = tl.load(tensors + 5 * tensor + 2).to(tl.pointer_type(tl.float32))
    v_pointer = tl.load(tensors + 5 * tensor + 3).to(tl.pointer_type(tl.float32))
    n = tl.load(tensors + 5 * tensor + 4)
    correction1 = tl.load(corrections + 2 * tensor)
    correction2 = tl.load(corrections + 2 * tensor + 1)
    offsets = first + tl.arange(0, BLOCK)
    mask = offsets < n
    p = tl.load(p_pointer + offsets, mask=mask).to(tl.float32)
    g = tl.load(g_pointer + offsets, mask=mask).to(tl.float32)
    m = tl.load(m_pointer + offsets, mask=mask)
    v = tl.load(v_pointer + offsets, mask=mask)
    p, m, v = adam_rule(
        p, g, m, v, lr, beta1, beta2, correction1, correction2, eps, decay, DECOUPLED
    )
    tl.store(p_pointer + offsets, p, mask=mask)
    tl.store(m_pointer + offsets, m, mask=mask)
    tl.store(v_pointer + offsets, v, mask=mask)
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
    """A step of Adam for all tensors, in place, in one launch; tensor i is at its `steps[i]`-th."""
    # BEGIN SOLUTION
    block, dtype, device = 4096, parameters[0].dtype, parameters[0].device
    lists = zip(parameters, gradients, exp_avgs, exp_avg_sqs, strict=True)
    tensors = torch.tensor([[*(t.data_ptr() for t in four), four[0].numel()] for four in lists])
    corrections = torch.tensor([[1 - beta**step for beta in betas] for step in steps])
    counts = (tensors[:, 4] + block - 1) // block
    owners = torch.repeat_interleave(torch.arange(len(tensors)), counts)
    numbers = torch.arange(len(owners)) - (counts.cumsum(0) - counts)[owners]
    blocks = torch.stack([owners, numbers * block], dim=1)
    known = {torch.float32: tl.float32, torch.float16: tl.float16, torch.bfloat16: tl.bfloat16}
    adam_group_kernel[(len(owners),)](
        tensors.to(device), corrections.to(device), blocks.to(device), lr, *betas, eps, weight_decay,
        DTYPE=known[dtype], DECOUPLED=decoupled, BLOCK=block,
    )  # fmt: skip
    # END SOLUTION


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
        group_stepped([3, 5000], [1, 4], torch.float32),
        group_stepped([4097, 1, 70], [9, 2, 3], torch.float16),
    ]
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Four: one each for the first two, and two for the last, since a program works on one tensor alone.
# </details>

# %% [markdown]
# ## 7. An optimizer like torch's
#
# *Difficulty 4/5, 20 minutes.*
#
# Make it what a training script can use in place of `torch.optim.Adam`: a subclass of
# `torch.optim.Optimizer`, which has `param_groups`, `state`, `zero_grad` and more already.
#
# - `step(closure=None)` updates the parameters that have a gradient, with **one launch for each group** (one
#   for each dtype in it, if there are several). A parameter without a gradient stays as it is, and its step
#   does not count. A closure is called, with gradients enabled, and its loss returned.
# - Each group has its own `lr`, `betas`, `eps`, `weight_decay` and `decoupled_weight_decay`, with torch's
#   defaults. They may change between steps, as a learning rate does.
# - The moments are float32 whatever the parameter is.
# - A parameter's state has torch's names: `step` (a float32 tensor of shape `()`), `exp_avg`, `exp_avg_sq`.
# - `state_dict()` can be loaded into `torch.optim.Adam`, and torch's into yours, and training goes on as it
#   would have. Loading keeps moments in float32.
# - Parameters are contiguous. Gradients may have any strides, and stay as they
#   are: the same tensors, with the same numbers.
#
# <details><summary>Hint 1</summary>
#
# `super().__init__(params, defaults)` with a dict of the settings; `self.state[p]` is an empty dict at first.
# `@torch.no_grad()` goes over `step`. `adam_group` needs contiguous gradients, and a copy must live until the
# launch.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `Optimizer.load_state_dict` casts each state to its parameter's dtype, but for `step`. Call it, then put the
# moments of the dict that was loaded back in: `state_dict["state"]` has them by number, in the order of the
# numbers in `state_dict["param_groups"][i]["params"]`.
# </details>


# %% tags=["exercise"] exercise="fused_adam"
# %%px
class FusedAdam(torch.optim.Optimizer):
    """Adam with the interface of `torch.optim.Adam`, a launch for each group and dtype."""

    def __init__(
        self, params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.0,
        decoupled_weight_decay=False,
    ):  # fmt: skip
        # BEGIN SOLUTION
        settings = {
            "lr": lr,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "decoupled_weight_decay": decoupled_weight_decay,
        }
        super().__init__(params, settings)
        # END SOLUTION

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
        """Go on from `state_dict`, of this class or of torch.optim.Adam; moments in float32."""
        # BEGIN SOLUTION
        super().load_state_dict(state_dict)
        numbers = [n for part in state_dict["param_groups"] for n in part["params"]]
        mine = [p for part in self.param_groups for p in part["params"]]
        for number, p in zip(numbers, mine, strict=True):
            for name, value in state_dict["state"].get(number, {}).items():
                if name != "step":
                    self.state[p][name] = value.to(p.device, torch.float32, copy=True)
        # END SOLUTION


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
# ## 8. Each rank its shard
#
# *Difficulty 3/5, 15 minutes.*
#
# In [lab 03](03_zero.ipynb) each rank has the optimizer states of a part of the parameters, its *shard*, and
# updates that part alone. Now your kernel does the update: cut the parameters, one after the other in one
# vector, into as many equal parts as there are ranks, padded with zeros at the end.
#
# - `step()`: reduce-scatter the gradients to the **mean** over the ranks, of the shard; one launch of your Adam
#   on it; all-gather the shards into the parameters, on all ranks.
# - `shard` is this rank's part as an `nn.Parameter` of ⌈Ψ/N⌉ elements, `optimizer` the `FusedAdam` of it alone,
#   made with `settings`. So a rank holds 8⌈Ψ/N⌉ bytes of moments.
# - Parameters are float32, contiguous, equal on all ranks, and all have a gradient when `step` is called,
#   which you may overwrite.
# - What a rank sends is a reduce-scatter and an all-gather: no all-reduce.
#
# <details><summary>Hint 1</summary>
#
# `dist.reduce_scatter_single(part, whole, group=group)` sums; divide by the number of ranks, before or after.
# `dist.all_gather_single(whole, part, group=group)` is the way back. `group.size()` and `group.rank()` say
# where this rank is.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `shard.grad` gets the part of the gradient, and `optimizer.step()` does the rest. `whole.split(sizes)` stops
# at the padding, if the sizes do with it: add the padding as a last size, or `whole[:n]` first. Parameters
# change under `torch.no_grad()`.
# </details>


# %% tags=["exercise"] exercise="sharded_adam"
# %%px
class ShardedAdam:
    """Adam for `parameters`, whose states are sharded over the ranks of `group`.

    Attributes:
        shard: this rank's part of the parameters, ⌈Ψ/N⌉ elements.
        optimizer: a `FusedAdam` of the shard.
    """

    def __init__(self, parameters: list[nn.Parameter], group: dist.ProcessGroup, **settings):
        # BEGIN SOLUTION
        self.parameters, self.group = parameters, group
        part = self.flat([p.detach() for p in parameters]).chunk(group.size())[group.rank()]
        self.shard = nn.Parameter(part.clone())
        self.optimizer = FusedAdam([self.shard], **settings)
        # END SOLUTION

    def flat(self, tensors: list[torch.Tensor]) -> torch.Tensor:
        """All tensors in one vector, padded to a multiple of the number of ranks."""
        # BEGIN SOLUTION
        whole = torch.cat([tensor.flatten() for tensor in tensors])
        return F.pad(whole, (0, -len(whole) % self.group.size()))
        # END SOLUTION

    @torch.no_grad()
    def step(self) -> None:
        """Take a step along the mean of the ranks' gradients, on all ranks alike."""
        # BEGIN SOLUTION
        whole = self.flat([p.grad for p in self.parameters]) / self.group.size()
        self.shard.grad = torch.empty_like(self.shard)
        dist.reduce_scatter_single(self.shard.grad, whole, group=self.group)
        self.optimizer.step()
        dist.all_gather_single(whole, self.shard.detach(), group=self.group)
        sizes = [p.numel() for p in self.parameters]
        for p, part in zip(self.parameters, whole[: sum(sizes)].split(sizes), strict=True):
            p.copy_(part.view_as(p))
        # END SOLUTION


# %% tags=["check"] exercise="sharded_adam" points=3
# %%px --timeout 120
check.sharded_adam(ShardedAdam)


# %% tags=["hidden-check"] exercise="sharded_adam" points=1
# %%px --timeout 60
def shards(sizes, **settings):
    p = [nn.Parameter(torch.linspace(-1, 1, n, device=device)) for n in sizes]
    optimizer = ShardedAdam(p, group, **settings)
    for step in range(2):
        for parameter in p:
            parameter.grad = parameter.detach() + 0.25 * rank + step
        optimizer.step()
    values = [round(x, 3) for x in (p[0][0].item(), p[-1][-1].item())]
    return [optimizer.shard.numel(), *values]


check.show_values(sharded=[shards([5, 6], lr=0.125, eps=0.25), shards([7, 1, 40], lr=0.5, eps=1.0)])

# %% [markdown]
# ## The curve of one rank
#
# MNIST, its images averaged down to 7 × 7, and a small MLP: your sharded Adam on all ranks, each with its part of
# a batch, and `torch.optim.Adam` on one rank with all of it. The losses must be the same.

# %%
# %%px --timeout 100
images, labels = (torch.from_numpy(part).to(device) for part in mnist("train", limit=1280))
small_images = F.avg_pool2d(images, 4)
pairs = list(zip(small_images.split(64), labels.split(64), strict=True))
SETTINGS = {"lr": 0.02, "weight_decay": 0.01, "decoupled_weight_decay": True}


def fresh_model():
    torch.manual_seed(0)
    return models.mlp(32, inputs=49).to(device)


def curve(model, optimizer, own, ranks):
    """The loss of each batch, as its mean over the ranks: each counts by its samples."""
    losses = []
    for x, y in pairs:
        model.zero_grad()
        loss = F.cross_entropy(model(x[own]), y[own]) * (ranks * len(x[own]) / len(x))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return torch.tensor(losses)


model = fresh_model()
ours = ShardedAdam(list(model.parameters()), group, **SETTINGS)
mine = curve(model, ours, slice(rank, None, world_size), world_size)
sharded_losses = comm.allreduce(mine) / world_size
model = fresh_model()
whole_losses = curve(model, torch.optim.Adam(model.parameters(), **SETTINGS), slice(None), 1)
gap = (sharded_losses - whole_losses).abs().max().item()
learned = (sharded_losses[-1] < sharded_losses[0] / 2).item()
held = ours.optimizer.state[ours.shard]["exp_avg"].nbytes * 2
if rank == 0:
    parameters = sum(p.numel() for p in model.parameters())
    print(
        f"{parameters:,} parameters; moments take {held:,} bytes on a rank, {8 * parameters:,} whole"
    )
    print(f"the curve of one rank, to four digits: {gap < 1e-4}; it learns: {learned}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("A fused Adam on shards follows the curve of one rank")
wide = plots.artist(plots.series(0, "torch.optim.Adam, one rank")) | {"linewidth": 6, "alpha": 0.5}
axes.plot(whole_losses, **wide | {"marker": ""})
thin = plots.artist(plots.series(1, "yours, sharded"))
axes.plot(sharded_losses, **thin | {"marker": ""})
axes.set(xlabel="step", ylabel="loss")
legend = axes.legend(frameon=False, labelcolor=plots.NEUTRAL, fontsize="small")

# %% [markdown]
# # Part D: a product
#
# ## 9. Tiles
#
# *Difficulty 4/5, 25 minutes.*
#
# A product of matrices uses each number many times, so that fetching it once for each use would be the cost. A
# program computes a **tile** of the result, 32 × 32 here, and goes along $k$ in steps of 32: it loads a tile
# of $a$ and one of $b$, and `tl.dot` adds their product to its sums. Each number that it loads serves 32 times.
#
# Programs next to each other run at the same time and share a cache. Row by row, a row of tiles of the result
# needs a row of $a$ and **all** of $b$. So go in *groups*: `group` rows of tiles, and within them column by
# column, each from top to bottom; then the next group, of which the last may have fewer rows. A group's
# programs share what they load of $a$, and neighbours what they load of $b$.
#
# - `a` is (m, k) and `b` (k, n), of any sizes, **any strides** and one dtype, float32, float16 or bfloat16.
# - The result is a new, contiguous tensor of that dtype. Sums are float32, rounded once.
# - One launch, with a program for each tile, in that order.
#
# **Predict**: 5 × 3 tiles in groups of 2 rows. Which tile is program 7's?
#
# <details><summary>Hint 1</summary>
#
# A full group has `group · columns` programs, so `program // (group * columns)` is the group. Its rows begin at
# `group` times that, and it has `tl.minimum(rows - first, GROUP)` of them.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `rows[:, None] * stride + columns[None, :]` is a block of two dimensions. Masks have two conditions; what is
# masked must add nothing to the sums. `tl.dot(a, b, total, input_precision="ieee")` multiplies float32 as
# float32 on a GPU, too.
# </details>


# %% tags=["exercise"] exercise="matmul"
# %%px
@triton.jit
def tile_of(program, rows, columns, GROUP: tl.constexpr):
    """Row and column of a program's tile, of `rows` × `columns` tiles in groups of GROUP rows."""
    # BEGIN SOLUTION
    first = program // (GROUP * columns) * GROUP
    height = tl.minimum(rows - first, GROUP)
    inside = program % (GROUP * columns)
    return first + inside % height, inside // height
    # END SOLUTION


@triton.jit
def matmul_kernel(
    a_pointer, b_pointer, c_pointer, m, n, k, a_row, a_column, b_row, b_column,
    GROUP: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Each program computes a tile of c; a_row is how far apart the rows of a are, and so on."""
    # BEGIN SOLUTION
    row, column = tile_of(tl.program_id(0), tl.cdiv(m, TILE), tl.cdiv(n, TILE), GROUP)
    rows = (row * TILE + tl.arange(0, TILE))[:, None]
    columns = (column * TILE + tl.arange(0, TILE))[None, :]
    total = tl.zeros((TILE, TILE), dtype=tl.float32)
    for first in range(0, k, TILE):
        inner = first + tl.arange(0, TILE)
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
# The first group has 2 · 3 = 6 programs, 0 to 5. Program 7 is the second of the next group: column 0,
# from top to bottom, so row 3.
# </details>
#
# # Against the library
#
# The same model on one rank, 20 steps with the same batches: `FusedAdam` and `torch.optim.Adam`, with a loop
# over tensors, with `foreach`, and fused.

# %%
# %%px --timeout 100
PEERS = {"for-loop": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}


def twenty_steps(make):
    torch.manual_seed(0)
    model = models.mlp(16, inputs=49).to(device)
    optimizer = make(model.parameters(), **SETTINGS)
    for x, y in pairs[:20]:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    return torch.cat([p.detach().flatten() for p in model.parameters()])


ours = twenty_steps(FusedAdam)
for name, settings in PEERS.items():
    theirs = twenty_steps(partial(torch.optim.Adam, **settings))
    gap = ((ours - theirs).abs().max() / theirs.abs().max()).item()
    if rank == 0:
        print(f"after 20 steps, beside torch's {name}: the same parameters to 1e-4: {gap < 1e-4}")

# %% [markdown]
# Now the time, which only a GPU can tell. There, this cell measures a step of each on a model of 60 tensors, 16
# million parameters together. In the interpreter it measures nothing: no result of a GPU is recorded for this
# lab, and none of its cells has been run on one yet.


# %% tags=["nbval-ignore-output"]
# %%px --timeout 100
def step_seconds(make, rounds=20):
    """The median of a step's seconds, on a GPU."""
    p = [nn.Parameter(torch.randn(2**18, device=device)) for _ in range(60)]
    for parameter in p:
        parameter.grad = torch.randn_like(parameter)
    optimizer, spent = make(p, **SETTINGS), []
    for _ in range(rounds + 5):
        torch.cuda.synchronize()
        start = time.perf_counter()
        optimizer.step()
        torch.cuda.synchronize()
        spent.append(time.perf_counter() - start)
    return statistics.median(spent[5:])


if rank == 0 and not INTERPRETED:
    ours = step_seconds(FusedAdam)
    for name, settings in PEERS.items():
        ratio = ours / step_seconds(partial(torch.optim.Adam, **settings))
        print(f"a step of ours, over torch's {name}: {ratio:.2f}")
    compiled = torch.compile(lambda optimizer: optimizer.step(), fullgraph=False)

    def compiled_adam(p, **settings):
        optimizer = torch.optim.Adam(p, **settings)
        optimizer.step = partial(compiled, optimizer)
        return optimizer

    print(f"a step of ours, over torch.compile's: {ours / step_seconds(compiled_adam):.2f}")
elif rank == 0:
    print("no GPU here, and no GPU's result is recorded: the interpreter's times mean nothing")

# %% [markdown]
# What to look for:
#
# - **The same rule.** The parameters agree to float32's rounding, whichever way they are updated.
# - **Launches, not arithmetic.** The loop launches seven kernels a tensor; `foreach` seven for all tensors
#   together, which still move 72 bytes a parameter; `fused` one, as you do, with 28.
# - **What is left.** You make the tables anew in each step, on the host. A library keeps them while the
#   tensors stay where they are.
#
# # Going further
#
# - Keep the tables of `adam_group` between steps. What must you look at to know that they still hold?
# - Let the kernel of exercise 6 divide by a loss scale and skip its stores if a flag in memory is set: then
#   lab 06's step needs no trip of its own for unscaling.
# - `@triton.autotune` tries blocks and numbers of warps. Which is best for the sum, and for the softmax of
#   100,000 columns, which fit into no block?
# - Add dropout to the softmax. `tl.rand(seed, offsets)` gives random numbers that depend on nothing else.
