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
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from mpi4py import MPI
from torch import Tensor, nn

from parlab import models, training
from parlab.checks import all_to_all as check
from parlab.ledger import Ledger
from parlab.plots import experts as experts_plots
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
    scores = (2 * torch.sin(5.3 * numbers + rank)).requires_grad_()
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
# No expert computes tokens 4 to 7. Tokens 0 to 3 fill both queues, although the other two experts have nothing to do.
# </details>
#
# How large should the capacity be? With $T$ tokens, $C = T k / E$ would be enough if the load were even. The *capacity factor*
# multiplies it. The next cell gives random scores to tokens, so no expert is more popular than another, and counts the
# choices that are dropped.

# %%
# %%px
torch.manual_seed(rank)
for tokens in (64, 1024):
    random_scores_TE = torch.randn(tokens, 8).to(device)
    for factor in (1.0, 1.25, 1.5, 2.0):
        slots_Tk = route(random_scores_TE, 2, int(factor * tokens * 2 / 8))[2]
        dropped = (slots_Tk < 0).double().mean().item()
        if rank == 0:
            print(f"{tokens:4} tokens, capacity factor {factor:4}: {dropped:.1%} dropped")

# %% [markdown]
# ## 4. Dispatch
#
# *Difficulty 2/5, 10 minutes.*
#
# An expert computes matrix products, so the tokens that it gets must be rows of one tensor. `dispatch` copies each token into
# the slots that the router has chosen for it. The result always has the shape (E, C, H), whatever the router has chosen. E is the number of
# experts, C the capacity, and H the hidden size.
#
# `x_TH` has the T tokens of this rank, and `experts_Tk` and `slots_Tk` are what `route` returns: choice j of token t is the expert
# `experts_Tk[t, j]`, where the token has the slot `slots_Tk[t, j]`. Write `dispatch`, so that
#
# - the token is in the slot of each of its k choices.
# - a choice with slot −1 is dropped: this token is not copied to this expert.
# - slots that no token has are zero.
# - autograd can go through: the gradient of a token is the sum of the gradients of its copies.
#
# The check also tries tokens that are all dropped, and no tokens at all (T = 0).
#
# **Predict**: a rank has 1,000 tokens, and sends each of them to 2 of 8 experts, which have 250 slots each. The router drops 300
# choices. How many slots are empty?
#
# <details><summary>Hint 1</summary>
#
# `tokens, choices = (slots_Tk >= 0).nonzero(as_tuple=True)` lists the choices that are not dropped: the i-th of them is choice
# `choices[i]` of token `tokens[i]`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Start from `x_TH.new_zeros(...)`. With lists of experts and slots, `y[experts, slots] = rows` writes row i to
# `y[experts[i], slots[i]]`. Autograd follows it.
# </details>


# %% tags=["exercise"] exercise="dispatch"
# %%px
def dispatch(
    x_TH: Tensor, experts_Tk: Tensor, slots_Tk: Tensor, n_experts: int, capacity: int
) -> Tensor:
    """Copy tokens into the slots of their experts: (E, C, H), zeros in empty slots.

    Args:
        x_TH: the tokens of this rank.
        experts_Tk: the k experts of each token, int64.
        slots_Tk: the token's slot at each of them, int64; −1 if it is dropped there.
    """
    # BEGIN SOLUTION
    tokens, choices = (slots_Tk >= 0).nonzero(as_tuple=True)
    slots_ECH = x_TH.new_zeros(n_experts, capacity, x_TH.shape[1])
    slots_ECH[experts_Tk[tokens, choices], slots_Tk[tokens, choices]] = x_TH[tokens]
    return slots_ECH
    # END SOLUTION


# %% tags=["check"] exercise="dispatch" points=2
# %%px --timeout 20
check.dispatch(dispatch)


# %% tags=["hidden-check"] exercise="dispatch" points=1
# %%px --timeout 20
def dispatched(experts_Tk, slots_Tk, n_experts, capacity):
    experts_Tk, slots_Tk = (torch.tensor(t, device=device) for t in (experts_Tk, slots_Tk))
    x_TH = torch.arange(1.0, 1 + 3 * len(experts_Tk), device=device).view(-1, 3) + rank
    x_TH.requires_grad_()
    y_ECH = dispatch(x_TH, experts_Tk, slots_Tk, n_experts, capacity)
    weights = torch.arange(y_ECH.numel(), device=device).view_as(y_ECH)
    (y_ECH * weights).sum().backward()
    return [y_ECH.tolist(), x_TH.grad.tolist()]


