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
# So far, you have written every message yourself. In JAX, you write a program for *whole* arrays, and say how each array is
# split over the devices. The compiler divides the computation to match, and inserts the collectives that this needs. This
# is how most models on TPUs are trained.
#
# One process controls many devices. Here, JAX sees four devices, which share the CPU of the process. (They would be four
# GPUs or TPUs on a larger machine, and the compiler would insert the same collectives.) So the cells that compile a
# program run only on rank 0.

# %%
# %%px --timeout 120
from parlab import jax_layers

if rank == 0:
    print(*jax_layers.devices())

# %%
# %%px --timeout 60
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

# %% [markdown]
# A *sharding* says which part of an array each device holds. It consists of a mesh of devices and a `PartitionSpec`, which
# has one entry for each dimension of the array: the dimension of the mesh over which it is split, or None. Entries at the
# end that are None may be left out. On the mesh `{"dp": 2, "tp": 2}`, an array of 8 rows and 6 columns is split like this:

# %%
# %%px --targets 0
jax_mesh = jax_layers.make_mesh({"dp": 2, "tp": 2})
for spec in (P("dp"), P(None, "tp"), P("dp", "tp"), P()):
    parts = NamedSharding(jax_mesh, spec).devices_indices_map((8, 6))
    print(f"{spec}:")
    for device_of_mesh, (rows, columns) in parts.items():
        rows, columns = rows.indices(8), columns.indices(6)
        print(
            f"    device {device_of_mesh.id}: rows {rows[0]} to {rows[1] - 1}, columns {columns[0]} to {columns[1] - 1}"
        )

# %% [markdown]
# ## 10. The shardings of an MLP
#
# *Difficulty 2/5, 15 minutes.*
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
# | w1, b1, w2 | (H, F), (F,), (F, H) | one part of `tp` parts, the same in each replica. It is for you to choose which dimension is split |
# | b2 | (H,) | all of it |
#
# - **Collectives.** The compiled program contains exactly one, which is an all-reduce over `"tp"`. If tp is 1, it contains none.
# - **Result.** `mlp_shardings` returns a dictionary with the keys `"x"`, `"w1"`, `"b1"`, `"w2"`, `"b2"`, and `"y"`. The values
#   are `NamedSharding(mesh, spec)`.
# - **Mesh.** Its dimensions can be in any order and have any sizes. It may have further dimensions, over which nothing is
#   split. If it has no dimension `"dp"` or `"tp"`, raise a `ValueError` that names the missing one. `NamedSharding` does
#   this for you.
#
# **Predict**: somebody leaves w2 whole on every device (`P()`). How many all-reduces does the compiler insert then, and what
# has changed?
#
# <details><summary>Hint 1</summary>
#
# Tensor parallelism cuts the first layer by columns, the outputs, and the second one by rows, the inputs. In PyTorch, the
# weights are transposed, but here w1 is (inputs, outputs).
# </details>
#
# <details><summary>Hint 2</summary>
#
# Write a dictionary from names to specs, such as `"w1": P(None, "tp")`. Then make a `NamedSharding` of each one. b1 has one
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
    """Whether a mesh is refused as the lab asks for."""
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
# It is still one all-reduce. Each device uses only its rows of w2, and the other rows take memory for nothing. So the
# number of collectives alone does not prove that the layer is parallel. The check also looks at the part of each array
# that a device holds.
# </details>
#
# The next cell compiles the MLP with your shardings, runs it, and compares the result with PyTorch's. The compiler chose the
# devices of each all-reduce, and they are the groups of exercise 2.

# %%
# %%px --targets 0 --timeout 60
draw = np.random.default_rng(0)
mlp_arrays = {"x": (4, 16, 32), "w1": (32, 128), "b1": (128,), "w2": (128, 32), "b2": (32,)}
mlp_arrays = {
    name: draw.standard_normal(shape, np.float32) / 4 for name, shape in mlp_arrays.items()
}
shardings = mlp_shardings(jax_mesh)
program = jax_layers.compile_sharded(jax_layers.mlp, mlp_arrays, shardings)
for name, array in mlp_arrays.items():
    print(f"{name} {array.shape}: each device holds {shardings[name].shard_shape(array.shape)}")
x, w1, b1, w2, b2 = map(torch.from_numpy, mlp_arrays.values())
right = torch.nn.functional.gelu(x @ w1 + b1) @ w2 + b2
y = torch.from_numpy(np.array(program(*mlp_arrays.values())))
print(f"PyTorch computes the same: {torch.allclose(y, right, rtol=1e-4, atol=1e-4)}")
print(*jax_layers.collectives(program), sep="\n")
print("the groups of exercise 2:", mesh_groups({"dp": 2, "tp": 2}, "tp"))

# %% [markdown]
# The compiler also knows the backward pass. **Predict**: which all-reduces does the program contain that computes the
# gradients of x and of the four parameters? Over which devices is each of them?

