# %% [markdown]
# # Lab 03: ZeRO
#
# Data parallelism keeps the same weights, gradients, and optimizer states on every rank, so there are N copies of everything. ZeRO
# keeps only one copy in total. Each rank holds a *shard* and gets the rest from the other ranks just before it is needed. In this
# lab, you build ZeRO's three stages, see that the learning curve does not change, and **compare what each rank holds and sends with
# the formulas**.
#
# | | |
# |---|---|
# | **You will be able to** | account for every byte that a rank holds; shard parameters with padding; write ZeRO's stages 1, 2, and 3; clip by a norm that no rank knows alone; prefetch; keep optimizer states outside of the device; explain what each stage saves and what it sends |
# | **Time** | 120 minutes: 105 for exercises, 10 for reading, 5 for the library |
# | **You need** | PyTorch; [lab 02](02_data_parallel.ipynb), or basic knowledge of data parallelism and reduce-scatters. No GPU |
# | **Background** | [chapter 03](../book/03_zero.md) of the book explains what you build here |
#
# First start the ranks. They are four processes, and each has its own Python. Cells that begin with `%%px` run on all ranks. Other cells
# run in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px --timeout 120
import copy
import itertools
import tempfile
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab import memory, models, timing, training
from parlab.checks import zero as check
from parlab.costs import zero as costs
from parlab.ledger import Ledger
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference
from parlab.sharding import own_parameters
from parlab.timeline import Span, Timeline, draw

# %% [markdown]
# All functions communicate through `torch.distributed`, on the `group` that they get as an argument: `group.rank()` is this rank's number,
# and `group.size()` is the number of ranks. Most exercises need only two collectives, both on flat tensors:
#
# - `dist.all_gather_single(whole, shard, group=group)`: `whole` becomes the shards of all ranks, one after the other. The shard may already
#   be in its place in `whole`.
# - `dist.reduce_scatter_single(shard, whole, group=group)`: `shard` becomes this rank's part of the sum of all ranks' `whole`.
#
# An all-reduce is a reduce-scatter followed by an all-gather. ZeRO is based on this: between the two halves, each rank needs only its
# shard. If you are stuck on an exercise, run `use_reference("its_name")` in a `%%px` cell. It puts a solution in place, and you can continue.
#
# # Part A: what a rank holds
#
# ## 1. Count the bytes
#
# *Difficulty 1/5, 5 minutes.*
#
# Training stores three kinds of numbers for each parameter: the parameter itself, its gradient, and the optimizer's states. Count their bytes.
#
# - A parameter that two layers share counts once. A frozen parameter counts, too.
# - A gradient that does not exist (`.grad` is None) takes no memory.
# - The optimizer's states are all tensors in the dicts of `optimizer.state`, under any name. Before the first step, most optimizers have none.
# - Tensors may have any dtype. A tensor takes `tensor.nbytes` bytes.
#
# **Predict**: the MLP has 269,322 float32 parameters. How many bytes of each kind are there after a step of Adam? How many are there with
# SGD without momentum?
#
# <details><summary>Hint 1</summary>
#
# `model.parameters()` returns each parameter once, even if it is tied.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `optimizer.state.values()` are dicts, one for each parameter. Among their values, count those with `isinstance(value, torch.Tensor)`.
# </details>


# %% tags=["exercise"] exercise="memory_by_kind"
# %%px
def memory_by_kind(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, int]:
    """Return this rank's bytes of `parameters`, `gradients`, and `optimizer_states`."""
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
# Parameters and gradients take 4 bytes each: 1,077,288 bytes of each kind. Adam keeps two moments, so its states take twice as much (plus a
# step counter for each tensor). Plain SGD keeps nothing.
# </details>
#
# ## 2. What each stage leaves on a rank
#
# *Difficulty 2/5, 5 minutes.*
#
# **Predict in numbers**: a model with Ψ float32 parameters is trained with Adam on N ranks. How many bytes of all three kinds together does
# one rank hold at the end of a step? Do not count Adam's step counters and padding.
#
# - `plain`: data parallelism, with everything on every rank
# - `stage_1`: each rank holds only the optimizer states of its shard
# - `stage_2`: gradients are sharded, too
# - `stage_3`: parameters are sharded, too
#
# The check compares with the formulas. In part C, after stage 3, you measure the bytes.


