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
# ## 1. Pairwise all-to-all
#
# *Difficulty 2/5, 12 minutes.*
#
# Every rank has one row for each rank: rank r's row j goes to rank j. The exchange takes N − 1 steps. In step s, rank r
# sends to rank r + s and receives from rank r − s, counted around the ring. So in each step, each rank sends one message
# and receives one, and nobody waits in a queue for a popular receiver:
#
# ```text
#           rank 0   rank 1   rank 2   rank 3
# step 1    to 1     to 2     to 3     to 0
# step 2    to 2     to 3     to 0     to 1
# step 3    to 3     to 0     to 1     to 2
# ```
#
# - **Own row:** a rank copies its own row to the result, without a message.
# - **Steps:** all ranks send at the same time. Messages leave in the order of the steps, but a rank may begin a step
#   before the last one is complete.
# - **Wrong size:** if `x` does not have N rows, raise a `ValueError` that names `x`, before anything is sent.
# - Build it from messages, and send the array's own memory, as in lab 01.
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
    messages of one row each (or none for an empty row): to rank r + 1, to rank r + 2, and so on.

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
# A rank sends every row but its own: (N − 1)/N · S bytes. This is what a rank sends in the all-gather, too, but there
# it passes on what others sent. Here, every byte travels only once, directly to the rank that needs it.
# </details>
#
# In the next cell, the entry for rank j on rank r is `rj`. Before you run it, **predict** the row that rank 1 prints.

# %%
# %%px --timeout 20
ledger = Ledger()
labels = 10 * rank + np.arange(world_size)
print(f"{labels} became {pairwise_all_to_all(labels, comm)}")
pairwise_all_to_all(np.zeros((world_size, 1000)), ledger.watch(comm))
sent = [f"{call.bytes_sent:,} bytes to rank {call.to}" for call in ledger.calls]
print("; ".join(sent))

# %% [markdown]
# If you write the ranks' arrays below one another, you see a matrix before, and its transpose after. So an all-to-all
# is the transpose of a matrix whose rows are on different ranks, and a second one restores the first order.
#
# ## 2. Parts of different sizes
#
# *Difficulty 3/5, 12 minutes.*
#
# Tokens choose their experts, so a rank rarely has equally many tokens for each rank. Now the rows of `x` are sorted
# by destination: the first `counts[0]` rows go to rank 0, the next `counts[1]` rows to rank 1, and so on. A receiver
# does not know how much will come. So the ranks first exchange their counts, which is an all-to-all of one number each,
# and then the rows in the same N − 1 steps.
#
# - **Empty parts:** counts can be 0. A rank sends no rows to such a rank, not even an empty message, but it always
#   sends the count.
# - **Order:** the rows that arrive are sorted by the rank that they came from, and keep its order.
# - **No padding:** send only the rows that the other rank needs, and its one count, an `int64` as in `counts`.
# - **Wrong counts:** if `counts` does not have N numbers, or if they do not add up to the number of rows, raise a
#   `ValueError` that names `counts`, before anything is sent.
#
# **Predict**: the experts on rank 0 are popular. Each of 4 ranks sends half of its rows to rank 0 and a sixth
# to each other rank. How much longer does the exchange take than with equal parts, if the time is
# proportional to the bytes that pass the slowest rank's link?
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
    Do not change either. The results are new arrays: the rows in the order of their source, and
    N numbers of int64, of which number i counts the rows from rank i. After the counts, a rank
    sends one message to each other rank for which it has rows, while the others send theirs.

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
# It takes twice as long. With equal parts of S/4, rank 0 receives 3 · S/4. Now it receives 3 · S/2, while the other ranks
# receive less than before. The rank with the popular expert makes all others wait, and it also has the most
# to compute. This is why part C balances the load.
# </details>
#
# A layer of experts sends tokens away, and gets a result back for each one. On the way back, the counts that
# arrived say how much goes where. In the next cell, each number is a token, and its last digit chooses the rank.
# Before you run it, **predict** which tokens rank 0 gets.

# %%
# %%px --timeout 20
tokens = 100 * (rank + 1) + np.array([3, 0, 1, 0, 2, 0])
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
# SECTION 11 STARTS (ring_attention)

# %% [markdown]
# SECTION 12 STARTS (zigzag_positions)

# %% [markdown]
# # Against the library

# %% [markdown]
# ## All-to-all
#
# These three do the same work: your pairwise exchange, MPI's `comm.Alltoall`, and `dist.all_to_all_single` on the
# default group, which uses Gloo on the CPU and NCCL on GPUs. (Ranks that share a GPU cannot use NCCL, so this group
# uses MPI, too.) The third is the one that libraries call to send tokens to experts. First, compare their results.


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


exchanged = np.random.default_rng(rank).random((world_size, 1000), dtype=np.float32)
right = pairwise_all_to_all(exchanged, comm)
for name, all_to_all in {"MPI": mpi_all_to_all, "torch": torch_all_to_all}.items():
    same = np.array_equal(all_to_all(exchanged, comm), right)
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
    library = seconds.pop("torch")
    exchange_ratios[title] = {name: own / library for name, own in seconds.items()}

# %% tags=["nbval-ignore-output"]
# %%px --targets 0 --timeout 60
from parlab import plots

drawn, axes = plots.ratio_bars(
    "An all-to-all, over that of the library",
    exchange_ratios,
    f"time over that of torch on {dist.get_backend()}",
    ("comm.Alltoall",),
)
for title, ratios in exchange_ratios.items():
    print(f"{title}: " + ", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))

# %% [markdown]
# What to look for:
#
# - **Small data.** Your exchange pays for N − 1 messages, one after the other, and for a few lines of Python in each
#   step. With many ranks, MPI uses an algorithm of ⌈log₂ N⌉ steps (Bruck's) for small data, in which bytes travel several times.
# - **Large data.** All of them send the same bytes, and every byte is sent once, so there is little to gain. Between
#   processes of one machine, MPI copies memory, and Gloo uses TCP.
# - **On a cluster**, an all-to-all is the collective that uses the network most: half of all bytes cross from one half of the
#   machine to the other. Compare this with a ring, where each rank only talks to its neighbors.

# %% [markdown]
# LIBRARY 2 STARTS (ring attention on the emulated network against its bound, and against Ulysses)

# %% [markdown]
# # Going further
#
# - Start seven ranks with `cluster.start(7)` (this also works on two cores), and run the check cells of part A again.
# - Write a *hierarchical* all-to-all. The ranks of a node first exchange rows among themselves, so that each rank holds the rows for one
#   rank of every other node. Then one message goes to each node. How many messages does a rank send now, and how many times does a byte
#   travel? The [chapter](../book/09_all_to_all.md) computes when this pays off.
# - `ExpertParallelMLP` sends full buffers of capacity C, even if most slots are empty. Use `uneven_all_to_all`'s idea instead:
#   exchange counts, and then only the tokens that exist. (`dist.all_to_all_single` takes `input_split_sizes` and `output_split_sizes`.)
#   Then no token needs to be dropped.
# - While the tokens are on their way, the ranks have nothing to do. Split the tokens into two halves, and let the experts work on the first half
#   while the second one travels.
# - Ulysses and the ring can be combined: Ulysses inside a node, and a ring between nodes. Write it on 2 × 2 ranks, with two groups.