# %%
# %%px --targets 0 --timeout 60
program = jax_layers.compile_gradients(jax_layers.mlp, mlp_arrays, shardings)
for operation, shape, groups in jax_layers.collectives(program):
    print(f"{operation} over {groups}: {shape}")

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# There are three. Two of them are over `"tp"`, and have the shape of a replica's activations: the forward pass sums the output (g in lab 04), and
# the backward pass sums the gradient of x (f). The third one is over `"dp"`. It sums the parameters' gradients over the
# replicas, all four in one message. In lab 02, you called this a bucket.
# </details>

# %% [markdown]
# ## 11. The shardings of an attention layer
#
# *Difficulty 3/5, 15 minutes.*
#
# `jax_layers.attention(x, wq, wk, wv, wo)` is causal attention for whole arrays. The weights have a dimension for the heads,
# because a device must get whole heads. (One array (H, 3H) for q, k, and v would be cut in the wrong places, and the
# compiler would have to move its parts around.) Several query heads may share one head of keys and values: with 8 heads and
# 2 key and value heads, four in a row share one.
#
# | | Shape | Each device holds |
# |---|---|---|
# | x, y | (batch, sequence, H) | the samples of its replica, as in exercise 10 |
# | wq | (H, heads, head size) | the weights of its heads, one part of `tp` parts |
# | wk, wv | (H, key and value heads, head size) | the weights of its heads, if tp divides the number of key and value heads, and otherwise all of them |
# | wo | (heads, head size, H) | the weights of its heads, one part of `tp` parts |
#
# - **Collectives.** The compiled program contains exactly one, which is an all-reduce over `"tp"`. If tp is 1, it contains none.
# - **Result.** `attention_shardings` returns a dictionary with the keys `"x"`, `"wq"`, `"wk"`, `"wv"`, `"wo"`, and `"y"`. The
#   values are `NamedSharding(mesh, spec)`.
# - **Mesh.** It is as in exercise 10. `mesh.shape` maps names to sizes, such as `mesh.shape["tp"]`.
# - **Errors.** If the mesh has no dimension `"dp"` or `"tp"`, raise a `ValueError` that names the missing one. If tp does not
#   divide `heads`, raise a `ValueError` that names `heads`.
#
# **Predict**: somebody splits the last dimension of wq, wk, and wv, the head size, and the second one of wo. Each device
# also holds one part of `tp` parts then. Which other tensor must be summed over the devices?
#
# <details><summary>Hint 1</summary>
#
# The dimension that is split is the second one of wq, wk, and wv, and the first one of wo.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `mesh.shape["tp"]` raises a `KeyError` if there is no such dimension. Look first whether `"dp"` and `"tp"` are in
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
        raise ValueError(f"heads: {heads} heads do not divide over {tp} devices")
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
    """Whether a mesh or a number of heads is refused as the lab asks for."""
    try:
        attention_shardings(jax_layers.make_mesh(sizes), heads, heads)
    except Exception as error:
        return isinstance(error, ValueError)
    return False


check.show_values(
    split=attention_parts({"tp": 2, "cp": 1, "dp": 2}, 12, 4),
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
# The scores are sums over the head size, so each device would have a part of each sum. The compiler inserts a second
# all-reduce, of a tensor (batch, heads, sequence, sequence), which grows with the square of the sequence.
# </details>
#
# The next cell compares with PyTorch, for 8 heads that share 2 heads of keys and values, on two meshes. On the second one,
# tp is 4, so each device holds all keys and values.

# %%
# %%px --targets 0 --timeout 60
attention_arrays = {
    "x": (4, 16, 32),
    "wq": (32, 8, 4),
    "wk": (32, 2, 4),
    "wv": (32, 2, 4),
    "wo": (8, 4, 32),
}
attention_arrays = {
    name: draw.standard_normal(shape, np.float32) / 4 for name, shape in attention_arrays.items()
}
x, wq, wk, wv, wo = map(torch.from_numpy, attention_arrays.values())
q, k, v = (torch.einsum("bsh,had->basd", x, weight) for weight in (wq, wk, wv))
right = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
right = torch.einsum("basd,adh->bsh", right, wo)
for sizes in ({"dp": 2, "tp": 2}, {"dp": 1, "tp": 4}):
    shardings = attention_shardings(jax_layers.make_mesh(sizes), 8, 2)
    program = jax_layers.compile_sharded(jax_layers.attention, attention_arrays, shardings)
    y = torch.from_numpy(np.array(program(*attention_arrays.values())))
    print(f"{sizes}: PyTorch computes the same: {torch.allclose(y, right, rtol=1e-4, atol=1e-4)}")
    for name in ("wq", "wk", "wo"):
        held = shardings[name].shard_shape(attention_arrays[name].shape)
        print(f"    {name} {attention_arrays[name].shape}: each device holds {held}")
    print("   ", *jax_layers.collectives(program))

# %% [markdown]
# # Going further
