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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

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
# ## 8a. Memory of a layout
#
# *Difficulty 2/5, 12 minutes.*
#
# Eight devices can train one model in dozens of ways: how many replicas, how many tensor-parallel ranks, how many stages, and
# how many sequences in a micro-batch? Trying them all on a cluster is expensive. So you write a planner in three steps:
# predict the memory of a layout, predict the seconds of its step, and choose.
#
# A `Model`, a `Layout`, and a `Cluster` describe what is needed. Read their attributes in
# [`parlab/layouts.py`](../parlab/layouts.py). The first one is the GPT of the next exercises:

# %%
# %%px
from parlab.layouts import Cluster, Layout, Link, Model

gpt = Model(layers=48, hidden=8192, heads=64, sequence=2048, vocabulary=51200, batch=512)
example = Layout(dp=4, tp=8, pp=2, micro_batch=1)
if rank == 0:
    print(f"{gpt.parameters / 1e9:.1f} billion parameters; {example}: {example.mesh}")
    print(f"{example.micro_batches(gpt)} micro-batches of {example.micro_batch} for each replica")

# %% [markdown]
# Write `predict_layout_memory`. It returns the bytes on a rank of the *first* stage, which needs the most, by kind:
#
# - `weights` and `gradients`: 2 bytes each for every parameter of the rank. A layer has `model.layer_parameters`, which the t
#   tensor-parallel ranks share. The first stage also has the embedding, `model.embedding_parameters`, complete on every
#   tensor-parallel rank. Norms, biases, and positions are small, so leave them out.
# - `optimizer`: 12 bytes for every parameter of the rank, which ZeRO-1 shards over its dp replicas.
# - `activations`: a layer keeps 10 + 24/t bytes for each of the b·s·h numbers between two layers
#   (`model.activation_numbers(layout.micro_batch)`): 24 of the 34 bytes are split over tensor-parallel ranks, and attention's
#   scores are not kept. A stage keeps this for all its layers, and for every micro-batch **in flight**: one whose forward
#   pass it has done, and whose backward pass it has not. Under 1F1B, the first of p stages has p micro-batches in flight, but
#   never more than there are.
#
# The layers, heads, and batch of the model divide by the layout.
#
# **Predict**: you double dp, tp, or pp, and use twice as many devices. Which of the four kinds become half as large with each
# of them?
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
    """Bytes on a rank of the first stage, in mixed precision with Adam and ZeRO-1.

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
# - **Twice tp**: the share of the layers in weights, gradients, and optimizer states is halved, but not the embedding. Of the
#   activations, only the 24/t is halved.
# - **Twice pp**: again, the layers' share is halved. The activations stay the same: half as many layers, but twice as many
#   micro-batches in flight.
# </details>
#
# ## 8b. Seconds of a step
#
# *Difficulty 4/5, 20 minutes.*
#
# Write `predict_step_seconds`. Ranks are numbered as in the mesh `{"dp": …, "pp": …, "tp": …}`: the tensor-parallel ranks of
# a stage are neighbors, stage i + 1 of a replica follows stage i, and replica after replica follows. Sizes in bytes are those
# of 16-bit numbers. A step takes the sum of three parts:
#
# - **Passes**: (m + p − 1)(F + B), with m micro-batches of a replica. F + B is the time of both passes of *one* micro-batch
#   through *one* stage. For each of its layers, it is:
#   - computation: `model.layer_flop(b)` FLOP in the forward pass and twice as many in the backward pass, shared by t ranks,
#     of which each computes `cluster.flop_per_second`;
#   - four all-reduces of the b·s·h numbers between layers, two in each pass, by the t ranks.
# - **Messages** of b·s·h numbers between neighboring stages. A stage has at most p micro-batches in flight, so p of them go
#   through all stages and back before the next p can. So a step waits for ⌈m/p⌉ round trips, each with one message from every
#   stage to the next one, and one back.
# - **Gradients**: a reduce-scatter of the gradients of the first stage, and an all-gather of its weights, by the ranks that
#   share them: those with the same stage and the same tensor-parallel coordinate. The first stage has the parameters of
#   exercise 8a, including the embedding.
#
# Use `cluster.collective_seconds(name, size, ranks)` and `cluster.message_seconds(size, source, destination)`. The rank
# numbers decide whether links inside a node or between nodes are used. Compute with the groups and the pipeline of rank 0:
# others have the same links. A group of one rank takes 0 s. The rest of the step, such as the embedding and the loss, is left
# out.
#
# **Predict**: nodes have 8 devices, and you move from tp = 8 to tp = 16. What happens to the seconds of an all-reduce, and
# what to those of the computation?
#
# <details><summary>Hint 1</summary>
#
# The tensor-parallel group of rank 0 is `range(layout.tp)`. Which rank has the same tensor-parallel coordinate in the next
# stage? Which one in the next replica?
# </details>
#
# <details><summary>Hint 2</summary>
#
# With t = `layout.tp` and p = `layout.pp`: in replica 0, stage i has the ranks from i·t on. The replicas' first ranks are
# `range(0, layout.devices, t * p)`. For the messages, add up `cluster.message_seconds(size, i * t, (i + 1) * t)` for all
# stages i but the last.
# </details>


# %% tags=["exercise"] exercise="predict_step_seconds"
# %%px
def predict_step_seconds(model: Model, layout: Layout, cluster: Cluster) -> float:
    """Seconds of a training step with data, tensor, and pipeline parallelism and ZeRO-1."""
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
# The computation takes half as long. But the group is on two nodes now, so the all-reduces use the slow links between them,
# and take many times as long. This is why the tensor-parallel group stays inside a node.
# </details>
#
# ## 8c. Choose a layout
#
# *Difficulty 3/5, 15 minutes.*
#
# Write `plan_layouts`. It returns all layouts that are possible and fit into memory, the fastest first:
#
# - A layout is **possible** if dp · tp · pp is the number of devices of the cluster, the heads divide by tp, the layers
#   divide by pp, and the batch divides by dp · micro_batch. It can have any micro-batch of one or more sequences.
# - It **fits** if the sum of `memory_of(model, layout)` over all kinds is at most `cluster.memory`.
# - Its time is `seconds_of(model, layout, cluster)`.
#
# `memory_of` and `seconds_of` are functions such as your `predict_layout_memory` and `predict_step_seconds`. The check passes
# others, because a planner should work with any prediction. They are only defined for layouts that are possible.
#
# - **Nothing fits**: raise a `ValueError` that states the smallest need of any possible layout in bytes, so that the reader
#   knows how much is missing.
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
# Keep the need of every possible layout in a dict. A `Layout` can be a key. Then the layouts that fit, and the smallest need,
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

    Raises ValueError if none is possible, or if none fits; then it states the smallest need.
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
        raise ValueError(f"no layout fits: the smallest needs {min(needs.values()):.0f} bytes")
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


def planned(nodes, memory):
    model = Model(layers=6, hidden=60, heads=4, sequence=5, vocabulary=7, batch=12)
    link = Link.of(1e-6, 1e9)
    cluster = Cluster(nodes, 4, memory, 1e9, link, link)
    try:
        layouts = plan_layouts(model, cluster, kinds_of, odd_seconds)
    except ValueError:
        return "refused"
    return [[one.dp, one.tp, one.pp, one.micro_batch] for one in layouts]


check.show_values(
    fits=planned(2, 6_000), six_nodes=planned(6, 9_000), nothing=planned(1, 99), odd=planned(5, 1e9)
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# More: 195, because a layout can have many sizes of micro-batches. With your formulas, trying them all takes milliseconds.
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
# ## 9. Is the planner right?
#
# A planner is only useful if it puts layouts into the right order. So measure: the next cells run layouts on an emulated
# cluster with two nodes of four ranks. Each step has real messages and collectives of the right sizes, in the order of the
# 1F1B schedule, on [emulated links](../book/emulated_network.md). For a computation, a rank sleeps as long as the computation
# would take. The model is tiny and the links are slow, so that steps take about half a second.
#
# First, your planner predicts all layouts that fit. From these, the cell takes those that differ by at least 4 % from the one
# before, up to ten, because two layouts with nearly equal times have no order that could be measured.
#
# **Predict**: devices have 1.8 MB. Does pure data parallelism fit? Which layout will be the fastest?

# %%
# %%px
from parlab import layout_runs
from parlab.plots.layouts import predicted_and_measured

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
    print(
        f"{len(plans)} layouts fit, and {len(chosen)} are measured. The planner's pick: {plans[0]}"
    )

# %% tags=["nbval-ignore-output"]
# %%px --timeout 120
measured = layout_runs.measured_seconds(tiny, chosen, slow_cluster, rounds=2)
correlation = layout_runs.rank_correlation(predicted, measured)
if rank == 0:
    print(f"emulated: the rank correlation of predicted and measured times is {correlation:.2f}")
    print(f"emulated: the pick takes {measured[0] / min(measured):.2f} times the fastest")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = predicted_and_measured(chosen, predicted, measured)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# With pure data parallelism, a rank has all weights and gradients, and needs more than 1.8 MB. The fastest layout that fits
# splits the model only as much as necessary: four replicas of two ranks each. Messages are rare, so two stages beat two
# tensor-parallel ranks, which wait for an all-reduce in every half of a layer.
# </details>
#
# A rank correlation of 1 means that the order of predicted times is the order of measured ones. Measured times are a few
# percent longer, because ranks wake up late, messages wait for links that are busy, and the machine has fewer cores than
# ranks. An error that all layouts share does not change the order.

# %% [markdown]
# # Part D: the compiler inserts the collectives

# %% [markdown]
# SECTION 10 STARTS (mlp_shardings)

# %% [markdown]
# SECTION 11 STARTS (attention_shardings)

# %% [markdown]
# # Going further