# %% tags=["exercise"] exercise="predict_stages"
# %%px
def predict_stages(parameters: int, world_size: int) -> dict[str, float]:
    """Return each rank's bytes with `plain`, `stage_1`, `stage_2`, `stage_3`: Adam in float32."""
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
# # Part B: shard what no rank needs as a whole
#
# ## 3. Flatten and shard
#
# *Difficulty 2/5, 10 minutes.*
#
# The collectives need shards of equal size, but tensors have different sizes. So copy all trainable parameters into one flat buffer, pad
# its end with zeros to a multiple of N, and cut it into N equal parts. Rank r's shard is the r-th part.
#
# - Like the gradients in lab 02, the parameters become *views* into the buffer, with `parameter.data = part.view_as(parameter)`. Optimizers,
#   hooks, and layers that share the parameter still see it.
# - Each trainable parameter is in the buffer once, in the order of the list.
# - The padding is at the end. It is zero and as short as possible. The shard is a view into the buffer.
#
# Edge cases: `parameters` may contain a tied parameter twice. Put it into the buffer once, where it
# comes first. The list may also contain frozen parameters. Leave them unchanged, and out of the
# buffer.
#
# **Predict**: there is one tensor of 10 numbers on 4 ranks. How long is a shard, and what does the last rank hold?
#
# <details><summary>Hint 1</summary>
#
# `-(-a // b)` is a / b, rounded up. `list(dict.fromkeys(parameters))` has each parameter once, in order.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `parameters[0].new_zeros(n)` has the right dtype and device. `flat.split([*sizes, padding])` returns views. Copy the values into each view
# before you assign it to `.data`. The shard is `flat.chunk(world_size)[rank]`.
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
# A shard has three numbers: 10 is rounded up to 12, and cut into four parts. The last rank holds the tensor's last number and two zeros. The
# gradient of these zeros is always zero, so the optimizer does not change them.
# </details>
#
# ## 4. Stage 1: one optimizer for all ranks
#
# *Difficulty 2/5, 10 minutes.*
#
# Adam's states are half of all bytes, and Adam treats each number separately. So the optimizer of rank r needs only shard r, and its states
# are those of the shard. After its step, each rank has the new values of its shard, and the ranks gather them.
#
# - In `__init__`, `self.shard` becomes a parameter with the shard's memory. Its `.grad` is the same part of `self.gradient`, as a view and
#   not as a copy. `self.optimizer` is `make_optimizer([self.shard])`.
# - `finish()` is called after the last backward pass of a step. Each rank gets the sum over the ranks of its part of the gradient. An
#   all-reduce does this, but half of it is enough. The other parts of `self.gradient` need not be right.
# - `step()` takes the optimizer's step on the shard. Then it gathers the shards of all ranks into `self.flat`, which is the memory of the
#   model's weights.
#
# As in lab 02, the caller multiplies each rank's loss by its share of the batch and runs
# `(share * loss).backward()`. The sum of the ranks' gradients is then the gradient of the mean
# loss. `zero_grad()` sets the buffer to zero.
#
# **Predict**: a step uses an all-reduce and then an all-gather. For large N, how many bytes does a rank send, in multiples of the bytes of all
# parameters? How many does it send if a reduce-scatter replaces the all-reduce?
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

    All ranks start from rank 0's trainable parameters. Frozen ones must already be equal.
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
        """Update this rank's shard, and gather the updated parameters on every rank."""
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
    """Return the weights after some steps along the ranks' summed gradients."""
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
# It sends three times the bytes of the parameters: 2 for the all-reduce and 1 for the all-gather.
# With a reduce-scatter, it sends 2 times the bytes, as in plain data parallelism. So stage 1 sends
# nothing more.
# </details>
#
# ## 5. Clip by a norm that no rank knows
#
# *Difficulty 2/5, 10 minutes.*
#
# Clipping scales the gradient so that its norm is at most `max_norm`. This is the norm of the *whole* gradient. After a reduce-scatter, each
# rank has only a shard of it.
#
# - Every rank scales its shard by the same number, $\min(1, \text{max\_norm} / \text{norm})$, in place. All ranks return the norm before
#   clipping.
# - Each rank contributes one number to a single all-reduce.
# - The last shards end with padding. Only the first `used` numbers of the shard belong to the gradient, and `used` can be 0. The numbers after
#   them do not count. They can have any value, and you may overwrite them.
#
# Edge case: a gradient that is zero on all ranks stays zero. Watch the division.
#
# **Predict**: the shard of each of four ranks has a norm above 1, and each rank clips its own shard to a norm of 1. What is the norm of the
# whole gradient then?
#
# <details><summary>Hint 1</summary>
#
# You cannot add norms, but you can add their squares.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `squares = gradient[:used].square().sum()`, then an all-reduce of it, and then a square root.
# </details>


