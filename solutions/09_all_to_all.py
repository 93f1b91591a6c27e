# %% [markdown]
# # Lab 09: Experts and long contexts
#
# In an all-to-all, every rank sends a different part of its data to every other rank. Two methods for large models
# are built on it. A *mixture of experts* has many MLPs in each layer, and each token goes to only a few of them, which may be on other ranks, so ranks exchange tokens. In *Ulysses* attention, each rank gives away most heads of its own tokens, and gets the whole sequence for a few heads. In this lab,
# you write the all-to-all, then a layer of experts that are spread over the ranks, and see what happens when nothing balances the load. Finally, you compute the attention of a long sequence in two ways, with Ulysses and
# with keys and values that travel around a ring, and you **predict the bytes that each rank sends**.
#
# | | |
# |---|---|
# | **You will be able to** | write the all-to-all for equal and unequal parts; route tokens to experts with a capacity; write an expert-parallel layer with its backward pass; reduce the gradients of experts over the right ranks; balance the load; compute attention over a sequence that is split among ranks with Ulysses and with a ring; balance a causal mask |
# | **Time** | 204 minutes: 184 for exercises, 15 for reading, 5 for the library |
# | **You need** | PyTorch and mpi4py; [lab 01](01_mpi.ipynb) and [lab 04](04_tensor_parallel.ipynb), or basic knowledge of message passing and of transformer layers. You do not need a GPU |
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

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from mpi4py import MPI
from torch import Tensor, nn

from parlab import models, training
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
# ## 1. Pairwise all-to-all
#
# *Difficulty 2/5, 12 minutes.*
#
# Every rank has one row for each rank: rank r's row j goes to rank j. The exchange takes N − 1 steps. In step s, rank r
# sends to rank r + s and receives from rank r − s, counted around the ring. So in each step, each rank sends one message
# and receives one, and no rank has to receive from several ranks at once:
#
# ```text
#           rank 0   rank 1   rank 2   rank 3
# step 1    to 1     to 2     to 3     to 0
# step 2    to 2     to 3     to 0     to 1
# step 3    to 3     to 0     to 1     to 2
# ```
#
# - **Own row:** a rank copies its own row to the result, without a message.
# - **Steps:** all ranks send at the same time. Messages leave in the order of the steps, but a rank may begin a step before its previous step is complete.
# - **Wrong size:** if `x` does not have N rows, raise a `ValueError` that names `x`, before anything is sent.
# - **Messages:** use calls that send arrays between two ranks, such as `Sendrecv` and `Isend`. Calls with lowercase names, such as `sendrecv`, pickle the array.
#
# **Predict**: each rank's array has S bytes. How many bytes does a rank send? Compare it with the all-gather of a ring,
# where each rank ends with S bytes as well.
#
# <details><summary>Hint 1</summary>
#
# `x[j : j + 1]` is a view of row j, so it can be sent as it is, and a row of a new array can receive it. (If rows are
# single numbers, `x[j]` is a copy, which cannot receive anything.)
# </details>
#
# <details><summary>Hint 2</summary>
#
# For each `step` from 1 to N − 1, compute `to = (comm.rank + step) % comm.size` and
# `source = (comm.rank - step) % comm.size`. Then call `comm.Sendrecv` with `dest=to`, `source=source`, and
# `recvbuf=` the place of that row.
# </details>


# %% tags=["exercise"] exercise="pairwise_all_to_all"
# %%px
def pairwise_all_to_all(x: np.ndarray, comm: MPI.Intracomm) -> np.ndarray:
    """Send row j of `x` to rank j, and return an array whose row i came from rank i.

    `x` has N rows of any shape, the same on all ranks with the same dtype, and is contiguous in C
    order. Do not change it. The result is a new array of the same shape. A rank sends N − 1
    messages of one row each, to rank r + 1, to rank r + 2, and so on. If rows have no elements, it
    need not send anything.

    Raises a ValueError that names `x` if it does not have N rows.
    """
    # BEGIN SOLUTION
    rank, size = comm.rank, comm.size
    if len(x) != size:
        raise ValueError(f"x has {len(x)} rows, expected one for each of {size} ranks")
    received = np.empty_like(x)
    received[rank] = x[rank]
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        incoming = received[source : source + 1]
        comm.Sendrecv(x[to : to + 1], dest=to, recvbuf=incoming, source=source)
    return received
    # END SOLUTION


# %% tags=["check"] exercise="pairwise_all_to_all" points=2
# %%px --timeout 20
check.pairwise_all_to_all(pairwise_all_to_all)

# %% tags=["hidden-check"] exercise="pairwise_all_to_all" points=1
# %%px --timeout 20
ledger = Ledger()
x = np.arange(world_size * 6).reshape(world_size, 2, 3) + 100 * rank
received = pairwise_all_to_all(x, check.turned(comm, ledger))
refusals = []
for rows in (world_size - 1, world_size + 1):
    try:
        pairwise_all_to_all(np.zeros((rows, 2)), comm)
    except ValueError as error:
        refusals.append("x" in str(error))
