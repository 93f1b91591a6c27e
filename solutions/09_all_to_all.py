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
# ## 3. Choose experts, and keep their queues short
#
# *Difficulty 3/5, 15 minutes.*
#
# A *router* decides which experts compute a token. It is a linear layer that gives each token a score for each of the $E$
# experts, and a softmax over the scores of a token turns them into probabilities. The $k$ most probable experts compute the token, and
# each result is later multiplied by the probability of its expert, the *gate*. This is how the router learns: the gradient
# of the gate shows whether more of this expert would help.
#
# Nothing forces tokens to choose different experts, but a message and a matrix product have a fixed size. Therefore, each
# expert takes at most `capacity` tokens from each rank. Its tokens stand in a queue, and the first `capacity` of them get a *slot*,
# numbered from 0. The other choices are *dropped*: this expert does not compute this token.
#
# Write `route`, which a rank calls with the scores of its own tokens. It sends nothing.
#
# - **Experts** of a token come in order of their probability, the most probable one first.
# - **Gates** are their probabilities under the softmax over all experts, and are not scaled so that they add up to 1. The gradient flows
#   through them to the scores. A dropped choice also has its probability as its gate.
# - **Queues.** First come the first choices of all tokens, in the tokens' order. After these come the second choices of all
#   tokens, and so on. An expert has one queue for all of them.
# - **Slots** are places in the queue of the chosen expert. A dropped choice has −1.
#
# Edge cases:
#
# - `k` can be the number of experts, and a rank can have no tokens.
# - If `k` is not between 1 and the number of experts, or if `capacity` is less than 1, raise a `ValueError` that names the
#   argument.
# - You need not care about experts with equal probabilities.
#
# **Predict**: a rank has 8 tokens, 4 experts, $k = 2$, and a capacity of 4, which is just enough if the load is even. All tokens have
# the same expert as their first choice, and another one as their second choice. Which tokens does no expert compute?
#
# <details><summary>Hint 1</summary>
#
# `tensor.topk(k)` returns the k largest numbers of each row and their indices, in descending order. `experts_Tk.T.flatten()` has
# all choices in the order in which they stand in line.
# </details>
#
# <details><summary>Hint 2</summary>
#
# In `F.one_hot(choices, n_experts)`, each row has a 1 in the column of its expert. `cumsum(0)` then counts, for each choice, how many up to
# and including this one chose each expert. `gather` picks the column of the chosen expert.
# </details>


# %% tags=["exercise"] exercise="route"
# %%px
def route(scores_TE: Tensor, k: int, capacity: int) -> tuple[Tensor, Tensor, Tensor]:
    """The experts of each token, their gates, and the slots in which they get the token.

    Args:
        scores_TE: the router's scores of this rank's tokens for all experts, before the softmax.
        k: number of experts of each token.
        capacity: number of tokens that each expert takes from this rank.

    Returns:
        experts_Tk: int64; the most probable expert of a token comes first.
        gates_Tk: the probabilities of these experts, in the dtype of the scores.
        slots_Tk: int64, from 0 to `capacity` − 1; −1 if the expert drops the token.
    """
    # BEGIN SOLUTION
    n_experts = scores_TE.shape[1]
    if not 1 <= k <= n_experts:
        raise ValueError(f"k is {k}: choose between 1 and {n_experts} experts for each token")
    if capacity < 1:
        raise ValueError(f"capacity is {capacity}: an expert needs at least one slot")
    gates_Tk, experts_Tk = scores_TE.softmax(-1).topk(k)
    queue = experts_Tk.T.flatten()
    so_far = F.one_hot(queue, n_experts).cumsum(0)
    places = so_far.gather(1, queue.unsqueeze(1)) - 1
    slots_Tk = places.view(experts_Tk.T.shape).T
    return experts_Tk, gates_Tk, slots_Tk.where(slots_Tk < capacity, -1)
    # END SOLUTION


# %% tags=["check"] exercise="route" points=3
# %%px
check.route(route)


# %% tags=["hidden-check"] exercise="route" points=1
# %%px --timeout 20
def routed(tokens, n_experts, k, capacity):
    numbers = torch.arange(tokens * n_experts, device=device).view(tokens, n_experts)
    scores = ((numbers * 37 + 11 * rank) % 101 / 25).requires_grad_()
    experts, gates, slots = route(scores, k, capacity)
    (gates * torch.arange(1, k + 1, device=device)).sum().backward()
    floats = [[round(x, 4) for x in t.flatten().tolist()] for t in (gates, scores.grad)]
    return [experts.tolist(), slots.tolist(), *floats]


def route_refused(k, capacity):
    try:
        route(torch.zeros(2, 3, device=device), k, capacity)
    except Exception as error:
        return isinstance(error, ValueError)
    return False