# %% tags=["exercise"] exercise="clip_shards"
# %%px
def clip_shards(
    gradient: torch.Tensor, used: int, max_norm: float, group: dist.ProcessGroup
) -> float:
    """Scale a sharded gradient in place so that its norm is at most `max_norm`.

    `gradient` is this rank's shard, one-dimensional. Only its first `used` numbers belong to the
    gradient. Return the norm of the whole gradient before clipping: a Python float, the same on
    every rank.
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
# It is two: the root of 1 + 1 + 1 + 1. With N ranks, it is √N, so the result of the training depends on the number of ranks. The direction
# of the gradient changes, too.
# </details>
#
# ## 6. Stage 2: reduce gradients as they are computed
#
# *Difficulty 3/5, 15 minutes.*
#
# A rank's optimizer needs one shard of the gradient, and the rest only has to be sent. As soon as a layer's gradient is complete, you can
# reduce-scatter it and free it, while the backward pass continues with the previous layer. So each layer gets its own flat buffer and its own
# shards. We call the parameters of a layer a *unit*. Most of the class is given. `own_parameters(layers)` assigns each parameter to the innermost
# of these layers that contains it. As in lab 02, hooks detect when a unit's gradients are complete. They call `reduce(unit)` for the units in the
# same order on all ranks. You write `reduce(unit)`:
#
# - Copy the gradients of `unit.parameters` into one buffer, padded like `unit.flat`. A parameter without a gradient (`.grad` is None) counts as
#   zeros.
# - **Free** them: no parameter keeps a `.grad` once its unit is reduced. The buffer may live until the end of `finish()`, so that a
#   reduce-scatter can run during the backward pass. After that, only weights, shards with their gradients, and optimizer states are left.
# - Reduce-scatter, and *add* this rank's part to `unit.shard.grad`. There may be several backward passes before a step, and each is followed by
#   `finish()`.
#
# Also write `step()`: it takes the optimizer's step, and then gathers each unit's parameters from all ranks.
#
# **Predict**: at which moment of a training step does a rank hold the most bytes of gradients? How many does it hold, for a model with eight
# equal layers on 4 ranks?
#
# <details><summary>Hint 1</summary>
#
# `torch.zeros_like(unit.flat)` is a buffer of the right size. Copy each gradient to its place.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `part = torch.empty_like(unit.shard)`, `dist.reduce_scatter_single(part, whole, group=self.group)`, and `unit.shard.grad += part`. In
# `step()`, call `dist.all_gather_single(unit.flat, unit.shard.detach(), group=self.group)` for each unit.
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

    `layers` lists a model's layers from input to output. A layer that contains others comes before
    them.
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
        """Reduce the units that still miss a gradient, and get ready for the next backward pass."""
        while self.waiting:
            self.reduce(self.waiting.pop())
        self.restart()

    def step(self) -> None:
        """Update this rank's shards, and gather the updated parameters on every rank."""
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
    """Run three SGD steps of two backward passes on a model with an unused layer.

    Return what the rank holds and sends.
    """
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
# It holds the most when it copies the gradients of a layer, and this is the same for every layer. It then holds the shards of all gradients,
# which exist from the start (8/4 = 2 layers), the layer's own gradients, and the buffer into which they are copied. These are about 4 layers
# instead of 8. While the layer is being sent, about 3 are left if each gradient is freed as soon as it has been copied.
# </details>
#
# ## 7. What does it cost to send?
#
# *Difficulty 2/5, 5 minutes.*
#
# **Predict in numbers**, for Ψ float32 parameters on N ranks, with every collective on a ring. On a ring, a rank sends (N−1)/N of the data in a
# reduce-scatter, and the same in an all-gather. How many bytes does it send in a training step with one backward pass?
#
# - `plain`: an all-reduce of the gradients
# - `stage_1`, `stage_2`: as you built them, with reduce-scatters
# - `stage_3`: each layer's parameters are gathered before its forward pass, freed after it, and gathered again before its backward pass. Then its
#   gradients are reduce-scattered


