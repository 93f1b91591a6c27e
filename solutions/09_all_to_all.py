# %% [markdown]
# # Lab 09: Experts and long contexts
#
# In an all-to-all, every rank sends a different part of its data to every other rank. Two methods for large models
# are built on it. A *mixture of experts* has many MLPs in each layer, and each token visits only a few of them, so
# that ranks exchange tokens. *Ulysses* attention exchanges parts of a long sequence for attention heads. In this lab,
# you write the all-to-all, then a layer of experts that are spread over the ranks, and you see what happens when
# nothing balances their load. Finally, you compute the attention of a long sequence in two ways, with Ulysses and
# with keys and values that travel around a ring, and you **predict the bytes that each rank sends**.
#
# | | |
# |---|---|
# | **You will be able to** | write the all-to-all for equal and unequal parts; route tokens to experts with a capacity; write an expert-parallel layer with its backward pass; reduce the gradients of experts over the right ranks; balance the load; compute attention over a sequence that is split among ranks with Ulysses and with a ring; balance a causal mask |
# | **Time** | 0 minutes |
# | **You need** | PyTorch and mpi4py; [lab 01](01_mpi.ipynb) and [lab 04](04_tensor_parallel.ipynb), or an idea of messages and of a transformer's layer. No GPU |
# | **Background** | [chapter 09](../book/09_all_to_all.md) of the book explains what you build here |
#
# First start the ranks. They are four processes, and each has its own Python. Cells that begin with `%%px` run on all ranks.
# Other cells run in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px --timeout 120
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from mpi4py import MPI
from torch import Tensor, nn

from parlab.block_attention import attend, attend_backward
from parlab.checks import all_to_all as check
from parlab.ledger import Ledger
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference

# %% [markdown]
# If you are stuck on an exercise, run `use_reference("its_name")` in a `%%px` cell. It puts a solution in place, and you can
# continue.
#
# # Part A: all-to-all

# %% [markdown]
# SECTION 1 STARTS (pairwise_all_to_all)

# %% [markdown]
# SECTION 2 STARTS (uneven_all_to_all)

# %% [markdown]
# # Part B: a layer of experts

# %% [markdown]
# SECTION 3 STARTS (route)

# %% [markdown]
# SECTION 4 STARTS (dispatch, combine)

# %% [markdown]
# SECTION 5 STARTS (expert_parallel_mlp)

# %% [markdown]
# SECTION 6 STARTS (predict_expert_bytes)

# %% [markdown]
# # Part C: training with experts

# %% [markdown]
# SECTION 7 STARTS (average_gradients)

# %% [markdown]
# SECTION 8 STARTS (balance_loss, and training with and without it)

# %% [markdown]
# # Part D: a sequence that is split among ranks

# %% [markdown]
# ## 9. How many bytes does a long context need?
#
# *Difficulty 2/5, 10 minutes.*
#
# From here on, N ranks share one long sequence. Of its S tokens, each rank has S/N: rank 0 has the first ones, rank 1 the
# next ones, and so on. A rank has the queries, keys, and values of its own tokens, for all $a$ heads of size $d$: three
# tensors of shape (B, S/N, a, d), with batch size B. The MLP and the norms work on each token on its own, so they need
# nothing from other ranks. Attention does: a query needs the keys and values of *all* tokens. There are two ways to get them:
#
# - **Ulysses** exchanges heads for sequence. In an all-to-all, each rank sends every other rank some heads of its queries,
#   keys, and values. Afterwards, a rank has the queries, keys, and values of *all* S tokens for a/N heads. It computes the
#   attention of these heads, and an all-to-all of the results gives each rank all heads of its own tokens again. In the
#   backward pass, the gradients take the same ways in the opposite direction.
# - **Ring attention** keeps the queries in place. The keys and values of all ranks travel around a ring in N − 1 steps. In
#   each step, a rank sends the keys and values that it has to the next rank. In the backward pass, the keys and values travel
#   N − 1 steps again, and their gradients travel N steps: to every rank with the keys and values, and then once more to get
#   home.
#
# **Predict in numbers**: how many bytes does one rank send to *other* ranks, in float32, for one attention layer? All heads
# have their own keys and values.
#
# - `ulysses_forward` and `ulysses_backward`
# - `ring_forward` and `ring_backward`
#
# **Predict**: how do the bytes of both methods change if there are twice as many ranks, for the same sequence?
#
# <details><summary>Hint 1</summary>
#
# How many bytes has one tensor of shape (B, S/N, a, d)? Express everything in this unit.
# </details>
#
# <details><summary>Hint 2</summary>
#
# In an all-to-all, a rank keeps an N-th of its tensor for itself. Ulysses exchanges four tensors in the forward pass. On the
# ring, a rank sends whole tensors, two in each step.
# </details>


