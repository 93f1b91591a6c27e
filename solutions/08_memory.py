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
# SECTION 5 STARTS (chunked_cross_entropy)

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
