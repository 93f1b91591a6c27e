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
# ## 7. Forward and backward passes of a stage
#
# *Difficulty 3/5, 15 minutes.*
#
# Now you compose a training step from data, tensor, and pipeline parallelism and ZeRO-1. You do not have to write
# again what you wrote in labs 03 and 04. `Stage` is one pipeline stage of a GPT, with tensor parallelism inside. All ranks create the serial model from
# a seed, and each rank keeps its part.
#
# | | |
# |---|---|
# | `stage(x)` | takes tokens (b, S) on the first stage, and activations (b, S, H) on other stages; returns activations, or scores (b, S, V) on the last stage. It calls the all-reduces of tensor parallelism |
# | `stage.first`, `stage.last` | whether it is the first or the last stage. With one stage, it is both |
# | `stage.activation_shape(b)` | the shape of the activations of b samples, (b, S, H). They are float32 |
# | `stage.embedding` | the token embedding, which is also the output layer: a parameter on the first and on the last stage, and None on other stages |
#
# `groups` is a dict of the process groups that a rank belongs to, by the dimensions in which their ranks differ: `groups["dp"]`,
# `groups["pp"]`, `groups["tp"]`, and `groups["all"]` with all ranks. On the first and the last stage, there is also `groups["embedding"]`
# of exercise 6. Rank i of `groups["pp"]` has stage i.


# %%
# %%px --timeout 60
def groups_of(mesh):
    """The groups that this rank belongs to, from your functions."""
    lists = {dim: mesh_groups(mesh, dim) for dim in mesh} | {"all": mesh_groups(mesh, *mesh)}
    lists["embedding"] = embedding_groups(mesh)
    return {
        name: dist.new_group(ranks, backend="mpi4py", use_local_synchronization=True)
        for name, every in lists.items()
        for ranks in every
        if rank in ranks
    }


# %% [markdown]
# Write `pipeline_pass`, which runs this replica's M micro-batches forward and backward through this rank's stage. `tokens_MbS[i]` are the
# tokens of micro-batch i, and `targets_MbS[i]` are its targets. All ranks of the pipeline have both.
#
# - **Gradients**: add to each `.grad` the gradient of the **mean loss over all tokens** of the M micro-batches. `.grad` may contain numbers
#   already, and its memory belongs to the caller, so autograd has to add to it in place. It does this by default.
# - **Result**: the last stage returns this mean loss, and other stages return zero: a float32 tensor of shape () without a graph, on the
#   device of `tokens_MbS`.
# - **Messages**: each micro-batch crosses each cut once, as one message of its activations. Its gradient returns in the same way.
# - **Schedule**: GPipe's, 1F1B, or another one that fills the pipeline. Stage r starts at least p − r micro-batches (or all M, if there are
#   fewer) before it waits for its first gradient.
#
# The stage computes each micro-batch once. `training.token_loss(scores, targets)` is the mean loss of a micro-batch's tokens. M and p are 1
# or more.
#
# **Predict**: in GPipe's schedule, all ranks send with `dist.send`, which may wait until the receiver has called `dist.recv`. Can the ranks
# wait for each other forever? And in 1F1B?
#
# <details><summary>Hint 1</summary>
#
# Autograd does not know other ranks. On a later stage, receive the activations into `torch.empty(...)`, call `requires_grad_()` on them,
# and keep them together with the stage's output.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `y.backward(gradient)` continues with a gradient that came from the next stage. The last stage calls
# `(loss / M).backward()` instead. Then the previous stage needs `x.grad`.
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
        p.grad = torch.ones_like(p)
    tokens = torch.arange(m * samples * 5, device=device).view(m, samples, 5) * 7 % 11
    with Ledger() as ledger:
        loss = pipeline_pass(stage, tokens, (tokens + 1) % 11, groups["pp"])
    norms = [f"{p.grad.sub(1).norm().item():.3e}" for p in stage.parameters()]
    return [f"{loss.item():.4f}", loss.requires_grad, norms, sorted(check.sent(ledger))]


