# %% [markdown]
# # Lab 08: Training in less memory
#
# A training step needs memory for the model's states, for the activations that the backward pass uses, and for the
# logits of a large vocabulary. In this lab, you measure each of them and then reduce it. You recompute activations
# instead of keeping them, you plan which ones to recompute under a budget, and you move some of them out of the
# device. You compute a loss without ever holding all logits. You write two optimizers whose states are small:
# Adafactor, and Adam with 8-bit states. Finally, you combine these methods with ZeRO on several ranks.
#
# | | |
# |---|---|
# | **You will be able to** | count the bytes that a forward pass keeps; write activation checkpointing, and state what it costs; plan recomputation for a memory budget; offload activations; compute a cross-entropy in chunks; write Adafactor and 8-bit Adam; predict the bytes of a rank that combines these methods |
# | **Time** | 0 minutes |
# | **You need** | PyTorch; [lab 03](03_zero.ipynb), or an idea of sharded optimizer states. No GPU |
# | **Background** | [chapter 08](../book/08_memory.md) of the book explains what you build here |
#
# First start the ranks. They are four processes, and each has its own Python. Cells that begin with `%%px` run on all ranks.
# Other cells run in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px --timeout 120
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from parlab import memory, models, plots, timing, training
from parlab.checks import memory as check
from parlab.formats.dynamic import dynamic_map
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference

# %% [markdown]
# If you are stuck on an exercise, run `use_reference("its_name")` in a `%%px` cell. It puts a solution in place, and you can
# continue.
#
# # Part A: activations

# %% [markdown]
# SECTION 1 STARTS (kept_bytes)

# %% [markdown]
# SECTION 2 STARTS (checkpoint)

# %% [markdown]
# SECTION 3 STARTS (plan_recomputation)

# %% [markdown]
# SECTION 4 STARTS (offload_activations)

# %% [markdown]
# # Part B: the largest tensor

# %% [markdown]
# SECTION 5 STARTS (chunked_cross_entropy)

# %% [markdown]
# # Part C: small optimizer states

# %% [markdown]
# SECTION 6 STARTS (adafactor_step)

# %% [markdown]
# ## 7. Quantize a state in blocks
#
# *Difficulty 3/5, 10 minutes.*
#
# Adam keeps two float32 numbers for each parameter, its first moment $m$ and its second moment $v$. That takes 8 bytes, twice as much
# as the parameter. Dettmers et al. (2021) keep both in 8 bits. An 8-bit code has only 256 values, so a code is a position in a list of
# 256 *levels* between −1 and 1. Two ideas make this good enough:
#
# - **A dynamic map.** The moments of one tensor differ by many powers of ten, so evenly spaced levels would turn most of them into
#   zero. The levels of the dynamic map cover seven decades. `dynamic_map(signed=True)` returns those for $m$: 64 levels from 0.1 to 1, 32
#   from 0.01 to 0.1, and so on, down to one level between 10⁻⁷ and 10⁻⁶, and the same below zero. The levels 0 and 1 complete the list.
#   $v$ is never negative, so `dynamic_map(signed=False)` spends the sign's bit on twice as many levels in each decade.
# - **Blocks.** A state is cut into blocks of 256 numbers. Each block is divided by its largest absolute value, its *absmax*, which is kept
#   in float32. Therefore, a very large number makes only its own block coarse.
#
# Write `quantize_blocks`. It returns the code of each number, which is the position of the level nearest to number / absmax. If two
# levels are equally near, return either.
#
# - Do not compare each number with all 256 levels at the same time: the distances would take a kilobyte for each number. The levels are
#   sorted, so `torch.bucketize` can search them. The check accepts up to 100 bytes for each number of a large state.
# - `values` stays as it is.
#
# Edge cases:
#
# - **The last block** may be shorter than the others.
# - **Zeros:** a block may contain only zeros. Its absmax is 0, and its codes are those of the level 0.
# - **Small numbers:** $v$ has squares of gradients, so an absmax may be as small as 10⁻³⁰.
# - **Other levels:** `levels` may be any sorted list of 256 numbers from −1 to 1.
#
# **Predict**: in a block of $m$, the largest number is 1, and another number is 0.001. With levels that are 1/127 apart, what does 0.001
# become? What does it become with the dynamic map?
#
# <details><summary>Hint 1</summary>
#
# `F.pad(values, (0, n))` appends n zeros, which change no absmax. Then `view(-1, block_size)` has a row for each block.
# </details>
#
# <details><summary>Hint 2</summary>
#
# A number becomes level $i$ if it lies between the middle of levels $i - 1$ and $i$ and the middle of levels $i$ and $i + 1$. So pass the 255
# middles to `torch.bucketize(scaled, middles)`. Divide by `absmax.where(absmax > 0, 1)`.
# </details>