check.show_values(
    two=dispatched([[3, 0], [0, 3], [3, 2]], [[0, 1], [0, 1], [-1, 0]], 4, 2),
    one=dispatched([[1], [1], [1], [0]], [[2], [0], [-1], [1]], 2, 3),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 300. There are 8 · 250 = 2,000 slots, and 2 · 1,000 choices. If a capacity is exactly enough for balanced experts, each dropped choice
# leaves a slot empty somewhere else.
# </details>
#
# ## 4b. Combine
#
# *Difficulty 2/5, 5 minutes.*
#
# The experts return a result for each slot, and `combine` goes the opposite way. The result of token t is
# $\sum_j g_{tj}\, y_{tj}$ over its choices j, where $g_{tj}$ is the gate, and $y_{tj}$ is what the expert has computed for this token.
#
# - The result (T, H) is in the order of the tokens, not in the order of experts and slots.
# - A choice that was dropped adds nothing. A token whose choices were all dropped gets zeros.
# - Empty slots do not matter. What the experts return for them is not zero, because they have biases.
# - Gradients flow to `y_ECH` and to `gates_Tk`. Through the gates, the router learns.
#
# **Predict**: in a transformer, the MLP's output is added to its input. What happens to a token that is dropped by all of its
# experts?
#
# <details><summary>Hint 1</summary>
#
# Collect one row for each choice that is not dropped, as in `dispatch`, and multiply it by its gate.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `zeros.index_add(0, tokens, rows)` adds row i to row `tokens[i]` of a tensor of zeros.
# </details>


# %% tags=["exercise"] exercise="combine"
# %%px
def combine(y_ECH: Tensor, experts_Tk: Tensor, slots_Tk: Tensor, gates_Tk: Tensor) -> Tensor:
    """Add up the results of each token's experts, times their gates: (T, H), in the tokens' order.

    Args:
        y_ECH: the experts' results by slot.
        experts_Tk, slots_Tk: as for `dispatch`.
        gates_Tk: the gate of each choice.
    """
    # BEGIN SOLUTION
    tokens, choices = (slots_Tk >= 0).nonzero(as_tuple=True)
    rows = y_ECH[experts_Tk[tokens, choices], slots_Tk[tokens, choices]]
    zeros = y_ECH.new_zeros(len(experts_Tk), y_ECH.shape[2])
    return zeros.index_add(0, tokens, gates_Tk[tokens, choices, None] * rows)
    # END SOLUTION


# %% tags=["check"] exercise="combine" points=2
# %%px --timeout 20
check.combine(combine)


# %% tags=["hidden-check"] exercise="combine" points=1
# %%px --timeout 20
def combined(experts_Tk, slots_Tk, n_experts, capacity):
    experts_Tk, slots_Tk = (torch.tensor(t, device=device) for t in (experts_Tk, slots_Tk))
    y_ECH = torch.arange(1.0, 1 + 2 * n_experts * capacity, device=device) + rank
    y_ECH = y_ECH.view(n_experts, capacity, 2).requires_grad_()
    gates_Tk = (1 + torch.arange(slots_Tk.numel(), device=device).view_as(slots_Tk)) / 16
    gates_Tk.requires_grad_()
    y_TH = combine(y_ECH, experts_Tk, slots_Tk, gates_Tk)
    (y_TH * (1 + torch.arange(y_TH.numel(), device=device).view_as(y_TH))).sum().backward()
    return [y_TH.tolist(), y_ECH.grad.tolist(), gates_Tk.grad.tolist()]


check.show_values(
    two=combined([[3, 0], [0, 3], [3, 2]], [[0, 1], [0, 1], [-1, 0]], 4, 2),
    one=combined([[1], [1], [1], [0]], [[2], [0], [-1], [1]], 2, 3),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# It passes the layer unchanged: the MLP adds zeros to it. Therefore, a model can afford to drop some tokens.
# </details>

# %% [markdown]
# ## 5. An all-to-all for autograd
#
# *Difficulty 2/5, 5 minutes.*
#
# `dist.all_to_all_single(output, x, group=group)` sends the j-th of N equal parts of x to rank j, and part i of
# `output` comes from rank i. Autograd does not know about other ranks, so write both directions yourself.
#
# - `exchange(x, group)` gets x (N, …), sends `x[j]` to rank j, and returns a new tensor of the same shape, of which row i came from rank i.
# - In the backward pass, the gradient of each row must get to the rank that the row came from.
# - Each direction is one all-to-all. It needs contiguous tensors, but neither x nor the gradient has to be contiguous in memory.
# - If x does not have N rows, raise a `ValueError` that names their number, before anything is sent.
#
# **Predict**: the loss of a rank is the sum of all numbers of `exchange(x, group)`, times the rank's number. What is the gradient of `x[j]` on rank r?
#
# <details><summary>Hint 1</summary>
#
# Row j of x on rank i becomes row i on rank j. Its gradient is row i of the gradient on rank j, and has to become row j on rank i. That
# is the same exchange.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `output = torch.empty_like(x, memory_format=torch.contiguous_format)`, and then
# `dist.all_to_all_single(output, x.contiguous(), group=group)`. Store the group in `ctx`.
# </details>


# %% tags=["exercise"] exercise="exchange"
# %%px
class Exchange(torch.autograd.Function):
    """An all-to-all of rows in both passes."""

    @staticmethod
    def forward(ctx, x, group):
        # BEGIN SOLUTION
        ctx.group = group
        output = torch.empty_like(x, memory_format=torch.contiguous_format)
        dist.all_to_all_single(output, x.contiguous(), group=group)
        return output
        # END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        # BEGIN SOLUTION
        return Exchange.apply(gradient, ctx.group), None
        # END SOLUTION


def exchange(x: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Send row j of x (N, …) to rank j; return (N, …), of which row i came from rank i."""
    # BEGIN SOLUTION
    if len(x) != group.size():
        raise ValueError(f"x has {len(x)} rows, but there are {group.size()} ranks")
    return Exchange.apply(x, group)
    # END SOLUTION


# %% tags=["check"] exercise="exchange" points=2
# %%px --timeout 20
check.exchange(exchange)


# %% tags=["hidden-check"] exercise="exchange" points=1
# %%px --timeout 20
def exchanged(*shape):
    x = torch.arange(1.0, 1 + world_size * math.prod(shape), device=device) + 100 * rank
    x = x.view(*shape, world_size).movedim(-1, 0).requires_grad_()
    y, ledger = exchange(x, group), Ledger()
    with ledger:
        (y * torch.arange(y.numel(), device=device).view_as(y) * (rank + 1)).sum().backward()
    return [y.tolist(), x.grad.tolist(), ledger.count()]


def too_many_rows():
    try:
        exchange(torch.ones(2 * world_size, 2, device=device), group)
    except Exception as error:
        return isinstance(error, ValueError)
    return False


check.show_values(vectors=exchanged(3), matrices=exchanged(2, 2), refused=too_many_rows())

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# It is j on every rank r: row j was used by rank j, which multiplied it by j.
# </details>
#
# ## 5b. A layer whose experts are spread over the ranks
#
# *Difficulty 4/5, 20 minutes.*
#
# In *expert parallelism*, each of N ranks has E/N experts, and its own tokens. Each layer sends the tokens to the ranks of their
# experts, and the results back. Write `ExpertParallelMLP`. Its forward pass has five steps:
#
# 1. The router scores this rank's tokens, and `route` chooses their experts, gates, and slots. The capacity is that of one expert **for the tokens
#    of one rank**.
# 2. `dispatch` copies the tokens into (E, C, H): C slots for each expert of each rank.
# 3. `exchange` sends to each rank the slots of its experts. Each rank receives C slots from each rank for each of its own experts.
# 4. Each own expert computes all of its N · C rows in one call.
# 5. `exchange` sends the results back, and `combine` puts them together.
#
# - `experts` has all E experts, which are the same on all ranks, and compute each row on its own. Rank r keeps experts $rE/N$ to $(r+1)E/N - 1$ in
#   `self.experts`, an `nn.ModuleList`. It keeps no reference to the others, so that their memory becomes free. `self.router` is the router.
# - After each forward pass, `self.last` is the pair `(probabilities_TE, experts_Tk)`: the softmax of the router's scores over all experts, with
#   its graph, and the chosen experts. Exercise 8 computes a loss from them.
# - Each rank sends 2 all-to-alls of E · C · H numbers in the forward pass, 2 in the backward pass, and nothing else.
#
# The outputs are those of the whole layer on one rank, and so are the gradients: an own expert gets gradients from the tokens of *all*
# ranks. The router has only those of this rank's tokens. Edge cases:
#
# - **Experts that cannot be shared evenly:** if N does not divide E, `__init__` raises a `ValueError` that names E.
# - **Uneven tokens:** the number of tokens T may be different on each rank.
#
# **Predict**: an empty slot is a row of zeros, and an expert with biases returns something else for it. Why does this change neither the
# outputs nor the experts' gradients?
#
# <details><summary>Hint 1</summary>
#
# After `dispatch`, the first E/N experts belong to rank 0. `.unflatten(0, (N, -1))` makes it (N, E/N, C, H), of which `exchange`
# sends row j to rank j. What arrives has the same shape, but now the first index is the rank where the tokens come from.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `arrived.transpose(0, 1).flatten(1, 2)` is (E/N, N · C, H), so that its row i belongs to own expert i. `torch.stack` puts the results of the
# experts together, and `.unflatten(1, (N, -1)).transpose(0, 1)` undoes the change of shape.
# </details>


# %% tags=["exercise"] exercise="expert_parallel_mlp"
# %%px
class ExpertParallelMLP(nn.Module):
    """A mixture of experts of which each rank has E/N; called with its own tokens (T, H).

    Args:
        router: from a token to a score for each of the E experts.
        experts: all E experts, the same on all ranks.
        k: how many experts each token goes to.
        capacity: the slots of each expert for the tokens of each rank.
    """

    def __init__(
        self,
        router: nn.Linear,
        experts: Sequence[nn.Module],
        k: int,
        capacity: int,
        group: dist.ProcessGroup,
    ) -> None:
        super().__init__()
        self.router, self.k, self.capacity, self.group = router, k, capacity, group
        # BEGIN SOLUTION
        if len(experts) % group.size():
            raise ValueError(f"{len(experts)} experts do not divide over {group.size()} ranks")
        own = len(experts) // group.size()
        self.experts = nn.ModuleList(experts[group.rank() * own : (group.rank() + 1) * own])
        # END SOLUTION

    def forward(self, x_TH: Tensor) -> Tensor:
        # BEGIN SOLUTION
        ranks, scores_TE = self.group.size(), self.router(x_TH)
        experts_Tk, gates_Tk, slots_Tk = route(scores_TE, self.k, self.capacity)
        self.last = scores_TE.softmax(-1), experts_Tk
        slots_ECH = dispatch(x_TH, experts_Tk, slots_Tk, scores_TE.shape[1], self.capacity)
        # (N, E/N, C, H): first by the experts' rank, and after the exchange by the tokens' rank
        arrived = exchange(slots_ECH.unflatten(0, (ranks, -1)), self.group)
        own = arrived.transpose(0, 1).flatten(1, 2)  # (E/N, N · C, H)
        results = torch.stack([expert(rows) for expert, rows in zip(self.experts, own)])  # noqa: B905
        results = results.unflatten(1, (ranks, -1)).transpose(0, 1)
        y_ECH = exchange(results, self.group).flatten(0, 1)
        return combine(y_ECH, experts_Tk, slots_Tk, gates_Tk)
        # END SOLUTION


# %% tags=["check"] exercise="expert_parallel_mlp" points=4
# %%px --timeout 30
check.expert_parallel_mlp(ExpertParallelMLP)


# %% tags=["hidden-check"] exercise="expert_parallel_mlp" points=2
# %%px --timeout 30
def waves(module, start):
    """The module with weights in float64 that no generator has drawn."""
    for p in module.to(device).double().parameters():
        p.data = torch.sin(1.7 * torch.arange(p.numel(), device=device) + start).view_as(p).double()
    return module


def expert_values(n_experts, k, capacity, tokens):
    experts = [waves(nn.Linear(3, 3), 10 + i) for i in range(n_experts)]
    layer, ledger = (
        ExpertParallelMLP(waves(nn.Linear(3, n_experts), 1), experts, k, capacity, group),
        Ledger(),
    )
    x_TH = torch.cos(0.9 * torch.arange(3 * tokens, device=device) + rank).view(-1, 3).double()
    x_TH.requires_grad_()
    with ledger:
        y_TH = layer(x_TH)
        probabilities_TE, experts_Tk = layer.last
        (y_TH.square().sum() + probabilities_TE[:, 0].sum()).backward()
    gradients = [x_TH.grad, layer.router.weight.grad, *(p.grad for p in layer.experts.parameters())]
    values = [t.tolist() for t in (y_TH, experts_Tk, *gradients)]
    return [values, ledger.count("all_to_all"), ledger.count(), len(list(layer.parameters()))]


check.show_values(
    two=expert_values(2 * world_size, 2, 3, 5 + rank),
    one=expert_values(world_size, 1, 4, 6),
    all=expert_values(3 * world_size, 3 * world_size, 2, 4 - rank % 2),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# No choice of a token refers to an empty slot, so `combine` never reads its result. Therefore, the gradient of this result is zero, and a row
# with a gradient of zero adds nothing to the gradients of the expert's weights and biases.
# </details>

# %% [markdown]
# ## 6. How many bytes does the layer send?
#
# *Difficulty 2/5, 10 minutes.*
#
# The *capacity factor* f says how many slots an expert has: f times as many as it needs if all experts are chosen equally often, rounded
# up. With f = 1, there is no slot to spare.
#
# Each of N ranks has T tokens of H numbers in float32. There are E experts in total, and k for each token. **Predict in numbers**:
#
# - `capacity`: the slots of one expert for the tokens of *one* rank
# - `exchange`: the bytes that a rank sends to other ranks in one all-to-all of your layer
# - `layer`: the bytes that a rank sends to other ranks in the forward and the backward pass of the layer
# - `needed`: the bytes of `layer` that would be enough if empty slots were not sent, when all experts are chosen equally often and no token is dropped


# %% tags=["exercise"] exercise="predict_expert_bytes"
# %%px
def predict_expert_bytes(
    tokens: int, hidden: int, experts: int, k: int, factor: float, world_size: int
) -> dict[str, float]:
    """Bytes that one rank sends: `exchange`, `layer`, and `needed`; and the `capacity` in slots."""
    # BEGIN SOLUTION
    capacity = math.ceil(factor * tokens * k / experts)
    others = (world_size - 1) / world_size
    exchange = 4 * experts * capacity * hidden * others
    return {
        "capacity": capacity,
        "exchange": exchange,
        "layer": 4 * exchange,
        "needed": 4 * 4 * tokens * k * hidden * others,
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_expert_bytes" points=2
# %%px --timeout 20
check.predict_expert_bytes(predict_expert_bytes)

# %% tags=["hidden-check"] exercise="predict_expert_bytes" points=1
# %%px --timeout 20
check.show_values(
    **{
        name: [
            round(predict_expert_bytes(*sizes)[name])
            for sizes in ((100, 24, 12, 2, 1.25, 6), (33, 5, 8, 1, 2.0, 2), (64, 16, 4, 3, 1.0, 1))
        ]
        for name in ("capacity", "exchange", "layer", "needed")
    }
)

# %% [markdown]
# The next cell counts what your layer sends:

# %%
# %%px --timeout 60
tokens_TH = torch.randn(96, 32, device=device, requires_grad=True)
sent_by_factor = {}
for factor in (1.0, 1.25, 2.0):
    predicted = predict_expert_bytes(96, 32, 2 * world_size, 2, factor, world_size)
    torch.manual_seed(0)
    router = nn.Linear(32, 2 * world_size).to(device)
    experts = [nn.Linear(32, 32).to(device) for _ in range(2 * world_size)]
    layer = ExpertParallelMLP(router, experts, 2, predicted["capacity"], group)
    with Ledger() as sent_by_factor[factor]:
        layer(tokens_TH).sum().backward()
    sent = sent_by_factor[factor]
    if rank == 0:
        print(f"factor {factor}: {sent.count('all_to_all')} all-to-alls", end=", ")
        print(
            f"{sent.ring_bytes():,.0f} bytes sent, you predicted {predicted['layer']:,.0f};",
            end=" ",
        )
        print(f"{predicted['needed'] / predicted['layer']:.0%} would be enough")

# %% [markdown]
# The hidden numbers of the experts are never sent, so larger experts cost no bytes. What costs bytes is the number of experts for each
# token, and the capacity factor.

# %% [markdown]
# # Part C: training with experts

# %% [markdown]
# ## 7. Which ranks share a gradient?
#
# *Difficulty 3/5, 10 minutes.*
#
# Expert parallelism is often combined with data parallelism. Four ranks can be 2 × 2: ranks 0 and 1 share one set of experts, and
# ranks 2 and 3 share a copy of this set. Every rank has its own tokens, and computes the mean loss over them.
#
# | | exists on | after the backward pass, its gradient has the tokens of |
# |---|---|---|
# | `shared`: router, attention, norms, … | all ranks | this rank |
# | `own`: an expert of rank 0 | ranks 0 and 2, its *replicas* | ranks 0 and 1, which the all-to-all has brought together |
#
# Write `average_gradients`, which a rank calls after the backward pass. Afterwards, each gradient on each rank is that of **the mean of the N ranks'
# losses**, where N is the number of all ranks.
#
# - Communicate each gradient once, and over no more ranks than necessary: `shared` over the group `all_ranks`, and `own` over the group `replicas`.
# - On one rank, the `.grad` of a parameter can be None because the loss does not depend on it, while another rank has a gradient. None counts as
#   zeros, and all ranks must make the same calls.
#
# **Predict**: somebody divides the expert's gradients by the number of replicas, as data parallelism does. By which factor
# are they wrong, on 4 ranks = 2 × 2? Do you notice it with Adam, and with SGD?
#
# <details><summary>Hint 1</summary>
#
# The loss is the sum over all ranks of (loss of the rank) / N. The gradient of a sum is the sum of the gradients. Which of its N terms are already
# added up in the expert's gradient on rank 0, and which are on rank 2?
# </details>
#
# <details><summary>Hint 2</summary>
#
# `dist.all_reduce(p.grad, group=replicas)` adds up, and then divide by `all_ranks.size()`.
# </details>


# %% tags=["exercise"] exercise="average_gradients"
# %%px
def average_gradients(
    shared: Sequence[nn.Parameter],
    own: Sequence[nn.Parameter],
    all_ranks: dist.ProcessGroup,
    replicas: dist.ProcessGroup,
) -> None:
    """Make each `.grad` the gradient of the mean of all ranks' losses.

    Args:
        shared: parameters that all ranks have.
        own: parameters of experts, which only the ranks of `replicas` have.
    """
    # BEGIN SOLUTION
    for parameters, ranks in ((shared, all_ranks), (own, replicas)):
        for p in parameters:
            if p.grad is None:
                p.grad = torch.zeros_like(p)
            dist.all_reduce(p.grad, group=ranks)
            p.grad /= all_ranks.size()
    # END SOLUTION


# %% tags=["check"] exercise="average_gradients" points=3
# %%px --timeout 30
check.average_gradients(average_gradients)


# %% tags=["hidden-check"] exercise="average_gradients" points=1
# %%px --timeout 30
def averaged(replicas):
    sizes = {"shared": ((2, 3), (4,)), "own": ((3,), (1, 2), (2,))}
    parameters = {
        name: [nn.Parameter(torch.ones(shape, device=device)) for shape in shapes]
        for name, shapes in sizes.items()
    }
    every = [*parameters["shared"], *parameters["own"]]
    for i, p in enumerate(every):
        if i != 1 + rank:
            p.grad = (10.0**rank * torch.arange(1 + i, 1 + i + p.numel(), device=device)).view_as(p)
    average_gradients(parameters["shared"], parameters["own"], group, replicas)
    return [p.grad.tolist() for p in every]


alone = dist.new_group([rank], use_local_synchronization=True)
same_parity = [r for r in range(world_size) if (r - rank) % 2 == 0]
pairs = dist.new_group(same_parity, use_local_synchronization=True)
check.show_values(all=averaged(group), one=averaged(alone), pairs=averaged(pairs))
for one in (pairs, alone):
    dist.destroy_process_group(one)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# They are N / replicas = 2 times too large. SGD takes steps for the experts that are twice as long. Adam divides by the size of the gradients, so it takes almost the
# same steps, and the loss curve does not show the error. It shows up as soon as gradients are clipped by their norm.
# </details>

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
    probabilities = (2 * torch.sin(5.3 * numbers + rank)).softmax(-1).requires_grad_()
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
#
# Now train the small GPT on text. In each block, your layer with eight experts takes the place of the MLP. Each token goes to one
# expert ($k = 1$), and an expert has twice as many slots as it needs if the load is even. Each rank has a part of each batch.
#
# **Predict**: without the balance loss, how many of the eight experts get more than 1% of the tokens at the end?

# %%
# %%px --timeout 60
gpt_config = models.GPTConfig(sequence_length=32, hidden_size=32)
n_experts = 8 // world_size * world_size
text = [
    (tokens[rank::world_size], targets[rank::world_size])
    for tokens, targets in training.text_batches(120, 16, gpt_config.sequence_length, device)
]


class BlockOfExperts(ExpertParallelMLP):
    """The layer for the (batch, seq, hidden) of a block."""

    def forward(self, x_BSH: Tensor) -> Tensor:
        return super().forward(x_BSH.flatten(0, 1)).view_as(x_BSH)


# %%
# %%px
def expert(h):
    return nn.Sequential(nn.Linear(h, h), nn.GELU(), nn.Linear(h, h)).to(device)


def gpt_with_experts():
    """The GPT, with the learner's layer of experts in each block."""
    torch.manual_seed(0)
    model, h = models.GPT(gpt_config).to(device), gpt_config.hidden_size
    capacity = math.ceil(2.0 * text[0][0].numel() / n_experts)
    for block in model.blocks:
        router = nn.Linear(h, n_experts, bias=False).to(device)
        experts = [expert(h) for _ in range(n_experts)]
        block.mlp = BlockOfExperts(router, experts, 1, capacity, group)
    return model


# %% [markdown]
# Only this rank has its own experts, so their replicas are this rank alone. All other parameters are shared.


# %%
# %%px
def train_experts(factor, alone):
    """Train with `factor` times the balance loss; return losses and the last layer's load."""
    model, losses, counts = gpt_with_experts(), [], []
    own = [p for block in model.blocks for p in block.mlp.experts.parameters()]
    shared = [p for name, p in model.named_parameters() if ".experts." not in name]
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for tokens, targets in text:
        optimizer.zero_grad()
        loss = training.token_loss(model(tokens), targets)
        balance = sum(balance_loss(*block.mlp.last, group) for block in model.blocks)
        (loss + factor * balance).backward()
        average_gradients(shared, own, group, alone)
        optimizer.step()
        losses.append(loss.detach())
        counts.append(F.one_hot(model.blocks[-1].mlp.last[1], n_experts).sum((0, 1)))
    losses, counts = torch.stack(losses), torch.stack(counts).float()
    for total in (losses, counts):
        dist.all_reduce(total, group=group)
    return losses / world_size, counts / counts.sum(-1, keepdim=True)


# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
alone = dist.new_group([rank], use_local_synchronization=True)
trained = {f"{factor} × the loss": train_experts(factor, alone) for factor in (0, 0.05)}
dist.destroy_process_group(alone)
if rank == 0:
    for name, (losses, loads) in trained.items():
        used = (loads[-20:].mean(0) > 0.01).sum()
        print(f"{name}: {used} experts get more than 1%", end=", ")
        print(f"the busiest one gets {loads[-20:].mean(0).max():.0%}", end="; ")
        print(f"the loss of the text is {losses[-20:].mean():.2f}")
    loads = {name: load.tolist() for name, (_, load) in trained.items()}
    experts_plots.expert_load("With the balance loss, all experts share the work", loads)

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