replicas = 2 - world_size % 2
check.show_values(
    passes=passes_of({"pp": world_size // replicas, "dp": replicas, "tp": 1}, 4, 2),
    one=passes_of({"dp": world_size, "tp": 1, "pp": 1}, 2, 3),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# In GPipe's schedule, no. All messages of the forward passes go to the next stage, so the last stage never waits to send, and the stages before it
# continue one after the other. The backward passes are the same in the other direction. In 1F1B, a stage may send activations forward while its
# neighbor sends a gradient back. With blocking sends, both wait for each other, so one of them needs `dist.isend`.
# </details>
#
# ## 7b. ZeRO-1 on top
#
# *Difficulty 3/5, 10 minutes.*
#
# Each rank has the gradients of its part of the model, for the rows of its replica. The replicas, which are the ranks of `groups["dp"]`, have the same
# part and other rows. So ZeRO-1 runs over `groups["dp"]`: each replica has a shard of the optimizer's states. `ShardedAdam` has the tensors:
#
# | | |
# |---|---|
# | `adam.flat` | all weights of this rank's stage in one tensor. The stage's parameters are views of it |
# | `adam.gradient` | their gradients, in the same order. The parameters' `.grad` are views of it |
# | `adam.shard` | this rank's part of `adam.flat`, and `adam.shard.grad` is the same part of `adam.gradient`: the same memory, without a copy. Rank d of `groups["dp"]` has the d-th of equal parts |
# | `adam.optimizer` | Adam for `adam.shard`. Its states belong to the shard only |
# | `adam.parts`, `adam.copies` | `adam.shard.grad` as a list of views, one for each parameter; and how many ranks hold the same numbers of it (after averaging) |
#
# Write `zero_step`, which a rank calls when `adam.gradient` has the gradient of **its replica's** mean loss:
#
# 1. Get this rank's shard of the **mean** over the replicas.
# 2. Call `gradient_norm(gradients, copies, group)`, which you wrote in exercise 5 and get as an argument, **once**. The norm is that of the whole model's mean gradient.
# 3. If the norm is larger than `max_norm`, multiply the gradient by `max_norm` / norm. Otherwise, leave it as it is. The norm may be 0.
# 4. Let Adam take its step on the shard, and gather the shards, so that `adam.flat` has the new weights on all ranks.
#
# Use one reduce-scatter and one all-gather. Return the norm before clipping, as `gradient_norm` returned it. `adam.flat`, `adam.gradient`, and
# `adam.shard.grad` keep their memory.
#
# **Predict**: somebody clips by the norm of the own shard, without communication. On one of 2 × 2 × 2 ranks, is the gradient clipped more or less often than on one rank? What
# does it do to the direction of the step?
#
# <details><summary>Hint 1</summary>
#
# `dist.reduce_scatter_single(output, input, group=...)` sums, and `dist.all_gather_single(output, input, group=...)` gathers. Both may work on views.
# </details>
#
# <details><summary>Hint 2</summary>
#
# All ranks have the same norm, so all of them clip or none. `(max_norm / norm).clamp(max=1.0)` is a factor that never makes the gradient longer. What is 0 × ∞?
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
    """The norm of the whole model's gradient."""
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
# Less often: the norm of a part is never larger than the norm of the whole. And each rank divides by another number, so the parts of the gradient
# are scaled differently, and the step points elsewhere. Copies of a weight (norms, the embedding) still agree only if their shards happen to be clipped by the same factor.
# Otherwise, tensor-parallel ranks drift apart, without an error.
# </details>
#
# ## 7c. The whole step
#
# *Difficulty 3/5, 10 minutes.*
#
# Write `train_step`, one training step on this rank. It gets the two functions of exercises 7 and 7b as arguments:
# `pipeline_pass(stage, tokens_MbS, targets_MbS, groups["pp"])`, and `zero_step(adam, groups)`, whose norm you do not need here. Call each of them once.
#
# - Each step starts with gradients of zero. `.grad` of each parameter remains a view of `adam.gradient`.
# - The embedding is on the first stage and on the last one, and each of them has a part of its gradient. Before the update, both must have the **sum**.
#   Then both copies take the same step, and remain equal. A stage in the middle has `stage.embedding` None and no `groups["embedding"]`.
# - Return the mean loss over all tokens of the **global** batch as a float, the same on all ranks. `pipeline_pass` returns the loss of a replica on its last stage, and 0
#   on other stages.
#
# Tensor-parallel ranks of a stage have the same loss. All replicas have equally many tokens. Communicate only in the groups of `groups`.
#
# **Predict**: which of these mistakes does the loss of the first step show? (a) The gradients of the embedding are not summed. (b) The gradients are not set to zero.
# (c) The loss is summed over all ranks and divided by the number of replicas.
#
# <details><summary>Hint 1</summary>
#
# `dist.all_reduce(stage.embedding.grad, group=groups["embedding"])` before `zero_step`. With one stage, this group has one rank.
# </details>
#
# <details><summary>Hint 2</summary>
#
# If you sum the losses over `groups["all"]`, how often does each replica's loss count? Or sum over two of the dimensions, and divide by one number.
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
    """The loss, and what the update gets, for two steps."""
    groups, seen = check.groups_over(mesh), []
    stage = Stage(check.config_for(mesh), 5, groups["tp"], groups["pp"].rank(), mesh["pp"])
    adam = ShardedAdam(stage.to(device), groups["dp"], check.copies_for(mesh), lr=0.25)

    def update(adam, groups):
        named = [[n, p.grad.unique().tolist()] for n, p in stage.named_parameters()]
        seen.append([named, f"{adam.gradient.sum().item():.1f}"])
        return torch.ones((), device=device)

    for step in range(2):
        tokens = torch.full((3, 2, 5), groups["dp"].rank() + 1 + step, device=device)
        loss = train_step(stage, adam, tokens, tokens, groups, constant_pass, update)
        seen.append([type(loss).__name__, f"{loss:.4f}"])
    return seen


parts = 2 - world_size % 2
check.show_values(
    tied=steps_of({"tp": parts, "pp": world_size // parts, "dp": 1}),
    replicas=steps_of({"pp": 1, "dp": world_size // parts, "tp": parts}),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Only (c): the loss is too large by the number of tensor-parallel ranks. The loss of a step is computed before the update, so (a) and (b) show up in the second step at the earliest.
# With (a), the two copies of the embedding also differ from then on.
# </details>

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
