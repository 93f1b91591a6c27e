# %% [markdown]
# # Lab 10: Putting it together
#
# Large models are trained with several kinds of parallelism at the same time. Tensor parallelism splits each layer,
# pipeline parallelism splits the list of layers, data parallelism splits the batch, and ZeRO-1 splits the state of the
# optimizer. In this lab, you arrange the ranks in a mesh, decide which rank reads which rows and draws which random
# numbers, and write one training step of all four, whose losses are those of one process. Then you write a planner
# that chooses the layout for a model and a cluster, and **prove it by measurements** on an emulated cluster. Finally,
# you get the same tensor parallelism from JAX's compiler, by writing only how the weights are split.
#
# | | |
# |---|---|
# | **You will be able to** | compute the coordinates and groups of a mesh; read the right rows and seed generators in each dimension; compute the norm of a gradient that is spread over a mesh; write a training step with data, tensor, and pipeline parallelism and ZeRO-1; predict time and memory of a layout, and choose one; write shardings in JAX and find the collectives in the compiled program |
# | **Time** | 0 minutes |
# | **You need** | PyTorch; [lab 03](03_zero.ipynb), [lab 04](04_tensor_parallel.ipynb), and [lab 05](05_pipeline_parallel.ipynb), or basic knowledge of ZeRO, tensor parallelism, and pipelines. You do not need a GPU |
# | **Background** | [chapter 10](../book/10_composing.md) of the book explains what you build here |
#
# First start the ranks. They are eight processes, and each has its own Python. Cells that begin with `%%px` run on all ranks.
# Other cells run in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start(8)

# %%
# %%px --timeout 120
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from parlab.checks import composing as check
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference

# %% [markdown]
# If you are stuck on an exercise, run `use_reference("its_name")` in a `%%px` cell. It puts a solution in place, and you can
# continue.
#
# # Part A: a mesh of ranks

# %% [markdown]
# SECTION 1 STARTS (mesh_coordinates)

# %% [markdown]
# SECTION 2 STARTS (mesh_groups)

# %% [markdown]
# SECTION 3 STARTS (batch_rows)

# %% [markdown]
# SECTION 4 STARTS (random_seeds)

# %% [markdown]
# # Part B: one training step

# %% [markdown]
# SECTION 5 STARTS (predict_copies, gradient_norm)

# %% [markdown]
# SECTION 6 STARTS (embedding_groups)

# %% [markdown]
# SECTION 7 STARTS (train_step: data × tensor × pipeline with ZeRO-1)

# %% [markdown]
# LIBRARY 1 STARTS (fully_shard over parallelize_module)

# %% [markdown]
# # Part C: choosing a layout

# %% [markdown]
# SECTION 8 STARTS (predict_layout_memory, predict_step_seconds, plan_layouts)

# %% [markdown]
# SECTION 9 STARTS (the planner is proved on the emulated cluster)

# %% [markdown]
# # Part D: the compiler inserts the collectives

# %% [markdown]
# SECTION 10 STARTS (mlp_shardings)

# %% [markdown]
# SECTION 11 STARTS (attention_shardings)

# %% [markdown]
# # Going further