# %% tags=["exercise"] exercise="predict_context_bytes"
# %%px
def predict_context_bytes(
    batch: int, sequence: int, heads: int, head_size: int, world_size: int
) -> dict[str, float]:
    """Bytes that one rank sends to other ranks for one attention layer in float32.

    Args:
        sequence: tokens of the whole sequence, S. Each rank has S / world_size of them.
        world_size: number of ranks N, at least 2.

    Returns:
        The bytes by name: `ulysses_forward`, `ulysses_backward`, `ring_forward`, `ring_backward`.
    """
    # BEGIN SOLUTION
    own = 4 * batch * sequence * heads * head_size / world_size
    steps = world_size - 1
    to_others = own * steps / world_size
    return {
        "ulysses_forward": 4 * to_others,
        "ulysses_backward": 4 * to_others,
        "ring_forward": 2 * own * steps,
        "ring_backward": 2 * own * (steps + world_size),
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_context_bytes" points=1
# %%px
check.predict_context_bytes(predict_context_bytes)

# %% tags=["hidden-check"] exercise="predict_context_bytes" points=1
# %%px --timeout 20
check.show_values(
    **{
        name: [
            round(predict_context_bytes(*sizes)[name])
            for sizes in ((3, 60, 6, 5, 6), (1, 16, 2, 9, 2))
        ]
        for name in ("ulysses_forward", "ulysses_backward", "ring_forward", "ring_backward")
    }
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# With Ulysses, a rank sends about half as much, because its tensors are half as large. On the ring, the tensors are half as
# large, but they travel twice as many steps, so a rank sends about the same as before. In the forward pass, the ring sends
# N/2 times as much as Ulysses. But a message of the ring can travel while a block is computed, and Ulysses cannot use more
# ranks than there are heads.
# </details>
#
# ## 9b. Exchange heads for sequence
#
# *Difficulty 3/5, 15 minutes.*
#
# Write `ulysses_attention`. Each rank passes its own tokens, (B, S/N, a, d), and gets the attention output of its own tokens,
# in the same shape. The result and the gradients of q, k, and v equal those of `F.scaled_dot_product_attention` on the whole
# sequence.
#
# - **In:** q, k, and v travel in *one* all-to-all. Rank $j$ gets the $j$-th a/N heads of every rank.
# - **Attention** of all S tokens, for this rank's heads. If `causal`, a token sees only itself and the tokens before it in
#   the *whole* sequence.
# - **Out:** one all-to-all gives every rank all heads of its own tokens, in the order of the heads.
# - **Backward:** the same two all-to-alls again, and nothing else is sent. Autograd does not know about other ranks, so you
#   need an `autograd.Function`. The skeleton below is one way to do it.
#
# The check also tries:
#
# - **Layouts in memory:** q, k, and v need not be contiguous, nor the gradient that comes back. Gloo and NCCL send only
#   contiguous tensors.
# - **Heads that do not divide:** raise a `ValueError` that names the number of heads, before anything is sent.
# - **Arguments** do not change.
#
# **Predict**: after the first all-to-all, somebody has received (N, B, S/N, …), with a part from each rank. They call
# `.view(B, S, …)` to get the whole sequence, and there is no error. For which batch sizes is it right?
#
# <details><summary>Hint 1</summary>
#
# An all-to-all sends part $j$ to rank $j$, and part $i$ of the result came from rank $i$. Where must the gradient of part $i$
# go? `dist.all_to_all_single(received, x, group=group)` splits the first dimension of a contiguous `x` into N equal parts.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `torch.stack([q, k, v])` has the shape (3, B, S/N, a, d). Split the heads with `.unflatten(3, (ranks, -1))`, and use
# `.movedim(3, 0)` to bring the ranks to the front. In the result, move the ranks in front of the tokens, and `flatten` both
# into S. `F.scaled_dot_product_attention` takes (B, heads, S, d).
# </details>


# %% tags=["exercise"] exercise="ulysses_attention"
# %%px
class SwapParts(torch.autograd.Function):
    """An all-to-all, forward and backward. Part j of x (N, …) goes to rank j."""

    @staticmethod
    def forward(ctx, x, group):
        # BEGIN SOLUTION
        ctx.group = group
        x = x.contiguous()
        received = torch.empty_like(x)
        dist.all_to_all_single(received, x, group=group)
        return received
        # END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        # BEGIN SOLUTION
        gradient = gradient.contiguous()
        received = torch.empty_like(gradient)
        dist.all_to_all_single(received, gradient, group=ctx.group)
        return received, None
        # END SOLUTION


def ulysses_attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, group: dist.ProcessGroup
) -> Tensor:
    """Attention of this rank's queries to the tokens of all ranks, by exchanging heads for sequence.

    Args:
        q, k, v: this rank's tokens, (batch, S/N, heads, head size), the same shape on all ranks. Rank r
            has the r-th part of the sequence.

    Returns:
        The output for this rank's tokens, in the same shape.

    Raises:
        ValueError: if the number of heads is not a multiple of N.
    """
    # BEGIN SOLUTION
    ranks = group.size()
    if q.shape[2] % ranks:
        raise ValueError(f"{q.shape[2]} heads do not divide over {ranks} ranks")
    x = torch.stack([q, k, v]).unflatten(3, (ranks, -1)).movedim(3, 0)
    x = SwapParts.apply(x, group).movedim(0, 2).flatten(2, 3)  # (3, batch, S, heads/N, head size)
    y = F.scaled_dot_product_attention(*x.transpose(2, 3), is_causal=causal)
    y = y.unflatten(2, (ranks, -1)).movedim(2, 0)  # (N, batch, heads/N, S/N, head size)
    return SwapParts.apply(y, group).movedim(0, 1).flatten(1, 2).transpose(1, 2)
    # END SOLUTION


# %% tags=["check"] exercise="ulysses_attention" points=4
# %%px --timeout 30
check.ulysses_attention(ulysses_attention)


# %% tags=["hidden-check"] exercise="ulysses_attention" points=1
# %%px --timeout 20
def ulysses_values(causal, batch, per_rank):
    """Rounded output and gradients of this rank, for numbers that depend on the rank."""
    shape = batch, per_rank, 2 * world_size, 3
    generator = torch.Generator().manual_seed(rank)
    own = torch.randn(3, *shape, generator=generator, dtype=torch.float64).to(device)
    own = [x.requires_grad_() for x in own.unbind()]
    y = ulysses_attention(*own, causal, group)
    y.backward(torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=device).view_as(y))
    tensors = [y, *(x.grad for x in own)]
    return [[round(value, 3) + 0.0 for value in t.sum((0, -1)).flatten().tolist()] for t in tensors]


