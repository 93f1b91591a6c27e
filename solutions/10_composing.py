# %% [markdown]
# # Lab 10: Putting it together
#
# Large models are trained with several kinds of parallelism at the same time. Tensor parallelism splits each layer,
# pipeline parallelism splits the list of layers, data parallelism splits the batch, and ZeRO-1 splits the state of the
# optimizer. In this lab, you arrange the ranks in a mesh, decide which rank reads which rows and draws which random
# numbers, and write a training step that combines all four and has the same losses as a single process. Then you write a
# planner that chooses the layout for a model and a cluster, and **check it by measurements** on an emulated cluster.
# Finally, you let JAX's compiler add the same tensor parallelism: you only write how the weights are split.
#
# | | |
# |---|---|
# | **You will be able to** | compute the coordinates and groups of a mesh; read the right rows and seed the generators on each rank; compute the norm of a gradient that is spread over a mesh; write a training step with data, tensor, and pipeline parallelism and ZeRO-1; predict the time and memory of a layout, and choose the best one; write shardings in JAX and find the collectives in the compiled program |
# | **Time** | 235 minutes: 209 for exercises, 18 for reading, 8 for the library |
# | **You need** | PyTorch; [lab 03](03_zero.ipynb), [lab 04](04_tensor_parallel.ipynb), and [lab 05](05_pipeline_parallel.ipynb), or basic knowledge of ZeRO, tensor parallelism, and pipelines; 4 GB of memory for eight ranks. You do not need a GPU |
# | **Background** | [chapter 10](../book/10_composing.md) of the book explains what you build here |
#
# First, start the ranks: eight processes, each with its own Python interpreter. Cells that begin with `%%px` run on all ranks.
# Other cells run in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start(8)

# %%
# %%px --timeout 120
import hashlib
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from parlab import training
from parlab.checks import composing as check
from parlab.ledger import Ledger
from parlab.parallel_gpt import ShardedAdam, Stage
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference

# %% [markdown]
# If you are stuck on an exercise, run `use_reference("its_name")` in a `%%px` cell. It runs a reference solution, so that
# you can continue.
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
# Ranks with neighboring numbers are usually on the same node, where links are fastest. So the kind of parallelism that
# needs the fastest links comes last in the mesh. In part B, you measure which one that is.
#
# Compute the coordinates of a rank.
#
# - **Other meshes:** a mesh can have any number of dimensions with any names, in any order. Sizes can be 1. The mesh `{}`
#   has one rank, and the coordinates of this rank are `{}`.
# - **Wrong rank:** if the mesh has no such rank, raise a `ValueError` that names `rank`.
#
# **Predict**: the largest model of Narayanan et al. (2021) was trained on 3,072 GPUs with tensor parallelism of size 8,
# pipelines of 64 stages, and six replicas. Let the mesh be `{"dp": 6, "pp": 64, "tp": 8}`. Which coordinates does rank
# 1,000 have?
#
# <details><summary>Hint 1</summary>
#
# Divide the rank by the size of the last dimension: the remainder is the coordinate in that dimension. What do you do with
# the quotient?
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
# Each kind of parallelism communicates in its own groups. The ranks of a tensor-parallel group differ only in their "tp"
# coordinate, and they sum activations. The ranks of a data-parallel group differ only in "dp", and they average gradients.
# A group can also span several dimensions: the ranks that hold parts of the same stage, in all replicas, differ only in
# "dp" and "tp". In the mesh `{"dp": 2, "pp": 2, "tp": 2}`:
#
# ```text
# mesh_groups(mesh, "tp")          [0, 1]  [2, 3]  [4, 5]  [6, 7]
# mesh_groups(mesh, "dp")          [0, 4]  [1, 5]  [2, 6]  [3, 7]
# mesh_groups(mesh, "dp", "tp")    [0, 1, 4, 5]  [2, 3, 6, 7]
# ```
#
# PyTorch makes a group with `dist.new_group(ranks)`. Every rank has to call it for every group, in the same order, even for
# groups that the rank is not in. So write `mesh_groups`, which returns all groups, not only those of one rank.
#
# - **Order:** the ranks of each group are in ascending order, and the groups are ordered by their first rank. The order of
#   `dims` does not matter.
# - **No dimensions:** `mesh_groups(mesh)` returns groups of one rank each.
# - **Unknown dimension:** if `mesh` lacks one of `dims`, raise a `ValueError` that names the missing dimension.
#
# **Predict**: how many pipelines does the mesh `{"dp": 6, "pp": 64, "tp": 8}` have? Which ranks average their gradients
# with rank 0?
#
# <details><summary>Hint 1</summary>
#
# The ranks of a group have the same coordinates in all other dimensions. Collect the ranks in a dictionary whose keys are
# tuples of these coordinates. If you go through the ranks in ascending order, you do not have to sort anything.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Without loops: `torch.arange(ranks).view(*mesh.values())` is the grid of ranks. Use `permute` to move the dimensions of
# `dims` to the end, and otherwise keep the mesh's order. Then use `reshape` to make a matrix whose rows are the groups.
# </details>


# %% tags=["exercise"] exercise="mesh_groups"
# %%px
def mesh_groups(mesh: Mapping[str, int], *dims: str) -> list[list[int]]:
    """Return all groups of ranks that differ only in their coordinates of `dims`.

    `mesh` has the sizes of one or more dimensions, from the outermost to the innermost; the last
    coordinate changes fastest with the rank. The names in `dims` are different, in any order. Every
    rank of the mesh, an int, is in exactly one group. Each group is a list of ascending ranks, and
    the groups are in the order of their first rank. Do not change `mesh`.

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
# 2,048, and 2,560 average their gradients. They are far apart, on six different nodes.
# </details>
#
# The next cell makes this lab's groups from your function. Every rank makes all groups, and keeps those
# that it belongs to: `groups["tp"]`, `groups["pp"]`, and `groups["dp"]`. `groups["all"]` has all ranks. Before you run it, **predict** the pipeline of rank 6.

# %%
# %%px --timeout 60
mesh = {"dp": world_size // 4, "pp": 2, "tp": 2}
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
from parlab.plots.mesh import mesh_figure

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
# The data consist of rows, such as sequences of tokens, that were shuffled once. Each training step uses the next B rows,
# the global batch. The replicas divide it among themselves: with dp replicas, replica d (counted from 0) reads part d of dp
# equal parts, and cuts it into M micro-batches for the pipeline:
#
# ```text
# step 1 of {"dp": 2, …}, global batch 12, micro-batches of 2
#
# rows            12  13 | 14  15 | 16  17 | 18  19 | 20  21 | 22  23
# replica         0        0        0        1        1        1
# micro-batch     0        1        2        0        1        2
# ```
#
# All ranks of a replica read the same rows: tensor-parallel ranks compute the same layer for the same rows, the first
# stage needs the tokens of these rows, and the last stage needs their targets.
#
# Write `batch_rows`, which returns the indices of the rows that `rank` reads in a step. Steps and the rows of the data are
# counted from 0, and each micro-batch is a row of the result.
#
# - **Other meshes:** the dimension "dp" can be anywhere in the mesh. Other dimensions can have any names.
# - **Wrong rank:** if the mesh has no such rank, raise a `ValueError` that names `rank`.
# - **Wrong batch:** if `global_batch` is not a multiple of dp · `micro_batch`, raise a `ValueError` that names
#   `global_batch`.
#
# **Predict**: a run on 32 ranks with `{"dp": 8, "pp": 2, "tp": 2}` uses the global batch 64 and micro-batches of 2. How
# many micro-batches does a rank read in a step? The run then continues on 32 ranks with `{"dp": 2, "pp": 8, "tp": 2}`
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
    """Return the indices of `rank`'s rows in `step`: int64, of shape (M, micro_batch), on the CPU.

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
# With eight replicas, a rank reads 64 / (8 · 2) = 4 micro-batches in a step. With two replicas, it reads 64 / (2 · 2) = 16.
# That is good: the more micro-batches, the smaller the pipeline's bubble. Relative to the useful time, it is (p − 1)/M, which
# is 7/16 for eight stages and 16 micro-batches; with 4 micro-batches, it would be 7/4. Both layouts use the same rows in each
# step, so without dropout, the losses are the same up to rounding.
# </details>
#
# The next cell prints what each rank of this lab reads in step 1. Which ranks print the same lines?

# %%
# %%px --timeout 20
print(f"replica {mesh_coordinates(rank, mesh)['dp']}: {batch_rows(1, rank, mesh, 16, 4).tolist()}")

# %% [markdown]
# ## 4. Which ranks draw the same random numbers?
#
# *Difficulty 3/5, 18 minutes.*
#
# A layer needs random numbers for three purposes. The purpose decides which ranks must draw the same numbers:
#
# | | used for | the same on | different for |
# |---|---|---|---|
# | `weights` | the initial weights. Each rank draws the *whole* layer and keeps its shard, so every layout starts from the same model | all ranks, in any mesh | seeds and layers |
# | `replicated` | dropout of activations that all ranks of a tensor-parallel group hold | ranks that differ only in "tp", "pp", or both | seeds, layers, and replicas ("dp") |
# | `sharded` | dropout of activations that are split over a tensor-parallel group | ranks that differ only in "pp" | seeds, layers, and coordinates in "dp" or "tp" |
#
# Write `random_seeds`, which returns a seed for each purpose. Each seed starts its own generator.
#
# - **No accidents:** unless the table asks for the same numbers, any two seeds differ. This also holds for two different purposes, for other layers
#   and other ranks of the same run, and for runs with any two values of `seed`. (With 63 bits and a
#   good hash, equal seeds are so improbable that you do not have to rule them out.)
# - **Low bits:** a seed is in [0, 2⁶³), but on a CPU, torch uses only its lowest 32 bits. So seeds that differ only in higher bits draw the same numbers. Do not put
#   `seed`, `layer`, or the coordinates only into the high bits. (In a very large run, some seeds have the same 32 low bits by chance. You may ignore this.)
# - **The stage does not matter:** a layer is on one stage only, and it draws the same numbers whichever stage that is. So the "pp" coordinate has no effect.
# - **In every process:** the same arguments give the same seeds in each process and in each call. Leave the global generators of torch, NumPy, and Python as they are.
# - **Wrong rank:** if `rank` is not in the mesh, raise a `ValueError` that names `rank`.
#
# The mesh has the dimensions "dp", "pp", and "tp" in any order, and up to 100,000 ranks. `seed` is from 0 to one million, and `layer` is from 0 to 999.
#
# **Predict**: somebody uses `seed + layer + rank` as the seed for `sharded` dropout, with 12 layers on 8 ranks without pipeline parallelism. A step needs 96 different masks. How many does it get?
#
# <details><summary>Hint 1</summary>
#
# A sum does not tell which number was which: 2 + 0 + 1 = 2 + 1 + 0. You need a different number for each *combination* of purpose, seed, layer,
# and coordinates. Your `mesh_coordinates` returns the coordinates.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `hashlib.sha256(f"sharded {seed} {layer} {dp} {tp}".encode()).digest()` returns 32 random-looking bytes, which are always the same for the same text.
# `int.from_bytes(digest[:8], "big")` makes a 64-bit number from 8 of them, and half of that number is below 2⁶³. (Python's own `hash` of a string differs between processes.)
# </details>