check.show_values(
    received=received.tolist(),
    x=x.tolist(),
    sent=check.sent(ledger),
    others=check.no_messages(ledger),
    at_once=check.within_rounds(ledger, world_size - 1),
    refusals=refusals,
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# A rank sends every row but its own: (N − 1)/N · S bytes. In the ring's all-gather, a rank sends the same number of bytes, but most of them are data of other ranks that it passes on. Here, every byte travels only once, directly to the rank that needs it.
# </details>
#
# In the next cell, rank r's entry for rank j has the digits r and j. Before you run it, **predict** the row that rank 1 prints.

# %%
# %%px --timeout 20
ledger = Ledger()
labels = 10 * rank + np.arange(world_size)
print(f"{labels} became {pairwise_all_to_all(labels, comm)}")
pairwise_all_to_all(np.zeros((world_size, 1000)), ledger.watch(comm))
sent = [f"{call.bytes_sent:,} bytes to rank {call.to}" for call in ledger.calls]
print("; ".join(sent))

# %% [markdown]
# Write the arrays of all ranks as the rows of a matrix. The all-to-all transposes this matrix, and a second all-to-all restores the original one.
#
# ## 2. Parts of different sizes
#
# *Difficulty 3/5, 12 minutes.*
#
# Tokens choose their experts, so a rank rarely has the same number of tokens for every rank. Now the rows of `x` are sorted
# by destination: the first `counts[0]` rows go to rank 0, the next `counts[1]` rows to rank 1, and so on. A receiver does not know how many rows it will get. So the ranks first exchange their counts, in an all-to-all with one number for each rank, and then the rows, again in N − 1 steps.
#
# - **Empty parts:** a count can be 0. Then the rank sends no rows to that rank, not even an empty message, but it always
#   sends the count.
# - **Order:** the rows that arrive are sorted by the rank that they came from, and rows from the same rank keep their order.
# - **No padding:** send another rank only its count (an `int64`, as in `counts`) and its rows.
# - **Messages:** as in exercise 1, use only calls that send arrays between two ranks, also for the counts. A rank copies
#   its own count and rows without a message.
# - **Wrong counts:** if `counts` does not have N numbers, or if they do not add up to the number of rows, raise a
#   `ValueError` that names `counts`, before anything is sent.
#
# **Predict**: the experts on rank 0 are popular. Each of 4 ranks has half of its rows for rank 0, and a sixth for each of
# ranks 1, 2, and 3. How much longer does the exchange take than with equal parts, if the time is proportional to the bytes that the busiest rank receives?
#
# <details><summary>Hint 1</summary>
#
# `np.split(x, np.cumsum(counts)[:-1])` returns the parts as views. Do the same with the array for the rows that
# arrive, and receive each part in its place.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `MPI.PROC_NULL` is a destination or a source that sends and receives nothing. In `Sendrecv`, use it instead of the
# rank of an empty part. The sender and the receiver must agree on which parts are empty.
# </details>


# %% tags=["exercise"] exercise="uneven_all_to_all"
# %%px
def uneven_all_to_all(
    x: np.ndarray, counts: np.ndarray, comm: MPI.Intracomm
) -> tuple[np.ndarray, np.ndarray]:
    """Send `counts[j]` rows of `x` to each rank j. Return the received rows, and their counts.

    `x` is contiguous in C order and sorted by destination. It has the same dtype on all ranks, and
    the same shape except for its number of rows, which can be 0. `counts` has N numbers of int64.
    Do not change either. The results are new arrays: the rows in the order of their source, and N
    numbers of int64; number i counts the rows from rank i. After the counts, a rank sends one
    message to each other rank for which it has rows. All ranks send at the same time.

    Raises a ValueError that names `counts` if it does not have N numbers whose sum is `len(x)`.
    """
    # BEGIN SOLUTION
    rank, size = comm.rank, comm.size
    if counts.shape != (size,) or counts.sum() != len(x):
        raise ValueError(f"counts is {counts}, expected {size} numbers with the sum {len(x)}")
    received_counts = pairwise_all_to_all(counts, comm)
    received = np.empty((received_counts.sum(), *x.shape[1:]), x.dtype)
    parts = np.split(x, np.cumsum(counts)[:-1])
    places = np.split(received, np.cumsum(received_counts)[:-1])
    places[rank][...] = parts[rank]
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        comm.Sendrecv(
            parts[to],
            dest=to if counts[to] else MPI.PROC_NULL,
            recvbuf=places[source],
            source=source if received_counts[source] else MPI.PROC_NULL,
        )
    return received, received_counts
    # END SOLUTION


# %% tags=["check"] exercise="uneven_all_to_all" points=3
# %%px --timeout 20
check.uneven_all_to_all(uneven_all_to_all)

# %% tags=["hidden-check"] exercise="uneven_all_to_all" points=2
# %%px --timeout 20
ledger = Ledger()
turned = check.turned(comm, ledger)
counts = np.arange(world_size) * (turned.rank + 1) % 3  # some are 0, and rank 2 has no rows
x = np.arange(2 * counts.sum(), dtype=np.float32).reshape(-1, 2) + 100 * rank
received, received_counts = uneven_all_to_all(x, counts, turned)
refusals = []
for wrong in (counts[:-1], counts + (turned.rank + 1)):
    try:
        uneven_all_to_all(x, wrong, comm)
    except ValueError as error:
        refusals.append("counts" in str(error))
check.show_values(
    received=received.tolist(),
    counts=received_counts.tolist(),
    sent=sorted(call.bytes_sent for call in ledger.sends() if call.to is not None),
    others=check.no_messages(ledger),
    refusals=refusals,
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# It takes twice as long. Let each rank have S bytes. With equal parts of S/4, rank 0 receives 3 · S/4. Now it receives 3 · S/2, while the other ranks
# receive less than before. The rank with the popular experts makes all others wait, and it also has the most
# to compute. This is why part C balances the load.
# </details>
#
# A layer of experts sends tokens away, and gets a result back for each one. On the way back, a rank returns to each rank as many rows as it got from there, so the counts that it received are the counts to send. In the next cell, each number is a token, and its last digit chooses the rank.
# Before you run it, **predict** which tokens rank 0 gets.

# %%
# %%px --timeout 20
tokens = 100 * (rank + 1) + np.array([3, 0, 1, 0, 2, 0])[: rank + 3]
destinations = tokens % 10 % world_size
order = np.argsort(destinations, kind="stable")
counts = np.bincount(destinations, minlength=world_size)
arrived, arrived_counts = uneven_all_to_all(tokens[order], counts, comm)
print(f"{arrived} arrived: {arrived_counts} from each rank")
returned, _ = uneven_all_to_all(-arrived, arrived_counts, comm)  # the "expert" changes the sign
results = np.empty_like(returned)
results[order] = returned  # back to the order of the tokens
print(f"results: {results}")

# %% [markdown]
# # Part B: a layer of experts

# %% [markdown]
# ## 3. Choose experts, and keep their queues short
#
# *Difficulty 3/5, 15 minutes.*
#
# A *router* decides which experts process a token. It is a linear layer that gives each token a score for each of the $E$
# experts, and a softmax over the scores of a token turns them into probabilities. The $k$ most probable experts process the token, and
# each result is later multiplied by the probability of its expert, the *gate*. This is how the router learns: the gradient
# of the gate shows whether more of this expert would help.
#
# Nothing forces tokens to choose different experts, but messages and matrix products are fastest if their sizes are known in advance. Therefore, each
# expert takes at most `capacity` tokens from each rank. Its tokens stand in a queue, and the first `capacity` of them get a *slot*,
# numbered from 0. The other choices are *dropped*: the expert does not process the token.
#
# Write `route`, which a rank calls with the scores of its own tokens. It sends nothing.
#
# - **Experts** of a token come in order of their probability, the most probable one first.
# - **Gates** are the chosen experts' probabilities under the softmax over *all* experts. Do not rescale them to add up to 1. The gradient flows
#   through them to the scores. A dropped choice also has its probability as its gate.
# - **Queues.** First come the first choices of all tokens, in the tokens' order. After these come the second choices of all
#   tokens, and so on. Each expert has a single queue for first, second, and later choices.
# - **Slots** are places in the queue of the chosen expert. A dropped choice has −1.
#
# Edge cases:
#
# - `k` can be the number of experts, and a rank can have no tokens.
# - If `k` is not between 1 and the number of experts, or if `capacity` is less than 1, raise a `ValueError` that names the
#   argument.
# - Experts with equal probabilities may come in any order.
#
# **Predict**: a rank has 8 tokens, 4 experts, $k = 2$, and a capacity of 4, which is just enough if the load is even. All tokens have
# the same expert as their first choice, and another one as their second choice. Which tokens are processed by no expert?
#
# <details><summary>Hint 1</summary>
#
# `tensor.topk(k)` returns the k largest numbers of each row and their indices, in descending order. `experts_Tk.T.flatten()` has all choices in the order of the queues.
# </details>
#
# <details><summary>Hint 2</summary>
#
# In `F.one_hot(choices, n_experts)`, each row has a 1 in the column of its expert. After `cumsum(0)`, row i says for each expert how many of the choices 0 to i chose it. `gather` picks the column of the chosen expert.
# </details>


# %% tags=["exercise"] exercise="route"
# %%px
def route(scores_TE: Tensor, k: int, capacity: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the experts of each token, their gates, and the token's slot at each of these experts.

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
# No expert processes tokens 4 to 7. Tokens 0 to 3 fill both queues, although the other two experts have nothing to do.
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
# Even if all experts are equally popular, chance makes their queues uneven, especially if a rank has few tokens. A real router also
# prefers some experts, which you will see in exercise 8. Capacity factors from 1 to 2 are common.

# %% [markdown]
# ## 4. Dispatch
#
# *Difficulty 2/5, 10 minutes.*
#
# An expert computes matrix products, so its tokens must be rows of one tensor. `dispatch` copies each token into
# the slots that the router has chosen for it. The result always has the shape (E, C, H), whatever the router has chosen. E is the number of
# experts, C the capacity, and H the hidden size.
#
# `x_TH` has the T tokens of this rank, and `experts_Tk` and `slots_Tk` are what `route` returns: choice j of token t is the expert
# `experts_Tk[t, j]`, where the token has the slot `slots_Tk[t, j]`. Write `dispatch`, so that
#
# - the token is in the slot of each of its k choices.
# - a choice with slot −1 is dropped: this token is not copied to this expert.
# - slots that no token has are zero.
# - autograd works: the gradient of a token is the sum of the gradients of its copies.
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
    x_TH = x_TH.double().requires_grad_()
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
# - Empty slots do not matter. (Experts have biases, so their results for empty slots are not zero.)
# - Gradients flow to `y_ECH` and to `gates_Tk`. Through the gates, the router learns.
#
# **Predict**: in a transformer, the MLP's output is added to its input. What happens to a token that all of its
# experts drop?
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
    y_ECH = y_ECH.view(n_experts, capacity, 2).double().requires_grad_()
    gates_Tk = (1 + torch.arange(slots_Tk.numel(), device=device).view_as(slots_Tk)) / 16
    gates_Tk = gates_Tk.double().requires_grad_()
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
# It passes through the layer unchanged, because the MLP adds zeros to it. Therefore, a model can afford to drop some tokens.
# </details>

# %% [markdown]
# ## 5. An all-to-all for autograd
#
# *Difficulty 2/5, 5 minutes.*
#
# `dist.all_to_all_single(output, x, group=group)` sends the j-th of N equal parts of x to rank j, and part i of
# `output` comes from rank i. Autograd does not know about other ranks, so write both passes yourself.
#
# - `exchange(x, group)` gets x (N, …), and sends `x[j]` to rank j. It returns a new tensor of the
#   same shape, whose row i came from rank i.
# - In the backward pass, the gradient of each row must get to the rank that the row came from.
# - Each pass makes one all-to-all and sends nothing else. An all-to-all needs contiguous tensors, but neither x nor the gradient has to be contiguous.
# - If x does not have N rows, raise a `ValueError` that names the number of its rows, before anything is sent.
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
    """Send row j of x (N, …) to rank j. Return a tensor (N, …) whose row i came from rank i."""
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
    x = x.view(*shape, world_size).movedim(-1, 0).double().requires_grad_()
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
# 4. Each of this rank's experts computes all of its N · C rows in one call.
# 5. `exchange` sends the results back, and `combine` puts them together.
#
# - `experts` has all E experts, the same on all ranks. Rank r keeps experts $rE/N$ to $(r+1)E/N - 1$ in
#   `self.experts`, an `nn.ModuleList`. It keeps no reference to the others, so that their memory can be freed. `self.router` is the router.
# - After each forward pass, `self.last` is the pair `(probabilities_TE, experts_Tk)`: the softmax of the router's scores over all experts, not detached, and the chosen experts. Exercise 8 computes a loss from them.
# - Each rank sends 2 all-to-alls of E · C · H numbers in the forward pass, 2 in the backward pass, and nothing else.
#
# The outputs are those that the whole layer, with all experts, computes for this rank's tokens. In the backward pass, each of this
# rank's experts gets the sum of the gradients from the tokens of *all* ranks, and the router gets the gradients from this rank's tokens. Edge cases:
#
# - **Experts that cannot be shared evenly:** if N does not divide E, `__init__` raises a `ValueError` that names E.
# - **Uneven tokens:** the number of tokens T may be different on each rank.
#
# **Predict**: an empty slot is a row of zeros, and an expert with biases returns something else for it. Why does this change neither the
# outputs nor the experts' gradients?
#
# <details><summary>Hint 1</summary>
#
# After `dispatch`, the first E/N experts belong to rank 0. `.unflatten(0, (N, -1))` makes it (N, E/N, C, H), and `exchange` sends row j to rank j. What arrives has the same shape, but now the first index is the rank that the tokens came from.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `arrived.transpose(0, 1).flatten(1, 2)` is (E/N, N · C, H). Its row i has all tokens of this rank's expert i. `torch.stack` puts the results of the
# experts together, and `.unflatten(1, (N, -1)).transpose(0, 1)` undoes this change of shape.
# </details>


# %% tags=["exercise"] exercise="expert_parallel_mlp"
# %%px
class ExpertParallelMLP(nn.Module):
    """A mixture of experts. Each rank has E/N of them, and calls it with its own tokens (T, H).

    Args:
        router: maps a token to a score for each of the E experts.
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
            raise ValueError(f"{group.size()} ranks do not divide {len(experts)} experts")
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
        pairs = zip(self.experts, own, strict=True)
        results = torch.stack([expert(rows) for expert, rows in pairs])
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
    """Return the module with float64 weights that are computed, not drawn."""
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
    tensors = y_TH, experts_Tk, *gradients
    values = [[round(x, 4) + 0.0 for x in t.flatten().tolist()] for t in tensors]
    return [values, ledger.count("all_to_all"), ledger.count(), len(list(layer.parameters()))]


def uneven_experts():
    try:
        expert_values(world_size + 1, 1, 1, 2)
    except Exception as error:
        return isinstance(error, ValueError)
    return False


check.show_values(
    uneven=uneven_experts(),
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
# Each of N ranks has T tokens of H numbers in float32. There are E experts in total, and each token
# goes to k of them. An expert has f times as many slots as it would need if all experts were chosen
# equally often, rounded up; f is the capacity factor. **Predict in numbers**:
#
# - `capacity`: the slots of one expert for the tokens of *one* rank
# - `exchange`: the bytes that a rank sends to other ranks in one all-to-all of your layer
# - `layer`: the bytes that a rank sends to other ranks in the forward and the backward pass of the layer
# - `needed`: what `layer` would be without the empty slots, if all experts are chosen equally often and no token is dropped


# %% tags=["exercise"] exercise="predict_expert_bytes"
# %%px
def predict_expert_bytes(
    tokens: int, hidden: int, experts: int, k: int, factor: float, world_size: int
) -> dict[str, float]:
    """Return the bytes that a rank sends, `exchange`, `layer`, `needed`, and the `capacity`."""
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
# The activations inside an expert are never sent, so wider experts do not need more bytes. For given tokens, the bytes depend on the number of experts for each token, and on the capacity factor.

# %% [markdown]
# # Part C: training with experts

# %% [markdown]
# ## 7. Which ranks share a gradient?
#
# *Difficulty 3/5, 10 minutes.*
#
# Expert parallelism is often combined with data parallelism. Four ranks can be 2 × 2: one set of
# experts is split over ranks 0 and 1, and a copy of it over ranks 2 and 3. Every rank has its own
# tokens, and computes the mean loss over them.
#
# | | exists on | after the backward pass, its gradient includes the tokens of |
# |---|---|---|
# | `shared`: router, attention, norms, … | all ranks | this rank |
# | `own`: an expert of rank 0 | ranks 0 and 2, its *replicas* | ranks 0 and 1: the all-to-all has brought their gradients to the expert |
#
# Write `average_gradients`, which a rank calls after the backward pass. Afterwards, each gradient on each rank is that of **the mean of the N ranks'
# losses**, where N is the number of all ranks.
#
# - Reduce each gradient once, and over no more ranks than necessary: `shared` over the group `all_ranks`, and `own` over the group `replicas`.
# - On one rank, the `.grad` of a parameter can be None because the loss does not depend on it, while another rank has a gradient. None counts as
#   zeros, and all ranks must make the same calls.
#
# **Predict**: somebody divides the expert's gradients by the number of replicas, as data parallelism does. By which factor
# are they wrong on 4 ranks, 2 × 2? Would you notice it with Adam? And with SGD?
#
# <details><summary>Hint 1</summary>
#
# The loss is the sum over all ranks of (loss of the rank) / N. The gradient of a sum is the sum of the gradients. Which of its N terms does the expert's gradient on rank 0 already include, and which ones does the gradient on rank 2 include?
# </details>
#
# <details><summary>Hint 2</summary>
#
# `dist.all_reduce(p.grad, group=replicas)` adds the gradients of the replicas. Then divide by `all_ranks.size()`.
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
        name: [nn.Parameter(torch.ones(shape, device=device).double()) for shape in shapes]
        for name, shapes in sizes.items()
    }
    every = [*parameters["shared"], *parameters["own"]]
    for i, p in enumerate(every):
        if i != 1 + rank:
            numbers = torch.arange(1 + i, 1 + i + p.numel(), device=device)
            p.grad = (10.0**rank * numbers.double()).view_as(p)
    average_gradients(parameters["shared"], parameters["own"], group, replicas)
    return [p.grad.tolist() for p in every]


alone = dist.new_group([rank], use_local_synchronization=True)
check.show_values(all=averaged(group), one=averaged(alone))
dist.destroy_process_group(alone)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# They are N / replicas = 2 times too large. With SGD, the steps of the experts are twice as long. Adam divides by the size of the gradients, so it takes almost the
# same steps, and the loss curve does not show the error. The error shows up as soon as gradients are clipped by their norm.
# </details>
#
# With `average_gradients`, the experts can be split over the ranks in any layout. The next cells
# train the same layer on the same tokens in each layout: from N × 1, where each rank has all
# experts, to 1 × N.


# %%
# %%px
def layer_of(sharing):
    """A layer whose experts are shared by `sharing` ranks in a row; and the group of replicas."""
    first, place = rank - rank % sharing, rank % sharing
    groups = [
        dist.new_group(list(ranks), backend="mpi4py", use_local_synchronization=True)
        for ranks in (range(first, first + sharing), range(place, world_size, sharing))
    ]
    torch.manual_seed(0)
    linears = [nn.Linear(16, 16).to(device) for _ in range(2 * world_size)]
    router = nn.Linear(16, 2 * world_size).to(device)
    return ExpertParallelMLP(router, linears, 2, 64, groups[0]), groups[1]


# %%
# %%px
def layout_losses(layer, replicas):
    """Return the mean losses of 20 steps in which the layer learns to reverse vectors."""
    torch.manual_seed(1 + rank)
    tokens_TH = torch.randn(64, 16).to(device)
    optimizer, losses = torch.optim.SGD(layer.parameters(), lr=1.0), []
    for _ in range(20):
        loss = F.mse_loss(layer(tokens_TH), tokens_TH.flip(1))
        optimizer.zero_grad()
        loss.backward()
        parts = (list(part.parameters()) for part in (layer.router, layer.experts))
        average_gradients(*parts, group, replicas)
        optimizer.step()
        losses.append(comm.allreduce(loss.item()) / world_size)
    return losses


# %%
# %%px --timeout 60
layouts = [sharing for sharing in range(1, world_size + 1) if world_size % sharing == 0]
layout_curves = {f"{world_size // s} × {s}": layout_losses(*layer_of(s)) for s in layouts}
if rank == 0:
    training.print_same({"layouts": layout_curves}, 1e-4)
    start, *_, end = layout_curves[f"{world_size} × 1"]
    print(f"the loss falls from {start:.2f} to {end:.2f}")

# %% [markdown]
# ## 8. Balance the load
#
# *Difficulty 3/5, 15 minutes.*
#
# An expert that gets more tokens learns more, so the router prefers it even more. If nothing stops this, a few experts do all the
# work. The Switch Transformer adds the following loss, times a small factor such as 0.01, to that of the model:
#
# $$
# L = E \sum_{e=0}^{E-1} f_e P_e
# $$
#
# - $f_e$ is expert $e$'s share of all choices. With $k$ experts for each token, $T$ tokens make $Tk$ choices, and a dropped
#   choice counts like the others. All $f_e$ add up to 1.
# - $P_e$ is the mean of all tokens' probabilities for expert $e$. All $P_e$ add up to 1, too.
#
# The loss is 1 if the load is even. Counting has no gradient, so $f$ is a constant, and the gradient flows through $P$. A
# training step therefore lowers the probabilities of busy experts, and raises those of the others.
#
# Write `balance_loss`. Both $f$ and $P$ are taken over **the tokens of all ranks**.
#
# - **Value.** All ranks return the same loss, a tensor of shape ().
# - **Gradient.** Every rank adds this loss to its own, and after the backward pass, `average_gradients` takes the mean of all $N$ ranks'
#   gradients for the router. A rank knows only its own tokens' part of the gradient, so the mean of the parts would be $N$ times too small. To
#   make up for this, the gradient of `probabilities_TE` is $N$ times the derivative of $L$.
# - **Communication.** The ranks send sums for each expert, not numbers for each token. The backward pass may also send
#   something, but it need not.
#
# Edge cases:
#
# - Ranks can have different numbers of tokens, and some ranks none. Each token has the same weight, no matter how many tokens its rank has.
# - The chosen experts need not be the most probable ones. Some methods choose in another way.
#
# **Predict**: there are as many experts as ranks, and $k = 1$. All ranks have the same number of tokens,
# and all tokens of rank $r$ choose expert $r$, with probability 1. What is the loss?
# What would it be if each rank computed it from its own tokens?
#
# <details><summary>Hint 1</summary>
#
# Concatenate three things into one tensor for a single all-reduce: the sums of probabilities, the numbers of choices, and the
# number of tokens. `torch.bincount(experts_Tk.flatten(), minlength=n_experts)` counts choices.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Autograd does not see an all-reduce. Pass `own.detach()` to the all-reduce, where `own` has this rank's sums of probabilities. Then
# `total + n * (own - own.detach())` has the value of the total, and `n` times the gradient of `own`.
# </details>


# %% tags=["exercise"] exercise="balance_loss"
# %%px
def balance_loss(probabilities_TE: Tensor, experts_Tk: Tensor, group: dist.ProcessGroup) -> Tensor:
    """Return the load-balancing loss over the tokens of all ranks: 1 if the load is even.

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
# Now train a small GPT of one block on text. Your layer with eight experts takes the place of the MLP. Each token goes to one expert
# ($k = 1$), and an expert has twice as many slots as it needs if the load is even. Each rank trains on its part of each batch.
#
# **Predict**: without the balance loss, how many of the eight experts get at least 2% of the tokens at the end?

# %%
# %%px --timeout 60
gpt_config = models.GPTConfig(sequence_length=32, hidden_size=32, layers=1)
n_experts = 8 // world_size * world_size
own_text = [
    (tokens[rank::world_size], targets[rank::world_size])
    for tokens, targets in training.text_batches(100, 24, gpt_config.sequence_length, device)
]
slots = math.ceil(2.0 * own_text[0][0].numel() / n_experts)


class BlockOfExperts(ExpertParallelMLP):
    """Your layer, for the (batch, seq, hidden) of a block."""

    def forward(self, x_BSH: Tensor) -> Tensor:
        return super().forward(x_BSH.flatten(0, 1)).view_as(x_BSH)


# %%
# %%px
def expert(h):
    return nn.Sequential(nn.Linear(h, h), nn.GELU(), nn.Linear(h, h)).to(device)


def gpt_with_experts():
    """Return the GPT, the same on all ranks, except for each rank's own experts."""
    torch.manual_seed(0)
    model, h = models.GPT(gpt_config).to(device), gpt_config.hidden_size
    nn.init.normal_(model.tokens.weight, std=0.3)  # so that the router can distinguish tokens
    router = nn.Linear(h, n_experts, bias=False).to(device)
    experts = [expert(h) for _ in range(n_experts)]
    model.blocks[0].mlp = BlockOfExperts(router, experts, 1, slots, group)
    return model


# %% [markdown]
# Here, each expert is on one rank only, so `replicas` contains just this rank. All other parameters are shared.


# %%
# %%px
def train_experts(factor, replicas):
    """Train with `factor` times the balance loss; return losses, and each expert's share."""
    model, losses, counts = gpt_with_experts(), [], []
    layer = model.blocks[0].mlp
    own = list(layer.experts.parameters())
    shared = [p for name, p in model.named_parameters() if ".experts." not in name]
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    for tokens, targets in own_text:
        optimizer.zero_grad()
        loss = training.token_loss(model(tokens), targets)
        (loss + factor * balance_loss(*layer.last, group)).backward()
        average_gradients(shared, own, group, replicas)
        optimizer.step()
        losses.append(loss.detach())
        counts.append(layer.last[1].flatten().bincount(minlength=n_experts).float())
    results = torch.stack(losses) / world_size, torch.stack(counts)
    for total in results:
        dist.all_reduce(total, group=group)
    return results[0], results[1] / results[1].sum(-1, keepdim=True)


# %% tags=["nbval-ignore-output"]
# %%px --timeout 120
from parlab.plots.experts import expert_load

this_rank = dist.new_group([rank], use_local_synchronization=True)
runs = {
    "without the balance loss": train_experts(0, this_rank),
    "with 0.1 × the balance loss": train_experts(0.1, this_rank),
}
dist.destroy_process_group(this_rank)
if rank == 0:
    for name, (losses, shares) in runs.items():
        busy = (shares[-20:].mean(0) >= 0.02).sum()
        largest = shares[-20:].amax(1).mean()
        print(f"{name}: {busy} experts get at least 2%, the busiest one {largest:.0%}", end="; ")
        print(f"loss of the text {losses[-20:].mean():.2f}")
    expert_load(
        "The balance loss makes all experts work",
        {name: shares.tolist() for name, (_, shares) in runs.items()},
    )

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Often two or three, and sometimes a single one. When the queues of these experts are full, they drop tokens, while the other experts
# learn nothing. With the balance loss, all eight have work after about 50 steps, and few tokens are dropped. The Switch Transformer uses a factor of 0.01,
# in a training of many more steps. A larger factor balances the load sooner, but it also pulls the router more strongly toward a goal other than prediction.
#
# An even load is 1/8 = 12.5% for each expert. For the busiest one, the cell takes the largest share in each of the last 20 steps, and prints their mean.
# (A different expert can be the busiest one in each step.) The loss of the text hardly differs in a run that is as short as this one.
# </details>
#
# A loss is not the only way to balance the load. In DeepSeek-V3, each expert has a bias, which affects only the choice of experts and not the gates. After each step, the trainer lowers the biases of experts with more than the average load, and raises those of experts with less. [Chapter 09](../book/09_all_to_all.md) compares both.

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
#   backward pass, the gradients take the same paths in the opposite direction.
# - **Ring attention** keeps the queries in place. The keys and values of all ranks travel around a ring in N − 1 steps. In each step, a rank passes on to the next rank the keys and values that it currently holds. In the backward pass, the keys and values travel
#   N − 1 steps again, and their gradients travel N steps: N − 1 together with the keys and values, and one more to get back to their owner.
#
# **Predict in numbers**: how many bytes does one rank send to *other* ranks, in float32, for one attention layer? Each head has its own keys and values.
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
# In an all-to-all, a rank keeps 1/N of its tensor for itself. Ulysses exchanges four tensors in the forward pass. On the
# ring, a rank sends whole tensors, two in each step.
# </details>


# %% tags=["exercise"] exercise="predict_context_bytes"
# %%px
def predict_context_bytes(
    batch: int, sequence: int, heads: int, head_size: int, world_size: int
) -> dict[str, float]:
    """Return the bytes that one rank sends to other ranks for one attention layer in float32.

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
            for sizes in ((3, 60, 12, 5, 6), (1, 16, 4, 9, 2))
        ]
        for name in ("ulysses_forward", "ulysses_backward", "ring_forward", "ring_backward")
    }
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# If there are many ranks, a rank sends about half as much with Ulysses, because its tensors are half as large. (From 4 to 8
# ranks, it is 58%, because a rank also keeps a smaller part for itself.) On the ring, the tensors are half as
# large, but they travel about twice as many steps, so a rank sends about the same as before. In the forward pass, the ring sends
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
# - **In:** q, k, and v travel in *one* all-to-all. Each rank gets the tokens of all ranks for its a/N heads.
# - **Attention** of all S tokens, for this rank's heads. If `causal`, a token sees only itself and the tokens before it in
#   the *whole* sequence.
# - **Out:** one all-to-all gives every rank all heads of its own tokens, in the order of the heads.
# - **Backward:** the same two all-to-alls again. Your `exchange` from exercise 5 takes care of them. Nothing else is sent in
#   either pass.
#
# The check also tries:
#
# - **Layouts in memory:** q, k, and v need not be contiguous, nor the gradient that comes back.
# - **Heads that cannot be shared evenly:** raise a `ValueError` that names the number of heads, before anything is sent.
# - **Arguments** do not change.
#
# **Predict**: after the first all-to-all, somebody has received (N, B, S/N, …), with a part from each rank. They call
# `.view(B, S, …)` to get the whole sequence, and there is no error. For which batch sizes is it right?
#
# <details><summary>Hint 1</summary>
#
# `exchange(x, group)` takes x (N, …) and sends `x[j]` to rank j. So the first dimension must be the rank that gets a head.
# What arrives has the same shape, and its first dimension is the rank whose tokens these are.
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
def ulysses_attention(
    q: Tensor, k: Tensor, v: Tensor, causal: bool, group: dist.ProcessGroup
) -> Tensor:
    """Return the attention of this rank's queries to the tokens of all ranks.

    Exchange heads for parts of the sequence before it, and exchange them back after it.

    Args:
        q, k, v: this rank's tokens, (batch, S/N, heads, head size), the same shape on all ranks.
            Rank r has the r-th part of the sequence.

    Returns:
        The output for this rank's tokens, in the same shape.

    Raises:
        ValueError: if the number of heads is not a multiple of N.
    """
    # BEGIN SOLUTION
    ranks = group.size()
    if q.shape[2] % ranks:
        raise ValueError(f"{ranks} ranks do not divide {q.shape[2]} heads")
    x = torch.stack([q, k, v]).unflatten(3, (ranks, -1)).movedim(3, 0)
    x = exchange(x, group).movedim(0, 2).flatten(2, 3)  # (3, batch, S, heads/N, head size)
    y = F.scaled_dot_product_attention(*x.transpose(2, 3), is_causal=causal)
    y = y.unflatten(2, (ranks, -1)).movedim(2, 0)  # (N, batch, heads/N, S/N, head size)
    return exchange(y, group).movedim(0, 1).flatten(1, 2).transpose(1, 2)
    # END SOLUTION


# %% tags=["check"] exercise="ulysses_attention" points=3
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
        return isinstance(error, ValueError) and str(heads) in str(error)
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
# The next cells compare the output with the attention on one rank, and the bytes in the ledger with your prediction:

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
# - **Large scores:** $\ell_1$ and $\ell_2$ may be ±1000 or far apart. So $e^{\ell_1}$ and $e^{\ell_2}$ can overflow or underflow.
#   Subtract the larger of the two before you compute exponentials.
# - **No visible key:** with a causal mask, a query may see no key of a block. Then $\ell_i$ is −∞ and $o_i$ is 0, and the
#   result is that of the other block. If both are −∞, the result is 0 and −∞.
# - **Gradients** of all four arguments are those of the formula. A block without a visible key has the weight 0. If both
#   log-sums are −∞, the gradients may be any finite numbers, but not NaN.
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
        lse_1, lse_2: natural logarithm of the sum of exp(score), (…, S). It is −inf if no key is
            visible.

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
        lse = torch.tensor([values], dtype=torch.float64, device=device)
        out = torch.arange(2.0 * len(values), dtype=lse.dtype, device=device).view(1, -1, 2)
        out = (out + 1 + rank - 5 * number) * lse.isfinite().unsqueeze(-1)
        blocks += [out.requires_grad_(), lse.requires_grad_()]
    out, lse = merge(*blocks)
    (out.square().sum() + lse.clamp(min=-3000).square().sum() / 1000).backward()
    visible = lse.isfinite().unsqueeze(-1)  # without any key, all finite gradients are right
    gradients = [x.grad.view(*lse.shape, -1) for x in blocks]
    finite = [torch.where(visible, x, torch.where(x.isfinite(), 0.0, 9.0)) for x in gradients]
    tensors = out, lse, *finite
    return [[str(round(value, 3) + 0.0) for value in t.flatten().tolist()] for t in tensors]


infinite = float("inf")
check.show_values(
    near=merged_values([0.5, 2.0, -1.0], [1.0, 2.0, 3.0]),
    far=merged_values([900.0, -950.0, 1000.0], [901.0, -949.0, -1000.0]),
    none=merged_values([-infinite, 2.0, -infinite], [1.0, -infinite, -infinite]),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# It is right only if both blocks have the same sum of exponentials, or the same output. If the scores of one block are those of
# the other plus 5, this block should have 148 times the weight of the other.
# </details>
#
# The next cell splits the keys of one attention head into four blocks, computes each block on its own, and merges the results
# in two orders. Scores reach about 175, where $e^{s}$ overflows in float32.

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
# $r$ has the keys and values of rank $r - s$ (mod N), their *owner*. Rank $r$ computes a partial result from this block, and merges it with its result so far.
#
# `parlab.block_attention` has two functions that compute one block. For them, q, k, v, and out have the shape (B, a, S/N, d), so transpose your tensors first. `visible`
# (queries, keys) is True where a query sees a key, or None if all queries see all keys:
#
# - `attend(q, k, v, visible)` returns `(out, lse)` of one block, ready for `merge`.
# - `attend_backward(gradient, out, lse, q, k, v, visible)` returns what a block adds to the gradient of q, and what
#   these queries add to the gradients of the block's k and v. `gradient` is the gradient of the final output. `out` and `lse`
#   are those of all blocks together. The function computes the probabilities again, as `exp(scores − lse)`, so they need not be stored.
#
# Write the ring around these two functions. `ring_attention` gets them as arguments. Call these arguments and not the
# imported functions, because the check passes functions that record each block. You can use the skeleton below, or
# something of your own.
#
# - **Mask.** `positions` (N, S/N) has the place in the whole sequence of each rank's tokens. A query sees a key if the
#   key's position is not larger than its own. The positions need not be in order, and each one occurs once. If
#   `positions` is None, there is no mask. Do not call `attend` or `attend_backward` for a block that is masked completely.
# - **Forward pass.** Keys and values are one message. Each rank sends N − 1 messages to the next rank and receives N − 1
#   from the rank before it. A message travels *while* a block is computed: start to send and receive, compute, and then
#   wait.
# - **Memory.** For the backward pass, keep this rank's q, k, v, output, and lse, but no scores, and no keys and values of other ranks. At any time, a rank holds at most two blocks of keys and values, in addition to k and v themselves.
# - **Backward pass.** Keys and values travel again, N − 1 times, while blocks are computed. The gradients of a block follow it around the ring, and each rank adds its part. They make N trips, and the last one brings them home to the owner. Keys and values are again one message, and their gradients are another. On one rank, nothing is sent.
#
# Edge cases:
#
# - q, k, and v may be views that are not contiguous. They do not change. They are float32 or float64.
# - If `positions` has another shape than (N, S/N), raise a `ValueError` that names `positions`, before anything is sent.
# - Communicate with `dist.isend(x, group=group, group_dst=…)` and `dist.irecv(x, group=group, group_src=…)`, which take the
#   numbers of ranks in `group`.
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
# In the backward pass, a step starts like a forward step. After the computation, wait for the gradients that the previous rank sent at the end of the previous step (in step 0, there are none yet). They belong to the same owner as this step's keys. Add this rank's part, and start to
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
    """Return which keys of rank `owner` the queries of `rank` see, (queries, keys); None: all."""
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
    """Return the attention over the tokens of all ranks, for this rank's queries, (B, S/N, a, d).

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
# %%px --timeout 60
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

    def watched(function):
        def call(*given, **named):
            *_, visible = *given, *named.values()
            blocks.append(visible is not None and int(visible.sum()))
            return function(*given, **named)

        return call

    with ledger:
        out = ring_attention(q, k, v, positions, group, watched(attend), watched(attend_backward))
        sent = [ledger.bytes_sent()]
        (out * (k.detach() + rank)).sum().backward()
        sent.append(ledger.bytes_sent() - sent[0])
    block, trips = 2 * k.nbytes, group.size() - 1
    enough = sent[0] == trips * block and sent[1] <= (2 * trips + 1) * block * (trips > 0)
    tensors = out, q.grad, k.grad, v.grad
    values = [[round(value, 4) + 0.0 for value in t.flatten().tolist()] for t in tensors]
    return values, sorted(blocks), enough


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
#
# The next cells compute the attention of exercise 9b on the ring, and compare the bytes in the ledger with your prediction:

# %%
# %%px
consecutive = torch.arange(context_sizes[1], device=device).view(world_size, -1)
ring_qkv = [x.detach().clone().requires_grad_() for x in own_qkv]
ring_sent = {name: Ledger() for name in ("forward", "backward")}
with ring_sent["forward"]:
    ring_out = ring_attention(*ring_qkv, consecutive, group)
with ring_sent["backward"]:
    ring_out.sum().backward()
same_out = torch.allclose(ring_out, own_right, atol=1e-5)
pairs = zip(ring_qkv, own_qkv, strict=True)
same_gradients = all(torch.allclose(x.grad, y.grad, atol=1e-4) for x, y in pairs)
both = all(comm.allgather(same_out)), all(comm.allgather(same_gradients))

# %%
# %%px
if rank == 0:
    print(f"the same output as on one rank: {both[0]}, the same gradients as Ulysses: {both[1]}")
    for name, ledger in ring_sent.items():
        found, predicted_bytes = ledger.bytes_sent(), context_bytes[f"ring_{name}"]
        near = abs(found - predicted_bytes) <= 0.01 * predicted_bytes
        as_predicted = near or world_size == 1  # the prediction is for at least two ranks
        print(f"{name}: {found:,} bytes to the next rank, as you predicted: {as_predicted}")

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
    """Return each rank's positions in the zigzag layout, (ranks, sequence / ranks) int64."""
    # BEGIN SOLUTION
    if sequence % (2 * ranks):
        raise ValueError(f"{2 * ranks} chunks do not divide a sequence of {sequence}")
    chunks = torch.arange(sequence).view(2 * ranks, -1)
    return torch.cat((chunks[:ranks], chunks[ranks:].flip(0)), dim=1)
    # END SOLUTION


# %% tags=["check"] exercise="zigzag_positions" points=1
# %%px
check.zigzag_positions(zigzag_positions)


# %% tags=["hidden-check"] exercise="zigzag_positions" points=1
# %%px --timeout 20
def zigzag_refuses(sequence, ranks):
    try:
        zigzag_positions(sequence, ranks)
    except Exception as error:
        return isinstance(error, ValueError)
    return False


check.show_values(
    refused=[zigzag_refuses(*sizes) for sizes in ((20, 4), (15, 5), (3, 1), (10, 4))],
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
#
# The next cells count the scores that each rank really computes with both layouts. `attend` leaves out queries that see no key of the block,
# and keys that no query sees. In the zigzag layout, this leaves out half of each block that comes from another rank: either none of the keys in the
# block's late chunk are visible, or none of the queries in this rank's early chunk see anything.


# %%
# %%px
def ring_scores(positions):
    """Return the scores that this rank computes in each step that it does not skip."""
    steps = []

    def counting(q, k, v, visible):
        steps.append(int(visible.any(1).sum() * visible.any(0).sum()))
        return attend(q, k, v, visible)

    own = [x[:, positions[rank]] for x in whole_qkv]
    out = ring_attention(*own, positions, group, counting)
    right = context_right.transpose(1, 2)[:, positions[rank]]
    return steps, torch.allclose(out, right, atol=1e-5)


zigzag = zigzag_positions(context_sizes[1], world_size).to(device)
layouts = {"consecutive tokens": consecutive, "zigzag": zigzag}
found = {name: comm.allgather(ring_scores(positions)) for name, positions in layouts.items()}

# %%
# %%px
one_block = (context_sizes[1] / world_size) ** 2
ring_blocks = {
    name: [[scores / one_block for scores in steps] for steps, _ in ranks]
    for name, ranks in found.items()
}
if rank == 0:
    for name, ranks in ring_blocks.items():
        print(f"{name}: blocks computed by each rank: {[round(sum(steps), 2) for steps in ranks]}")
        print(f"the same output as on one rank: {all(same for _, same in found[name])}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
from parlab.plots import long_contexts

drawn, axes = long_contexts.ring_work(
    "In the zigzag layout, all ranks have the same work", ring_blocks, "blocks computed"
)

# %% [markdown]
# # Against the library

# %% [markdown]
# ## All-to-all
#
# These three do the same work: your pairwise exchange, MPI's `comm.Alltoall`, and `dist.all_to_all_single` on the
# default group, which uses Gloo on the CPU and NCCL on GPUs. (Ranks that share a GPU cannot use NCCL. Their default group uses MPI instead.) The third is the one that many libraries call to send tokens to experts. First, compare their results.


# %%
# %%px --timeout 60
def mpi_all_to_all(x, comm):
    received = np.empty_like(x)
    comm.Alltoall(x, received)
    return received


def torch_all_to_all(x, _):
    tensor = torch.from_numpy(x).to(device)
    received = torch.empty_like(tensor)
    dist.all_to_all_single(received, tensor)
    return received.cpu().numpy()


rows_to_send = np.random.default_rng(rank).random((world_size, 1000), dtype=np.float32)
right = pairwise_all_to_all(rows_to_send, comm)
for name, all_to_all in {"MPI": mpi_all_to_all, "torch": torch_all_to_all}.items():
    same = np.array_equal(all_to_all(rows_to_send, comm), right)
    print(f"{name}: {'the same rows' if same else 'OTHER ROWS'}")

# %% [markdown]
# **Predict**: which one is fastest for 1 kB, and which for 16 MB? (These are the bytes on each rank.)

# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
from parlab import timing

exchange_ratios = {}
for title, size in {"1 kB": 1024, "16 MB": 16 * 2**20}.items():
    x = np.zeros((world_size, size // 4 // world_size), dtype=np.float32)
    tensor, into = (torch.zeros(x.shape, device=device) for _ in range(2))
    ways = {
        "your exchange": lambda x=x: pairwise_all_to_all(x, comm),
        "comm.Alltoall": lambda x=x: mpi_all_to_all(x, comm),
        "torch": lambda into=into, tensor=tensor: dist.all_to_all_single(into, tensor),
    }
    seconds = timing.median_seconds(ways, comm, rounds=20 if size < 10**6 else 8)
    exchange_ratios[title] = timing.relative_to("torch", seconds)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0 --timeout 60
from parlab import plots

drawn, axes = plots.ratio_bars(
    "Time of an all-to-all, relative to the library's",
    exchange_ratios,
    f"time / time of torch on {dist.get_backend()}",
    ("comm.Alltoall",),
)
for title, ratios in exchange_ratios.items():
    print(f"{title}: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))

# %% [markdown]
# What to look for:
#
# - **Small data.** Your exchange pays for N − 1 messages, one after the other, and for a few lines of Python in each
#   step. With many ranks, MPI libraries often use an algorithm of ⌈log₂ N⌉ steps (Bruck's) for small data, in which a byte can travel several times.
# - **Large data.** All three send the same bytes, and every byte is sent once, so no algorithm can
#   send less. They differ in how the bytes travel. Between processes of one machine, MPI copies the bytes in memory.
#   Gloo sends them through TCP, which takes longer.
# - **On a cluster**, an all-to-all is the collective that uses the network most: about half of all bytes cross from one half of the
#   machine to the other. Compare this with a ring, where each rank only talks to its neighbors.

# %% [markdown]
# ## Ring attention against its bound
#
# PyTorch has `context_parallel` in `torch.distributed.tensor.experimental`. By default, it all-gathers the keys and values.
# After `set_rotate_method("alltoall")`, it passes them around a ring, like your function. It does not support PyTorch's
# attention kernel for CPUs, so you can compare it with yours only on GPUs. Here, you compare the time of yours with a lower limit.
#
# Let $c$ be the time to compute one block, and $m$ the time of a message with one rank's keys and values. A rank computes N blocks, which takes $Nc$. The last block arrives after N − 1 messages, and is computed after that, so the pass cannot end before $(N-1)m + c$. So a forward pass without a mask takes at least
#
# $$ \max(Nc,\; (N-1)\,m + c). $$
#
# The next cells run your function on an emulated network, on which a message takes between a quarter of the time of a block and four times as long. `slow_attend` sleeps
# for the rest of the time $c$, so that four ranks can compute at the same time on two cores. Ulysses exchanges four tensors, each of which takes
# $\tfrac{3}{8} m$ on 4 ranks, and computes for $Nc$, without any overlap.
#
# **Predict**: up to what m/c does the ring hide all messages? Above what m/c is Ulysses faster?


# %%
# %%px --timeout 60
import time
from functools import partial

from parlab import timing
from parlab.costs import all_to_all as costs
from parlab.network import Link, Network, compute, emulated_group

BLOCK = 16e-3  # seconds to compute a block


def slow_attend(q, k, v, visible):
    """Call `attend`, and take BLOCK seconds for a whole block, or less if parts are masked."""
    start = time.perf_counter()
    result = attend(q, k, v, visible)
    share = 1.0 if visible is None else (visible.any(1).sum() * visible.any(0).sum()).item()
    share /= 1 if visible is None else visible.numel()
    compute(max(0.0, share * BLOCK - (time.perf_counter() - start)))
    return result


# %%
# %%px --timeout 60
few_tokens = torch.randn(3, 1, 32, world_size, 4)


def network_with(message):
    """A group on a network where the keys and values of a rank take `message` seconds."""
    link = Link.of(alpha=0, bandwidth=2 * few_tokens[0].nbytes / message)
    return emulated_group(Network(world_size, 1, inside=link, between=link))


def slow_ulysses(on):
    """Ulysses, whose computation takes as long as that of the ring."""
    ulysses_attention(*few_tokens, False, on)
    compute(world_size * BLOCK)


# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
ratios, calls = (0.25, 0.5, 1, 2, 4), {}
for ratio in ratios:
    on = network_with(ratio * BLOCK)
    calls["ring", ratio] = partial(ring_attention, *few_tokens, None, on, slow_attend)
    calls["Ulysses", ratio] = partial(slow_ulysses, on)
emulated_seconds = timing.fastest_seconds(calls, comm, rounds=3)
if rank == 0:
    for ratio in ratios:
        ring, ulysses = (emulated_seconds[name, ratio] for name in ("ring", "Ulysses"))
        bound = costs.ring_seconds(world_size, BLOCK, ratio * BLOCK)
        print(f"emulated, m/c = {ratio:<4}: ring {1e3 * ring:3.0f} ms", end="")
        print(f", {ring / bound:.2f} of the bound; Ulysses {1e3 * ulysses:3.0f} ms")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
modeled = {
    "bound": [costs.ring_seconds(world_size, 1, ratio) for ratio in ratios],
    "without overlap": [world_size + (world_size - 1) * ratio for ratio in ratios],
}
measured = {
    name: [emulated_seconds[name, ratio] / BLOCK for ratio in ratios]
    for name in ("ring", "Ulysses")
}
drawn, axes = long_contexts.ring_times(
    "Emulated: the time of a forward pass",
    ratios,
    modeled,
    measured,
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The two terms of the bound are equal for $m = c$: each message then takes as long as the block that hides it. Ulysses takes $4c + 1.5m$, and the ring
# takes $3m + c$ if messages are slow. They are equal for $m = 2c$.
# </details>
#
# **Predict**: with a causal mask and fast messages, how long does the forward pass take in each of the two layouts, in units of $c$?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
on = network_with(BLOCK / 4)
orders = {
    "consecutive tokens": torch.arange(32 * world_size).view(world_size, -1),
    "zigzag": zigzag_positions(32 * world_size, world_size),
}
calls = {
    name: partial(ring_attention, *few_tokens, positions, on, slow_attend)
    for name, positions in orders.items()
}
causal_seconds = timing.fastest_seconds(calls, comm, rounds=3)
if rank == 0:
    for name, seconds in causal_seconds.items():
        print(f"emulated, {name}: the time of {seconds / BLOCK:.1f} blocks")

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# With consecutive tokens, the last rank computes N = 4 blocks. In the zigzag layout, every rank computes its own block and half of each of the three others, which takes $2.5c$. For many ranks,
# the ratio approaches 2. (The emulated times are longer, because they include the work of Python and MPI.) A kernel that also leaves out the masked half of a rank's own block needs $3.5c$ and $2c$.
# </details>
#
# What to look for:
#
# - **The ring is close to its bound**, because each message starts before the block that hides it.
# - **Ulysses sends less** on four ranks, but it cannot compute in the meantime, because the attention needs the first all-to-all, and the second all-to-all needs the attention. (It could if it processed the heads in several groups.) It is faster on slow networks, but N must divide the number of heads.
# - **Long sequences favor the ring.** If the sequence becomes twice as long, $m$ doubles, and $c$ becomes four times as large. So
#   m/c is half as large, which is farther to the left in the figure.
# - **With NCCL**, start the send and the receive of a step together, by `dist.batch_isend_irecv`. Otherwise, two ranks that both send first can wait for each other forever.

# %% [markdown]
# # Going further
#
# - Start seven ranks with `cluster.start(7)` (this also works on two cores). The new ranks have none of your
#   variables and functions, so run the imports and all cells of part A again.
# - Write a *hierarchical* all-to-all. The ranks of a node first exchange rows among themselves, so that each rank holds the rows for one
#   rank of every other node. Then one message goes to each node. How many messages does a rank send now, and how many times does a byte
#   travel? The [chapter](../book/09_all_to_all.md) computes when this pays off.
# - `ExpertParallelMLP` sends full buffers of capacity C, even if most slots are empty. Use the idea of `uneven_all_to_all` instead:
#   exchange counts, and then only the tokens that exist. (`dist.all_to_all_single` takes `input_split_sizes` and `output_split_sizes`.)
#   Then no token needs to be dropped.
# - While the tokens are on their way, the ranks have nothing to do. Split the tokens into two halves, and let the experts work on the first half
#   while the second one travels.
# - Ulysses and the ring can be combined: Ulysses inside a node, and a ring between nodes. Write it on 2 × 2 ranks, with two groups.
