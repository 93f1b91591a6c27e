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
# SECTION 9 STARTS (predict_context_bytes, ulysses_attention)

# %% [markdown]
# SECTION 10 STARTS (merge)

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