# %% tags=["exercise"] exercise="random_seeds"
# %%px
def random_seeds(seed: int, layer: int, rank: int, mesh: Mapping[str, int]) -> tuple[int, int, int]:
    """Return the seeds of `layer` on `rank`: `weights`, `replicated`, and `sharded`.

    Args:
        seed: the seed of the run.
        layer: number of the layer in the whole model.
        mesh: size of each dimension, "dp", "pp", and "tp", in any order; the last one changes
            fastest with the rank. Do not change it.

    Returns:
        Three Python ints in [0, 2⁶³).

    Raises a ValueError that names `rank` if it is not in the mesh.
    """
    # BEGIN SOLUTION
    if not 0 <= rank < math.prod(mesh.values()):
        raise ValueError(f"rank {rank} is not in the mesh {dict(mesh)}")
    at = dict(zip(mesh, np.unravel_index(rank, tuple(mesh.values())), strict=True))

    def hashed(*key):
        text = " ".join(map(str, (*key, seed, layer)))
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") // 2

    return (
        hashed("weights"),
        hashed("replicated", at["dp"]),
        hashed("sharded", at["dp"], at["tp"]),
    )
    # END SOLUTION


# %% tags=["check"] exercise="random_seeds" points=2
# %%px --timeout 20
check.random_seeds(random_seeds)


# %% tags=["hidden-check"] exercise="random_seeds" points=1
# %%px --timeout 20
def seeds_of(mesh, seeds, layers):
    """Return the numbers of one mesh, each replaced by the place where it appears first."""
    ranks = range(math.prod(mesh.values()))
    numbers = [n for s in seeds for i in layers for r in ranks for n in random_seeds(s, i, r, mesh)]
    return [numbers.index(n) for n in numbers], len({n % 2**32 for n in numbers})


def seed_refused(wrong_rank):
    try:
        random_seeds(1, 2, wrong_rank, {"tp": 3, "dp": 1, "pp": 2})
    except ValueError as error:
        return "rank" in str(error).lower()
    return False


