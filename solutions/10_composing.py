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
# | **Time** | 180 minutes |
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
import math
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from parlab.checks import composing as check
from parlab.plots.mesh import mesh_figure
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference

# %% [markdown]
# If you are stuck on an exercise, run `use_reference("its_name")` in a `%%px` cell. It puts a solution in place, and you can
# continue.
#
# # Part A: a mesh of ranks

# %% [markdown]
# ## 1. Coordinates of a rank
#
# *Difficulty 1/5, 8 minutes.*
#
# A *mesh* is a grid of ranks with one dimension for each kind of parallelism. It is a dictionary of sizes, from the
# outermost dimension to the innermost. The mesh `{"dp": 2, "pp": 2, "tp": 2}` has eight ranks. Like the digits of a
# number, the last coordinate changes fastest as you count the ranks:
#
# ```text
# rank   0  1  2  3  4  5  6  7
# dp     0  0  0  0  1  1  1  1     which replica (data parallelism)
# pp     0  0  1  1  0  0  1  1     which stage (pipeline parallelism)
# tp     0  1  0  1  0  1  0  1     which part of each layer (tensor parallelism)
# ```
#
# Ranks with neighboring numbers are usually on the same node, where links are fastest. Tensor parallelism sends the most
# and has to wait for each message, so its dimension comes last.
#
# Compute the coordinates of a rank.
#
# - **Other meshes:** a mesh can have any number of dimensions with any names, in any order. Sizes can be 1. The mesh `{}`
#   has one rank, and the coordinates of this rank are `{}`.
# - **Wrong rank:** if the mesh has no such rank, raise a `ValueError` that names `rank`.
#
# **Predict**: the largest model of Narayanan et al. (2021) was trained on 3,072 GPUs with tensor parallelism of size 8,
# pipelines of 64 stages, and six replicas, in the mesh `{"dp": 6, "pp": 64, "tp": 8}`. Which coordinates does rank
# 1,000 have?
#
# <details><summary>Hint 1</summary>
#
# For the last dimension, divide the rank by the size: the remainder is the coordinate. How do you continue with the
# quotient?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Go through `reversed(mesh)`, and compute `rank, coordinates[dim] = divmod(rank, mesh[dim])` for each dimension. Then
# return the coordinates in the mesh's order.
# </details>


# %% tags=["exercise"] exercise="mesh_coordinates"
# %%px
def mesh_coordinates(rank: int, mesh: Mapping[str, int]) -> dict[str, int]:
    """Return the coordinate of `rank` in each dimension of `mesh`, in the mesh's order.

    `mesh` has the size of each dimension, which is at least 1, from the outermost dimension to the
    innermost. Rank 0 has only zeros, and the last coordinate changes fastest with the rank. A
    coordinate is an int. Do not change `mesh`.

    Raises a ValueError that names `rank` if it is negative, or not below the number of ranks in the
    mesh.
    """
    # BEGIN SOLUTION
    ranks = math.prod(mesh.values())
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not in a mesh of {ranks} ranks")
    coordinates = dict.fromkeys(mesh, 0)
    for dim in reversed(list(mesh)):
        rank, coordinates[dim] = divmod(rank, mesh[dim])
    return coordinates
    # END SOLUTION


# %% tags=["check"] exercise="mesh_coordinates" points=1
# %%px --timeout 20
check.mesh_coordinates(mesh_coordinates)

# %% tags=["hidden-check"] exercise="mesh_coordinates" points=1
# %%px --timeout 20
mesh_sizes = {"ep": 3, "dp": 1, "tp": 4, "pp": 2}
coordinates = [mesh_coordinates(of, mesh_sizes) for of in range(24)]
mesh_refusals = []
for of in (-1, 24):
    try:
        mesh_coordinates(of, mesh_sizes)
    except ValueError as error:
        mesh_refusals.append("rank" in str(error).lower())