# %% tags=["exercise"] exercise="predict_traffic"
# %%px
def predict_traffic(parameters: int, world_size: int) -> dict[str, float]:
    """Return the bytes a rank sends in a step with `plain`, `stage_1`, `stage_2`, `stage_3`."""
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
# Now shard the parameters, too. A rank keeps its shards, and a layer is whole only while it computes. Hooks do this, so the model's code does not
# change. They call `before_forward(unit)` and `after_forward(unit)` around the layer's forward pass, and `before_backward(unit)` when the gradient of
# the layer's output is ready. When the layer's last gradient is complete, they call `reduce(unit)`, as in stage 2.
#
# To free a buffer, keep its tensor and give up its memory with `storage.resize_(0)`, where `storage = unit.flat.untyped_storage()`. All views
# of the buffer stay valid: the parameters, and what autograd has kept for the backward pass. You can use them again when the storage has its bytes
# and its numbers again.
#
# - `gather(unit)` gives the buffer its `unit.flat.nbytes` bytes, and gathers all ranks' shards into it.
# - `free(unit)` gives the bytes up.
# - With the hooks and `reduce(unit)`, a layer is whole in its forward pass and in its backward pass, and at no other time.
#   `super().reduce(unit)` does what stage 2 does.
# - `step()`: after it, no rank needs whole parameters.
#
# In the given frame, each shard has its own memory, because it must outlive the buffer. Every rank must run every layer in every pass, because a
# gather waits for all ranks.
#
# **Predict**: what is the largest number of parameters that a rank holds at any moment, for eight equal layers on 4 ranks? How many collectives does
# a step take now?
#
# <details><summary>Hint 1</summary>
#
# `unit.flat.untyped_storage().resize_(unit.flat.nbytes)`, and then the same as in stage 2's `step()`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `before_forward` and `before_backward` gather. `after_forward` frees, and so does `reduce` after `super().reduce(unit)`. `step()` is
# `self.optimizer.step()`.
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
        """Call the hook before the layer's forward or backward pass, and check its parameters."""
        if which == "forward":
            self.before_forward(unit)
        else:
            self.before_backward(unit)
        # Computing with memory that was given up would end the process, not only the cell.
        if not unit.flat.untyped_storage().nbytes():
            raise RuntimeError(f"a {which} pass begins, and the layer's parameters are not whole")

    def ran(self, unit: Unit, output: torch.Tensor) -> None:
        """Call `after_forward`, and start the backward pass when the output's gradient is ready."""
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
    """Do as `second` without an unused layer. Record which layers are whole in each pass."""
    model = two_layers(0.5, 0.25)
    stage = make_stage(list(model), partial(torch.optim.SGD, lr=2**-7), group)
    x, ledger, whole = torch.full((1, 2), rank + 1.0, device=device), Ledger(), []

    def record(*_):
        whole.append([layer.weight.untyped_storage().nbytes() > 0 for layer in model])

    def record_in_backward(layer, given, output):
        output.register_hook(record)

    for layer in model:
        layer.register_forward_hook(record, prepend=True)
        layer.register_forward_hook(record_in_backward)
    with ledger:
        for _ in range(3):
            stage.zero_grad()
            (model(x).square().sum() / world_size).backward()
            stage.finish()
            record()
            stage.step()
    return {
        "shards": [[f"{value:.3f}" for value in shard.tolist()] for shard in stage.shards],
        "gathers": ledger.count("all_gather") <= 3 * 4,
        "whole": whole,
    }


found = third(Stage3)
check.show_values(**found)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# It holds shards with the size of 2 layers, and 1 gathered layer: 3 of 8. A step takes 8 + 8 all-gathers and 8 reduce-scatters.
# </details>
#
# ## One curve for all stages
#
# The next cells train the MLP on MNIST with SGD and with Adam, in three stages on all ranks and in a plain loop on one rank.


# %%
# %%px --timeout 100
def one_step(stage, model, x, y, loss_function=F.cross_entropy):
    """A training step on this rank's share of the batch; returns the mean loss over all."""
    own = slice(rank, None, world_size)
    stage.zero_grad()
    # Weight by the number of samples: if N does not divide the batch, some ranks have one more.
    loss = loss_function(model(x[own]), y[own]) * (len(x[own]) / len(x))
    loss.backward()
    stage.finish()
    stage.step()
    return comm.allreduce(loss.item())


def sharded_model(stage_class, make_model, layers_of, make_optimizer, on=group):
    """A stage and its model; ranks draw different weights, and rank 0's are used."""
    torch.manual_seed(rank)
    model = make_model().to(device)
    layers = model if stage_class is Stage1 else layers_of(model)
    return stage_class(layers, make_optimizer, on), model


# %%
# %%px --timeout 100
batches = training.mnist_batches(2560, 256, device)
stages = {"stage 1": Stage1, "stage 2": Stage2, "stage 3": Stage3}
curves = {}
for name, make_optimizer in training.OPTIMIZERS.items():
    torch.manual_seed(0)
    whole = models.mlp().to(device)
    curves[name] = {"one rank": training.plain_losses(whole, make_optimizer, batches)}
    for stage_name, stage_class in stages.items():
        sharded = sharded_model(stage_class, models.mlp, list, make_optimizer)
        curves[name][stage_name] = [one_step(*sharded, *batch) for batch in batches]
if rank == 0:
    training.print_same(curves, 1e-4)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
from parlab import plots

drawn, axes = plots.same_curves(
    "MNIST, one curve: one rank, and three stages on all", curves, "loss over the global batch"
)

