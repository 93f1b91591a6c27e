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
# ## 5. A loss without all logits
#
# *Difficulty 3/5, 25 minutes.*
#
# The output layer gives each token one score for each word of the vocabulary, its *logits*. For $T$ tokens and a
# vocabulary of $V$ words, these are $TV$ numbers. With 2,048 tokens and 32,000 words, they take 262 MB in float32, and a
# backward pass needs several tensors of this size. No other tensor of the step may be as large.
#
# But nothing needs all logits at the same time. Let $x_i$ be the hidden state of token $i$, a vector of $h$ numbers, and
# $W$ the output weight, of shape $(V, h)$. The token's logits are $z_i = W x_i$. If $y_i$ is its target, and $n$ tokens
# count, then the loss and its gradients are
#
# $$
# L = \frac{1}{n} \sum_i \left( \log \sum_v e^{z_{iv}} - z_{i y_i} \right), \qquad
# g_i = \frac{1}{n} \left( \operatorname{softmax}(z_i) - \operatorname{onehot}(y_i) \right), \qquad
# \frac{\partial L}{\partial x_i} = W^\top g_i, \qquad
# \frac{\partial L}{\partial W} = \sum_i g_i x_i^\top .
# $$
#
# Every part is a sum over tokens, or belongs to one token. So take `chunk_size` tokens at a time. Compute their logits,
# their part of the loss, $g_i$ for these tokens, and what they contribute to both gradients. Then forget the logits. When
# the forward pass ends, both gradients are complete. The backward pass only multiplies them by the gradient that it
# receives.
#
# Write the two methods of `ChunkedCrossEntropy`. They have the loss and the gradients of
# `F.cross_entropy(hidden @ weight.T, targets)`. Do not call `F.linear_cross_entropy`, which does this exercise for you.
#
# The check also tries:
#
# - **Ignored targets:** a target of −100 does not count. The loss is the mean over the targets that count, and the
#   gradient of an ignored token is zero. All targets of a chunk may be ignored, but never all targets.
# - **Chunk sizes** that do not divide the number of tokens, or that exceed it.
# - **A scaled loss:** the loss is multiplied by a number before the backward pass.
# - **Tied weights:** the output weight may also be the embedding, and then it gets gradients from both uses.
# - **Large logits** of several hundred.
# - **Frozen inputs:** the hidden states or the weight may require no gradient.
# - **A second backward pass** through the same loss may raise an error. It must not give wrong gradients.
#
# **Predict**: at its peak, how many tensors as large as all logits are alive in
# `F.cross_entropy(hidden @ weight.T, targets).backward()`? Which tensors remain large if you use small chunks?
#
# <details><summary>Hint 1</summary>
#
# `torch.log_softmax(logits, 1)` is stable for large logits. `gather` picks each target's value from it. The gradient of
# the logits is its `exp()`, with 1 subtracted at each target (`scatter_add_`), times 1/n, and times 0 for ignored tokens.
# Autograd does not record anything inside `forward`, so you may work in place.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Before the loop, make zeros for the gradient of the weight. In the loop, `of_weight.addmm_(g.T, x)` adds a chunk's part.
# Keep both gradients with `ctx.save_for_backward`. In `backward`, `mul_` scales them in place. Autograd notices if they are
# then used a second time. One buffer can hold the logits of each chunk in turn: `torch.mm(x, weight.T, out=buffer[: len(x)])`,
# and `log_softmax` takes `out=`, too.
# </details>


# %% tags=["exercise"] exercise="chunked_cross_entropy"
# %%px
class ChunkedCrossEntropy(torch.autograd.Function):
    """The loss and both gradients, one chunk of tokens after the other."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, chunk_size):
        # BEGIN SOLUTION
        counts = targets != -100
        share = counts / counts.sum()  # of each token in the mean
        loss = hidden.new_zeros(())
        of_hidden, of_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        buffer = hidden.new_empty(min(chunk_size, len(hidden)), len(weight))
        for start in range(0, len(hidden), chunk_size):
            rows = slice(start, start + chunk_size)
            x, own = hidden[rows], share[rows, None]
            target = targets[rows, None].clamp(min=0)
            scores = torch.mm(x, weight.T, out=buffer[: len(x)])
            torch.log_softmax(scores, 1, out=scores)
            loss -= (scores.gather(1, target) * own).sum()
            scores.exp_().mul_(own).scatter_add_(1, target, -own)  # now the logits' gradient
            torch.mm(scores, weight, out=of_hidden[rows])
            of_weight.addmm_(scores.T, x)
        ctx.save_for_backward(of_hidden, of_weight)
        return loss
        # END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        # BEGIN SOLUTION
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden.mul_(gradient), of_weight.mul_(gradient), None, None
        # END SOLUTION


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk_size: int
) -> Tensor:
    """Return the mean cross-entropy of `hidden @ weight.T`, without ever holding all logits.

    Args:
        hidden: the hidden states, (tokens, hidden_size) float32.
        weight: the output weight, (vocab_size, hidden_size) float32.
        targets: the right word of each token, (tokens,) int64; −100 for tokens to ignore.
        chunk_size: how many tokens may have their logits in memory at the same time.
    """
    return ChunkedCrossEntropy.apply(hidden, weight, targets, chunk_size)


# %% tags=["check"] exercise="chunked_cross_entropy" points=4
# %%px --timeout 30
check.chunked_cross_entropy(chunked_cross_entropy)


# %% tags=["hidden-check"] exercise="chunked_cross_entropy" points=2
# %%px --timeout 20
def loss_and_gradients(tokens, chunk_size, factor):
    """The loss and the gradients for given numbers; every third target is ignored."""
    hidden = torch.linspace(-1, 1, tokens * 2, device=device).view(tokens, 2).requires_grad_()
    weight = torch.tensor([[3.0, -1.0], [0.5, 2.0], [rank, 0.25]], device=device).requires_grad_()
    targets = torch.tensor([(-100, 1, 2, -100, 0, 1)[i % 6] for i in range(tokens)], device=device)
    loss = chunked_cross_entropy(hidden, weight, targets, chunk_size)
    (loss * factor).backward()
    values = torch.cat([loss.detach().view(1), hidden.grad.flatten(), weight.grad.flatten()])
    return [round(value, 3) + 0.0 for value in values.tolist()]


def largest_share(tokens, vocab_size, chunk_size):
    """Whether the memory at the peak is less than a fifth of all logits."""
    hidden, weight = torch.ones(tokens, 2), torch.ones(vocab_size, 2)
    targets = torch.arange(tokens) % vocab_size
    leaves = hidden.to(device).requires_grad_(), weight.to(device).requires_grad_()
    with memory.Peak(device) as peak:
        chunked_cross_entropy(*leaves, targets.to(device), chunk_size).backward()
    return peak.bytes < 0.2 * 4 * tokens * vocab_size


check.show_values(
    loss=[loss_and_gradients(*case) for case in ((7, 3, 1.0), (4, 9, -2.0), (6, 1, 0.5))],
    small=largest_share(640, 400, 10),
)

# %% [markdown]
# # Part C: small optimizer states

# %% [markdown]
# SECTION 6 STARTS (adafactor_step)

# %% [markdown]
# SECTION 7 STARTS (quantize_blocks, adam_8bit_step)

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