# %% tags=["exercise"] exercise="quantize_blocks"
# %%px
def quantize_blocks(values: Tensor, levels: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Quantize a state to 8 bits, each block of it by its own absmax.

    Args:
        values: the state, flat, float32.
        levels: 256 numbers from −1 to 1 in ascending order, float32.
        block_size: how many numbers share an absmax.

    Returns:
        The codes, uint8, as many as `values`; and the blocks' absmax, flat, float32.
    """
    # BEGIN SOLUTION
    padding = -len(values) % block_size
    blocks = F.pad(values, (0, padding)).view(-1, block_size)
    absmax = blocks.abs().amax(1)
    scaled = blocks / absmax.where(absmax > 0, 1)[:, None]
    middles = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(scaled, middles, out_int32=True)
    return codes.flatten()[: len(values)].to(torch.uint8), absmax
    # END SOLUTION


# %% tags=["check"] exercise="quantize_blocks" points=3
# %%px --timeout 30
check.quantize_blocks(quantize_blocks)


# %% tags=["hidden-check"] exercise="quantize_blocks" points=1
# %%px --timeout 20
def quantized(values, signed, block_size):
    codes, absmax = quantize_blocks(values, dynamic_map(signed, device), block_size)
    return [codes.tolist(), [f"{x:.3e}" for x in absmax.tolist()], str(codes.dtype)]


ramp = torch.arange(-5.0, 8.0, device=device) / 7 * 10.0 ** (rank - 3)
check.show_values(
    ramp=quantized(ramp, True, 13),
    blocks=quantized(ramp, True, 4),
    squares=quantized(ramp.square(), False, 5),
    zeros=quantized(torch.tensor([0.0, 0, 0, -2, 1], device=device), True, 3),
    tiny=quantized(ramp.abs() * 1e-30, False, 6),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# With even levels, 0.001 is nearest to 0, so it is lost. In the dynamic map, the nearest levels are 0.00094 and 0.00128, and 0.001 becomes
# 0.00094. The error is 6%. From 0.1 to 1, where there are more levels, it is at most 4%. The largest number of a block comes back without
# an error if it is positive. −1 is not a level, so a negative one comes back as −0.993 times the absmax.
# </details>
#
# ## 7b. Dequantize
#
# *Difficulty 1/5, 5 minutes.*
#
# Write the way back: each number is the level at its code, times the absmax of its block.
#
# The last block may again be shorter. The result has its own memory, and the arguments stay as they are.
#
# **Predict**: how many bytes does an 8-bit state take for each number, with its absmax in blocks of 256? With blocks of 16?
#
# <details><summary>Hint 1</summary>
#
# `levels[codes.long()]` looks up all levels. Without `.long()`, PyTorch takes a uint8 tensor for a mask.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `absmax.repeat_interleave(block_size)` has one absmax for each number, and too many if the last block is shorter.
# </details>


# %% tags=["exercise"] exercise="dequantize_blocks"
# %%px
def dequantize_blocks(codes: Tensor, absmax: Tensor, levels: Tensor, block_size: int) -> Tensor:
    """Return the numbers, flat and float32, that `quantize_blocks` has turned into codes."""
    # BEGIN SOLUTION
    return levels[codes.long()] * absmax.repeat_interleave(block_size)[: len(codes)]
    # END SOLUTION


# %% tags=["check"] exercise="dequantize_blocks" points=1
# %%px --timeout 20
check.dequantize_blocks(dequantize_blocks)

# %% tags=["hidden-check"] exercise="dequantize_blocks" points=1
# %%px --timeout 20
codes = torch.arange(rank, 256, 23, device=device).to(torch.uint8)
absmax = torch.tensor([0.0, 2.0, 1e-20], device=device)[: -(-len(codes) // 5)]
check.show_values(
    numbers=[
        f"{x:.4e}" for x in dequantize_blocks(codes, absmax, dynamic_map(True, device), 5).tolist()
    ],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# A code takes 1 byte, and an absmax takes 4 bytes for each block: 1 + 4/256 = 1.016 bytes with blocks of 256, and 1.25 bytes with blocks
# of 16. So Adam's two states take 2.03 bytes for each parameter instead of 8.
# </details>
#
# The next cell quantizes a state of 65,536 normal numbers. One of them is a thousand times as large as the others. It prints how many of the
# others become zero, and the mean error:

# %%
# %%px --targets 0
even = torch.linspace(-127, 127, 255, device=device) / 127
LEVELS = {"even": torch.cat([even[:1], even]), "dynamic": dynamic_map(True, device)}
state = torch.randn(65_536, generator=torch.Generator().manual_seed(0)).to(device)
state[1000] = 1000.0
for name, levels in LEVELS.items():
    for block_size in (len(state), 256):
        codes, absmax = quantize_blocks(state, levels, block_size)
        back = dequantize_blocks(codes, absmax, levels, block_size)
        lost, error = 100 * (back == 0).float().mean(), (back - state).abs().mean()
        print(f"{name} levels, blocks of {block_size:>5}: {lost:.0f}% are zero, error {error:.3f}")

# %% [markdown]
# ## 7c. A step of Adam on 8-bit states
#
# *Difficulty 3/5, 15 minutes.*
#
# Between two steps, the states are codes. A step dequantizes them, updates them, changes the parameter, and quantizes them again:
#
# $$
# m \leftarrow \beta_1 m + (1 - \beta_1)\, g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2, \qquad
# \theta \leftarrow \theta - \eta\, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}
# $$
#
# - The parameter moves along the moments as they are *before* they are quantized. Rounding then affects only later steps.
# - Use the signed map for $m$ and the unsigned map for $v$. Both start at zero, and $t$ is 1 in the first step.
# - `state` is a dict, which is empty before the first step. After a step, it contains `"step"`, the number of steps so far, and `"m"` and
#   `"v"`, each as the pair (codes, absmax) that `quantize_blocks` returns. It keeps no other tensors.
# - Change `parameter` in place. `gradient` stays as it is.
#
# **Predict**: in a block, the gradient of one number is 1 in each step, and that of another is 1/10,000. Which of its moments does the
# second number lose? After that, its gradient is 0 in one step. What happens to it?
#
# <details><summary>Hint 1</summary>
#
# `state.get("step", 0) + 1` is $t$. In the first step, the moments are `torch.zeros_like(parameter)`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `m = dequantize_blocks(*state["m"], signed, block_size)`, with `signed = dynamic_map(True, parameter.device)`. Then the same three lines
# as for float32, and `state["m"] = quantize_blocks(m, signed, block_size)`.
# </details>


# %% tags=["exercise"] exercise="adam_8bit_step"
# %%px
def adam_8bit_step(
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Any],
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    block_size: int = 256,
) -> None:
    """Take a step of Adam in place, with states that are 8-bit codes between the steps.

    Args:
        parameter, gradient: flat, float32; neither requires a gradient.
        state: empty before the first step; then "step", "m", and "v".
        lr: the learning rate.
        betas, eps: as in `torch.optim.Adam`.
        block_size: how many numbers share an absmax.
    """
    # BEGIN SOLUTION
    signed = dynamic_map(True, parameter.device)
    unsigned = dynamic_map(False, parameter.device)
    step = state.get("step", 0) + 1
    if step == 1:
        m, v = torch.zeros_like(parameter), torch.zeros_like(parameter)
    else:
        m = dequantize_blocks(*state["m"], signed, block_size)
        v = dequantize_blocks(*state["v"], unsigned, block_size)
    m.mul_(betas[0]).add_(gradient, alpha=1 - betas[0])
    v.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    denominator = (v / (1 - betas[1] ** step)).sqrt_().add_(eps)
    parameter.addcdiv_(m, denominator, value=-lr / (1 - betas[0] ** step))
    state["step"] = step
    state["m"] = quantize_blocks(m, signed, block_size)
    state["v"] = quantize_blocks(v, unsigned, block_size)
    # END SOLUTION


# %% tags=["check"] exercise="adam_8bit_step" points=3
# %%px --timeout 30
check.adam_8bit_step(adam_8bit_step)


# %% tags=["hidden-check"] exercise="adam_8bit_step" points=1
# %%px --timeout 20
def stepped(steps, **settings):
    parameter, state = torch.linspace(-1, 1, 11, device=device), {}
    for step in range(steps):
        gradient = torch.linspace(-2, 3, 11, device=device) * (1 + step * (rank + 1))
        adam_8bit_step(parameter, gradient.roll(step), state, 2.0**-6, **settings)
    bytes_kept = memory.tensor_bytes([*state["m"], *state["v"]])
    return [[f"{x:.4f}" for x in parameter.tolist()], state["step"], bytes_kept <= 22 + 8 * 11]


check.show_values(
    one=stepped(1),
    five=stepped(5, block_size=4),
    others=stepped(4, betas=(0.5, 0.75), eps=0.5, block_size=8),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Its $m$ is 10⁻⁴ of the block's absmax, and is kept. Its $v$ is 10⁻⁸ of the absmax, below half of the smallest level, 3.25·10⁻⁷, and
# becomes zero. In a step with gradient 0, only $\epsilon$ is left of the denominator, and the parameter moves by thousands of learning
# rates. The rows of an embedding have a gradient of 0 if their token is not in the batch. The paper keeps the states of embeddings in 32 bits.
# </details>
#
# The next cells train the small GPT with float32 Adam and with your step. Your step has 8-bit states for all of its tensors.


# %%
# %%px
class Adam8bit(torch.optim.Optimizer):
    """Your step, for all tensors of a model."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for settings in self.param_groups:
            for p in settings["params"]:
                adam_8bit_step(p.view(-1), p.grad.view(-1), self.state[p], settings["lr"])


# %%
# %%px --targets 0 --timeout 60
lines = training.text_batches(100, 8, 64, device)


def trained(make_optimizer):
    """The losses of 100 steps, and the bytes of the optimizer's states after them."""
    torch.manual_seed(0)
    model = models.GPT().to(device)
    optimizer = make_optimizer(model.parameters(), lr=1e-3)
    losses = [training.one_step(model, optimizer, *b, training.token_loss) for b in lines]
    return losses, memory.optimizer_bytes(optimizer)


runs = {"float32": trained(torch.optim.Adam), "8 bits, yours": trained(Adam8bit)}
curves = {name: losses for name, (losses, _) in runs.items()}
ends = {name: sum(losses[-20:]) / 20 for name, losses in curves.items()}
held = [kept for _, kept in runs.values()]
print(f"float32's states take {held[0] / held[1]:.1f} times the bytes")
print(
    f"same mean loss in the last 20 steps: {abs(ends['8 bits, yours'] / ends['float32'] - 1) < 0.02}"
)

# %% [markdown]
# # Part D: on several ranks

# %% [markdown]
# SECTION 8 STARTS (predict_rank_bytes, sharded_8bit_step)

# %% [markdown]
# # Against the library

# %% [markdown]
# LIBRARY 1 STARTS (checkpointing against torch.utils.checkpoint)

# %% [markdown]
# LIBRARY 2 STARTS (chunked cross-entropy against F.cross_entropy and F.linear_cross_entropy; Adafactor)

# %% [markdown]
# LIBRARY 3 STARTS (8-bit Adam against bitsandbytes)

# %% [markdown]
# # Going further