# %% [markdown]
# What does each rank hold now, and what does it send? Compare the measured values with your predictions:


# %%
# %%px
def held(model, stage):
    """Return the bytes on this rank by kind, counted by the memory behind the tensors."""
    parameters = [*model.parameters(), *stage.shards]
    gradients = [p.grad for p in parameters if p.grad is not None]
    return {
        "parameters": memory.tensor_bytes(p.detach() for p in parameters),
        "gradients": memory.tensor_bytes(gradients),
        "optimizer_states": memory.optimizer_bytes(stage.optimizer),
    }


# %%
# %%px
psi = models.parameter_count(models.mlp())
bytes_held = {}
for name, stage_class in stages.items():
    stage, model = sharded_model(stage_class, models.mlp, list, training.OPTIMIZERS["Adam"])
    one_step(stage, model, *batches[0])
    with Ledger() as sent:
        one_step(stage, model, *batches[1])
    bytes_held[name] = held(model, stage)
    key, total = name.replace(" ", "_"), sum(bytes_held[name].values())
    memory_ratio = total / predict_stages(psi, world_size)[key]
    traffic = predict_traffic(psi, world_size)[key]
    traffic_ratio = sent.ring_bytes() / traffic if world_size > 1 else 1.0  # avoid 0 / 0
    if rank == 0:
        print(f"{name}: {total:,} bytes held, {memory_ratio:.2f} of the prediction")
        print(f"{name}: {sent.ring_bytes():,.0f} bytes sent, {traffic_ratio:.2f} of the prediction")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
plain = costs.model_states(psi, world_size, 0, costs.FLOAT32_ADAM)
drawn, axes = plots.memory_bars(
    "Each stage shards one more kind of data", {"plain (formula)": plain, **bytes_held}
)

# %% [markdown]
# ## 9. Gather the next layer while this one computes
#
# *Difficulty 3/5, 10 minutes.*
#
# In stage 3, every layer waits for its own parameters, and the network is idle while the layer computes. Start the next layer's gather before this
# layer computes, so that the parameters arrive in time.
#
# Two functions are given. `start(unit)` starts a unit's all-gather with `async_op=True` and stores the handle in `unit.work`. If the gather is already
# running, if the unit is whole, or if `unit` is None, it does nothing. `following(unit, order)` returns the unit after `unit` in a list, or None after the
# last one. Write the two hooks:
#
# - `before_forward(unit)`: the previous layer has usually started this unit's gather. The first layer must start its own gather. Wait for the gather,
#   and then start the gather of the next unit. The forward pass uses units in the order of `self.units`.
# - `before_backward(unit)`: the same for the backward pass. It uses units in the reverse of the order in which their forward passes *ended*,
#   `self.ended`.
#
# Start only the next unit: two layers are whole at the same time, not three. (An outer unit, such
# as the GPT itself, is whole as well.)
#
# **Predict**: gathering a layer takes 4 ms, and computing it takes 6 ms. How long does a forward pass over six layers take, without prefetch and with it?
# How long does it take if gathering needs 10 ms?
#
# <details><summary>Hint 1</summary>
#
# You need three lines: start this unit (nothing happens if it is already on its way), wait for it, and start the next one.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `self.start(unit)`, `unit.work.wait()`, `self.start(following(unit, self.units))`. In the backward pass, the order is `self.ended[::-1]`.
# </details>


# %% tags=["exercise"] exercise="prefetch"
# %%px
def following(unit: Unit, order: list[Unit]) -> Unit | None:
    """Return the unit after `unit`, or None after the last one."""
    place = order.index(unit) + 1
    return order[place] if place < len(order) else None


class Prefetching(Stage3):
    """Like `Stage3`, but gather the next layer's parameters while a layer computes."""

    def restart(self) -> None:
        super().restart()
        self.ended: list[Unit] = []  # units by the end of their forward pass
        for unit in self.units:
            unit.work = None  # the handle of a gather that was started, and not freed since

    def start(self, unit: Unit | None) -> None:
        """Start the unit's all-gather. Do nothing if `unit` is None or its gather has started."""
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
        if unit in self.ended:  # from an evaluation, which had no backward pass
            self.ended.remove(unit)
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
# It takes 6 × 10 = 60 ms without prefetch and 4 + 6 × 6 = 40 ms with it, because only the first gather makes the pass wait. If gathering takes 10 ms, it
# takes 96 and 66 ms: the network is busy until the last layer computes, and the computation of all other layers hides behind it.
# </details>
#
# The labs' `group` completes each gather before the call returns, so prefetch saves nothing on it. The next cells emulate a slow network: each rank is on its own
# node, and layers take a set time.