check.show_values(
    dims=[list(of) for of in coordinates],
    coordinates=[list(of.values()) for of in coordinates],
    mesh=list(mesh_sizes.items()),
    one=mesh_coordinates(0, {}),
    refusals=mesh_refusals,
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# `{"dp": 1, "pp": 61, "tp": 0}`. A rank's number is 512 · dp + 8 · pp + tp, because a replica has 64 · 8 = 512 ranks and
# a stage of it has 8. Rank 1,000 is number 488 in replica 1, and 488 = 8 · 61 + 0.
# </details>

# %% [markdown]
# ## 2. Groups of ranks
#
# *Difficulty 2/5, 12 minutes.*
#
# Each kind of parallelism communicates in its own groups. A tensor-parallel group has ranks that differ only in their
# coordinate "tp", and it sums activations. A data-parallel group has ranks that differ only in "dp", and it averages
# gradients. A group can also cover several dimensions: all ranks that hold parts of the same stage differ in "dp" and
# "tp". In the mesh `{"dp": 2, "pp": 2, "tp": 2}`:
#
# ```text
# mesh_groups(mesh, "tp")          [0, 1]  [2, 3]  [4, 5]  [6, 7]
# mesh_groups(mesh, "dp")          [0, 4]  [1, 5]  [2, 6]  [3, 7]
# mesh_groups(mesh, "dp", "tp")    [0, 1, 4, 5]  [2, 3, 6, 7]
# ```
#
# PyTorch makes a group with `dist.new_group(ranks)`. All ranks have to call it for each group in the same order, even for
# groups that they are not in. So the function returns all groups, and not only those of one rank.
#
# - **Order:** each group's ranks are ascending, and groups are in the order of their first rank. The order of `dims` does
#   not matter.
# - **No dimensions:** `mesh_groups(mesh)` returns groups of one rank each.
# - **Unknown dimension:** if `mesh` does not have a dimension of `dims`, raise a `ValueError` that names this dimension.
#
# **Predict**: how many pipelines does the mesh `{"dp": 6, "pp": 64, "tp": 8}` have? Which ranks average their gradients
# with rank 0?
#
# <details><summary>Hint 1</summary>
#
# Ranks of a group have the same coordinates in all other dimensions. Sort the ranks into a dictionary whose keys are
# tuples of these coordinates. You need not sort anything if you go through the ranks in ascending order.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Without loops: `torch.arange(ranks).view(*mesh.values())` is the grid of ranks. Move the dimensions of `dims` to the
# end with `permute`, and keep the order of the mesh among them and among the others. Then flatten them with `reshape`, so
# that each row is a group.
# </details>


# %% tags=["exercise"] exercise="mesh_groups"
# %%px
def mesh_groups(mesh: Mapping[str, int], *dims: str) -> list[list[int]]:
    """Return all groups of ranks that differ only in their coordinates of `dims`.

    `mesh` has the sizes of one or more dimensions, from the outermost to the innermost; the last
    coordinate changes fastest with the rank. The names in `dims` are different, in any order. Every
    rank of the mesh, an int, is in exactly one group. Each group is a list of ascending ranks, and the
    groups are in the order of their first rank. Do not change `mesh`.

    Raises a ValueError that names the dimension if `mesh` lacks one of `dims`.
    """
    # BEGIN SOLUTION
    for dim in dims:
        if dim not in mesh:
            raise ValueError(f"the mesh has no dimension {dim!r}, only {list(mesh)}")
    same = [i for i, dim in enumerate(mesh) if dim not in dims]
    different = [i for i, dim in enumerate(mesh) if dim in dims]
    size = math.prod(mesh[dim] for dim in dims)
    ranks = torch.arange(math.prod(mesh.values())).view(*mesh.values())
    return ranks.permute(*same, *different).reshape(-1, size).tolist()
    # END SOLUTION


# %% tags=["check"] exercise="mesh_groups" points=2
# %%px --timeout 20
check.mesh_groups(mesh_groups)

# %% tags=["hidden-check"] exercise="mesh_groups" points=1
# %%px --timeout 20
mesh_sizes = {"tp": 3, "ep": 2, "pp": 1, "dp": 2}
mesh_refusals = []
for dims in (("cp",), ("dp", "cp")):
    try:
        mesh_groups(mesh_sizes, *dims)
    except ValueError as error:
        mesh_refusals.append("cp" in str(error))
check.show_values(
    each=[mesh_groups(mesh_sizes, dim) for dim in mesh_sizes],
    pairs=[mesh_groups(mesh_sizes, *dims) for dims in (("dp", "tp"), ("tp", "ep"), ("ep", "dp"))],
    all_and_none=[mesh_groups(mesh_sizes, *mesh_sizes), mesh_groups(mesh_sizes)],
    mesh=list(mesh_sizes.items()),
    refusals=mesh_refusals,
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# There are 6 · 8 = 48 pipelines, one for each pair of coordinates in the other dimensions. Ranks 0, 512, 1,024, 1,536,
# 2,048, and 2,560 average their gradients. They are far apart, on six nodes.
# </details>
#
# The next cell makes this lab's groups from your function. All ranks make all groups, and each rank keeps its own: in
# `groups["tp"]`, `groups["pp"]`, and `groups["dp"]`. All ranks are in `groups["all"]`. Before you run it, **predict** the three groups of rank 6.

# %%
# %%px --timeout 60
mesh = {"dp": 2, "pp": 2, "tp": 2}
groups = {"all": group}
for dim in mesh:
    for ranks in mesh_groups(mesh, dim):
        new_group = dist.new_group(ranks, backend="mpi4py")
        if rank in ranks:
            groups[dim] = new_group
print({dim: dist.get_process_group_ranks(groups[dim]) for dim in mesh})

# %% [markdown]
# The figure shows the groups that your function returned. Each line connects the ranks of a group.

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
mesh_figure(
    "Each rank is in one group of each dimension",
    mesh,
    {dim: mesh_groups(mesh, dim) for dim in mesh},
)

# %% [markdown]
# ## 3. Which rows a rank reads
#
# *Difficulty 2/5, 12 minutes.*
#
# The data are rows, for example sequences of tokens, that were shuffled once. Each step of training uses the next B rows,
# the global batch. Replicas share them: with dp replicas, replica d reads the d-th of dp equal parts, and cuts its part
# into M micro-batches for the pipeline:
#
# ```text
# step 1 of {"dp": 2, …}, global batch 12, micro-batches of 2
#
# rows            12  13 | 14  15 | 16  17 | 18  19 | 20  21 | 22  23
# replica         0        0        0        1        1        1
# micro-batch     0        1        2        0        1        2
# ```
#
# All ranks of a replica read the same rows. Tensor-parallel ranks compute the same layer of the same rows, the first
# stage needs the tokens of these rows, and the last stage needs their targets.
#
# Return the numbers of the rows that `rank` reads in a step, one line for each micro-batch, counted from row 0 of the
# data.
#
# - **Other meshes:** the dimension "dp" can be at any place in the mesh. Other dimensions can have any names.
# - **Wrong rank:** if the mesh has no such rank, raise a `ValueError` that names `rank`.
# - **Wrong batch:** if `global_batch` is not a multiple of dp · `micro_batch`, raise a `ValueError` that names
#   `global_batch`.
#
# **Predict**: a run on 32 ranks with `{"dp": 8, "pp": 2, "tp": 2}` uses the global batch 64 and micro-batches of 2. How
# many micro-batches does a rank read in a step? The same run continues on 32 ranks with `{"dp": 2, "pp": 8, "tp": 2}`
# and the same batch sizes. How many are there now? Is that good or bad for a pipeline of eight stages?
#
# <details><summary>Hint 1</summary>
#
# Of the rank's coordinates, only "dp" matters. `mesh_coordinates` returns it.
# </details>
#
# <details><summary>Hint 2</summary>
#
# A replica's part has `B // dp` rows and begins at row `step * B + replica * (B // dp)`. `torch.arange` lists its
# rows, and `view(-1, micro_batch)` cuts them into micro-batches.
# </details>


# %% tags=["exercise"] exercise="batch_rows"
# %%px
def batch_rows(
    step: int, rank: int, mesh: Mapping[str, int], global_batch: int, micro_batch: int
) -> Tensor:
    """Return the rows that `rank` reads in `step`: int64, of shape (M, micro_batch), on the CPU.

    Step s, counted from 0, uses the rows from s · global_batch to (s + 1) · global_batch − 1.
    Replica d, the coordinate "dp" of the rank, reads the d-th of dp equal parts, in order. M is
    global_batch / (dp · micro_batch). `mesh` has a dimension "dp"; its last coordinate changes
    fastest with the rank. Do not change `mesh`.

    Raises a ValueError that names `rank` if it is not in the mesh, and one that names
    `global_batch` if it is not a multiple of dp · micro_batch.
    """
    # BEGIN SOLUTION
    ranks, dims = math.prod(mesh.values()), list(mesh)
    if not 0 <= rank < ranks:
        raise ValueError(f"rank {rank} is not in a mesh of {ranks} ranks")
    if global_batch % (mesh["dp"] * micro_batch):
        raise ValueError(
            f"global_batch {global_batch} is not a multiple of {mesh['dp']} · {micro_batch} rows"
        )
    next_replica = math.prod(mesh[dim] for dim in dims[dims.index("dp") + 1 :])
    replica = rank // next_replica % mesh["dp"]
    part = global_batch // mesh["dp"]
    first = step * global_batch + replica * part
    return torch.arange(first, first + part).view(-1, micro_batch)
    # END SOLUTION


# %% tags=["check"] exercise="batch_rows" points=2
# %%px --timeout 20
check.batch_rows(batch_rows)

# %% tags=["hidden-check"] exercise="batch_rows" points=1
# %%px --timeout 20
mesh_sizes = {"tp": 2, "dp": 3, "pp": 2}
rows_read = [batch_rows(2, of, mesh_sizes, 36, 4) for of in range(12)]
mesh_refusals = []
for of, *sizes in ((12, 36, 4), (-1, 36, 4), (0, 42, 4), (1, 40, 4), (2, 42, 6)):
    try:
        batch_rows(0, of, mesh_sizes, *sizes)
    except ValueError as error:
        name = "global_batch" if 0 <= of < 12 else "rank"
        mesh_refusals.append(name in str(error).lower())
check.show_values(
    rows=[rows.tolist() for rows in rows_read],
    dtypes=[str(rows.dtype) for rows in rows_read],
    mesh=list(mesh_sizes.items()),
    refusals=mesh_refusals,
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# With eight replicas, a rank reads 64 / (8 · 2) = 4 micro-batches in a step. With two replicas, it reads 16. More
# micro-batches make the pipeline's bubble smaller. It is (p − 1)/M, so 7/16 for eight stages; with 4 micro-batches, it would be 7/4.
# The global batch is the same rows in both runs, so the losses are the same as well.
# </details>
#
# The next cell prints what each rank of this lab reads in step 1. Which ranks print the same lines?

# %%
# %%px --timeout 20
print(f"replica {mesh_coordinates(rank, mesh)['dp']}: {batch_rows(1, rank, mesh, 16, 4).tolist()}")

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
#
# - Change the order of the mesh to `{"tp": 2, "pp": 2, "dp": 2}`, and run the lab again. The losses must stay the same. Which groups
#   cross nodes now, if a node has four ranks?
# - Add a fourth dimension "cp" for the ring attention of [lab 09](09_all_to_all.ipynb). Ranks that differ only in "cp" have different
#   tokens of the same rows. Which of your functions change? Over which groups are the gradients averaged?
# - Split the tied embedding by vocabulary, as in [lab 04](04_tensor_parallel.ipynb). How many ranks have a copy of its gradient now?
# - Run the training step on an emulated network, and draw its timeline. In which parts does a rank wait?
# - Let the planner also choose activation checkpointing from [lab 08](08_memory.ipynb): a layer then stores fewer bytes, and computes
#   its forward pass twice. For which models does the best layout change?
# - Save each rank's shards in one layout, and load them in another one. A shard of ZeRO-1 begins anywhere in a tensor, so first write
#   down which numbers of which parameter it has.
