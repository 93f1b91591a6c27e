# %% [markdown]
# # Lab 03: ZeRO
#
# Data parallelism keeps the same weights, the same gradients and the same optimizer states on every
# rank: N copies of everything. ZeRO keeps one copy in all. Each rank holds a *shard*, and asks the
# others for the rest just before it is needed. You build its three stages, see that the learning
# curve stays what it was, and **measure what each rank holds and sends, beside the formula**.
#
# | | |
# |---|---|
# | **You will be able to** | account for every byte that a rank holds; shard parameters with padding; write ZeRO's stages 1, 2 and 3; clip by a norm that nobody holds; prefetch; keep optimizer states off the device; say what each saves and what it sends |
# | **Time** | 105 minutes |
# | **You need** | PyTorch; [lab 02](02_data_parallel.ipynb), or the knowledge of what data parallelism and a reduce-scatter are. No GPU |
# | **Background** | [chapter 03](../book/03_zero.md) of the book explains what you build here |
#
# Start the ranks: four processes, each with a Python of its own. Cells that begin with `%%px` run
# on all of them, other cells in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px --timeout 120
import copy
import statistics
import tempfile
import time
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab import memory, models
from parlab.checks import zero as check
from parlab.costs import zero as costs
from parlab.data import mnist, text
from parlab.ledger import Ledger
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference
from parlab.sharding import own_parameters
from parlab.timeline import Timeline, draw

# %% [markdown]
# Everything here speaks through `torch.distributed`, on the `group` that a function is given:
# `group.rank()` and `group.size()` are this rank's number and how many there are. The two
# collectives that you need, both on flat tensors:
#
# - `dist.all_gather_single(whole, shard, group=group)`: `whole` becomes all ranks' shards, one
#   after the other. The shard may lie in its place in `whole` already.
# - `dist.reduce_scatter_single(shard, whole, group=group)`: `shard` becomes this rank's part of the
#   sum of all ranks' `whole`.
#
# An all-reduce is the second followed by the first. That is the whole trick of ZeRO: between the
# two halves, each rank needs its shard only. If you are stuck on an exercise,
# `use_reference("its_name")` in a `%%px` cell puts a solution in its place, and you go on.
#
# # Part A: what a rank holds
#
# ## 1. Account for it
#
# *Difficulty 1/5, 5 minutes.*
#
# Training keeps three kinds of numbers from step to step: parameters, their gradients, and what the
# optimizer remembers. Count their bytes.
#
# - A parameter that two layers share is there once. A frozen one takes room as well.
# - A gradient that is not there (`.grad` is None) takes none.
# - The optimizer's states are the tensors in `optimizer.state`: of any optimizer, and only those
#   that there are. Before the first step there are none.
# - Tensors may have any dtype: `tensor.nbytes` is what one takes.
#
# **Predict**: the MLP has 269,322 float32 parameters. How many bytes of each kind are there after a
# step of Adam? And of SGD without momentum?
#
# <details><summary>Hint 1</summary>
#
# `model.parameters()` gives each parameter once, tied or not.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `optimizer.state.values()` are dicts by parameter; among their values, `isinstance(value,
# torch.Tensor)` are tensors.
# </details>


# %% tags=["exercise"] exercise="memory_by_kind"
# %%px
def memory_by_kind(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Bytes of the model's states on this rank: `parameters`, `gradients`, `optimizer_states`."""
    # BEGIN SOLUTION
    parameters = list(model.parameters())
    states = [tensor for state in optimizer.state.values() for tensor in state.values()]
    return {
        "parameters": sum(p.nbytes for p in parameters),
        "gradients": sum(p.grad.nbytes for p in parameters if p.grad is not None),
        "optimizer_states": sum(t.nbytes for t in states if isinstance(t, torch.Tensor)),
    }
    # END SOLUTION


# %% tags=["check"] exercise="memory_by_kind" points=2
# %%px
check.memory_by_kind(memory_by_kind)


# %% tags=["hidden-check"] exercise="memory_by_kind" points=1
# %%px --timeout 20
def accounted(make_optimizer, steps):
    model = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 3).double())
    model.tied = model[0]
    model[1].requires_grad_(False)
    optimizer = make_optimizer([p for p in model.parameters() if p.requires_grad])
    for parameter in [*model[0].parameters(), model[2].weight][: 3 * steps]:
        parameter.grad = torch.ones_like(parameter)
    for _ in range(steps):
        optimizer.step()
    return memory_by_kind(model, optimizer)