# %%
# %%px --timeout 60
from parlab.network import Link, Network, Stage, emulated_group

LAYERS, WIDTH, FORWARD = 6, 256, 6e-3
slow_link = Link.of(alpha=2e-4, bandwidth=50e6)
network = Network(nodes=world_size, ranks_per_node=1, inside=slow_link, between=slow_link)
slow = emulated_group(network)


def timed_layers():
    """Return layers that take a set time. The backward pass takes twice as long as the forward pass."""
    return nn.Sequential(
        *(Stage(nn.Linear(WIDTH, WIDTH), FORWARD, 2 * FORWARD) for _ in range(LAYERS))
    )


# %%
# %%px --timeout 60
def recorded_step(stage_class):
    """A training step on the emulated network; its timeline has the spans of the last step."""
    timeline = Timeline(comm)
    stage, model = sharded_model(stage_class, timed_layers, list, torch.optim.SGD, slow)

    def step():
        timeline.clear()
        with timeline.span("forward"):
            loss = model(torch.ones(1, WIDTH, device=device)).square().sum()
        with timeline.span("backward"):
            loss.backward()
        stage.finish()
        stage.step()

    return step, timeline


# %%
# %%px --timeout 60
runs = {"without": recorded_step(Stage3), "with": recorded_step(Prefetching)}
steps = {name: step for name, (step, _) in runs.items()}
seconds = timing.fastest_seconds(steps, comm, rounds=6)
spans = {name: timeline.gather() for name, (_, timeline) in runs.items()}

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
gather = network.collective("all_gather", 4 * WIDTH * (WIDTH + 1)).seconds
scatter = network.collective("reduce_scatter", 4 * WIDTH * (WIDTH + 1)).seconds
for name in runs:
    model_time = sum(
        costs.prefetch_seconds(c, gather, LAYERS, prefetch=name == "with", scatter=after)
        for c, after in [(FORWARD, 0.0), (2 * FORWARD, scatter)]
    )
    print(
        f"{name} prefetch: {1e3 * seconds[name]:.0f} ms emulated (the fastest step), "
        f"{1e3 * model_time:.0f} ms by the model"
    )
rows = [
    Span(row, span.name, span.kind, span.start, span.end)
    for row, name in enumerate(runs) for span in spans[name] if span.rank == 0
]  # fmt: skip
title = "Emulated: both passes end sooner with prefetch (last step, waiting included)"
drawn, axes = draw(rows, title, "emulated time (ms)")
ticks = axes.set_yticks([0, 1], ["stage 3", "prefetching"])

# %% [markdown]
# ## The small GPT, sharded
#
# Each block is a unit. The model itself is the unit of the remaining parameters: the last layer
# norm and the embeddings. The token embedding is also the output layer. The tied weight is in one
# unit, so stage 3 gathers it once in each pass. Its gradient is reduced once, after both of its
# layers have added to it.

# %%
# %%px --timeout 90
pairs = training.text_batches(10, 16, 64, device)
gpt_stages = stages | {"prefetching": Prefetching}


def gpt_layers(model):
    return [model, *model.blocks]


# %%
# %%px --timeout 90
gpt_curves = {}
for name, make_optimizer in training.GPT_OPTIMIZERS.items():
    gpt_curves[name] = {}
    if rank == 0:
        torch.manual_seed(0)
        whole = models.GPT().to(device)
        losses = training.plain_losses(whole, make_optimizer, pairs, training.token_loss)
        gpt_curves[name]["one rank"] = losses
    for stage_name, stage_class in gpt_stages.items():
        sharded = sharded_model(stage_class, models.GPT, gpt_layers, make_optimizer)
        losses = [one_step(*sharded, *pair, training.token_loss) for pair in pairs]
        gpt_curves[name][stage_name] = losses
if rank == 0:
    training.print_same(gpt_curves, 1e-3)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.same_curves(
    "One curve: the GPT on one rank, and sharded in all stages", gpt_curves, "loss (nats per byte)"
)

