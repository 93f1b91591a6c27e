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
# LIBRARY 1 STARTS (pairwise all-to-all against Gloo or NCCL, and against `MPI.Alltoall`)

# %% [markdown]
# LIBRARY 2 STARTS (ring attention on the emulated network against its bound, and against Ulysses)

# %% [markdown]
# # Going further