check.show_values(
    one=routed(7, 3, 1, 2),
    two=routed(9, 4, 2, 3),
    all=routed(5, 3, 3, 4),
    none=routed(0, 3, 2, 1),
    refused=[route_refused(4, 1), route_refused(0, 1), route_refused(1, 0)],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# No expert computes tokens 4 to 7. Tokens 0 to 3 fill both queues, although the other two experts have nothing to do. A transformer adds the
# output of the layer to its input, so these tokens pass the layer unchanged.
# </details>
#
# How large should the capacity be? With $T$ tokens, $C = T k / E$ would be enough if the load were even. The *capacity factor*
# multiplies it. The next cell gives random scores to tokens, so no expert is more popular than another, and counts the
# choices that are dropped.

# %%
# %%px
torch.manual_seed(rank)
random_scores_TE = torch.randn(512, 8).to(device)
for factor in (1.0, 1.25, 1.5, 2.0):
    for_each_expert = int(factor * 512 * 2 / 8)
    dropped = (route(random_scores_TE, 2, for_each_expert)[2] < 0).double().mean().item()
    if rank == 0:
        print(f"capacity factor {factor:4}: {for_each_expert:3} slots, {dropped:.1%} dropped")

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
# ## 8. Balance the load
#
# *Difficulty 3/5, 15 minutes.*
#
# An expert that gets more tokens learns more, so the router prefers it even more. If nothing stops this, a few experts do all the
# work. The Switch Transformer adds a loss to that of the model, with a small factor such as 0.01:
#
# $$
# L = E \sum_{e=0}^{E-1} f_e P_e
# $$
#
# - $f_e$ is expert $e$'s share of all choices. With $k$ experts for each token, $T$ tokens make $Tk$ choices, and a dropped
#   choice counts like the others. All $f_e$ add up to 1.
# - $P_e$ is the mean of all tokens' probabilities for expert $e$. All $P_e$ add up to 1, too.
#
# The loss is 1 if the load is even. Counting has no gradient, so $f$ is a constant, and the gradient flows through $P$: it
# lowers the probabilities of experts in proportion to their load.
#
# Write `balance_loss`. Both $f$ and $P$ are taken over **the tokens of all ranks**.
#
# - **Value.** All ranks return the same loss, a tensor of shape ().
# - **Gradient.** Every rank adds this loss to its own, and after the backward pass, `average_gradients` takes the mean of all $N$ ranks'
#   gradients for the router. A rank knows only its own tokens' part of the gradient, so the mean of the parts is $N$ times too small. Make up for it: the
#   gradient of `probabilities_TE` is $N$ times the derivative of $L$.
# - **Communication.** The ranks send sums for each expert, not the tokens' numbers. The backward pass may also send
#   something, but it need not.
#
# Edge cases:
#
# - Ranks can have different numbers of tokens, and some ranks none. A token counts as much as any other.
# - The chosen experts need not be the most probable ones. Some methods choose in another way.
#
# **Predict**: there are as many experts as ranks, and $k = 1$. All tokens of rank $r$ choose expert $r$, with probability 1. What is the loss?
# What would it be, if each rank computed it from its own tokens?
#
# <details><summary>Hint 1</summary>
#
# Concatenate three things into one tensor for a single all-reduce: the sums of probabilities, the numbers of choices, and the
# number of tokens. `torch.bincount(experts_Tk.flatten(), minlength=n_experts)` counts choices.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Autograd does not see an all-reduce. Pass it `own.detach()`, where `own` has this rank's sums of probabilities. Then
# `total + n * (own - own.detach())` has the value of the total, and `n` times the gradient of `own`.
# </details>


# %% tags=["exercise"] exercise="balance_loss"
# %%px
def balance_loss(probabilities_TE: Tensor, experts_Tk: Tensor, group: dist.ProcessGroup) -> Tensor:
    """The load-balancing loss over the tokens of all ranks of `group`: 1 if the load is even.

    Args:
        probabilities_TE: the softmax of the router's scores of this rank's tokens. Its gradient is
            `group.size()` times the derivative of the loss.
        experts_Tk: int64; the experts that these tokens have chosen.
    """
    # BEGIN SOLUTION
    tokens, n_experts = probabilities_TE.shape
    own = probabilities_TE.sum(0)
    choices = torch.bincount(experts_Tk.flatten(), minlength=n_experts)
    total = torch.cat([own.detach(), choices, own.new_tensor([tokens])])
    dist.all_reduce(total, group=group)
    sums, choices, tokens = total.split([n_experts, n_experts, 1])
    sums = sums + group.size() * (own - own.detach())
    return n_experts * (choices / choices.sum()) @ (sums / tokens)
    # END SOLUTION


# %% tags=["check"] exercise="balance_loss" points=3
# %%px
check.balance_loss(balance_loss)


# %% tags=["hidden-check"] exercise="balance_loss" points=1
# %%px --timeout 20
def balanced(tokens, n_experts, k):
    numbers = torch.arange(tokens * n_experts, device=device).view(tokens, n_experts)
    probabilities = (((numbers + 5 * rank) * 37) % 101 / 25).softmax(-1).requires_grad_()
    experts = probabilities.detach().topk(k).indices
    loss = balance_loss(probabilities, experts, group)
    (3 * loss).backward()
    return [round(loss.item(), 4), [round(x, 4) for x in probabilities.grad.flatten().tolist()]]


check.show_values(
    one=balanced(6, 5, 1), two=balanced(4 + 2 * rank, 4, 2), empty=balanced(3 * (rank == 0), 3, 1)
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The load is even, so the loss is 1. From its own tokens, each rank would compute $N$, the largest loss that is possible. Such a loss
# forces every rank to use all experts equally, although only the load over all ranks matters.
# </details>

# %% [markdown]
# # Part D: a sequence that is split among ranks

# %% [markdown]
# SECTION 9 STARTS (predict_context_bytes, ulysses_attention)

# %% [markdown]
# SECTION 10 STARTS (merge)

# %% [markdown]
# SECTION 11 STARTS (ring_attention)

# %% [markdown]
# SECTION 12 STARTS (zigzag_positions)

# %% [markdown]
# # Against the library

# %% [markdown]
# LIBRARY 1 STARTS (pairwise all-to-all against Gloo or NCCL, and against `MPI.Alltoall`)

# %% [markdown]
# LIBRARY 2 STARTS (ring attention on the emulated network against its bound, and against Ulysses)

# %% [markdown]
# # Going further