# %% [markdown]
# # Part D: outside of the device
#
# ## 10. Optimizer states in a file
#
# *Difficulty 3/5, 15 minutes.*
#
# The optimizer uses each of its states once in a step. So they can be where memory is cheap: in the host's memory for a GPU, and in a file for the CPU ranks in
# this lab. `torch.from_file` maps a file into memory. What you write to the tensor is in the file, and the operating system decides which part of it is in RAM.
#
# The frame maps the file: `self.mean` and `self.square` are Adam's moments, and `self.count` (one number) is the number of steps so far. A new file contains
# zeros. Write `step()`, which is Adam's step $t$ with gradient $g$:
#
# $$ m \leftarrow \beta_1 m + (1-\beta_1)\,g \qquad v \leftarrow \beta_2 v + (1-\beta_2)\,g^2 \qquad
# w \leftarrow w - \eta\, \frac{m/(1-\beta_1^t)}{\sqrt{v/(1-\beta_2^t)} + \epsilon} $$
#
# - Process the parameter in pieces of `self.piece` numbers, so that only a few pieces are in memory in addition to the parameter and its gradient.
# - A new `OffloadedAdam` with the same file continues where the last one stopped, at the same step.
#
# Edge cases: the parameter changes in place, and its gradient does not change. `gradient[part].cpu()` on a CPU is a view, not a copy. The parameter may be on a
# GPU: move each piece of its gradient to the CPU, and the update back.
#
# **Predict**: suppose that you keep the step count only in an attribute of the object, and resume a run after 1,000 steps. The gradient stays the
# same. How large is the first update after that, compared with the right one?
#
# <details><summary>Hint 1</summary>
#
# `for start in range(0, n, self.piece): part = slice(start, start + self.piece)`. A slice of a tensor is a view, and in-place operations on it write to the file.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `mean.lerp_(gradient, 1 - beta_1)`, and `square.mul_(beta_2).addcmul_(gradient, gradient, value=1 - beta_2)`. Increase `self.count` once in each step.
# `self.count.item()` is t.
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
    after_steps = []
    for steps in (2, 3):
        optimizer = OffloadedAdam(weights, Path(folder) / "states", lr=0.25, piece=2)
        for i in range(steps):
            weights.grad = torch.linspace(-1, 1, 5, device=device) * (i + 1)
            optimizer.step()
        after_steps.append([f"{value:.4f}" for value in weights.tolist()])
    moments = [*optimizer.mean.tolist(), *optimizer.square.tolist()]
    check.show_values(
        weights=after_steps,
        count=optimizer.count.item(),
        moments=[f"{value:.5f}" for value in moments],
    )

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The moments have grown to $m = g$ and $v = 0.63\,g^2$, but t is 1 again, so the corrections divide
# $m$ by 0.1 and $v$ by 0.001. The update is therefore $10/\sqrt{633} = 0.4$ times as large as it
# should be: too *small*, not too large. There is no error.
# </details>
#
# In stage 3, this optimizer replaces Adam, with one file for each shard. A rank then holds 8Ψ/N
# bytes of parameters and gradients, and its files have as many bytes of states:


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


# %%
# %%px --timeout 60
with tempfile.TemporaryDirectory() as folder:
    make_optimizer = partial(Offloaded, folder=folder, lr=1e-3)
    stage, model = sharded_model(Stage3, models.mlp, list, make_optimizer)
    losses = [one_step(stage, model, *batch) for batch in batches]
    in_memory = sum(held(model, stage).values())
    on_disk = sum(file.stat().st_size for file in Path(folder).iterdir())
shard_states = 8 * psi / world_size
if rank == 0:
    training.print_same(
        {"Adam": {"one rank": curves["Adam"]["one rank"], "offloaded": losses}}, 1e-4
    )
    print(f"{in_memory:,} bytes in memory, {in_memory / shard_states:.2f} of 8Ψ/N")
    print(f"{on_disk:,} bytes on disk, {on_disk / shard_states:.2f} of 8Ψ/N")

# %% [markdown]
# # Against the library
#
# PyTorch has stages 1 and 3, and something similar to stage 2. `ZeroRedundancyOptimizer` with
# `DistributedDataParallel` is stage 1. `fully_shard` (FSDP2) is stage 3 with
# `reshard_after_forward=True`, which is the default for all units except the outermost. With
# `reshard_after_forward=False`, the parameters stay whole from the forward pass to the backward
# pass. Without gradient accumulation, this setting sends as much as stage 2. We train the same
# model on the same batches with Adam, on the default group (Gloo on CPUs, NCCL on GPUs). If ranks
# share a GPU, we use the labs' `group` instead.


# %%
# %%px --timeout 100
from parlab.libraries import zero as libraries

adam = partial(torch.optim.Adam, lr=1e-3, fused=True)


def wide():
    torch.manual_seed(0)
    return models.mlp(512).to(device)


def ours(stage_class, on):
    """Return the stage's step and what the rank holds."""
    stage, model = sharded_model(stage_class, wide, list, adam, on)
    return partial(one_step, stage, model), lambda: sum(held(model, stage).values())


def library(make, *arguments, **settings):
    made = make(wide(), *arguments, **settings)
    return made.train, made.bytes_held


# %%
# %%px --timeout 100
def fsdp(model, reshard):
    layers = [layer for layer in model if isinstance(layer, nn.Linear)]
    return libraries.fully_sharded(model, layers, adam, reshard=reshard)