def ulysses_refused(heads):
    try:
        ulysses_attention(*torch.zeros(3, 1, 2, heads, 2, device=device), False, group)
    except Exception as error:
        return isinstance(error, ValueError)
    return False


check.show_values(
    full=ulysses_values(False, 2, 3),
    causal=ulysses_values(True, 3, 2),
    refused=ulysses_refused(world_size + 1),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# It is right only for a batch of one. For larger batches, the tokens of different samples are mixed, but all shapes are
# right. First move the ranks next to the tokens, and then flatten both.
# </details>
#
# The next cell compares the output with the attention on one rank, and the bytes in the ledger with your prediction:

# %%
# %%px
context_sizes = 2, 240, 12, 8  # batch, sequence, heads, head size
generator = torch.Generator().manual_seed(0)
whole_qkv = torch.randn(3, *context_sizes, generator=generator).to(device)
context_right = F.scaled_dot_product_attention(*whole_qkv.transpose(2, 3), is_causal=True)
own_right = context_right.transpose(1, 2).chunk(world_size, dim=1)[rank]
own_qkv = [x.chunk(world_size, dim=1)[rank].clone().requires_grad_() for x in whole_qkv]

# %%
# %%px
ulysses_sent = {name: Ledger() for name in ("forward", "backward")}
with ulysses_sent["forward"]:
    ulysses_out = ulysses_attention(*own_qkv, True, group)
with ulysses_sent["backward"]:
    ulysses_out.sum().backward()
same = all(comm.allgather(torch.allclose(ulysses_out, own_right, atol=1e-5)))
context_bytes = predict_context_bytes(*context_sizes, world_size)
if rank == 0:
    print(f"the same output as on one rank: {same}")
    for name, ledger in ulysses_sent.items():
        found, predicted_bytes = ledger.ring_bytes(), context_bytes[f"ulysses_{name}"]
        as_predicted = abs(found - predicted_bytes) <= 0.01 * predicted_bytes
        print(f"{name}: {found:,.0f} bytes to other ranks, as you predicted: {as_predicted}")

# %% [markdown]
# ## 10. Merge two partial results
#
# *Difficulty 3/5, 10 minutes.*
#
# Ring attention gets the keys and values one block at a time. How can it compute a softmax over all keys without having all
# scores at the same time? For each query, a block $i$ of keys and values gives two results: the attention output $o_i$ of
# this block alone, and the logarithm $\ell_i$ of the sum of its exponentials,
#
# $$ \ell_i = \log \sum_{j \in \text{block } i} e^{s_j}, \qquad o_i = \sum_{j \in \text{block } i} e^{s_j - \ell_i}\, v_j . $$
#
# Two blocks together have the sum of exponentials $e^{\ell_1} + e^{\ell_2}$, so
#
# $$ \ell = \log\left(e^{\ell_1} + e^{\ell_2}\right), \qquad o = e^{\ell_1 - \ell}\, o_1 + e^{\ell_2 - \ell}\, o_2 . $$
#
# Write `merge`, which returns $o$ and $\ell$. It works on many queries at the same time: `out_1` and `out_2` have the shape
# (…, S, d), and `lse_1` and `lse_2` have the shape (…, S). All have the same float dtype.
#
# - **Large scores:** $\ell_1$ and $\ell_2$ may be ±1000 or far apart. Neither $e^{\ell_1}$ nor $e^{\ell_2}$ need be a float.
#   Subtract the larger of the two before you compute exponentials.
# - **No visible key:** with a causal mask, a query may see no key of a block. Then $\ell_i$ is −∞ and $o_i$ is 0, and the
#   result is that of the other block. If both are −∞, the result is 0 and −∞.
# - **Gradients** of all four arguments are those of the formula. A block without a visible key has the weight 0. If both log-sums
#   are −∞, the gradients may be any finite numbers, but not NaN.
# - **Arguments** do not change.
#
# **Predict**: somebody computes $o = (o_1 + o_2)/2$. For which queries is it right?
#
# <details><summary>Hint 1</summary>
#
# Subtract $m = \max(\ell_1, \ell_2)$: then $\ell = m + \log(e^{\ell_1 - m} + e^{\ell_2 - m})$. The result does not depend on
# $m$, so it needs no gradient (`.detach()`).
# </details>
#
# <details><summary>Hint 2</summary>
#
# If both are −∞, then −∞ − (−∞) is NaN. Use 0 for $m$ there. The sum of the exponentials is 0 then. Replace it by 1 before
# you divide by it or take its logarithm, because the gradient of log 0 is infinite. At the end, `masked_fill` puts −∞ where
# it belongs.
# </details>


# %% tags=["exercise"] exercise="merge"
# %%px
def merge(out_1: Tensor, lse_1: Tensor, out_2: Tensor, lse_2: Tensor) -> tuple[Tensor, Tensor]:
    """Merge the attention outputs of two blocks of keys into that of both blocks.

    Args:
        out_1, out_2: the output for each query, (…, S, d). It is 0 if no key is visible.
        lse_1, lse_2: natural logarithm of the sum of exp(score), (…, S). It is −inf if no key is visible.

    Returns:
        `out` and `lse` of both blocks together, in the same shapes.
    """
    # BEGIN SOLUTION
    nothing = (lse_1 == -torch.inf) & (lse_2 == -torch.inf)
    highest = torch.maximum(lse_1, lse_2).detach().masked_fill(nothing, 0)
    weight_1, weight_2 = (lse_1 - highest).exp(), (lse_2 - highest).exp()
    total = (weight_1 + weight_2).masked_fill(nothing, 1)
    out = weight_1.unsqueeze(-1) * out_1 + weight_2.unsqueeze(-1) * out_2
    lse = (highest + total.log()).masked_fill(nothing, -torch.inf)
    return out / total.unsqueeze(-1), lse
    # END SOLUTION


# %% tags=["check"] exercise="merge" points=3
# %%px
check.merge(merge)


# %% tags=["hidden-check"] exercise="merge" points=1
# %%px --timeout 20
def merged_values(*lses):
    """Rounded results and gradients of `merge`, for queries with these log-sums."""
    blocks = []
    for number, values in enumerate(lses):
        lse = torch.tensor(values, dtype=torch.float64, device=device)
        out = torch.arange(2.0 * len(lse), dtype=torch.float64, device=device).view(-1, 2)
        out = (out + 1 + rank - 5 * number) * lse.isfinite().unsqueeze(-1)
        blocks += [out.requires_grad_(), lse.requires_grad_()]
    out, lse = merge(*blocks)
    (out.square().sum() + lse.clamp(min=-3000).square().sum() / 1000).backward()
    visible = lse.isfinite().unsqueeze(-1)  # without any key, all finite gradients are right
    gradients = [x.grad.view(len(lse), -1) for x in blocks]
    finite = [torch.where(visible, x, torch.where(x.isfinite(), 0.0, 9.0)) for x in gradients]
    tensors = out, lse, *finite
    return [[round(value, 3) + 0.0 for value in t.flatten().tolist()] for t in tensors]


infinite = float("inf")
check.show_values(
    near=merged_values([0.5, 2.0, -1.0], [1.0, 2.0, 3.0]),
    far=merged_values([900.0, -950.0, 1000.0], [901.0, -949.0, -1000.0]),
    none=merged_values([-infinite, 2.0, -infinite], [1.0, -infinite, -infinite]),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# It is right only if both blocks have the same sum of exponentials, or the same output. A block whose scores are larger by 5
# should have 148 times the weight of the other.
# </details>
#
# The next cell splits the keys of one attention head into four blocks, computes each block on its own, and merges the results
# in two orders. The scores are up to some hundreds, where $e^{s}$ is not a float32 any more.

# %%
# %%px --targets 0
torch.manual_seed(0)
one_q, one_k, one_v = torch.randn(3, 64, 16, device=device).unbind()
one_scores = one_q @ one_k.T * 10
blocks = [
    (scores.softmax(-1) @ v, scores.logsumexp(-1))
    for scores, v in zip(one_scores.chunk(4, dim=1), one_v.chunk(4), strict=True)
]
for order in ((0, 1, 2, 3), (2, 0, 3, 1)):
    out, lse = blocks[order[0]]
    for i in order[1:]:
        out, lse = merge(out, lse, *blocks[i])
    same = torch.allclose(out, one_scores.softmax(-1) @ one_v, atol=1e-4)
    print(f"blocks in the order {order}: the output of all keys together: {same}")
print(f"some exponentials of the scores are infinite: {(one_scores.exp() == torch.inf).any()}")

# %% [markdown]
# ## 11. Ring attention
#
# *Difficulty 5/5, 30 minutes.*
#
# Each rank has the queries, keys, and values of its own tokens, for all heads. In *ring attention*, the queries stay where
# they are. Keys and values travel from rank to rank until every rank has seen all of them. In step $s = 0, 1, …, N-1$, rank
# $r$ has the keys and values of rank $r - s$ (mod N), its *owner*. It computes a partial result from this block, and
# merges it with what it has.
#
# `parlab.block_attention` has the computation of one block. q, k, v, and out are (B, a, S/N, d) here, and `visible`
# (queries, keys) is True where a query sees a key, or None if all queries see all keys:
#
# - `attend(q, k, v, visible)` returns `(out, lse)` of one block, ready for `merge`.
# - `attend_backward(gradient, out, lse, q, k, v, visible)` returns what a block adds to the gradient of q, and the
#   gradients of the block's k and v. `gradient` is the gradient of the final output. `out` and `lse` are those of all blocks
#   together. It computes the probabilities again, as `exp(scores − lse)`, so nobody has to keep them.
#
# Write the ring around these two functions. You can use the skeleton below, or something of your own.
#
# - **Mask.** `positions` (N, S/N) has the place in the whole sequence of each rank's tokens. A query sees a key if the
#   key's position is not larger than its own. The positions need not be in order, and no position is there twice. If
#   `positions` is None, there is no mask. Do not call `attend` or `attend_backward` for a block that is masked completely.
# - **Forward pass.** Keys and values are one message. Each rank sends N − 1 messages to the next rank and receives N − 1
#   from the rank before it. A message travels *while* a block is computed: start to send and receive, compute, and then
#   wait.
# - **Memory.** For the backward pass, keep q, k, v, the output, and its lse of this rank, but neither scores nor other ranks' keys
#   and values. At any time, a rank holds at most two blocks of keys and values, in addition to k and v themselves.
# - **Backward pass.** Keys and values travel again, N − 1 times, while blocks are computed. The gradients of a block
#   travel after it, and each rank adds its part. They make N trips, and the last one brings them home to the owner. Keys and
#   values are one message again, and so are their gradients. On one rank, nothing is sent.
#
# Edge cases:
#
# - q, k, and v may be views that are not contiguous. They do not change. They are float32 or float64.
# - If `positions` has another shape than (N, S/N), raise a `ValueError` that names `positions`, before anything is sent.
# - Communicate with `isend` and `irecv` on `group`.
#
# **Predict**: there are 4 ranks with 1,000 tokens each, and a causal mask. Rank $r$ has the tokens from 1000·r on. How many blocks
# does each rank compute in the forward pass? Which rank finishes last?
#
# <details><summary>Hint 1</summary>
#
# `torch.stack((k, v))` is one contiguous tensor, and `k, v = kv` takes it apart. Write a loop over the steps. In each step, except the
# last one, start to pass on `kv`. Then compute. Then wait for both handles, and replace `kv` by what has arrived. The first
# block is the rank's own. It is never masked completely, because each query sees its own key.
# </details>
#
# <details><summary>Hint 2</summary>
#
# In the backward pass, a step starts like a forward step. After the computation, wait for the gradients that the rank before has started to
# send in its previous step. They belong to the same owner as this step's keys. Add this rank's part, and start to
# pass on the sum. After the last step, what arrives is the gradient of this rank's own keys and values.
# </details>


# %% tags=["exercise"] exercise="ring_attention"
# %%px
def pass_on(x: Tensor, group: dist.ProcessGroup) -> tuple[Tensor, list[dist.Work]]:
    """Start to send `x` to the next rank and to receive from the one before; do not wait.

    Returns the tensor that will arrive, and the handles. On one rank, these are `x` and no handles.
    """
    # BEGIN SOLUTION
    rank, ranks = group.rank(), group.size()
    if ranks == 1:
        return x, []
    arriving = torch.empty_like(x)
    sending = dist.isend(x, group=group, group_dst=(rank + 1) % ranks)
    receiving = dist.irecv(arriving, group=group, group_src=(rank - 1) % ranks)
    return arriving, [sending, receiving]
    # END SOLUTION


def visible_keys(positions: Tensor | None, owner: int, rank: int) -> Tensor | None:
    """Which keys of rank `owner` the queries of `rank` see, (queries, keys); None for all."""
    # BEGIN SOLUTION
    return None if positions is None else positions[owner] <= positions[rank][:, None]
    # END SOLUTION


class RingAttention(torch.autograd.Function):
    """`ring_attention`; `blocks` are the functions `attend` and `attend_backward`."""

    @staticmethod
    def forward(ctx, q, k, v, positions, group, blocks):
        # BEGIN SOLUTION
        rank, ranks, (attend, _) = group.rank(), group.size(), blocks
        queries, kv = q.transpose(1, 2), torch.stack((k.transpose(1, 2), v.transpose(1, 2)))
        result = None
        for step in range(ranks):
            if step < ranks - 1:
                arriving, handles = pass_on(kv, group)
            visible = visible_keys(positions, (rank - step) % ranks, rank)
            if visible is None or visible.any():
                part = attend(queries, *kv, visible)
                result = part if result is None else merge(*result, *part)
            if step < ranks - 1:
                for handle in handles:
                    handle.wait()
                kv = arriving
        out, lse = result
        out = out.transpose(1, 2).contiguous()
        ctx.save_for_backward(q, k, v, out, lse, positions)
        ctx.group, ctx.blocks = group, blocks
        return out
        # END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        # BEGIN SOLUTION
        group, (_, attend_backward) = ctx.group, ctx.blocks
        rank, ranks = group.rank(), group.size()
        *saved, lse, positions = ctx.saved_tensors
        q, k, v, out, gradient = (x.transpose(1, 2) for x in (*saved, gradient))
        of_q, kv = torch.zeros_like(q), torch.stack((k, v))
        of_kv, of_kv_handles = 0, []
        for step in range(ranks):
            if step < ranks - 1:
                arriving, handles = pass_on(kv, group)
            visible = visible_keys(positions, (rank - step) % ranks, rank)
            part = torch.zeros_like(kv)
            if visible is None or visible.any():
                of_q_part, *of_kv_part = attend_backward(gradient, out, lse, q, *kv, visible)
                of_q += of_q_part
                part = torch.stack(of_kv_part)
            for handle in of_kv_handles:
                handle.wait()
            of_kv, of_kv_handles = pass_on(part + of_kv, group)
            if step < ranks - 1:
                for handle in handles:
                    handle.wait()
                kv = arriving
        for handle in of_kv_handles:
            handle.wait()
        return *(x.transpose(1, 2) for x in (of_q, *of_kv)), None, None, None
        # END SOLUTION


def ring_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    positions: Tensor | None,
    group: dist.ProcessGroup,
    attend=attend,
    attend_backward=attend_backward,
) -> Tensor:
    """Attention over the tokens of all ranks, for this rank's queries, (B, S/N, a, d).

    q, k, v (B, S/N, a, d) belong to this rank's tokens, and row r of `positions` (N, S/N) to those
    of rank r. Blocks are computed by `attend` and `attend_backward`.
    """
    # BEGIN SOLUTION
    right = (group.size(), q.shape[1])
    if positions is not None and positions.shape != right:
        raise ValueError(f"positions has shape {tuple(positions.shape)}, expected {right}")
    return RingAttention.apply(q, k, v, positions, group, (attend, attend_backward))
    # END SOLUTION


# %% tags=["check"] exercise="ring_attention" points=4
# %%px --timeout 30
check.ring_attention(ring_attention)


# %% tags=["hidden-check"] exercise="ring_attention" points=2
# %%px --timeout 20
def ring_values(positions, group):
    """Output and gradients of tokens whose numbers depend on their positions and the rank."""
    ledger, blocks, shape = Ledger(), [], (2, 3, 1, 2)
    inputs = [
        torch.sin(torch.arange(12.0, dtype=torch.float64).view(shape) * (group.rank() + i + 2))
        for i in range(3)
    ]
    q, k, v = (x.to(device).requires_grad_() for x in inputs)

    def watched(*given):
        blocks.append(given[-1] is not None and int(given[-1].sum()))
        return attend(*given)

    with ledger:
        out = ring_attention(q, k, v, positions, group, watched)
        sent = [ledger.bytes_sent()]
        (out * (k.detach() + rank)).sum().backward()
        sent.append(ledger.bytes_sent() - sent[0])
    block, trips = 2 * k.nbytes, group.size() - 1
    enough = sent[0] == trips * block and sent[1] <= (2 * trips + 1) * block * (trips > 0)
    return [x.tolist() for x in (out, q.grad, k.grad, v.grad)], sorted(blocks), enough


def ring_refuses(positions):
    try:
        ring_values(positions, group)
    except Exception as error:
        return isinstance(error, ValueError)
    return False


places = torch.arange(3 * world_size, device=device).flip(0).view(3, world_size).T
alone = dist.new_group([rank], use_local_synchronization=True)
check.show_values(
    refused=[ring_refuses(places[:, 1:]), ring_refuses(places.flatten())],
    unmasked=ring_values(None, group),
    rows=ring_values(places.T.reshape(world_size, 3), group),
    columns=ring_values(places.contiguous(), group),
    alone=ring_values(torch.tensor([[5, 1, 3]], device=device), alone),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Rank $r$ computes $r + 1$ blocks, because it sees its own tokens and those of all ranks before it. Rank 3 computes all four and finishes last,
# while rank 0 has computed its only block and just passes on messages. The next exercise changes that.
# </details>

# %% [markdown]
# ## 12. The zigzag layout
#
# *Difficulty 2/5, 5 minutes.*
#
# With a causal mask, late tokens see more keys than early ones. If each rank has consecutive tokens, rank 0 computes one block and the
# last rank computes N. All ranks are in one ring, so all of them wait for the last one. The *zigzag* layout gives
# every rank early tokens *and* late tokens. It cuts the sequence into 2N chunks of equal length, and rank $r$ has chunk $r$,
# followed by chunk $2N - 1 - r$.
#
# Write `zigzag_positions`, which returns the positions of each rank's tokens for `ring_attention`: row $r$ has those of rank $r$,
# chunk by chunk. If the sequence cannot be cut into 2N equal chunks, raise a `ValueError` that names `sequence`.
#
# **Predict**: there are 4 ranks and 8 chunks. A query in chunk 2 sees 2 chunks completely, and half of its own chunk, on average. How many
# chunks do the queries of each rank see in the zigzag layout, added over its two chunks? How many do they see if rank $r$ has the chunks $2r$ and $2r + 1$?
#
# <details><summary>Hint 1</summary>
#
# `torch.arange(sequence).view(2 * ranks, -1)` has a row for each chunk.
# </details>
#
# <details><summary>Hint 2</summary>
#
# The first N rows are the early chunks in the order of the ranks. `.flip(0)` turns the last N rows around. Then concatenate along dimension 1.
# </details>


# %% tags=["exercise"] exercise="zigzag_positions"
# %%px
def zigzag_positions(sequence: int, ranks: int) -> Tensor:
    """The positions (ranks, sequence / ranks) int64 of the tokens of each rank, in zigzag layout."""
    # BEGIN SOLUTION
    if sequence % (2 * ranks):
        raise ValueError(f"sequence {sequence} does not divide into {2 * ranks} chunks")
    chunks = torch.arange(sequence).view(2 * ranks, -1)
    return torch.cat((chunks[:ranks], chunks[ranks:].flip(0)), dim=1)
    # END SOLUTION


# %% tags=["check"] exercise="zigzag_positions" points=1
# %%px
check.zigzag_positions(zigzag_positions)

# %% tags=["hidden-check"] exercise="zigzag_positions" points=1
# %%px --timeout 20
check.show_values(
    four=zigzag_positions(24, 4).tolist(),
    one=zigzag_positions(2, 1).tolist(),
    three=zigzag_positions(6, 3).tolist(),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# A query in chunk $c$ sees $c + 1/2$ chunks on average. In the zigzag layout, these are $r + 1/2$ and $2N - 1 - r + 1/2$, so the sum is $2N = 8$ on
# every rank. With consecutive chunks, it is $4r + 2$, that is, 2, 6, 10, and 14.
# </details>

# %% [markdown]
# # Against the library

# %% [markdown]
# LIBRARY 1 STARTS (pairwise all-to-all against Gloo or NCCL, and against `MPI.Alltoall`)

# %% [markdown]
# LIBRARY 2 STARTS (ring attention on the emulated network against its bound, and against Ulysses)

# %% [markdown]
# # Going further