check.show_values(
    none=accounted(torch.optim.Adam, 0),
    sgd=accounted(partial(torch.optim.SGD, lr=0.1), 1),
    momentum=accounted(partial(torch.optim.SGD, lr=0.1, momentum=0.9), 1),
    adamax=accounted(torch.optim.Adamax, 1),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 4 bytes of each: 1,077,288 of parameters and as many of gradients. Adam keeps two moments, so
# twice that (and a step counter for each tensor). Plain SGD remembers nothing.
# </details>
#
# ## 2. What each stage leaves on a rank
#
# *Difficulty 2/5, 5 minutes.*
#
# **Predict in numbers**: a model of Ψ float32 parameters, trained with Adam on N ranks. What are
# the bytes of all three kinds together on one rank, between two steps? Adam's step counters do not
# count, nor does padding.
#
# - `plain`: data parallelism, everything on every rank;
# - `stage_1`: each rank holds the optimizer states of its shard only;
# - `stage_2`: the gradients are sharded as well;
# - `stage_3`: so are the parameters.
#
# The check compares with the formulas; in part C, after stage 3, you measure it.


# %% tags=["exercise"] exercise="predict_stages"
# %%px
def predict_stages(parameters: int, world_size: int) -> dict[str, float]:
    """Bytes on each rank with `plain`, `stage_1`, `stage_2`, `stage_3`: Adam in float32."""
    # BEGIN SOLUTION
    shard = parameters / world_size
    return {
        "plain": 16 * parameters,
        "stage_1": 8 * parameters + 8 * shard,
        "stage_2": 4 * parameters + 12 * shard,
        "stage_3": 16 * shard,
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_stages" points=1
# %%px
check.predict_stages(predict_stages)

# %% tags=["hidden-check"] exercise="predict_stages" points=1
# %%px --timeout 20
check.show_values(
    **{name: round(value) for name, value in predict_stages(1_200_000, 6).items()},
    alone=[round(value) for value in predict_stages(1000, 1).values()],
)

# %% [markdown]
# # Part B: shard what nobody needs whole
#
# ## 3. Flatten and shard
#
# *Difficulty 2/5, 10 minutes.*
#
# All shards must be of one size, since the collectives want it so, and tensors differ in size. So: lay
# all parameters side by side in one flat buffer, pad its end with zeros to a multiple of N, and cut it
# into N equal parts. Rank r's shard is the r-th.
#
# - As in lab 02, the parameters become *views* into the buffer:
#   `parameter.data = part.view_as(parameter)` does that; optimizer hooks and layers that share the
#   parameter still see it.
# - `parameters` may name a tied one twice, and frozen ones. Each trainable one is in the buffer once,
#   where it is first named; frozen ones stay as they are.
# - All ranks lay them out in the same order, that of the list.
# - The padding is as short as possible, at the end, and zero. The shard is a view into the buffer.
#
# **Predict**: one tensor of 10 numbers on 4 ranks. How long is a shard, and what does the last rank hold?
#
# <details><summary>Hint 1</summary>
#
# `-(-a // b)` is a / b rounded up. `list(dict.fromkeys(parameters))` has each once, in order.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `parameters[0].new_zeros(n)` has the right dtype and device. `flat.split([*sizes, padding])` gives
# views; copy the values into each before you point `.data` there. `flat.chunk(world_size)[rank]`.
# </details>


# %% tags=["exercise"] exercise="flat_shard"
# %%px
def flat_shard(
    parameters: list[nn.Parameter], rank: int, world_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Move the trainable parameters into one flat buffer; return it, and this rank's shard of it.

    Both have one dimension, and neither requires a gradient. There is at least one trainable
    parameter, and all have one dtype and device. The buffer ends with fewer than `world_size` zeros.
    """
    # BEGIN SOLUTION
    trainable = list(dict.fromkeys(p for p in parameters if p.requires_grad))
    sizes = [p.numel() for p in trainable]
    shard_size = -(-sum(sizes) // world_size)
    flat = trainable[0].detach().new_zeros(shard_size * world_size)
    for parameter, part in zip(trainable, flat[: sum(sizes)].split(sizes), strict=True):
        part.copy_(parameter.detach().flatten())
        parameter.data = part.view_as(parameter)
    return flat, flat.chunk(world_size)[rank]
    # END SOLUTION


# %% tags=["check"] exercise="flat_shard" points=3
# %%px
check.flat_shard(flat_shard)


# %% tags=["hidden-check"] exercise="flat_shard" points=1
# %%px --timeout 20
def sharded(sizes, rank, world_size):
    parameters = [nn.Parameter(torch.full((n, 1), float(n)).double()) for n in sizes]
    parameters[1].requires_grad_(False)
    given = [*parameters, parameters[0]]
    flat, shard = flat_shard(given, rank, world_size)
    before = flat.tolist()
    shard += 10
    return {
        "flat": before,
        "shard": [shard.tolist(), str(shard.dtype), shard.requires_grad],
        "seen": [p.flatten().tolist() for p in parameters],
        "shapes": [list(p.shape) for p in parameters],
    }


check.show_values(
    shards=[sharded([3, 2, 4], r, 4) for r in range(4)],
    small=[sharded([1, 2, 1], r, 5)["shard"][0] for r in range(5)],
    even=sharded([2, 5, 4], 1, 3),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Three: 10 rounded up to 12, in four parts. The last rank holds one parameter and two zeros. The
# zeros get no gradient, so the optimizer leaves them zero.
# </details>
#
# ## 4. Stage 1: one optimizer for all, a shard of it on each rank
#
# *Difficulty 2/5, 10 minutes.*
#
# Adam's states are half of all bytes, and Adam looks at each number by itself. So rank r's optimizer
# needs to know only shard r: its states are those of a shard. After its step each rank has the new
# values of its shard, and the ranks gather them.
#
# - `__init__`: `self.shard` becomes a parameter over the shard's memory, with the same part of
#   `self.gradient` as its `.grad` (memory too: nothing is copied). `self.optimizer` is
#   `make_optimizer([self.shard])`.
# - `finish()`, after the last backward pass of a step: each rank gets the sum over the ranks of its
#   part of the gradient. An all-reduce does that. Half of it is enough: what else is in
#   `self.gradient` need not be right.
# - `step()`: the optimizer's step on the shard, then the shards of all ranks into `self.flat`, where
#   the model's weights are.
#
# As in lab 02 the weights of the mean are in the loss: the caller does `(share * loss).backward()`,
# and here the ranks' gradients are summed. `zero_grad()` zeros the buffer.
#
# **Predict**: an all-reduce, then an all-gather. How many times its parameters' bytes does a rank
# send, for large N, and how many with a reduce-scatter in place of the all-reduce?
#
# <details><summary>Hint 1</summary>
#
# `nn.Parameter(shard)` shares the shard's memory. `self.gradient.chunk(n)[r]` is a view.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `dist.reduce_scatter_single(self.shard.grad, self.gradient, group=self.group)`, and
# `dist.all_gather_single(self.flat, self.shard.detach(), group=self.group)`.
# </details>


# %% tags=["exercise"] exercise="stage_1"
# %%px
class Stage1:
    """ZeRO's stage 1: whole parameters and gradients, a shard of the optimizer's states.

        stage = Stage1(model, make_optimizer, group)
        stage.zero_grad()
        (share * loss_function(model(inputs), targets)).backward()
        stage.finish()
        stage.step()

    All ranks start from rank 0's parameters.
    """

    def __init__(self, model: nn.Module, make_optimizer, group: dist.ProcessGroup) -> None:
        self.group = group
        parameters = [p for p in model.parameters() if p.requires_grad]
        self.flat, shard = flat_shard(parameters, group.rank(), group.size())
        dist.broadcast(self.flat, group_src=0, group=group)
        self.gradient = torch.zeros_like(self.flat)
        start = 0
        for parameter in parameters:
            part = self.gradient[start : start + parameter.numel()]
            parameter.grad = part.view_as(parameter)
            start += parameter.numel()
        # BEGIN SOLUTION
        self.shard = nn.Parameter(shard)
        self.shard.grad = self.gradient.chunk(group.size())[group.rank()]
        self.optimizer = make_optimizer([self.shard])
        # END SOLUTION
        self.shards = [self.shard]

    def zero_grad(self) -> None:
        self.gradient.zero_()

    def finish(self) -> None:
        """Sum the gradients over the ranks, at least this rank's shard of them."""
        # BEGIN SOLUTION
        dist.reduce_scatter_single(self.shard.grad, self.gradient, group=self.group)
        # END SOLUTION

    def step(self) -> None:
        """Take the optimizer's step, each rank on its shard, and give everyone all parameters."""
        # BEGIN SOLUTION
        self.optimizer.step()
        dist.all_gather_single(self.flat, self.shard.detach(), group=self.group)
        # END SOLUTION


# %% tags=["check"] exercise="stage_1" points=3
# %%px
check.stage_1(Stage1)


# %% tags=["hidden-check"] exercise="stage_1" points=1
# %%px --timeout 20
def two_layers(first, second):
    """Two small layers of constant weights, another constant on each rank."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 1)).to(device)
    for layer, value in zip(model, (first, second), strict=True):
        for parameter in layer.parameters():
            nn.init.constant_(parameter, value + rank)
    return model


def taught(stage, model, steps=3, passes=1):
    """The weights after some steps along the ranks' summed gradients."""
    x = torch.full((1, 2), rank + 1.0, device=device)
    for _ in range(steps):
        stage.zero_grad()
        for _ in range(passes):
            (model(x).square().sum() / world_size).backward()
            if not isinstance(stage, Stage1):
                stage.finish()
        if isinstance(stage, Stage1):
            stage.finish()
        stage.step()
    return [f"{value:.3f}" for p in model.parameters() for value in p.flatten().tolist()]


ledger = Ledger()
model = two_layers(0.5, 0.25)
stage = Stage1(model, partial(torch.optim.Adam, lr=0.125), group)
with ledger:
    after = taught(stage, model, passes=2)
model = two_layers(0.5, 0.25)
sgd = taught(Stage1(model, partial(torch.optim.SGD, lr=2**-7), group), model)
check.show_values(
    adam=after,
    sgd=sgd,
    sent=ledger.ring_bytes() <= 3 * 3 * 12 * 4,
    held=sum(t.numel() for s in stage.optimizer.state.values() for t in s.values()) <= 2 * 3 + 1,
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Three times: 2 for the all-reduce, 1 for the all-gather. With a reduce-scatter, twice: what plain
# data parallelism sends. Stage 1 costs nothing but the need to know.
# </details>
#
# ## 5. Clip by a norm that nobody holds
#
# *Difficulty 2/5, 10 minutes.*
#
# Clipping scales the gradient so that its norm is at most `max_norm`. The norm is that of the
# *whole* gradient. After a reduce-scatter no rank has it, only shards.
#
# - Every rank scales its shard by the same number, $\min(1, \text{max\_norm} / \text{norm})$, in
#   place; all return the norm before.
# - The last shards end with padding. `used` numbers of the shard are gradient, perhaps none; what
#   comes after may hold anything, and does not count.
# - One number crosses the network, once.
# - A gradient that is zero, on all ranks, stays zero: mind the division.
#
# **Predict**: four ranks clip by the norm of their own shards, to 1 each. What is the norm of the
# whole gradient then?
#
# <details><summary>Hint 1</summary>
#
# Norms do not add up. Their squares do.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `squares = gradient[:used].square().sum()`, an all-reduce of it, a square root.
# </details>


# %% tags=["exercise"] exercise="clip_shards"
# %%px
def clip_shards(
    gradient: torch.Tensor, used: int, max_norm: float, group: dist.ProcessGroup
) -> float:
    """Scale the gradient whose shards the ranks hold to a norm of at most `max_norm`, in place.

    `gradient` is this rank's shard, one dimension; its first `used` numbers count, and are scaled.
    Returns the norm of the whole gradient as it was, a Python float, the same on every rank.
    """
    # BEGIN SOLUTION
    squares = gradient[:used].square().sum()
    dist.all_reduce(squares, group=group)
    norm = squares.sqrt().item()
    if norm > max_norm:
        gradient[:used] *= max_norm / norm
    return norm
    # END SOLUTION


# %% tags=["check"] exercise="clip_shards" points=2
# %%px
check.clip_shards(clip_shards)


# %% tags=["hidden-check"] exercise="clip_shards" points=1
# %%px --timeout 20
def clipped(used, max_norm):
    shard = torch.arange(1.0, 5.0, device=device) * (rank + 1)
    shard[used:] = 1000.0
    norm = clip_shards(shard, used, max_norm, group)
    return f"{norm:.4f}", [f"{value:.3f}" for value in shard[:used].tolist()]


check.show_values(
    cut=clipped(4 - rank, 2.0), kept=clipped(3, 100.0), empty=clipped(3 if rank == 0 else 0, 1.0)
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Two: the root of 1 + 1 + 1 + 1. With N ranks, √N: the run depends on how many ranks it has, and the
# direction of the gradient is another one as well.
# </details>
#
# ## 6. Stage 2: gradients leave as they come
#
# *Difficulty 3/5, 15 minutes.*
#
# A rank's optimizer needs one shard of the gradient. The rest is only on its way: as soon as a
# layer's gradient is complete, it can be reduce-scattered and freed, while the backward pass goes on
# to the layer before. So each layer gets a flat buffer and shards of its own: a *unit*. The frame is
# given. `own_parameters(layers)` deals the parameters out: a layer has those that no layer inside it
# has. The frame knows, as in lab 02, when a unit's gradients are complete, and calls `reduce(unit)`
# for the units in one order on all ranks. You write what happens there:
#
# - lay the gradients of `unit.parameters` side by side, padded like `unit.flat`. A parameter that no
#   gradient reached (its `.grad` is None) counts as zeros;
# - **free** them: no parameter keeps a `.grad`, and nothing keeps the buffer after `finish()`;
# - reduce-scatter, and *add* this rank's part to `unit.shard.grad`. There may be several backward
#   passes before a step, each followed by `finish()`.
#
# And `step()`: the optimizer's step, then each unit's parameters from all ranks.
#
# **Predict**: at what moment of a training step does a rank hold most bytes of gradients, and how
# many: for a model of eight equal layers, on 4 ranks?
#
# <details><summary>Hint 1</summary>
#
# `torch.zeros_like(unit.flat)` is a buffer of the right size. Copy each gradient to its place.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `part = torch.empty_like(unit.shard)`, `dist.reduce_scatter_single(part, whole, group=self.group)`,
# `unit.shard.grad += part`. In `step()`, `dist.all_gather_single(unit.flat,
# unit.shard.detach(), group=self.group)` for each unit.
# </details>


# %% tags=["exercise"] exercise="stage_2"
# %%px
class Unit:
    """Parameters that are sharded together: those of one layer."""

    def __init__(
        self, layer: nn.Module, parameters: list[nn.Parameter], group: dist.ProcessGroup
    ) -> None:
        self.layer, self.parameters = layer, parameters
        self.flat, shard = flat_shard(parameters, group.rank(), group.size())
        dist.broadcast(self.flat, group_src=0, group=group)
        self.shard = nn.Parameter(shard)  # this rank's part of `flat`, in the same memory
        self.shard.grad = torch.zeros_like(shard)


class Stage2:
    """ZeRO's stage 2: whole parameters; a shard of the gradients and of the optimizer's states.

        stage = Stage2(layers, make_optimizer, group)
        stage.zero_grad()
        (share * loss_function(model(inputs), targets)).backward()
        stage.finish()  # after each backward pass
        stage.step()

    `layers` are a model's, from its input to its output, an outer one before those inside it.
    """

    def __init__(self, layers: list[nn.Module], make_optimizer, group: dist.ProcessGroup) -> None:
        self.group = group
        self.units = [Unit(layer, own, group) for layer, own in own_parameters(layers)]
        self.shards = [unit.shard for unit in self.units]
        self.optimizer = make_optimizer(self.shards)
        for unit in self.units:
            for parameter in unit.parameters:
                parameter.register_post_accumulate_grad_hook(partial(self.gradient_ready, unit))
        self.restart()

    def restart(self) -> None:
        """Get ready for the next backward pass, which goes from the last unit to the first."""
        self.missing = {unit: len(unit.parameters) for unit in self.units}
        self.waiting = list(self.units)

    def gradient_ready(self, unit: Unit, parameter: nn.Parameter) -> None:
        """Called in the middle of `backward()`: one more gradient of `unit` is complete."""
        self.missing[unit] -= 1
        while self.waiting and self.missing[self.waiting[-1]] == 0:
            self.reduce(self.waiting.pop())

    def reduce(self, unit: Unit) -> None:
        """Add this rank's part of the unit's summed gradient to `unit.shard.grad`; free the rest."""
        # BEGIN SOLUTION
        whole = torch.zeros_like(unit.flat)
        start = 0
        for parameter in unit.parameters:
            if parameter.grad is not None:
                whole[start : start + parameter.numel()] = parameter.grad.flatten()
            parameter.grad = None
            start += parameter.numel()
        part = torch.empty_like(unit.shard)
        dist.reduce_scatter_single(part, whole, group=self.group)
        unit.shard.grad += part
        # END SOLUTION

    def finish(self) -> None:
        """Reduce the units that some gradient has not reached, and restart."""
        while self.waiting:
            self.reduce(self.waiting.pop())
        self.restart()

    def step(self) -> None:
        """Take the optimizer's step, each rank on its shards, and give everyone all parameters."""
        # BEGIN SOLUTION
        self.optimizer.step()
        for unit in self.units:
            dist.all_gather_single(unit.flat, unit.shard.detach(), group=self.group)
        # END SOLUTION

    def zero_grad(self) -> None:
        for shard in self.shards:
            shard.grad.zero_()


# %% tags=["check"] exercise="stage_2" points=4
# %%px
check.stage_2(Stage2)


# %% tags=["hidden-check"] exercise="stage_2" points=1
# %%px --timeout 20
def second(make_stage, **settings):
    """Three steps of two backward passes, with SGD; what is held and sent; and an unused layer."""
    model = two_layers(0.5, 0.25)
    model.unused = nn.Linear(1, 3).to(device)
    nn.init.constant_(model.unused.weight, rank + 1)
    nn.init.constant_(model.unused.bias, rank + 2)
    stage = make_stage([*model[:2], model.unused], partial(torch.optim.SGD, lr=2**-7), group)
    x, ledger = torch.full((1, 2), rank + 1.0, device=device), Ledger()
    with ledger:
        for _ in range(3):
            stage.zero_grad()
            for _ in range(2):
                (model[1](model[0](x)).square().sum() / world_size).backward()
                stage.finish()
            left = [p.grad is None for p in model.parameters()]
            stage.step()
    return {
        "shards": [[f"{value:.3f}" for value in shard.tolist()] for shard in stage.shards],
        "gradients_freed": left,
        "reduce_scatters": ledger.count("reduce_scatter"),
        "bytes": [ledger.bytes_sent("reduce_scatter"), ledger.count("all_reduce")],
    }


check.show_values(**second(Stage2))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# While a layer is on its way, at every layer alike: the shards of all gradients, there from the start
# (8/4 = 2 layers' worth), the layer's own gradients, and the buffer into which they are copied. Some 4
# layers' worth instead of 8; 3 where the gradients go as they are copied.
# </details>
#
# ## 7. What does it cost to send?
#
# *Difficulty 2/5, 5 minutes.*
#
# **Predict in numbers**: float32, Ψ parameters, N ranks, every collective on a ring. On a ring, a
# rank sends (N−1)/N of the data in a reduce-scatter, and as much in an all-gather. How many bytes
# does it send in a training step of one backward pass?
#
# - `plain`: an all-reduce of the gradients;
# - `stage_1`, `stage_2`: as you built them, with reduce-scatters;
# - `stage_3`: each layer's parameters are gathered before its forward pass, freed after it, and
#   gathered again before its backward pass; then its gradients are reduce-scattered.


# %% tags=["exercise"] exercise="predict_traffic"
# %%px
def predict_traffic(parameters: int, world_size: int) -> dict[str, float]:
    """Bytes that a rank sends in a step with `plain`, `stage_1`, `stage_2`, `stage_3`."""
    # BEGIN SOLUTION
    once = 4 * parameters * (world_size - 1) / world_size
    return {"plain": 2 * once, "stage_1": 2 * once, "stage_2": 2 * once, "stage_3": 3 * once}
    # END SOLUTION


# %% tags=["check"] exercise="predict_traffic" points=1
# %%px
check.predict_traffic(predict_traffic)

# %% tags=["hidden-check"] exercise="predict_traffic" points=1
# %%px --timeout 20
check.show_values(
    **{name: round(value) for name, value in predict_traffic(1_000_000, 8).items()},
    alone=[round(value) for value in predict_traffic(1000, 1).values()],
)

# %% [markdown]
# # Part C: parameters too
#
# ## 8. Stage 3
#
# *Difficulty 4/5, 20 minutes.*
#
# The parameters themselves: a rank keeps its shards, and a layer is whole only while it computes.
# Hooks see to that; the model does not know. PyTorch calls `before_forward(unit)` and
# `after_forward(unit)` around the layer's forward pass, and `before_backward(unit)` when the gradient
# of its output is there. When its last gradient is complete, `reduce(unit)` is called, as in stage 2.
#
# A freed buffer keeps its tensor and gives up its memory: `storage.resize_(0)`, where `storage =
# unit.flat.untyped_storage()`. All views of it (the parameters, what autograd has kept for the
# backward pass) stay valid when the storage gets its bytes back and its numbers are in it again.
#
# - `gather(unit)`: give the buffer its `unit.flat.nbytes` bytes, and gather all ranks' shards into it.
# - `free(unit)`: give them up.
# - The hooks and `reduce(unit)`: a layer is whole in its forward pass and in its backward pass, and
#   at no other time. `super().reduce(unit)` does what stage 2 does.
# - `step()`: nobody needs whole parameters after it.
#
# The frame has given each shard memory of its own: it must outlive the buffer. Every rank must run
# every layer in every pass, since gathers wait for all ranks.
#
# **Predict**: what is the largest number of parameters that a rank holds at any moment, for eight
# equal layers on 4 ranks? How many collectives does a step take now?
#
# <details><summary>Hint 1</summary>
#
# `unit.flat.untyped_storage().resize_(unit.flat.nbytes)`; then as in stage 2's `step()`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `before_forward` and `before_backward` gather, `after_forward` frees, and so does `reduce`, after
# `super().reduce(unit)`. `step()` is `self.optimizer.step()`.
# </details>


# %% tags=["exercise"] exercise="stage_3"
# %%px
class Stage3(Stage2):
    """ZeRO's stage 3: a shard of everything; a layer is gathered while it computes."""

    def __init__(self, layers: list[nn.Module], make_optimizer, group: dist.ProcessGroup) -> None:
        super().__init__(layers, make_optimizer, group)
        for unit in self.units:
            unit.shard.data = unit.shard.data.clone()
            self.free(unit)
            unit.layer.register_forward_pre_hook(lambda *_, unit=unit: self.begins(unit, "forward"))
            unit.layer.register_forward_hook(lambda *given, unit=unit: self.ran(unit, given[-1]))

    def begins(self, unit: Unit, which: str) -> None:
        """The layer's forward or backward pass comes next."""
        if which == "forward":
            self.before_forward(unit)
        else:
            self.before_backward(unit)
        # Computing with memory that was given up would end the process, not only the cell.
        if not unit.flat.untyped_storage().nbytes():
            raise RuntimeError(f"a {which} pass begins, and the layer's parameters are not whole")

    def ran(self, unit: Unit, output: torch.Tensor) -> None:
        """The layer has its output; the gradient of that is where its backward pass begins."""
        self.after_forward(unit)
        if output.requires_grad:
            output.register_hook(lambda _: self.begins(unit, "backward"))

    def gather(self, unit: Unit) -> None:
        """Make the unit's parameters whole."""
        # BEGIN SOLUTION
        unit.flat.untyped_storage().resize_(unit.flat.nbytes)
        dist.all_gather_single(unit.flat, unit.shard.detach(), group=self.group)
        # END SOLUTION

    def free(self, unit: Unit) -> None:
        """Give up the memory of the unit's whole parameters; its shard stays."""
        # BEGIN SOLUTION
        unit.flat.untyped_storage().resize_(0)
        # END SOLUTION

    def before_forward(self, unit: Unit) -> None:
        # BEGIN SOLUTION
        self.gather(unit)
        # END SOLUTION

    def after_forward(self, unit: Unit) -> None:
        # BEGIN SOLUTION
        self.free(unit)
        # END SOLUTION

    def before_backward(self, unit: Unit) -> None:
        # BEGIN SOLUTION
        self.gather(unit)
        # END SOLUTION

    def reduce(self, unit: Unit) -> None:
        """Called when the unit's gradients are complete."""
        # BEGIN SOLUTION
        super().reduce(unit)
        self.free(unit)
        # END SOLUTION

    def step(self) -> None:
        # BEGIN SOLUTION
        self.optimizer.step()
        # END SOLUTION


# %% tags=["check"] exercise="stage_3" points=5
# %%px
check.stage_3(Stage3)


# %% tags=["hidden-check"] exercise="stage_3" points=2
# %%px --timeout 20
def third(make_stage):
    """As `second`, without an unused layer; and which layers are whole in each layer's passes."""
    model = two_layers(0.5, 0.25)
    stage = make_stage(list(model), partial(torch.optim.SGD, lr=2**-7), group)
    x, ledger, whole = torch.full((1, 2), rank + 1.0, device=device), Ledger(), []

    def look(*_):
        whole.append([layer.weight.untyped_storage().nbytes() > 0 for layer in model])

    def look_in_backward(layer, given, output):
        output.register_hook(look)

    for layer in model:
        layer.register_forward_hook(look, prepend=True)
        layer.register_forward_hook(look_in_backward)
    with ledger:
        for _ in range(3):
            stage.zero_grad()
            (model(x).square().sum() / world_size).backward()
            stage.finish()
            look()
            stage.step()
    return {
        "shards": [[f"{value:.3f}" for value in shard.tolist()] for shard in stage.shards],
        "gathers": ledger.count("all_gather") <= 3 * 4,
        "whole": whole,
    }


seen = third(Stage3)
check.show_values(**seen)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 2 layers' worth of shards, and 1 gathered: 3 of 8. A step takes 8 + 8 all-gathers and 8
# reduce-scatters.
# </details>
#
# ## One curve for all stages
#
# The MLP on MNIST with SGD and with Adam: the three stages on all ranks, and a plain loop on one.

# %%
# %%px --timeout 100
images, labels = (torch.from_numpy(part).to(device) for part in mnist("train", limit=2560))
optimizers = {
    "SGD": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=1e-3),
}


def one_step(stage, model, x, y):
    """A training step on this rank's share of the batch; returns the mean loss over all."""
    own = slice(rank, None, world_size)
    stage.zero_grad()
    # By its samples: where the batch does not divide, some ranks have one more than others.
    loss = F.cross_entropy(model(x[own]), y[own]) * (len(x[own]) / len(x))
    loss.backward()
    stage.finish()
    stage.step()
    return comm.allreduce(loss.item())


def plain_losses(model, make_optimizer, batches):
    optimizer, losses = make_optimizer(model.parameters()), []
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def sharded_model(stage_class, make_model, layers_of, make_optimizer, on=group):
    """A model and its stage; ranks draw different weights, and rank 0's are used."""
    torch.manual_seed(rank)
    model = make_model().to(device)
    return stage_class(layers_of(model), make_optimizer, on), model


batches = list(zip(images.split(256), labels.split(256), strict=True))
stages = {"stage 1": Stage1, "stage 2": Stage2, "stage 3": Stage3}
curves = {}
for name, make_optimizer in optimizers.items():
    torch.manual_seed(0)
    curves[name] = {"one rank": plain_losses(models.mlp().to(device), make_optimizer, batches)}
    for stage_name, stage_class in stages.items():
        layers_of = (lambda model: model) if stage_class is Stage1 else list
        stage, model = sharded_model(stage_class, models.mlp, layers_of, make_optimizer)
        curves[name][stage_name] = [one_step(stage, model, x, y) for x, y in batches]
        gap = max(
            abs(a - b)
            for a, b in zip(curves[name][stage_name], curves[name]["one rank"], strict=True)
        )
        if rank == 0:
            print(f"{name}, {stage_name}: the losses of one rank, step by step: {gap < 1e-4}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
from parlab import plots

drawn, axes = plots.same_curves(
    "MNIST, one curve: one rank, and three stages on all", curves, "loss over the global batch"
)

# %% [markdown]
# What does each rank hold now, and what does it send? Measured, over what you predicted:


# %%
# %%px
def held(model, stage):
    """Bytes on this rank by kind, counted by the memory behind the tensors."""
    parameters = [*model.parameters(), *stage.shards]
    gradients = [p.grad for p in parameters if p.grad is not None]
    return {
        "parameters": memory.tensor_bytes(p.detach() for p in parameters),
        "gradients": memory.tensor_bytes(gradients),
        "optimizer_states": memory.optimizer_bytes(stage.optimizer),
    }


psi = models.parameter_count(models.mlp())
bytes_held = {}
for i, (name, stage_class) in enumerate(stages.items(), 1):
    layers_of = (lambda model: model) if stage_class is Stage1 else list
    stage, model = sharded_model(stage_class, models.mlp, layers_of, optimizers["Adam"])
    one_step(stage, model, *batches[0])
    sent = Ledger()
    with sent:
        one_step(stage, model, *batches[1])
    bytes_held[name] = held(model, stage)
    memory_ratio = sum(bytes_held[name].values()) / predict_stages(psi, world_size)[f"stage_{i}"]
    traffic = predict_traffic(psi, world_size)[f"stage_{i}"]
    traffic_ratio = sent.ring_bytes() / traffic if world_size > 1 else 1.0  # nothing of nothing
    if rank == 0:
        print(
            f"{name}: {sum(bytes_held[name].values()):,} bytes held, {memory_ratio:.2f} of the "
            f"prediction; {sent.ring_bytes():,.0f} bytes sent, {traffic_ratio:.2f} of it"
        )

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("Each stage takes one more kind off the rank")
kinds = ("parameters", "gradients", "optimizer_states")
plain = costs.model_states(psi, world_size, 0, costs.FLOAT32_ADAM)
bottom = [0.0] * 4
for kind in kinds:
    heights = [bytes_of[kind] / 1e6 for bytes_of in [plain, *bytes_held.values()]]
    axes.bar(["plain (formula)", *bytes_held], heights, bottom=bottom, **plots.hatched(kind))
    bottom = [a + b for a, b in zip(bottom, heights, strict=True)]
axes.set_ylabel("MB on rank 0")
legend = axes.legend(frameon=False, labelcolor=plots.NEUTRAL)

# %% [markdown]
# ## 9. Gather the next layer while this one computes
#
# *Difficulty 3/5, 10 minutes.*
#
# In stage 3 every layer waits for its own parameters, and the network idles while it computes. Start
# the next layer's gather before this one computes, and it is there in time.
#
# Given is `start(unit)`: it starts a unit's all-gather with `async_op=True` and keeps the handle as
# `unit.work`; where one is under way, or the unit is whole, it does nothing. It also takes None.
# `following(unit, order)` is the unit after `unit` in a list, None after the last. Write the two
# hooks:
#
# - `before_forward(unit)`: its parameters are on their way, if a layer before it did its part; the
#   first layer must see to it itself. Wait for them; then start the next unit's. The forward pass
#   takes units in the order of `self.units`.
# - `before_backward(unit)`: the same, the other way round: the backward pass takes them in the reverse
#   of the order in which their forward passes *ended*, `self.ended`.
#
# The next one, and no more: two layers are whole at a time, not three.
#
# **Predict**: gathering a layer takes 4 ms, computing it 6 ms. How long is a forward pass over six
# layers, without prefetch and with it? And if gathering took 10 ms?
#
# <details><summary>Hint 1</summary>
#
# Three lines: start mine (nothing happens if it is under way), wait for mine, start the next.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `self.start(unit)`, `unit.work.wait()`, `self.start(following(unit, self.units))`. For the backward
# pass the order is `self.ended[::-1]`.
# </details>


# %% tags=["exercise"] exercise="prefetch"
# %%px
def following(unit: Unit, order: list[Unit]) -> Unit | None:
    """The unit after `unit`; None after the last."""
    place = order.index(unit) + 1
    return order[place] if place < len(order) else None


class Prefetching(Stage3):
    """As `Stage3`; while a layer computes, the next one's parameters are on their way."""

    def restart(self) -> None:
        super().restart()
        self.ended: list[Unit] = []  # units by the end of their forward pass
        for unit in self.units:
            unit.work = None  # the handle of a gather that was started, and not freed since

    def start(self, unit: Unit | None) -> None:
        """Start the unit's all-gather, if there is a unit and that has not been done."""
        if unit is not None and unit.work is None:
            unit.flat.untyped_storage().resize_(unit.flat.nbytes)
            unit.work = dist.all_gather_single(
                unit.flat, unit.shard.detach(), group=self.group, async_op=True
            )

    def free(self, unit: Unit) -> None:
        unit.flat.untyped_storage().resize_(0)
        unit.work = None

    def after_forward(self, unit: Unit) -> None:
        self.free(unit)
        self.ended.append(unit)

    def before_forward(self, unit: Unit) -> None:
        # BEGIN SOLUTION
        self.start(unit)
        unit.work.wait()
        self.start(following(unit, self.units))
        # END SOLUTION

    def before_backward(self, unit: Unit) -> None:
        # BEGIN SOLUTION
        self.start(unit)
        unit.work.wait()
        self.start(following(unit, self.ended[::-1]))
        # END SOLUTION


# %% tags=["check"] exercise="prefetch" points=3
# %%px
check.prefetch(Prefetching)

# %% tags=["hidden-check"] exercise="prefetch" points=1
# %%px --timeout 20
check.show_values(**third(Prefetching))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 6 × 10 = 60 ms without, 4 + 6 × 6 = 40 ms with it: only the first gather is waited for. If gathering
# takes 10 ms, 96 and 66 ms: the network is busy all the time, and computing hides behind it.
# </details>
#
# On this machine all links are memory, and prefetch has nothing to win. So emulate a slow network
# beside: each rank on a node of its own, layers that take a set time.

# %%
# %%px --timeout 60
from parlab.network import Link, Network, Stage, emulated_group

LAYERS, WIDTH, FORWARD = 6, 256, 6e-3
slow_link = Link.of(alpha=2e-4, bandwidth=50e6)
network = Network(nodes=world_size, ranks_per_node=1, inside=slow_link, between=slow_link)
slow = emulated_group(network)


def timed_layers():
    return nn.Sequential(
        *(Stage(nn.Linear(WIDTH, WIDTH), forward=FORWARD, backward=2 * FORWARD)
          for _ in range(LAYERS))
    )  # fmt: skip


def slow_steps(stage_class, timeline, rounds=7):
    """Median seconds of a step on the emulated network; the last one is recorded."""
    model = timed_layers()
    stage = stage_class(list(model), partial(torch.optim.SGD, lr=0.0), slow)
    x, seconds = torch.ones(1, WIDTH), []
    for _ in range(rounds):
        comm.Barrier()
        start = time.perf_counter()
        stage.zero_grad()
        with timeline.span("forward"):
            loss = model(x).square().sum()
        with timeline.span("backward"):
            loss.backward()
        stage.finish()
        stage.step()
        seconds.append(comm.allreduce(time.perf_counter() - start) / world_size)
        if _ < rounds - 1:
            timeline.clear()
    return statistics.median(seconds), timeline.gather()


timeline = Timeline(comm)
without, spans_without = slow_steps(Stage3, timeline)
timeline.clear()
ahead, spans_ahead = slow_steps(Prefetching, timeline)
gains = world_size == 1 or ahead < 0.9 * without
if rank == 0:
    print(f"prefetch wins 10 % and more of a step on the emulated network: {gains}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
gather = network.collective("all_gather", 4 * WIDTH * (WIDTH + 1)).seconds
scatter = network.collective("reduce_scatter", 4 * WIDTH * (WIDTH + 1)).seconds
for name, measured, prefetched in [("without", without, False), ("with", ahead, True)]:
    model_time = sum(
        costs.prefetch_seconds(compute, gather, LAYERS, prefetch=prefetched, scatter=after)
        for compute, after in [(FORWARD, 0.0), (2 * FORWARD, scatter)]
    )
    print(
        f"{name} prefetch: {1e3 * measured:.0f} ms emulated, {1e3 * model_time:.0f} ms by the model"
    )
rows = [span for span in spans_without if span.rank == 0]
rows += [type(span)(1, span.name, span.kind, span.start, span.end) for span in spans_ahead
         if span.rank == 0]  # fmt: skip
drawn, axes = draw(
    rows, "Emulated: passes, their waiting included, end sooner with prefetch", "emulated time (ms)"
)
ticks = axes.set_yticks([0, 1], ["stage 3", "prefetching"])

# %% [markdown]
# ## The small GPT, sharded
#
# Its units are the blocks, and the model itself for what lies around them: the embeddings, of which
# the first is the output layer too. The tied weight is in one unit, so it is gathered once, and its
# gradient is reduced once, when both of its layers have added to it.

# %%
# %%px --timeout 90
windows = torch.from_numpy(text("train", 20 * 16 * 65).astype("int64")).view(-1, 65).to(device)
pairs = [(b[:, :-1], b[:, 1:]) for b in windows.split(16)]


class Flattened(nn.Module):
    """The GPT, with its scores as cross-entropy wants them."""

    def __init__(self):
        super().__init__()
        self.gpt = models.GPT()

    def forward(self, tokens):
        return self.gpt(tokens).transpose(1, 2)  # (batch, vocab, seq)


def gpt_layers(model):
    return [model, *model.gpt.blocks]


gpt_optimizers = {
    "SGD": partial(torch.optim.SGD, lr=0.1, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=3e-3),
}
gpt_curves = {}
for name, make_optimizer in gpt_optimizers.items():
    torch.manual_seed(0)
    losses = {"one rank": plain_losses(Flattened().to(device), make_optimizer, pairs)}
    for stage_name, stage_class in (stages | {"prefetching": Prefetching}).items():
        layers_of = (lambda model: model) if stage_class is Stage1 else gpt_layers
        stage, model = sharded_model(stage_class, Flattened, layers_of, make_optimizer)
        losses[stage_name] = [one_step(stage, model, x, y) for x, y in pairs]
        gap = max(abs(a - b) for a, b in zip(losses[stage_name], losses["one rank"], strict=True))
        if rank == 0:
            print(f"GPT, {name}, {stage_name}: the losses of one rank, step by step: {gap < 1e-3}")
    gpt_curves[name] = losses

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.same_curves(
    "The GPT learns sharded what it learns whole", gpt_curves, "loss (nats a byte)"
)

# %% [markdown]
# # Part D: off the device
#
# ## 10. Optimizer states in a file
#
# *Difficulty 3/5, 15 minutes.*
#
# The optimizer states are used once a step, each number once. They can live where memory is cheap:
# for a GPU, in the host's memory; for the CPU ranks here, in a file. `torch.from_file` maps a file
# into memory: what you write to the tensor is in the file, and the operating system decides which
# part of it is in RAM.
#
# The frame maps the file: `self.mean` and `self.square` are Adam's moments, `self.count` (one
# number) the steps taken. A new file is all zeros. Write `step()`, Adam's step $t$ with gradient $g$:
#
# $$ m \leftarrow \beta_1 m + (1-\beta_1)\,g \qquad v \leftarrow \beta_2 v + (1-\beta_2)\,g^2 \qquad
# w \leftarrow w - \eta\, \frac{m/(1-\beta_1^t)}{\sqrt{v/(1-\beta_2^t)} + \epsilon} $$
#
# - Go through the parameter in pieces of `self.piece` numbers, so that no more than a few pieces are
#   in memory beside the parameter and its gradient.
# - Who makes a new `OffloadedAdam` over the same file goes on where the last one stopped, at the
#   same step.
# - The parameter changes in place, its gradient stays as it is: `gradient[part].cpu()` on a CPU is a
#   view, not a copy.
# - The parameter may be on a GPU: bring each piece of its gradient to the CPU, and the update back.
#
# **Predict**: the step count is kept in an attribute of the object, and a run is resumed after 1000
# steps. How many times as long as it should be is the first step after it, if the gradient stays
# what it was?
#
# <details><summary>Hint 1</summary>
#
# `for start in range(0, n, self.piece): part = slice(start, start + self.piece)`; a slice of a tensor
# is a view, and in-place operations on it write to the file.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `mean.lerp_(gradient, 1 - beta_1)`; `square.mul_(beta_2).addcmul_(gradient, gradient, value=1 -
# beta_2)`. `self.count += 1` once a step; `self.count.item()` is t.
# </details>


# %% tags=["exercise"] exercise="offloaded_adam"
# %%px
class OffloadedAdam:
    """Adam on one flat parameter; its states are in a file, in float32: mean, square, count."""

    def __init__(
        self,
        parameter: torch.Tensor,
        path: Path,
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        piece: int = 2**16,
    ) -> None:
        self.parameter, self.lr, self.betas, self.eps, self.piece = parameter, lr, betas, eps, piece
        n = parameter.numel()
        states = torch.from_file(str(path), shared=True, size=2 * n + 1, dtype=torch.float32)
        self.mean, self.square, self.count = states.split([n, n, 1])

    def step(self) -> None:
        """Take a step along `self.parameter.grad`."""
        # BEGIN SOLUTION
        self.count += 1
        (beta_1, beta_2), t = self.betas, self.count.item()
        weights = self.parameter.detach()
        for start in range(0, weights.numel(), self.piece):
            part = slice(start, start + self.piece)
            gradient = self.parameter.grad[part].cpu()
            mean, square = self.mean[part], self.square[part]
            mean.lerp_(gradient, 1 - beta_1)
            square.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)
            below = (square / (1 - beta_2**t)).sqrt_().add_(self.eps)
            update = (mean / (1 - beta_1**t)).div_(below).mul_(self.lr)
            weights[part] -= update.to(weights.device)
        # END SOLUTION


# %% tags=["check"] exercise="offloaded_adam" points=3
# %%px
check.offloaded_adam(OffloadedAdam)

# %% tags=["hidden-check"] exercise="offloaded_adam" points=1
# %%px --timeout 20
with tempfile.TemporaryDirectory() as folder:
    weights = nn.Parameter(torch.arange(5.0, device=device) + rank)
    seen = []
    for steps in (2, 3):
        optimizer = OffloadedAdam(weights, Path(folder) / "states", lr=0.25, piece=2)
        for i in range(steps):
            weights.grad = torch.linspace(-1, 1, 5, device=device) * (i + 1)
            optimizer.step()
        seen.append([f"{value:.4f}" for value in weights.tolist()])
    moments = [*optimizer.mean.tolist(), *optimizer.square.tolist()]
    check.show_values(
        weights=seen, count=optimizer.count.item(), moments=[f"{value:.5f}" for value in moments]
    )

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The moments are grown, $m = g$ and $v = 0.63\,g^2$, but t is 1 again, so the corrections divide $m$
# by 0.1 and $v$ by 0.001: ten times, over the root of 633. The step is 0.4 of what it should be: too
# *short*, not too long. Nothing warns.
# </details>
#
# With stage 3 it takes the place of Adam, one file for each shard. A rank now holds 8Ψ/N bytes:


# %%
# %%px --timeout 60
class Offloaded:
    """An `OffloadedAdam` for each shard, in the form of an optimizer."""

    def __init__(self, shards, folder, **settings):
        self.state = {}  # nothing in memory
        self.parts = [
            OffloadedAdam(shard, Path(folder) / f"rank{rank}-shard{i}", **settings)
            for i, shard in enumerate(shards)
        ]

    def step(self):
        for part in self.parts:
            part.step()


with tempfile.TemporaryDirectory() as folder:
    stage, model = sharded_model(
        Stage3, models.mlp, list, partial(Offloaded, folder=folder, lr=1e-3)
    )
    losses = [one_step(stage, model, x, y) for x, y in batches]
    bytes_held = held(model, stage)
    on_disk = sum(file.stat().st_size for file in Path(folder).iterdir())
gap = max(abs(a - b) for a, b in zip(losses, curves["Adam"]["one rank"], strict=True))
if rank == 0:
    print(f"offloaded: the losses of one rank, step by step: {gap < 1e-4}")
    print(
        f"{sum(bytes_held.values()):,} bytes held, {on_disk:,} on disk: "
        f"{sum(bytes_held.values()) / (8 * psi / world_size):.2f} and "
        f"{on_disk / (8 * psi / world_size):.2f} of 8Ψ/N"
    )

# %% [markdown]
# # Against the library
#
# PyTorch has all of it. `ZeroRedundancyOptimizer` is stage 1, beside `DistributedDataParallel`.
# `fully_shard` is FSDP2: with `reshard_after_forward=False` the parameters stay whole after the
# forward pass, until the step (stage 2's traffic), else it is stage 3. The same model, the same
# batches, Adam; on the default group (Gloo on CPUs, NCCL on GPUs).


# %%
# %%px --timeout 100
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

WIDE = 512


class Library:
    """A model under a library, with the stages' methods."""

    def __init__(self, model, optimizer):
        self.model, self.optimizer = model, optimizer

    def zero_grad(self):
        self.optimizer.zero_grad()

    def finish(self):
        """Nothing: `backward()` has done it."""

    def step(self):
        self.optimizer.step()


def ours(stage_class, on):
    torch.manual_seed(0)
    model = models.mlp(WIDE).to(device)
    layers = model if stage_class is Stage1 else list(model)
    return (
        model,
        stage_class(layers, partial(torch.optim.Adam, lr=1e-3, fused=True), on),
        world_size,
    )


def zero_redundancy(on):
    torch.manual_seed(0)
    model = models.mlp(WIDE).to(device)
    parallel = DistributedDataParallel(model, process_group=on)
    optimizer = ZeroRedundancyOptimizer(
        parallel.parameters(), torch.optim.Adam, process_group=on, lr=1e-3, fused=True
    )
    return parallel, Library(model, optimizer), 1


def fsdp(reshard):
    torch.manual_seed(0)
    model = models.mlp(WIDE).to(device)
    mesh = init_device_mesh(device.type, (world_size,))
    for layer in [model[1], model[3], model[5], model]:
        fully_shard(layer, mesh=mesh, reshard_after_forward=reshard)
    return model, Library(model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)), 1


def library_held(model, stage):
    module = model.module if isinstance(model, DistributedDataParallel) else model
    if hasattr(stage, "shards"):
        return sum(held(module, stage).values())
    return memory.model_states(module, stage.optimizer).total


default = dist.group.WORLD
ways = {
    "stage 1": partial(ours, Stage1, default),
    "ZeroRedundancyOptimizer": partial(zero_redundancy, default),
    "stage 2": partial(ours, Stage2, default),
    "fully_shard, kept": partial(fsdp, False),
    "stage 3": partial(ours, Stage3, default),
    "fully_shard": partial(fsdp, True),
}
share_of = [(x[rank::world_size], y[rank::world_size]) for x, y in batches]


def library_step(way, x, y):
    model, stage, divisor = way
    stage.zero_grad()
    loss = F.cross_entropy(model(x), y)
    (loss / divisor).backward()
    stage.finish()
    stage.step()
    return loss.item()


made, learned = {name: make() for name, make in ways.items()}, {}
for name, way in made.items():
    learned[name] = [comm.allreduce(library_step(way, x, y)) / world_size for x, y in share_of[:6]]
for name, losses in learned.items():
    gap = max(abs(a - b) for a, b in zip(losses, learned["stage 1"], strict=True))
    sent = Ledger()
    with sent:
        library_step(made[name], *share_of[0])
    bytes_held = comm.allreduce(library_held(*made[name][:2])) / world_size
    wide = models.parameter_count(models.mlp(WIDE))
    if rank == 0:
        print(
            f"{name:>23}: same losses {gap < 1e-4}; held {bytes_held / wide:.1f} bytes a parameter; "
            f"sent {sent.ring_bytes() / (4 * wide * (world_size - 1) / world_size):.1f}Ψ"
            if world_size > 1
            else f"{name:>23}: same losses {gap < 1e-4}"
        )

# %% [markdown]
# What is held is the same, but for stage 2: FSDP frees whole parameters after the backward pass even
# where it keeps them until then, so between two steps it holds what stage 3 does. What is sent is the
# same, but for stage 1: DDP all-reduces gradients, and then each rank broadcasts what it has updated.
# (A broadcast sends all of its bytes, where an all-gather sends (N−1)/N: on four ranks that third Ψ
# counts 4/3.)
# Now the time of a step, all taken in turn; a bar left of the line is ahead of its
# peer in the library.
#
# **Predict**: which stage is slowest here, where links are memory? Which would be on a slow network?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 100
peers = {
    "stage 1": "ZeroRedundancyOptimizer",
    "stage 2": "fully_shard, kept",
    "stage 3": "fully_shard",
}
if device.type == "cpu":
    made |= {f"{name} on group": ours(stages[name], group) for name in peers}
spent = {name: [] for name in made}
for i in range(10):
    for name, way in made.items():
        comm.Barrier()
        start = time.perf_counter()
        library_step(way, *share_of[i % len(share_of)])
        spent[name].append(max(comm.allgather(time.perf_counter() - start)))
milliseconds = {name: 1e3 * statistics.median(times[2:]) for name, times in spent.items()}

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("A step of each stage, over that of its peer in the library")
rows = []
for name, peer in peers.items():
    for shown in (name, f"{name} on group"):
        if shown in milliseconds:
            rows.append((shown, milliseconds[shown] / milliseconds[peer]))
for row, (_, ratio) in enumerate(rows[::-1]):
    axes.barh(row, ratio, height=0.7, **plots.hatched("reference"))
axes.axvline(1, color=plots.NEUTRAL, linewidth=1)
ticks = axes.set_yticks(range(len(rows)), [name for name, _ in rows[::-1]])
axes.set_xlabel("time over that of the library on the default group")
print(", ".join(f"{name} {ratio:.2f}" for name, ratio in rows))

# %% [markdown]
# What to look for:
#
# - **The number of collectives.** Stage 1 has two, whatever the model. Stages 2 and 3 have them for
#   each layer, and each pays its latency.
# - **Gloo's reduce-scatter** does the work of an all-reduce, so on Gloo the bytes that really move
#   are more than the ledger's ring.
# - **Whoever fits, should not shard parameters.** Memory is what stage 3 buys, and it pays in gathers.
#   Stage 1 sends what data parallelism sends, and each rank's optimizer has an N-th of the work.
#
# # Going further
#
# - Start stage 2's reduce-scatters with `async_op=True` and wait in `finish()`. How much more memory
#   do gradients take, and when may a buffer be freed?
# - `Stage3` gathers the last layer again right after it has freed it. Leave it whole, as FSDP does,
#   and see what that saves in traffic.
# - Two groups: shard inside a node, replicate between nodes (*hybrid sharding*). Which collective has
#   to follow the reduce-scatter?
# - Train in bfloat16 with float32 shards: gather in 16 bits, update in 32. How many bytes does each
#   stage hold and send now?
# - `CPUOffloadPolicy` of `fully_shard` and `offload_to_cpu` beside your file.