default = dist.group.WORLD
ways = {
    "stage 1": ours(Stage1, default),
    "ZeroRedundancyOptimizer": library(
        libraries.zero_redundancy, torch.optim.Adam, lr=1e-3, fused=True
    ),
    "stage 2": ours(Stage2, default),
    "fully_shard, kept": library(fsdp, reshard=False),
    "stage 3": ours(Stage3, default),
    "fully_shard": library(fsdp, reshard=True),
}
learned = {name: [step(*batch) for batch in batches[:6]] for name, (step, _) in ways.items()}
if rank == 0:
    training.print_same({"Adam": learned}, 1e-4)

# %%
# %%px --timeout 100
wide_psi = models.parameter_count(wide())
for name, (step, bytes_held_by) in ways.items():
    with Ledger() as sent:
        step(*batches[0])
    average = comm.allreduce(bytes_held_by()) / world_size
    if rank == 0 and world_size > 1:
        whole = 4 * wide_psi * (world_size - 1) / world_size  # Ψ numbers, as a ring sends them
        print(
            f"{name:>23}: {average / wide_psi:.1f} bytes held for each parameter, "
            f"{sent.ring_bytes() / whole:.1f}Ψ · (N−1)/N numbers sent"
        )

# %% [markdown]
# On average over the ranks, the library holds the same bytes of parameters, gradients, and optimizer states,
# except for stage 2: FSDP frees whole parameters after the backward pass, so between two steps it holds as
# much as stage 3. (The buckets of DDP are not counted.) The library sends the same bytes, except for stage 1:
# DDP all-reduces the gradients, and then each rank broadcasts the parameters that it has updated.
# The ledger counts all bytes of a broadcast, but only the (N−1)/N of an all-gather that a ring
# sends. So on four ranks, the printed number is 2 for the all-reduce plus 4/3 for the broadcasts.
# (N ring broadcasts of Ψ/N would send as much as one all-gather.)
#
# The next cell measures the time of a step for each of them. In the figure, a bar that ends to the left of the line
# is faster than its counterpart in the library.
#
# **Predict**: which stage is slowest on this machine, where messages go through memory? Which one would be slowest on a
# slow network?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 100
peers = {
    "stage 1": "ZeroRedundancyOptimizer",
    "stage 2": "fully_shard, kept",
    "stage 3": "fully_shard",
}
if device.type == "cpu":
    ways |= {f"{name} on group": ours(stages[name], group) for name in peers}
next_batch = {name: itertools.cycle(batches) for name in ways}
seconds = timing.median_seconds(
    {name: lambda name=name: ways[name][0](*next(next_batch[name])) for name in ways},
    comm,
    rounds=8,
)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
rows = {
    shown: seconds[shown] / seconds[peer]
    for name, peer in peers.items()
    for shown in (name, f"{name} on group") if shown in seconds
}  # fmt: skip
drawn, axes = plots.ratio_bars(
    "Time of a step of each stage, relative to the library's",
    {"Adam": rows},
    "time / time of the library on the default group",
)
print(", ".join(f"{name} {ratio:.2f}" for name, ratio in rows.items()))
print(", ".join(f"{name} {1e3 * seconds[name]:.1f} ms" for name in rows))

# %% [markdown]
# What to look for:
#
# - **Your prediction.** On a slow network, the bytes decide: stage 3 sends 3Ψ numbers, and the others send 2Ψ. Where messages go
#   through memory, the stages often differ little, and the times of your machine say which one is slowest.
# - **The number of collectives.** Stage 1 has two, whatever the model. Stages 2 and 3 have them for
#   each layer, and each pays its latency.
# - **Gloo's reduce-scatter** does the work of an all-reduce, so Gloo moves more bytes than the
#   ledger counts.
# - **Shard parameters only if they do not fit.** Stage 3 saves memory and pays for it with gathers.
#   Stage 1 sends as much as data parallelism, and each rank's optimizer has an N-th of the work.
#
# # Going further
#
# - Start stage 2's reduce-scatters with `async_op=True`, and wait in `finish()`. How much more memory do gradients take, and when can you
#   free a buffer?
# - `Stage3` gathers the last layer again right after it has freed it. Keep it whole between the two passes, and measure how much less is
#   sent.
# - Use two groups: shard inside a node, and replicate between nodes (*hybrid sharding*). Which collective must follow the reduce-scatter?
# - Train in bfloat16 with float32 shards: gather in 16 bits, and update in 32. How many bytes does each stage hold and send now?
# - Compare your file with `CPUOffloadPolicy` of `fully_shard`, which also moves the parameters to the CPU.