seeds_here = random_seeds(3, 7, 5, {"pp": 2, "tp": 3, "dp": 2})
in_other_meshes = [random_seeds(3, 7, 5, {"tp": n, "pp": 1, "dp": 2})[0] for n in (3, 5)]
check.show_values(
    first=seeds_of({"dp": 2, "pp": 2, "tp": 3}, (0, 1), (0, 1)),
    other=seeds_of({"tp": 2, "dp": 3, "pp": 1}, (999, 1000), (11, 12)),
    weights=[number == seeds_here[0] for number in in_other_meshes],
    alike=len(set(comm.allgather(seeds_here))) == 1,
    within=all(type(n) is int and 0 <= n < 2**63 for n in seeds_here),
    refused=[seed_refused(6), seed_refused(-1)],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# It gets 19 different masks, because the sums of layer and rank are 0 to 18. For example, layer 3 on rank 0 and layer 2 on rank 1 drop the same places. No error
# reports this; dropout only regularizes less. And the run with the next seed reuses 18 of the 19 masks.
# </details>
#
# The next cell gives each distinct seed a letter, in order of appearance. Before you run it, **predict** how many letters it needs.

# %%
# %%px
if rank == 0:
    seed_mesh, letters = {"dp": 2, "pp": 2, "tp": 2}, {}
    for r in range(8):
        for number in (seeds := random_seeds(1, 5, r, seed_mesh)):
            letters.setdefault(number, "ABCDEFGHIJKLMNOPQRSTUVWX"[len(letters)])
        shown = [letters[number] for number in seeds]
        print("rank {}: weights {}, replicated {}, sharded {}".format(r, *shown))

# %% [markdown]
# There is one letter for the weights, one for each of the two replicas, and one for each of the four pairs of a replica and a shard: seven letters. Ranks that differ only in "pp" have the same three letters. But only one of them
# holds layer 5, so the other one never uses these seeds.

# %% [markdown]
# # Part B: one training step

# %% [markdown]
# ## 5. How many ranks have the same gradient?
#
# *Difficulty 2/5, 8 minutes.*
#
# Clipping needs the norm of the whole model's gradient. No rank has all of it, and some parts of it are on several ranks. When you add up the squares of all ranks, each part must count only once. So
# first **predict in numbers** how many ranks have the same gradient. At this point, the gradients have been averaged over the data-parallel replicas, and those of the tied embedding
# have also been added up over its two stages. Write `predict_copies`, which returns a dict with these keys:
#
# - `"norm"`: the gradient of a layer norm. Its weight is on one stage, and all ranks of a tensor-parallel group have all of it.
# - `"column"`: the gradient of a weight that is split by columns. Each rank of a tensor-parallel group has a different part.
# - `"embedding"`: the gradient of the tied embedding, which is the input layer of the first stage and the output layer of the last stage. All ranks of a tensor-parallel group have all of it. If there is only one stage, it
#   has a single parameter for both uses.
# - `"norm_shard"` and `"column_shard"`: the same two gradients, but with ZeRO-1, which averages them with a reduce-scatter over the replicas: each replica keeps only its own shard. Count the ranks that have the same shard.


# %% tags=["exercise"] exercise="predict_copies"
# %%px
def predict_copies(mesh: Mapping[str, int]) -> dict[str, int]:
    """Return on how many ranks each kind of gradient exists.

    `mesh` has the sizes of the dimensions "dp", "pp", and "tp", in any order. Do not change it. The
    keys of the result are "norm", "column", "embedding", "norm_shard", and "column_shard".
    """
    # BEGIN SOLUTION
    dp, tp, pp = mesh["dp"], mesh["tp"], mesh["pp"]
    return {
        "norm": dp * tp,
        "column": dp,
        "embedding": dp * tp * min(pp, 2),
        "norm_shard": tp,
        "column_shard": 1,
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_copies" points=1
# %%px --timeout 20
check.predict_copies(predict_copies)

# %% tags=["hidden-check"] exercise="predict_copies" points=1
# %%px --timeout 20
copies_meshes = [
    {"dp": 7, "pp": 5, "tp": 3},
    {"tp": 11, "dp": 2, "pp": 1},
    {"pp": 2, "tp": 1, "dp": 9},
]
copy_names = ("norm", "column", "embedding", "norm_shard", "column_shard")
check.show_values(
    **{name: [round(predict_copies(one)[name]) for one in copies_meshes] for name in copy_names}
)

# %% [markdown]
# ## 5b. The norm of a gradient that is spread over a mesh
#
# *Difficulty 3/5, 10 minutes.*
#
# Now write `gradient_norm`, which computes the norm $\sqrt{\sum g^2}$ over all numbers g of the whole model's gradient. Each rank passes the gradients that it has, and for each one the number of ranks that have a copy of it. If a gradient has $c$ copies, each
# rank adds $1/c$ of the sum of its squares, so together they count it once.
#
# - **One number:** all ranks make exactly one all-reduce, with one number. The result is the same on all ranks, to the last bit.
# - **16 bits:** gradients can be float32, float16, or bfloat16, and a list may have several of these. Square and add in float32. In float16, the square of 300 overflows to infinity, and the square of 0.0001 becomes zero.
# - **No gradients:** a rank may have an empty list, or gradients without elements. It still takes part in the all-reduce. If no rank has a gradient, the norm is 0.
# - **Unchanged:** the gradients stay as they are.
# - **Wrong copies:** if `copies` does not have one number for each gradient, or if one of them is less than 1, raise a `ValueError` that names `copies`, before anything is sent.
#
# **Predict**: somebody forgets the copies, on four data-parallel replicas without tensor or pipeline parallelism. By what factor is the norm wrong? What is the true norm of a gradient that was clipped to 1 in this way?
#
# <details><summary>Hint 1</summary>
#
# You cannot add norms, but you can add squares. `gradient.float()` converts to float32, so its squares and their sum are float32, too.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Start with `squares = torch.zeros((), device=device)`, which also works for an empty list. Then add each `gradient.float().square().sum() / c` to it. After `dist.all_reduce(squares, group=group)`, take the square root.
# </details>


# %% tags=["exercise"] exercise="gradient_norm"
# %%px
def gradient_norm(
    gradients: Sequence[Tensor], copies: Sequence[int], group: dist.ProcessGroup
) -> Tensor:
    """Return the 2-norm of the whole gradient, whose parts are on the ranks of `group`.

    Args:
        gradients: the gradients on this rank, of any shapes and number, in float32, float16, or
            bfloat16, on `device`. They are not changed.
        copies: for each of these gradients, how many ranks of `group` have it, this rank included.

    Returns:
        A tensor with one number and no dimensions, in float32, the same on all ranks.

    Raises a ValueError that names `copies` if it does not have one number of at least 1 for each
    gradient.
    """
    # BEGIN SOLUTION
    if len(copies) != len(gradients) or any(c < 1 for c in copies):
        raise ValueError(f"copies is {copies}: give a number from 1 for each gradient")
    from parlab.rank import device  # an empty list does not say which one

    squares = torch.zeros((), device=device)
    for gradient, c in zip(gradients, copies, strict=True):
        squares += gradient.float().square().sum() / c
    dist.all_reduce(squares, group=group)
    return squares.sqrt()
    # END SOLUTION


# %% tags=["check"] exercise="gradient_norm" points=2
# %%px --timeout 30
check.gradient_norm(gradient_norm)


# %% tags=["hidden-check"] exercise="gradient_norm" points=1
# %%px --timeout 20
def norm_of(kind, *parts):
    """Return the norm of some (numbers, copies), and how it was computed."""
    gradients = [torch.tensor(numbers, dtype=kind, device=device) for numbers, _ in parts]
    with Ledger() as ledger:
        norm = gradient_norm(gradients, [c for _, c in parts], group)
    sent = [(call.op, call.bytes_sent <= 8) for call in ledger.calls]
    same = len(set(comm.allgather(norm.item()))) == 1
    return [f"{norm.item():.4g}", str(norm.dtype), list(norm.shape), same, sent]


def copies_refused(copies):
    try:
        gradient_norm([torch.ones(2, device=device)] * 2, copies, group)
    except ValueError as error:
        return "copies" in str(error)
    return False


check.show_values(
    mixed=norm_of(torch.float32, ([3.0, 1.0], world_size), ([[float(rank)], [2.0]], 1)),
    large=norm_of(torch.float16, ([700.0 + 100 * rank, 900.0], 1), ([2000.0], world_size)),
    small=norm_of(torch.bfloat16, ([1e-3 * (rank + 1)] * 5, 1)),
    first=norm_of(torch.float32, *([([6.0, 8.0], 1)] if rank == 0 else [])),
    none=norm_of(torch.float32),
    refused=[copies_refused([1]), copies_refused([1, 1, 1]), copies_refused([0, 1])],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Each gradient is on four ranks, so the sum of the squares is four times too large, and the norm is too large by a factor of 2. A gradient that is clipped ends up with a norm of 1/2. With tensor and pipeline parallelism, the number of copies differs between
# parameters, so the result of the training depends on the layout.
# </details>
#
# In the next cell, the gradient has two parts: every rank has a copy of `whole`, and `split` is divided among the ranks. With the right copies, the norm is that of one process.

# %%
# %%px
torch.manual_seed(0)
whole, split = torch.randn(40).to(device), torch.randn(world_size, 100).to(device)
serial_norm = torch.cat((whole, split.flatten())).norm()
for copies in ((world_size, 1), (1, 1)):
    norm = gradient_norm((whole, split[rank]), copies, group)
    if rank == 0:
        print(f"copies {copies}: {norm:.3f}, in one process {serial_norm:.3f}")

# %% [markdown]
# ## 6. Which ranks share the tied embedding?
#
# *Difficulty 2/5, 6 minutes.*
#
# The output layer of a GPT often shares its weight with the input embedding. In a pipeline, the first and the last stage each have a copy of this weight, and each copy gets only part of the gradient. The copies
# stay equal only if these two stages add up their gradients in each step. So they need a group: the ranks of the first and the last stage that have the same coordinates in all *other* dimensions of the mesh.
#
# Write `embedding_groups`, which returns all of these groups in the format of `mesh_groups`: the ranks of a group are in ascending order, and the groups are ordered by their first rank.
#
# - **Two stages:** each rank is in one group.
# - **More stages:** ranks of the stages in between are in no group.
# - **One stage:** there is nothing to add up, and each rank is a group of its own.
# - **Any mesh:** the pipeline's dimension is called "pp" and can be anywhere in the mesh. The others can have any names.
# - **No pipeline:** if the mesh does not have the dimension "pp", raise a `ValueError` that names "pp".
#
# **Predict**: 16 ranks form the mesh `{"dp": 2, "pp": 4, "tp": 2}`. How many groups are there, and how many ranks are in none? With which rank does rank 1 share a group?
#
# <details><summary>Hint 1</summary>
#
# Each group that your `mesh_groups(mesh, "pp")` returns is a pipeline: its ranks, from the first to the last stage. You need the first and the last rank of each pipeline.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Without `mesh_groups`: `torch.arange(n).view(*mesh.values())` has each rank at its coordinates. `.movedim(place, -1)`, where `place` is the position of "pp" in the mesh, makes the pipeline the last dimension.
# </details>


# %% tags=["exercise"] exercise="embedding_groups"
# %%px
def embedding_groups(mesh: Mapping[str, int]) -> list[list[int]]:
    """Return all groups of ranks that add up the gradients of the tied embedding.

    `mesh` has the size of each dimension; the last one changes fastest with the rank. Do not change
    it. A rank is an int.

    Raises a ValueError that names "pp" if the mesh does not have this dimension.
    """
    # BEGIN SOLUTION
    if "pp" not in mesh:
        raise ValueError(f'the mesh {dict(mesh)} does not have the dimension "pp"')
    ranks = torch.arange(math.prod(mesh.values())).view(*mesh.values())
    pipelines = ranks.movedim(list(mesh).index("pp"), -1).reshape(-1, mesh["pp"])
    return sorted(sorted({one[0], one[-1]}) for one in pipelines.tolist())
    # END SOLUTION


# %% tags=["check"] exercise="embedding_groups" points=1
# %%px --timeout 20
check.embedding_groups(embedding_groups)


# %% tags=["hidden-check"] exercise="embedding_groups" points=1
# %%px --timeout 20
def pp_named(wrong_mesh):
    try:
        embedding_groups(wrong_mesh)
    except ValueError as error:
        return "pp" in str(error)
    return False


check.show_values(
    last=embedding_groups({"dp": 3, "pp": 2, "tp": 2}),
    first=embedding_groups({"pp": 3, "tp": 2, "dp": 2}),
    inner=embedding_groups({"tp": 2, "dp": 2, "cp": 2, "pp": 5}),
    one=embedding_groups({"tp": 2, "pp": 1, "dp": 2}),
    alone=embedding_groups({"pp": 4}),
    named=[pp_named({"dp": 2, "tp": 2}), pp_named({})],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# There are four groups of two, one for each pair of coordinates in "dp" and "tp". The eight ranks of the two middle stages are in none. Rank 1 has the coordinates 0, 0, 1 and shares a group with rank 7, which has 0, 3, 1 and is the last stage
# of its pipeline.
# </details>
#
# The next cell prints the groups for eight ranks, with the dimensions in three different orders. Ranks 0 to 3 are on one node, and ranks 4 to 7 are on another. **Predict** for which orders the sum stays inside a node:

# %%
# %%px
if rank == 0:
    for order in ("dp pp tp", "pp dp tp", "tp dp pp"):
        print(f"{order}: {embedding_groups(dict.fromkeys(order.split(), 2))}")

# %% [markdown]
# The sum crosses from one node to the other only if "pp" is the outermost dimension. A pipeline
# with more stages than a node has ranks crosses nodes whatever the order of the dimensions. But the
# embedding is summed only once per step, so slower links do little harm here.

# %% [markdown]
# ## 7. Forward and backward passes of a stage
#
# *Difficulty 3/5, 30 minutes.*
#
# Now you combine data, tensor, and pipeline parallelism and ZeRO-1 in one training step. You do not have to rewrite
# what you wrote in labs 03 and 04: `Stage` is one pipeline stage of a GPT, with tensor parallelism inside. Every rank creates the whole serial model from
# a seed, and keeps its part.
#
# | | |
# |---|---|
# | `stage(x)` | takes tokens (b, S) on the first stage, and activations (b, S, H) on other stages; returns activations, or scores (b, S, V) on the last stage. It calls the all-reduces of tensor parallelism |
# | `stage.first`, `stage.last` | whether it is the first or the last stage. With one stage, it is both |
# | `stage.activation_shape(b)` | the shape of the activations of b samples, (b, S, H). They are float32 |
# | `stage.embedding` | the token embedding, which is also the output layer: a parameter on the first and on the last stage, and None on other stages |
#
# `groups` is a dict of the process groups that a rank belongs to. Its keys are the dimensions in which the ranks of a group differ: `groups["dp"]`,
# `groups["pp"]`, `groups["tp"]`, and `groups["all"]` with all ranks. On the first and the last stage, there is also `groups["embedding"]`,
# from exercise 6. Rank i of `groups["pp"]` has stage i; `groups["pp"].rank()` is the rank in this group.


# %%
# %%px --timeout 60
from functools import partial

from torch import nn

from parlab import memory, models, timing
from parlab.ledger.ledger import ring_bytes_sent
from parlab.parallel_gpt import serial_gpt


def groups_of(mesh, backend="mpi4py"):
    """Return the groups that this rank belongs to, from your functions."""
    lists = {dim: mesh_groups(mesh, dim) for dim in mesh} | {"all": mesh_groups(mesh, *mesh)}
    lists["embedding"] = embedding_groups(mesh)
    made = {}
    for name, every in lists.items():
        for ranks in every:
            new_group = dist.new_group(ranks, backend=backend)
            if rank in ranks:
                made[name] = new_group
    return made


# %% [markdown]
# Write `pipeline_pass`, which runs this replica's M micro-batches forward and backward through this rank's stage. `tokens_MbS[i]` are the
# tokens of micro-batch i, and `targets_MbS[i]` are its targets. All ranks of the pipeline have both.
#
# - **Gradients**: add to each `.grad` the gradient of the **mean loss over all tokens** of the M micro-batches. `.grad` may already contain
#   numbers, and its memory belongs to the caller, so autograd has to add to it in place. It does so by default.
# - **Result**: the last stage returns this mean loss, and other stages return zero: a float32 tensor of shape () without a graph, on the
#   device of `tokens_MbS`.
# - **Messages**: each micro-batch crosses each cut once, as one message of its activations. Its gradient returns in the same way.
# - **Schedule**: GPipe's, 1F1B, or another one that fills the pipeline. Of p stages, stage r (from 0) runs at least p − r micro-batches forward (or all M,
#   if there are fewer) before its first backward pass.
#
# The stage computes each micro-batch once. `training.token_loss(scores, targets)` is the mean loss of a micro-batch's tokens. M and p are 1
# or more.
#
# **Predict**: in GPipe's schedule, all ranks send with `dist.send`, which may block until the receiver has called `dist.recv`. Can this
# end in a deadlock? And in 1F1B?
#
# <details><summary>Hint 1</summary>
#
# Autograd does not know about other ranks. On a later stage, receive the activations into `torch.empty(...)`, call `requires_grad_()` on them,
# and keep them together with the stage's output. The ranks in `dist.send(y, group=pp_group, group_dst=...)` and
# `dist.recv(x, group=pp_group, group_src=...)` are those of the group; `dst` and `src` would be global ranks.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `y.backward(gradient)` continues the backward pass with the gradient that the next stage sent. The last stage calls
# `(loss / M).backward()` instead. Afterwards, `x.grad` is what the previous stage needs.
# </details>


# %% tags=["exercise"] exercise="pipeline_pass"
# %%px
def pipeline_pass(
    stage: Stage, tokens_MbS: Tensor, targets_MbS: Tensor, pp_group: dist.ProcessGroup
) -> Tensor:
    """Run M micro-batches of b samples forward and backward through this rank's stage.

    Adds the gradient of the mean loss over all tokens to `.grad` of the stage's parameters. Returns
    this loss on the last stage, and 0 on others: float32, shape (), without a graph.
    """
    # BEGIN SOLUTION
    place, kept = pp_group.rank(), []
    mean = torch.zeros((), device=tokens_MbS.device)
    for tokens, targets in zip(tokens_MbS, targets_MbS, strict=True):
        x = tokens
        if not stage.first:
            x = torch.empty(stage.activation_shape(len(tokens)), device=tokens.device)
            dist.recv(x, group=pp_group, group_src=place - 1)
            x.requires_grad_()
        y = stage(x)
        if stage.last:
            y = training.token_loss(y, targets) / len(tokens_MbS)
            mean += y.detach()
        else:
            dist.send(y.detach(), group=pp_group, group_dst=place + 1)
        kept.append((x, y))
    for x, y in kept:
        gradient = None
        if not stage.last:
            gradient = torch.empty_like(y)
            dist.recv(gradient, group=pp_group, group_src=place + 1)
        y.backward(gradient)
        if not stage.first:
            dist.send(x.grad, group=pp_group, group_dst=place - 1)
    return mean
    # END SOLUTION


# %% tags=["check"] exercise="pipeline_pass" points=3
# %%px --timeout 60
check.pipeline_pass(pipeline_pass)


# %% tags=["hidden-check"] exercise="pipeline_pass" points=1
# %%px --timeout 30
def passes_of(mesh, m, samples):
    """Loss, gradients, and messages of one pass through the stages of a mesh."""
    groups = check.groups_over(mesh)
    config = check.config_for(mesh)
    stage = Stage(config, 3, groups["tp"], groups["pp"].rank(), mesh["pp"]).to(device)
    for p in stage.parameters():
        p.grad = torch.full_like(p, 1e-3)
    tokens = torch.arange(m * samples * 5, device=device).view(m, samples, 5) * 7 % 11
    with Ledger() as ledger:
        loss = pipeline_pass(stage, tokens, (tokens + 1) % 11, groups["pp"])
    norms = [f"{p.grad.sub(1e-3).norm().item():.1e}" for p in stage.parameters()]
    return [f"{loss.item():.4f}", loss.requires_grad, norms, sorted(check.sent(ledger))]


replicas = 2 - world_size % 2
check.show_values(
    passes=passes_of({"pp": world_size // replicas, "dp": replicas, "tp": 1}, 4, 2),
    one=passes_of({"dp": world_size, "tp": 1, "pp": 1}, 2, 3),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# In GPipe's schedule, no. In the forward passes, all messages go to the next stage. The last stage only receives, so the stage before it is never stuck, and neither
# are the earlier ones. The backward passes are the same in the other direction. In 1F1B, a stage may send activations forward while its
# neighbor sends a gradient back. If both sends block, they wait for each other forever. So use `dist.isend` for one of them (with
# NCCL, `dist.batch_isend_irecv` for both), or let one of the two neighbors receive before it sends.
# </details>
#
# ## 7b. ZeRO-1 on top
#
# *Difficulty 3/5, 20 minutes.*
#
# Each rank has the gradients of its part of the model, for the rows of its replica. The ranks of `groups["dp"]` have the same
# part of the model, but different rows. So ZeRO-1 runs over `groups["dp"]`: each of its ranks has a shard of the optimizer's states. `ShardedAdam` holds the tensors:
#
# | | |
# |---|---|
# | `adam.flat` | all weights of this rank's stage in one tensor. The stage's parameters are views of it |
# | `adam.gradient` | their gradients, in the same order. The parameters' `.grad` are views of it |
# | `adam.shard` | this rank's part of `adam.flat`, a parameter. `adam.shard.grad` is the same part of `adam.gradient`. Both are views, not copies. The parts are equally long, and rank d of `groups["dp"]` has part d |
# | `adam.optimizer` | Adam for `adam.shard`. Its states belong to the shard only |
# | `adam.parts`, `adam.copies` | the first two arguments of `gradient_norm`: `adam.shard.grad` as a list of views, one for each parameter in the shard, and for each view, how many ranks hold the same numbers after averaging |
#
# Write `zero_step`, which a rank calls when `adam.gradient` has the gradient of **its replica's** mean loss:
#
# 1. Get this rank's shard of the gradients' **mean** over the replicas.
# 2. Call `gradient_norm(gradients, copies, group)`, which you wrote in exercise 5b and now get as an argument, **once**. Choose the group so that the norm is that of the whole model's mean gradient.
# 3. If the norm is larger than `max_norm`, multiply this rank's shard of the gradient by `max_norm` / norm. Otherwise, leave it as it is. The norm may be 0.
# 4. Let Adam take its step on the shard, and gather the shards, so that `adam.flat` has the new weights on all ranks.
#
# Use one reduce-scatter and one all-gather. Return the norm before clipping, as `gradient_norm` returned it. `adam.flat`, `adam.gradient`, and
# `adam.shard.grad` keep their memory. Afterwards, the other parts of `adam.gradient` may contain anything.
#
# **Predict**: somebody clips each shard by its own norm, without communication. On a mesh of 2 × 2 × 2 ranks, is a rank's shard clipped more or less often than it should be? What
# does this do to the direction of the step?
#
# <details><summary>Hint 1</summary>
#
# `dist.reduce_scatter_single(output, input, group=...)` sums, and `dist.all_gather_single(output, input, group=...)` gathers. Both work on
# views. Pass `adam.shard.detach()` to the all-gather: with Gloo, an input that requires a gradient raises an error.
# </details>
#
# <details><summary>Hint 2</summary>
#
# All ranks have the same norm, so either all of them clip or none does. The factor `(max_norm / norm).clamp(max=1.0)` never makes the gradient longer. If the norm is 0, `max_norm / norm` is infinite: without the
# clamp, the gradient would become 0 · ∞, which is NaN.
# </details>


# %% tags=["exercise"] exercise="zero_step"
# %%px
def zero_step(
    adam: ShardedAdam,
    groups: Mapping[str, dist.ProcessGroup],
    max_norm: float,
    gradient_norm: Callable[[Sequence[Tensor], Sequence[int], dist.ProcessGroup], Tensor],
) -> Tensor:
    """Average, clip, and apply the gradients of all replicas, each rank on its shard.

    Returns the 2-norm of the whole model's mean gradient, before clipping: float32, shape ().
    """
    # BEGIN SOLUTION
    dp, gradient = groups["dp"], adam.shard.grad
    dist.reduce_scatter_single(gradient, adam.gradient, group=dp)
    gradient /= dp.size()
    norm = gradient_norm(adam.parts, adam.copies, groups["all"])
    if norm > max_norm:
        gradient *= max_norm / norm
    adam.optimizer.step()
    dist.all_gather_single(adam.flat, adam.shard.detach(), group=dp)
    return norm
    # END SOLUTION


# %% tags=["check"] exercise="zero_step" points=3
# %%px --timeout 60
check.zero_step(zero_step)


# %% tags=["hidden-check"] exercise="zero_step" points=1
# %%px --timeout 30
def right_norm(gradients, copies, group):
    """Return the norm of the whole model's gradient."""
    total = sum(g.square().sum() / number for g, number in zip(gradients, copies, strict=True))
    dist.all_reduce(total, group=group)
    return total.sqrt()


def updates_of(mesh, scales):
    """Norms, moments, weights, and traffic of steps with gradients of these lengths."""
    groups = check.groups_over(mesh)
    stage = Stage(check.config_for(mesh), 4, groups["tp"], groups["pp"].rank(), mesh["pp"])
    adam = ShardedAdam(stage.to(device), groups["dp"], check.copies_for(mesh), lr=0.25)
    shown = []
    for scale in scales:
        numbers = torch.arange(adam.gradient.numel(), device=device) % 7 - 2.0
        adam.gradient.copy_(scale * (groups["dp"].rank() + 1) * numbers)
        with Ledger() as ledger:
            norm = zero_step(adam, groups, 20.0, right_norm)
        moments = adam.optimizer.state[adam.shard]["exp_avg"]
        sizes = [f"{x.double().norm().item():.3e}" for x in (norm, moments, adam.flat.detach())]
        shown.append([*sizes, round(ledger.ring_bytes())])
    return shown


parts = 2 - world_size % 2
check.show_values(
    both=updates_of({"pp": 1, "tp": parts, "dp": world_size // parts}, [1.0, 1e-3, 0.0]),
    alone=updates_of({"dp": 1, "pp": world_size, "tp": 1}, [0.0, 2.0]),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Less often: the norm of a part is never larger than the norm of the whole. And each rank divides by a different number, so the parts of the gradient
# are scaled differently, and the step points in a different direction. Copies of a weight (norms, the embedding) stay equal only if their shards happen to be clipped by the same factor.
# Otherwise, tensor-parallel ranks drift apart without any error.
# </details>
#
# ## 7c. The whole step
#
# *Difficulty 3/5, 10 minutes.*
#
# Write `train_step`, one training step on this rank. It gets the two functions of exercises 7 and 7b as arguments:
# `pipeline_pass(stage, tokens_MbS, targets_MbS, groups["pp"])`, and `zero_step(adam, groups)`, which already knows `max_norm` and `gradient_norm`. You do not need the norm that it returns. Call each of them once.
#
# - Each step starts with gradients of zero. The `.grad` of each parameter remains a view of `adam.gradient`.
# - The embedding is on the first stage and on the last one, and each of them has a part of its gradient. Before the update, both must have the **sum**.
#   Then both copies take the same step and stay equal. On a stage in the middle, `stage.embedding` is None, and there is no `groups["embedding"]`.
# - Return the mean loss over all tokens of the **global** batch as a float, the same on all ranks. `pipeline_pass` returns the loss of a replica on its last stage, and 0
#   on other stages.
#
# Tensor-parallel ranks of a stage have the same loss. All replicas have the same number of tokens. Communicate only in the groups of `groups`.
#
# **Predict**: which of these mistakes can you see in the loss of the first step? (a) The gradients of the embedding are not summed. (b) The gradients are not set to zero.
# (c) The loss is summed over all ranks and divided by the number of replicas.
#
# <details><summary>Hint 1</summary>
#
# `dist.all_reduce(stage.embedding.grad, group=groups["embedding"])` before `zero_step`. With one stage, this group has one rank.
# </details>
#
# <details><summary>Hint 2</summary>
#
# If you sum the losses over `groups["all"]`, how many times does each replica's loss count? Or sum over two of the dimensions, and divide by one number.
# </details>


# %% tags=["exercise"] exercise="train_step"
# %%px
def train_step(
    stage: Stage,
    adam: ShardedAdam,
    tokens_MbS: Tensor,
    targets_MbS: Tensor,
    groups: Mapping[str, dist.ProcessGroup],
    pipeline_pass: Callable[[Stage, Tensor, Tensor, dist.ProcessGroup], Tensor],
    zero_step: Callable[[ShardedAdam, Mapping[str, dist.ProcessGroup]], Tensor],
) -> float:
    """Take one step on this replica's M micro-batches of b samples. Return the global mean loss.

    The loss is the one before the step.
    """
    # BEGIN SOLUTION
    adam.gradient.zero_()
    loss = pipeline_pass(stage, tokens_MbS, targets_MbS, groups["pp"])
    if stage.embedding is not None:
        dist.all_reduce(stage.embedding.grad, group=groups["embedding"])
    zero_step(adam, groups)
    dist.all_reduce(loss, group=groups["all"])
    return loss.item() / (groups["dp"].size() * groups["tp"].size())
    # END SOLUTION


# %% tags=["check"] exercise="train_step" points=4
# %%px --timeout 60
check.train_step(train_step)


# %% tags=["hidden-check"] exercise="train_step" points=2
# %%px --timeout 30
def constant_pass(stage, tokens, targets, pp_group):
    """Add ones to each gradient, and return a loss of 1, 2, … on the last stage of replica 0, 1, …"""
    for p in stage.parameters():
        p.grad += 1 + pp_group.rank()
    return tokens.float().mean() if stage.last else torch.zeros((), device=tokens.device)


def steps_of(mesh):
    """Return the loss, and what the update gets, for two steps."""
    groups, updates = check.groups_over(mesh), []
    stage = Stage(check.config_for(mesh), 5, groups["tp"], groups["pp"].rank(), mesh["pp"])
    adam = ShardedAdam(stage.to(device), groups["dp"], check.copies_for(mesh), lr=0.25)

    def update(adam, groups):
        named = [[n, p.grad.unique().tolist()] for n, p in stage.named_parameters()]
        updates.append([named, f"{adam.gradient.sum().item():.1f}"])
        return torch.ones((), device=device)

    for step in range(2):
        tokens = torch.full((3, 2, 5), groups["dp"].rank() + 1 + step, device=device)
        loss = train_step(stage, adam, tokens, tokens, groups, constant_pass, update)
        updates.append([type(loss).__name__, f"{loss:.4f}"])
    return updates


parts = 2 - world_size % 2
check.show_values(
    tied=steps_of({"tp": parts, "pp": world_size // parts, "dp": 1}),
    replicas=steps_of({"pp": 1, "dp": world_size // parts, "tp": parts}),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Only (c): the loss is too large by a factor of tp, the number of tensor-parallel ranks. The loss of a step is computed before the update, so (a) shows up in the second step.
# (b) shows up in the third one: the gradients are zero before the first step, so the second update
# is the first wrong one. With (a), the two copies of the embedding also differ from then on.
# </details>
#
# ## The losses of one process
#
# Now your functions work together: the mesh and its groups, the rows, the copies, the norm, and the three functions of exercise 7. (This GPT has no dropout, so it needs no `random_seeds`.) The next cells train the same GPT in two
# layouts, and in one process. The gradient is clipped to a norm of 1. The weights come from the same seed, and each step reads the same rows, so the losses must agree.

# %%
# %%px
ROWS, STEPS, MAX_NORM, LR = 16, 10, 1.0, 3e-3
gpt_config = models.GPTConfig()
text_steps = training.text_batches(STEPS, ROWS, 64, device)
every_row = [torch.cat(part) for part in zip(*text_steps, strict=True)]


def layout_of(mesh, backend="mpi4py"):
    """Return this rank's groups, stage, and shard in a mesh."""
    own, copies = groups_of(mesh, backend), predict_copies(mesh)
    place = mesh_coordinates(rank, mesh)["pp"]
    stage = Stage(gpt_config, 0, own["tp"], place, mesh["pp"]).to(device)
    of_shards = {
        "norm": copies["norm_shard"],
        "column": copies["column_shard"],
        "embedding": copies["embedding"] // mesh["dp"],  # each replica has another shard of it
    }
    return own, stage, ShardedAdam(stage, own["dp"], of_shards, LR)


# %%
# %%px
def composed_step(step, mesh, layout, micro_batch=2):
    """Train on the rows of a step. Return the loss."""
    own, stage, adam = layout
    rows = batch_rows(step, rank, mesh, ROWS, micro_batch)
    tokens, targets = (part[rows.to(device)] for part in every_row)
    update = partial(zero_step, max_norm=MAX_NORM, gradient_norm=gradient_norm)
    return train_step(stage, adam, tokens, targets, own, pipeline_pass, update)


def serial_losses():
    """Return the losses of one process."""
    model = serial_gpt(gpt_config, 0).to(device)
    clip = partial(nn.utils.clip_grad_norm_, list(model.parameters()), MAX_NORM)
    adam = torch.optim.Adam(model.parameters(), lr=LR)
    return [
        training.one_step(model, adam, *batch, training.token_loss, clip) for batch in text_steps
    ]


# %%
# %%px --timeout 90
composed_meshes = [
    {"dp": world_size // 4, "pp": 2, "tp": 2},
    {"tp": 2, "dp": world_size // 2, "pp": 1},
]
composed_curves = {"one process": serial_losses() if rank == 0 else []}
for composed_mesh in composed_meshes:
    own_layout = layout_of(composed_mesh)
    name = " × ".join(f"{size} {dim}" for dim, size in composed_mesh.items())
    composed_curves[name] = [composed_step(i, composed_mesh, own_layout) for i in range(STEPS)]
if rank == 0:
    training.print_same({"the GPT": composed_curves}, 1e-3)
    start, *_, end = composed_curves["one process"]
    print(f"the loss falls from {start:.1f} to {end:.1f} nats per byte")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
from parlab import plots

drawn, axes = plots.same_curves(
    "Eight ranks learn what one process learns", {"Adam": composed_curves}, "loss (nats per byte)"
)

# %% [markdown]
# **Predict**: in a step of the mesh 2 dp × 2 pp × 2 tp, in which dimension does rank 0 send the most bytes? The GPT has 2 layers of H = 64, S = 64, and a vocabulary of
# 256. A replica has M = 4 micro-batches of b = 2 rows. Chapters 03 to 05 have the formulas. In which dimension does the number of bytes not depend on the batch?

# %%
# %%px --timeout 30
step_mesh = composed_meshes[0]
step_layout = layout_of(step_mesh)
with Ledger() as step_ledger:
    composed_step(0, step_mesh, step_layout)
_, step_stage, step_adam = step_layout
block = 4 * 2 * 64 * 64  # bytes of a micro-batch's activations
d, N = step_mesh["dp"], world_size
M = ROWS // (d * 2)
formulas = {
    "pp": M * block,  # each micro-batch, once forward or backward
    "tp": M * 4 * 2 * (2 - 1) / 2 * block,  # four all-reduces of one layer for each micro-batch
    "dp": 2 * (d - 1) / d * step_adam.flat.nbytes,  # a reduce-scatter and an all-gather
    "embedding": 2 * (2 - 1) / 2 * step_stage.embedding.nbytes,
    "norm and loss": 2 * 2 * (N - 1) / N * 4,  # one number each, over all ranks
}


# %%
# %%px --timeout 30
def dimension_of(call):
    """Return the dimension in which a call of the step sends."""
    if call.op in ("send", "recv"):
        return "pp"
    if call.op != "all_reduce":
        return "dp"
    return {4: "norm and loss", block: "tp"}.get(call.bytes, "embedding")


step_bytes = dict.fromkeys(formulas, 0)
for call in step_ledger.calls:
    step_bytes[dimension_of(call)] += ring_bytes_sent([call])
if rank == 0:
    for name, count in step_bytes.items():
        print(f"{name:>13}: {count:9,.0f} bytes sent, formula {formulas[name]:9,.0f}")
    states = memory.optimizer_bytes(step_adam.optimizer) / step_adam.flat.nbytes
    print(f"Adam's states: {states:.2f} times the stage's weights, formula {2 / d:.2f}")

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Tensor parallelism sends the most, although each rank has only one layer. Its bytes and those of the pipeline grow with the batch. Data parallelism sends the gradients and the weights of the stage once per step, and the embedding's gradient
# is also summed once, whatever the batch. With larger batches, both become cheap in comparison, so the ranks of these groups can be on different nodes. Tensor parallelism needs the fastest links. This is why "tp" is usually the innermost dimension of a mesh.
# </details>

# %% [markdown]
# ## Against the library: two dimensions
#
# PyTorch composes data and tensor parallelism on one `DeviceMesh`: `parallelize_module` splits the layers over the mesh's dimension "tp", and `fully_shard` then shards the
# parts over "dp". We compare this with your `train_step` in the same layout, without a pipeline. Both train the same GPT on the same rows, and clip to the same
# norm. The library's groups use Gloo on CPUs and NCCL on GPUs. Yours are measured on MPI (like `group`), and on CPUs also on Gloo.
#
# **Predict**: `fully_shard` shards the weights as well. Which of the two sends more bytes in a step with M = 2 micro-batches? Which one holds more?

# %%
# %%px --timeout 120
from parlab.libraries.composing import ShardedParallelGPT


def replica_rows(step, mesh):
    rows = batch_rows(step, rank, mesh, ROWS, 2).to(device)
    return [part[rows] for part in every_row]


two_dimensions = {"dp": world_size // 2, "pp": 1, "tp": 2}
make_adam = partial(torch.optim.Adam, lr=LR)
library = ShardedParallelGPT(serial_gpt(gpt_config, 0).to(device), 2, make_adam, MAX_NORM)
layouts_2d = {"train_step on group": layout_of(two_dimensions)}
if device.type == "cpu":
    layouts_2d["train_step on Gloo"] = layout_of(two_dimensions, "gloo")

# %%
# %%px --timeout 120
ways_2d = {
    name: lambda step, layout=layout: composed_step(step, two_dimensions, layout)
    for name, layout in layouts_2d.items()
} | {"library": lambda step: library.train(*replica_rows(step, two_dimensions))}
curves_2d = {"one process": composed_curves["one process"][:3]}
for name, way in ways_2d.items():
    with Ledger() as sent_2d:
        curves_2d[name] = [way(step) for step in range(3)]
    if rank == 0:
        print(f"{name}: {sent_2d.ring_bytes() / 3 / 1e3:.0f} kB sent in a step")
if rank == 0:
    training.print_same({"two dimensions": curves_2d}, 1e-3)

# %% tags=["nbval-ignore-output"]
# %%px --timeout 120
seconds_2d = timing.median_seconds(
    {name: partial(way, 0) for name, way in ways_2d.items()}, comm, rounds=8
)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
rows_2d = {name: seconds_2d[name] / seconds_2d["library"] for name in layouts_2d}
drawn, axes = plots.ratio_bars(
    "Time of a step, relative to the library's",
    {"Adam": rows_2d},
    "time / time of fully_shard with parallelize_module",
)
print(", ".join(f"{name} {ratio:.2f}" for name, ratio in rows_2d.items()))

# %% [markdown]
# What to look for:
#
# - **The bytes** are nearly the same. Both reduce-scatter the gradients and all-gather the weights once per step. The library gathers the weights before the first
#   forward pass, and you gather them after the update. So between two steps, the library holds only a shard of the weights and of the gradients, and you hold all of them.
#   During the passes of a step, both hold all of them, because our settings let the library keep whole weights and gradients until the last micro-batch.
# - **The number of collectives** is different. You have one reduce-scatter and one all-gather for the whole stage, and the library has them for each layer. On GPUs, it can hide them behind the
#   computation of other layers. With a model this small on CPUs, there is nothing to hide them behind, and each call costs time.
# - **Large models** need what only the library can do. If the weights of a stage do not fit on a device next to the activations, they must be freed layer by layer, even within a step.
#   (`fully_shard` does this with `reshard_after_forward=True`, and then sends more bytes.)

# %% [markdown]
# # Part C: choosing a layout

# %% [markdown]
# ## 8a. Memory of a layout
#
# *Difficulty 2/5, 12 minutes.*
#
# Eight devices can train a model in dozens of layouts: how many replicas, how many tensor-parallel ranks, how many stages, and
# how many sequences in a micro-batch? Trying them all on a cluster is expensive. So you write a planner in three steps:
# predict the memory of a layout, predict the seconds of its step, and choose.
#
# The classes `Model`, `Layout`, and `Cluster` describe what the planner works with. The next cell imports them. After it,
# `help(Layout)` in a `%%px --targets 0` cell shows the attributes and methods of a layout. (The classes are in
# `parlab/layouts.py`.) `gpt` is the model of the next exercises:

# %%
# %%px
from parlab.layouts import Cluster, Layout, Link, Model

gpt = Model(layers=48, hidden=8192, heads=64, sequence=2048, vocabulary=51200, batch=512)
example = Layout(dp=4, tp=8, pp=2, micro_batch=1)
if rank == 0:
    print(f"{gpt.parameters / 1e9:.1f} billion parameters; {example}: {example.mesh}")
    print(f"{example.micro_batches(gpt)} micro-batches of {example.micro_batch} for each replica")

# %% [markdown]
# Write `predict_layout_memory`, which returns the bytes of each kind on a rank of the *first*
# stage. We leave out the logits of the last stage. Without them, this rank needs the most memory.
# The kinds are:
#
# - `weights` and `gradients`: 2 bytes each for every parameter of the rank. A layer has `model.layer_parameters`, which are
#   split over the t tensor-parallel ranks. The first stage also has the embedding, `model.embedding_parameters`, all of it
#   on every tensor-parallel rank. Norms, biases, and positions are small, so leave them out.
# - `optimizer`: 12 bytes for every parameter of the rank. ZeRO-1 shards these bytes over the dp replicas.
# - `activations`: between two layers, there are b·s·h numbers (`model.activation_numbers(layout.micro_batch)`). For each of
#   them, a layer keeps 10 + 24/t bytes: of 34 bytes, 24 are split over the tensor-parallel ranks. (Attention's scores are not
#   kept.) A stage keeps this for all of its layers, and for every micro-batch **in flight**: one whose forward pass is done,
#   but whose backward pass is not. Under 1F1B, the first of p stages has p micro-batches in flight, or all of them if there
#   are fewer.
#
# The layout divides the model's layers, heads, and batch without remainder.
#
# **Predict**: you double dp, tp, or pp, and use twice as many devices. In each of the three cases, which of the four kinds become half
# as large?
#
# <details><summary>Hint 1</summary>
#
# First compute the parameters on one rank. Three of the four kinds follow from this number.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `layers = model.layers // layout.pp` is the number of layers of a stage, and `min(layout.pp, layout.micro_batches(model))`
# is the number of micro-batches in flight.
# </details>


# %% tags=["exercise"] exercise="predict_layout_memory"
# %%px
def predict_layout_memory(model: Model, layout: Layout) -> dict[str, float]:
    """Return the bytes on a rank of the first stage, in mixed precision with Adam and ZeRO-1.

    Returns:
        The bytes by kind: `weights`, `gradients`, `optimizer`, `activations`.
    """
    # BEGIN SOLUTION
    layers = model.layers // layout.pp
    parameters = layers * model.layer_parameters / layout.tp + model.embedding_parameters
    in_flight = min(layout.pp, layout.micro_batches(model))
    numbers = model.activation_numbers(layout.micro_batch)
    return {
        "weights": 2 * parameters,
        "gradients": 2 * parameters,
        "optimizer": 12 * parameters / layout.dp,
        "activations": in_flight * layers * numbers * (10 + 24 / layout.tp),
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_layout_memory" points=1
# %%px
check.predict_layout_memory(predict_layout_memory)


# %% tags=["hidden-check"] exercise="predict_layout_memory" points=1
# %%px --timeout 20
def memory_values(*sizes):
    model = Model(layers=12, hidden=60, heads=12, sequence=50, vocabulary=700, batch=24)
    return {
        kind: round(value) for kind, value in predict_layout_memory(model, Layout(*sizes)).items()
    }


hidden_kinds = ("weights", "gradients", "optimizer", "activations")
check.show_values(
    **{
        kind: [memory_values(*sizes)[kind] for sizes in ((2, 3, 4, 2), (4, 2, 6, 3), (1, 4, 3, 1))]
        for kind in hidden_kinds
    }
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# - **Twice dp**: the optimizer's bytes become half as large. Weights, gradients, and activations stay the same (unless fewer
#   micro-batches than stages remain).
# - **Twice tp**: the layers' weights, gradients, and optimizer states become half as large, but the embedding's do not. Of the
#   activations, only the part 24/t becomes half as large.
# - **Twice pp**: again, what the layers need for weights, gradients, and optimizer states becomes half as large. The
#   activations stay the same: half as many layers, but twice as many micro-batches in flight (if there are enough of them).
# </details>
#
# ## 8b. Seconds of a step
#
# *Difficulty 4/5, 28 minutes.*
#
# Write `predict_step_seconds`. Ranks are numbered as in the mesh `{"dp": …, "pp": …, "tp": …}`: the tensor-parallel ranks of
# a stage are neighbors, stage i + 1 of a replica follows stage i, and one replica follows another. All numbers that are sent
# have 16 bits. The time of a step is the sum of three parts:
#
# - **Passes**: (m + p − 1)(F + B), where a replica has m micro-batches, and F + B is the time of both passes of *one*
#   micro-batch through *one* stage. For each layer of the stage, F + B includes:
#   - computation: `model.layer_flop(b)` FLOP in the forward pass and twice as many in the backward pass, divided among t
#     ranks, each of which computes at `cluster.flop_per_second`;
#   - four all-reduces of the b·s·h numbers between layers, two in each pass, over the t ranks.
# - **Messages** of b·s·h numbers between neighboring stages. A stage has at most p micro-batches in flight, so
#   micro-batch i + p starts only after micro-batch i has come back. So a step waits for ⌈m/p⌉ round trips. In each
#   round trip, one message goes from every stage to the next one, and one message comes back from there.
# - **Gradients**: a reduce-scatter of the gradients of a rank of the first stage, and an all-gather of its weights, over the
#   ranks that have the same stage and the same tensor-parallel coordinate. The rank has the parameters of exercise 8a,
#   including the embedding.
#
# Use `cluster.collective_seconds(name, size, ranks)` and `cluster.message_seconds(size, source, destination)`.
# `help(Cluster)` describes their arguments. The rank
# numbers decide whether links inside a node or between nodes are used. Compute with the groups and the pipeline of rank 0,
# as if all others had the same links. A group of one rank takes 0 s. The rest of the step, such as the embedding and the loss, is left
# out.
#
# **Predict**: nodes have 8 devices, and you move from tp = 8 to tp = 16. What happens to the time of an all-reduce, and what
# happens to that of the computation?
#
# <details><summary>Hint 1</summary>
#
# The tensor-parallel group of rank 0 is `range(layout.tp)`. Which rank has the same tensor-parallel coordinate in the next
# stage? Which one in the next replica?
# </details>
#
# <details><summary>Hint 2</summary>
#
# With t = `layout.tp` and p = `layout.pp`: in replica 0, the first rank of stage i is i·t. The replicas' first ranks are
# `range(0, layout.devices, t * p)`. For the messages, add up `cluster.message_seconds(size, i * t, (i + 1) * t)` for all
# stages i but the last.
# </details>


# %% tags=["exercise"] exercise="predict_step_seconds"
# %%px
def predict_step_seconds(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Return the seconds of a training step with data, tensor, and pipeline parallelism and ZeRO-1."""
    # BEGIN SOLUTION
    b, tp, pp = layout.micro_batch, layout.tp, layout.pp
    m, layers = layout.micro_batches(model), model.layers // pp
    size = 2 * model.activation_numbers(b)
    compute = 3 * model.layer_flop(b) / tp / cluster.flop_per_second
    reduce = cluster.collective_seconds("all_reduce", size, range(tp))
    passes = (m + pp - 1) * layers * (compute + 4 * reduce)
    one_way = sum(cluster.message_seconds(size, i * tp, (i + 1) * tp) for i in range(pp - 1))
    messages = -(-m // pp) * 2 * one_way
    shared = 2 * (layers * model.layer_parameters / tp + model.embedding_parameters)
    replicas = range(0, layout.devices, tp * pp)
    gradients = cluster.collective_seconds("reduce_scatter", shared, replicas)
    weights = cluster.collective_seconds("all_gather", shared, replicas)
    return passes + messages + gradients + weights
    # END SOLUTION


# %% tags=["check"] exercise="predict_step_seconds" points=2
# %%px
check.predict_step_seconds(predict_step_seconds)


# %% tags=["hidden-check"] exercise="predict_step_seconds" points=1
# %%px --timeout 20
def step_values(*sizes):
    model = Model(layers=12, hidden=60, heads=12, sequence=50, vocabulary=700, batch=24)
    slow, fast = Link.of(2e-3, 1e6), Link.of(1e-4, 2e7)
    clusters = [Cluster(4, 6, 1e9, 1e9, fast, slow, 3e-3), Cluster(4, 6, 1e9, 1e7, slow, fast)]
    return [f"{predict_step_seconds(model, Layout(*sizes), one):.6g}" for one in clusters]


check.show_values(
    all_three=step_values(2, 3, 4, 2),
    pipeline=step_values(1, 2, 12, 3),
    data=step_values(24, 1, 1, 1),
    tensor=step_values(2, 12, 1, 4),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The computation of a micro-batch takes half as long. But the group is on two nodes now, so the all-reduces also use the slow
# links between nodes. With the model and the first cluster of the planner below, an all-reduce for one sequence takes 1.7 times as long, even
# with the best algorithm; with the slower links there, it takes 32 times as long. On the same number of devices, there are
# also half as many replicas, so each one has twice as many micro-batches, and the computation of a step does not become
# shorter. This is why the tensor-parallel group usually stays inside a node.
# </details>
#
# ## 8c. Choose a layout
#
# *Difficulty 3/5, 15 minutes.*
#
# Write `plan_layouts`, which returns a list of all layouts that are possible and fit into memory, the fastest first:
#
# - A layout is **possible** if dp · tp · pp is the number of devices of the cluster, tp divides the number of heads, pp
#   divides the number of layers, and dp · micro_batch divides the batch. A micro-batch has one or more sequences.
# - It **fits** if the sum of `memory_of(model, layout)` over all kinds is at most `cluster.memory`.
# - Its time is `seconds_of(model, layout, cluster)`. Layouts with equal times can be in any order.
#
# `memory_of` and `seconds_of` are functions such as your `predict_layout_memory` and `predict_step_seconds`. The check passes
# other functions, because a planner should work with any prediction. Call them only for layouts that are possible.
#
# - **Nothing fits**: raise a `ValueError` that states how many bytes the smallest of the possible layouts needs, as a whole
#   number such as 81234567 (rounded up), so that the reader knows how much is missing.
# - **Nothing is possible**, such as seven devices for eight layers, four heads, and a batch of ten: also raise a
#   `ValueError`.
#
# **Predict**: the model has 48 layers, 64 heads, and a batch of 512 sequences, and the cluster has 64 devices. Are more or
# fewer than 100 layouts possible?
#
# <details><summary>Hint 1</summary>
#
# Try all tp and pp from 1 to the number of devices. What is dp then, if there is one?
# </details>
#
# <details><summary>Hint 2</summary>
#
# Keep the memory that each possible layout needs in a dict. A `Layout` can be a key. Then the layouts that fit, and the smallest need,
# come from the same dict.
# </details>


# %% tags=["exercise"] exercise="plan_layouts"
# %%px
def plan_layouts(
    model: Model,
    cluster: Cluster,
    memory_of: Callable[[Model, Layout], Mapping[str, float]],
    seconds_of: Callable[[Model, Layout, Cluster], float],
) -> list[Layout]:
    """All possible layouts that fit into the devices' memory, the fastest first.

    Raises a ValueError if no layout is possible. If none fits, the ValueError states the smallest
    need.
    """
    # BEGIN SOLUTION
    devices, needs = cluster.devices, {}
    for tp in range(1, devices + 1):
        for pp in range(1, devices // tp + 1):
            dp = devices // (tp * pp)
            if dp * tp * pp != devices or model.heads % tp or model.layers % pp:
                continue
            for b in range(1, model.batch // dp + 1):
                if model.batch % (dp * b) == 0:
                    layout = Layout(dp, tp, pp, b)
                    needs[layout] = sum(memory_of(model, layout).values())
    if not needs:
        raise ValueError(f"no layout of {devices} devices divides heads, layers, and batch")
    fitting = [layout for layout, need in needs.items() if need <= cluster.memory]
    if not fitting:
        raise ValueError(f"none fits: the smallest needs {math.ceil(min(needs.values()))} bytes")
    return sorted(fitting, key=lambda layout: seconds_of(model, layout, cluster))
    # END SOLUTION


# %% tags=["check"] exercise="plan_layouts" points=2
# %%px
check.plan_layouts(plan_layouts)


# %% tags=["hidden-check"] exercise="plan_layouts" points=1
# %%px --timeout 20
def kinds_of(model, layout):
    states = 9_000 // (layout.tp * layout.pp) + 5_000 // layout.dp
    return {"states": states, "others": 70 * layout.micro_batch * layout.pp}


def odd_seconds(model, layout, cluster):
    return (layout.tp**2 + 7 * layout.pp + 3 / layout.micro_batch) / (1 + layout.dp) ** 0.5


def planned(nodes, memory, layers=6, batch=12):
    model = Model(layers, hidden=60, heads=4, sequence=5, vocabulary=7, batch=batch)
    link = Link.of(1e-6, 1e9)
    cluster = Cluster(nodes, 4, memory, 1e9, link, link)
    try:
        layouts = plan_layouts(model, cluster, kinds_of, odd_seconds)
    except ValueError:
        return "refused"
    return [[one.dp, one.tp, one.pp, one.micro_batch] for one in layouts]


check.show_values(
    fits=planned(2, 5_820),
    six_nodes=planned(6, 9_000),
    one_node=planned(1, 1e9),
    tensor_parallel=planned(1, 1e9, layers=5, batch=7),
    nothing=planned(1, 99),
    odd=planned(5, 1e9),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# More: 195, because most combinations of dp, tp, and pp allow many sizes of micro-batches. With your formulas, trying them all takes milliseconds.
# </details>
#
# Now plan for the GPT with 39 billion parameters on eight nodes with eight devices each, and then with slower links between
# nodes and with less memory:

# %%
# %%px --targets 0
nvlink, infiniband = Link.of(5e-6, 250e9), Link.of(20e-6, 25e9)
large = Cluster(8, 8, 80e9, 150e12, nvlink, infiniband, call=10e-6)
others = {
    "8 nodes of 8 devices with 80 GB": large,
    "the links between nodes are 50 times as slow": replace(large, between=Link.of(20e-6, 0.5e9)),
    "devices with 40 GB": replace(large, memory=40e9),
}
for title, one in others.items():
    plans = plan_layouts(gpt, one, predict_layout_memory, predict_step_seconds)
    print(f"{title}: {len(plans)} layouts fit")
    for layout in plans[:3]:
        need = sum(predict_layout_memory(gpt, layout).values())
        seconds = predict_step_seconds(gpt, layout, one)
        print(f"  {seconds:5.1f} s  {need / 1e9:4.1f} GB  {layout}")

# %% [markdown]
# With fast links and 80 GB, the planner uses as many replicas as memory allows: 16. Two stages of 2 tensor-parallel ranks, or one
# stage of 4, make the model fit. With slow links between nodes, gradients are expensive, so it prefers two replicas and 16 stages: a rank then
# has only 3 GB of gradients to average, instead of 20 GB, and pipelines send only activations from node to node. With less
# memory, more stages make room, and the step takes only about 1% longer.
#
# ## 9. Is the planner right?
#
# A planner is only useful if it puts the layouts in the right order. So you measure: the next cells run layouts on an emulated
# cluster with two nodes of four ranks. Each step has real messages and collectives of the right sizes, in the order of the
# 1F1B schedule, on [emulated links](../book/emulated_network.md). Instead of computing, a rank sleeps for as long as the computation
# would take. The model is tiny and the links are slow, so a step takes from half a second to a bit more than one second.
#
# First, your planner lists all layouts that fit, the fastest first. The cell takes up to ten of them, each predicted to be
# more than 4% slower than the last one taken, because the order of two nearly equal times cannot be measured.
#
# **Predict**: a device has 1.8 MB. Does pure data parallelism fit? Which layout will be the fastest?

# %%
# %%px
from parlab import layout_runs

tiny = Model(layers=4, hidden=64, heads=8, sequence=64, vocabulary=512, batch=16)
links = {"inside": Link.of(0.5e-3, 20e6), "between": Link.of(2e-3, 4e6)}
slow_cluster = Cluster(2, world_size // 2, 1.8e6, 500e6, **links, call=3e-3)
plans = plan_layouts(tiny, slow_cluster, predict_layout_memory, predict_step_seconds)
chosen, predicted = [], []
for layout in plans:
    seconds = predict_step_seconds(tiny, layout, slow_cluster)
    if len(chosen) < 10 and (not chosen or seconds > 1.04 * predicted[-1]):
        chosen.append(layout)
        predicted.append(seconds)
if rank == 0:
    print(f"{len(plans)} layouts fit. These are measured, and the first one is the planner's pick:")
    for number, layout in enumerate(chosen, 1):
        print(f"{number:4}  {layout}")

# %% tags=["nbval-ignore-output"]
# %%px --timeout 120
measured = layout_runs.measured_seconds(tiny, chosen, slow_cluster, rounds=2)
correlation = layout_runs.rank_correlation(predicted, measured)
if rank == 0:
    print(f"emulated: the rank correlation of predicted and measured times is {correlation:.2f}")
    print(f"emulated: the pick takes {measured[0] / min(measured):.2f} times the fastest")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
from parlab.plots.layouts import predicted_and_measured

drawn, axes = predicted_and_measured(chosen, predicted, measured)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Pure data parallelism does not fit, though only by 1%: a rank has all weights and gradients (0.92 MB), an eighth of the
# optimizer's states (0.34 MB), and the activations of one sequence (0.56 MB), together 1.82 MB. The fastest layout that fits
# splits the model only as much as necessary: four replicas of two ranks each. Stages seldom exchange messages, so two stages
# beat two tensor-parallel ranks, which wait for two all-reduces in each pass through a layer.
# </details>
#
# A rank correlation of 1 means that the predicted and the measured times have the same order. The measured times are longer
# than the predicted ones, and by more on a busy machine: ranks wake up late, messages wait for busy links, and the machine
# may have fewer cores than ranks. An error that affects all layouts in a similar way does not change their order.

# %% [markdown]
# # Part D: the compiler inserts the collectives

# %% [markdown]
# So far, you have written every message yourself. In JAX, you write a program for *whole* arrays, and say how each array is
# split over the devices. The compiler divides the computation accordingly, and inserts the collectives that this requires. This
# is how most models are trained on TPUs.
#
# In JAX, one process controls several devices, so the cells that compile a program run only on rank 0. Here, JAX sees four
# devices, which share the CPU of the process. (In real training, they would be GPUs or TPUs.)

# %%
# %%px --timeout 120
from parlab import jax_layers

if rank == 0:
    print(*jax_layers.devices())

# %%
# %%px --timeout 60
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# %% [markdown]
# A *sharding* says which part of an array each device holds. It consists of a mesh of devices and a `PartitionSpec`, which
# has one entry for each dimension of the array: the dimension of the mesh over which it is split, or None. You can leave
# out None at the end. On the mesh `{"dp": 2, "tp": 2}`, an array of 8 rows and 6 columns is split like this:

# %%
# %%px --targets 0
jax_mesh = jax_layers.make_mesh({"dp": 2, "tp": 2})
for spec in (P("dp"), P(None, "tp"), P("dp", "tp"), P()):
    parts = jax_layers.parts(NamedSharding(jax_mesh, spec), (8, 6))
    print(f"{spec}:")
    for number, (rows, columns) in enumerate(parts):
        print(f"    device {number}: array[{rows[0]}:{rows[1]}, {columns[0]}:{columns[1]}]")

# %% [markdown]
# ## 10. The shardings of an MLP
#
# *Difficulty 2/5, 10 minutes.*
#
# `jax_layers.mlp(x, w1, b1, w2, b2)` is an MLP for whole arrays. It contains no collective:
#
# ```python
# y = gelu(x @ w1 + b1) @ w2 + b2
# ```
#
# Write the shardings that make it data and tensor parallel, with the communication of Megatron-LM:
#
# | | Shape | Each device holds |
# |---|---|---|
# | x, y | (batch, sequence, H) | the samples of its replica: the batch is split over `"dp"`, and nothing else is split |
# | w1, b1, w2 | (H, F), (F,), (F, H) | one of `tp` parts, the same in each replica. You decide which dimension is split |
# | b2 | (H,) | all of it |
#
# - **Collectives.** The compiled program contains exactly one, which is an all-reduce over `"tp"`. If tp is 1, it contains none.
# - **Result.** `mlp_shardings` returns a dictionary with the keys `"x"`, `"w1"`, `"b1"`, `"w2"`, `"b2"`, and `"y"`. The values
#   are `NamedSharding(mesh, spec)`.
# - **Mesh.** Its dimensions can be in any order and have any sizes. It may have other dimensions, over which nothing is
#   split. If it has no dimension `"dp"` or `"tp"`, a `ValueError` must name the missing one. `NamedSharding` raises it for
#   you.
#
# **Predict**: somebody leaves w2 whole on every device (`P()`). How many all-reduces does the compiler insert then, and what
# has changed?
#
# <details><summary>Hint 1</summary>
#
# Tensor parallelism splits the outputs of the first layer (column parallel) and the inputs of the second one (row parallel).
# PyTorch stores weights as (outputs, inputs), but here w1 is (inputs, outputs).
# </details>
#
# <details><summary>Hint 2</summary>
#
# Write a dictionary from names to specs, such as `"w1": P(None, "tp")`. Then make a `NamedSharding` from each spec. b1 has one
# number for each output of the first layer.
# </details>


# %% tags=["exercise"] exercise="mlp_shardings"
# %%px
def mlp_shardings(mesh: Mesh) -> dict[str, NamedSharding]:
    """Return how the arrays of an MLP are split: "x", "w1", "b1", "w2", "b2", and "y".

    Args:
        mesh: has the dimensions "dp" and "tp", in any order, and perhaps others.

    Raises:
        ValueError: the mesh has no dimension "dp" or "tp".
    """
    # BEGIN SOLUTION
    specs = {
        "x": P("dp"),
        "w1": P(None, "tp"),
        "b1": P("tp"),
        "w2": P("tp"),
        "b2": P(),
        "y": P("dp"),
    }
    return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    # END SOLUTION


# %% tags=["check"] exercise="mlp_shardings" points=2
# %%px --timeout 60
check.mlp_shardings(mlp_shardings)


# %% tags=["hidden-check"] exercise="mlp_shardings" points=1
# %%px --timeout 60
def mlp_parts(sizes):
    """Where the part of each array begins, and its shape, by device of a mesh."""
    mesh, shapes = (
        jax_layers.make_mesh(sizes),
        {"w1": (8, 16), "b1": (16,), "w2": (16, 8), "b2": (8,)},
    )
    shapes |= {"x": (4, 2, 8), "y": (4, 2, 8)}
    return {
        name: jax_layers.parts(s, shapes[name]) for name, s in sorted(mlp_shardings(mesh).items())
    }


def mlp_refused(sizes):
    """Return whether a mesh is refused as the lab asks for."""
    try:
        mlp_shardings(jax_layers.make_mesh(sizes))
    except Exception as error:
        return isinstance(error, ValueError)
    return False


check.show_values(
    inner=mlp_parts({"tp": 2, "cp": 1, "dp": 2}),
    outer=mlp_parts({"cp": 2, "tp": 2, "dp": 1}),
    refused=[mlp_refused({"dp": 2, "cp": 2}), mlp_refused({"tp": 4})],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# It still inserts one all-reduce. But each device uses only its rows of w2, and the other rows waste memory. So the number of
# collectives alone does not show that the weights are split. The check also looks at the part of each array
# that a device holds.
# </details>
#
# The next cell compiles the MLP with your shardings, runs it, and compares the result with PyTorch's. The compiler chose the
# devices of each all-reduce, and they are the groups of exercise 2.

# %%
# %%px --targets 0 --timeout 60
mlp_sizes = {"x": (4, 16, 32), "w1": (32, 128), "b1": (128,), "w2": (128, 32), "b2": (32,)}
mlp_arrays = jax_layers.random_arrays(mlp_sizes)
shardings = mlp_shardings(jax_mesh)
program = jax_layers.compile_sharded(jax_layers.mlp, mlp_arrays, shardings)
for name, size in mlp_sizes.items():
    print(f"{name} {size}: each device holds {shardings[name].shard_shape(size)}")
x, w1, b1, w2, b2 = map(torch.from_numpy, mlp_arrays.values())
right = torch.nn.functional.gelu(x @ w1 + b1) @ w2 + b2
y = torch.from_numpy(np.array(program(*mlp_arrays.values())))
print(f"PyTorch computes the same: {torch.allclose(y, right, rtol=1e-4, atol=1e-4)}")
print(*jax_layers.collectives(program), sep="\n")
print("the groups of exercise 2:", mesh_groups({"dp": 2, "tp": 2}, "tp"))

# %% [markdown]
# The compiler also divides the backward pass. **Predict**: a program computes the gradients of x and of the four parameters.
# Which all-reduces does it contain, and over which devices?

# %%
# %%px --targets 0 --timeout 60
program = jax_layers.compile_gradients(jax_layers.mlp, mlp_arrays, shardings)
for operation, shape, devices in jax_layers.collectives(program):
    print(f"{operation} over {devices}: {shape}")

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# There are three. Two of them run over `"tp"`, and have the shape of a replica's activations: the forward pass sums the output (g in lab 04), and
# the backward pass sums the gradient of x (f). The third one runs over `"dp"`. It sums the parameters' gradients over the
# replicas, all four in one all-reduce. In lab 02, this was called a bucket.
# </details>

# %% [markdown]
# ## 11. The shardings of an attention layer
#
# *Difficulty 3/5, 10 minutes.*
#
# `jax_layers.attention(x, wq, wk, wv, wo)` is causal attention for whole arrays. The weights have a dimension for the heads,
# because a device must get whole heads. (A single array (H, 3H) for q, k, and v would be split in the wrong places, and the
# compiler would have to move parts of it between devices.) Several query heads may share one key and value head: with 8
# query heads and 2 key and value heads, four consecutive query heads share one.
#
# | | Shape | Each device holds |
# |---|---|---|
# | x, y | (batch, sequence, H) | the samples of its replica, as in exercise 10 |
# | wq | (H, heads, head size) | the weights of its heads, one of `tp` parts |
# | wk, wv | (H, key and value heads, head size) | the weights of its key and value heads, one of `tp` parts, if tp divides their number; otherwise all of them |
# | wo | (heads, head size, H) | the weights of its heads, one of `tp` parts |
#
# - **Collectives.** The compiled program contains exactly one, which is an all-reduce over `"tp"`. If tp is 1, it contains none.
# - **Result.** `attention_shardings` returns a dictionary with the keys `"x"`, `"wq"`, `"wk"`, `"wv"`, `"wo"`, and `"y"`. The
#   values are `NamedSharding(mesh, spec)`.
# - **Mesh.** As in exercise 10. `mesh.shape` maps names to sizes: `mesh.shape["tp"]` is tp.
# - **Errors.** If the mesh has no dimension `"dp"` or `"tp"`, raise a `ValueError` that names the missing one. If tp does not
#   divide `heads`, raise a `ValueError` that names `heads`.
#
# **Predict**: somebody splits the last dimension of wq, wk, and wv, the head size, and the second one of wo. Then each
# device also holds one of `tp` parts. Besides y, which tensor must be summed over the devices?
#
# <details><summary>Hint 1</summary>
#
# The dimension of the heads is split. Where is it in wq, wk, and wv, and where is it in wo?
# </details>
#
# <details><summary>Hint 2</summary>
#
# `mesh.shape["tp"]` raises a `KeyError` if there is no such dimension. So first check whether `"dp"` and `"tp"` are in
# `mesh.shape`.
# </details>


# %% tags=["exercise"] exercise="attention_shardings"
# %%px
def attention_shardings(mesh: Mesh, heads: int, kv_heads: int) -> dict[str, NamedSharding]:
    """Return how the arrays of attention are split: "x", "wq", "wk", "wv", "wo", and "y".

    Args:
        mesh: has the dimensions "dp" and "tp", in any order, and perhaps others.
        heads: number of query heads.
        kv_heads: number of heads of keys and of values. It divides `heads`.

    Raises:
        ValueError: the mesh has no dimension "dp" or "tp", or tp does not divide `heads`.
    """
    # BEGIN SOLUTION
    for dim in ("dp", "tp"):
        if dim not in mesh.shape:
            raise ValueError(f"the mesh has no dimension {dim!r}, only {list(mesh.shape)}")
    tp = mesh.shape["tp"]
    if heads % tp:
        raise ValueError(f"tp = {tp} does not divide {heads} heads")
    keys = P() if kv_heads % tp else P(None, "tp")
    specs = {"x": P("dp"), "wq": P(None, "tp"), "wk": keys, "wv": keys, "wo": P("tp"), "y": P("dp")}
    return {name: NamedSharding(mesh, spec) for name, spec in specs.items()}
    # END SOLUTION


# %% tags=["check"] exercise="attention_shardings" points=3
# %%px --timeout 60
check.attention_shardings(attention_shardings)


# %% tags=["hidden-check"] exercise="attention_shardings" points=1
# %%px --timeout 60
def attention_parts(sizes, heads, kv_heads):
    """Where the part of each array begins, and its shape, by device of a mesh."""
    shardings = attention_shardings(jax_layers.make_mesh(sizes), heads, kv_heads)
    shapes = {
        "wq": (8, heads, 4),
        "wk": (8, kv_heads, 4),
        "wv": (8, kv_heads, 4),
        "wo": (heads, 4, 8),
    }
    shapes |= {"x": (4, 2, 8), "y": (4, 2, 8)}
    return {name: jax_layers.parts(s, shapes[name]) for name, s in sorted(shardings.items())}


def attention_refused(sizes, heads):
    """Return whether a mesh or a number of heads is refused as the lab asks for."""
    try:
        attention_shardings(jax_layers.make_mesh(sizes), heads, heads)
    except Exception as error:
        return isinstance(error, ValueError)
    return False


check.show_values(
    split=attention_parts({"tp": 2, "cp": 1, "dp": 2}, 6, 2),
    whole=attention_parts({"cp": 1, "tp": 4, "dp": 1}, 8, 2),
    one=attention_parts({"dp": 4, "tp": 1}, 3, 3),
    refused=[
        attention_refused(*case)
        for case in (({"dp": 4}, 4), ({"tp": 2}, 4), ({"dp": 1, "tp": 4}, 6))
    ],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The attention scores. They are sums over the head size, so each device would have only a part of each sum. The compiler
# inserts a second all-reduce, of a tensor of shape (batch, heads, sequence, sequence), which grows with the square of the
# sequence length.
# </details>
#
# The next two cells compare your layer with PyTorch's, for 8 query heads that share 2 key and value heads, on two meshes. On
# the second mesh, tp is 4, so each device holds all of wk and wv.

# %%
# %%px --targets 0 --timeout 60
keys_sizes = (32, 2, 4)  # hidden, heads, head size
attention_sizes = {
    "x": (4, 16, 32),
    "wq": (32, 8, 4),
    "wk": keys_sizes,
    "wv": keys_sizes,
    "wo": (8, 4, 32),
}
attention_arrays = jax_layers.random_arrays(attention_sizes)
x, wq, wk, wv, wo = map(torch.from_numpy, attention_arrays.values())
q, k, v = (torch.einsum("bsh,had->basd", x, weight) for weight in (wq, wk, wv))
right = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
right = torch.einsum("basd,adh->bsh", right, wo)

# %%
# %%px --targets 0 --timeout 60
for sizes in ({"dp": 2, "tp": 2}, {"dp": 1, "tp": 4}):
    shardings = attention_shardings(jax_layers.make_mesh(sizes), 8, 2)
    program = jax_layers.compile_sharded(jax_layers.attention, attention_arrays, shardings)
    y = torch.from_numpy(np.array(program(*attention_arrays.values())))
    print(f"{sizes}: PyTorch computes the same: {torch.allclose(y, right, rtol=1e-4, atol=1e-4)}")
    for name in ("wq", "wk", "wo"):
        held = shardings[name].shard_shape(attention_sizes[name])
        print(f"    {name} {attention_sizes[name]}: each device holds {held}")
    print("   ", *jax_layers.collectives(program))

# %% [markdown]
# # Going further
#
# - In `composed_meshes`, change the order of the first mesh to `{"tp": 2, "pp": 2, "dp": 2}`, and train again. The losses must stay the
#   same. If a node has four ranks, which groups cross nodes now?
# - Add a fourth dimension "cp" for the ring attention of [lab 09](09_all_to_all.ipynb). Ranks that differ only in "cp" have different
#   tokens of the same rows. Which of your functions change? Over which groups are the gradients averaged?
# - Split the tied embedding by vocabulary, as in [lab 04](04_tensor_parallel.ipynb). How many ranks have a copy of its gradient now?
# - Run the training step on an emulated network, and draw its timeline. When does a rank wait?
# - Let the planner also choose activation checkpointing from [lab 08](08_memory.ipynb): a layer then stores fewer bytes, and computes
#   its forward pass twice. For which models does the best layout change?
# - Save each rank's shards in one layout, and load them in another one. A shard of ZeRO-1 can begin anywhere in a tensor, so first write
#   down which numbers of which parameter each shard has.
