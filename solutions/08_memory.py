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
# | **Time** | 275 minutes: 260 for exercises, 10 for reading, 5 for the library |
# | **You need** | PyTorch; [lab 03](03_zero.ipynb), or basic knowledge of sharded optimizer states; 4 GB of memory. No GPU |
# | **Background** | [chapter 08](../book/08_memory.md) of the book explains what you build here |
#
# You can do the parts in any order, and in several sittings. Within a part, go from top to bottom, because later cells use
# functions and variables of earlier ones. Part D needs the 8-bit Adam of Part C, and the comparison with the library needs
# all exercises.
#
# First start the ranks. They are four processes, and each has its own Python. Cells that begin with `%%px` run on all ranks.
# Other cells run in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px --timeout 120
import math
import re
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mpi4py import MPI
from torch import Tensor, nn

# %%
# %%px --timeout 120
from parlab import memory, models, plots, segments, timing, training
from parlab.activation_stores import Store, store_for
from parlab.checks import memory as check
from parlab.costs.recomputation import Segment, peak_bytes, recomputed_flops
from parlab.formats.dynamic import dynamic_map
from parlab.ledger import Ledger
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference
from parlab.sharding import flat_buffers

# %% [markdown]
# If you are stuck on an exercise, run `use_reference("its_name")` in a `%%px` cell. It puts a solution in place, and you can
# continue.
#
# # Part A: activations

# %% [markdown]
# ## 1. What will a forward pass keep?
#
# *Difficulty 2/5, 10 minutes.*
#
# The backward pass computes gradients from tensors that the forward pass has kept, the *activations*.
# [Chapter 04](../book/04_tensor_parallel.md) counts them for one block of the small GPT. For each of the $bsh$ numbers
# between two layers ($b$ samples of $s$ tokens, hidden size $h$), the block keeps 16:
#
# - the inputs of both norms (2)
# - the inputs of the four linear layers (7, because the second one in the MLP is 4h wide)
# - Q, K, and V (3)
# - the input of the GELU (4)
#
# There is no dropout. Attention is *fused*: it keeps its output, which the list already counts as the input of a linear layer,
# and computes its scores again in the backward pass.
#
# **Predict in numbers**: how many bytes do these parts keep in float32? Leave out small things, such as the tokens and the
# norms' means.
#
# - `block`: one block.
# - `scores`: one block *in addition*, if attention is not fused. The softmax keeps its output, a probability for each pair of
#   tokens in each sample and each of the $a$ heads. Masked pairs count, too. The scores before the softmax are not kept.
# - `model`: $l$ blocks, the last norm, the output layer, and the loss. The norm and the output layer keep their inputs, and
#   the cross-entropy keeps one logarithm for each token and each of the $V$ entries of the vocabulary.
# - `checkpointed`: the same model, if each block keeps only its input. (You will write this in exercise 2.)


# %% tags=["exercise"] exercise="predict_kept"
# %%px
def predict_kept(
    batch: int, sequence: int, hidden: int, heads: int, layers: int, vocabulary: int
) -> dict[str, float]:
    """Return float32 bytes kept by a `block`, its `scores`, the `model`, and `checkpointed`."""
    # BEGIN SOLUTION
    between = 4 * batch * sequence * hidden
    end = 2 * between + 4 * batch * sequence * vocabulary
    return {
        "block": 16 * between,
        "scores": 4 * batch * heads * sequence**2,
        "model": layers * 16 * between + end,
        "checkpointed": layers * between + end,
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_kept" points=1
# %%px
check.predict_kept(predict_kept)

# %% tags=["hidden-check"] exercise="predict_kept" points=1
# %%px --timeout 20
check.show_values(
    **{
        name: [
            round(predict_kept(*sizes)[name])
            for sizes in ((3, 50, 40, 5, 7, 90), (1, 8, 16, 2, 1, 11))
        ]
        for name in ("block", "scores", "model", "checkpointed")
    }
)

# %% [markdown]
# ## 1b. Count what a forward pass keeps
#
# *Difficulty 3/5, 15 minutes.*
#
# Autograd can show you each tensor that it keeps. Inside `with torch.autograd.graph.saved_tensors_hooks(pack, unpack):`, it
# calls `pack(tensor)` and keeps what `pack` returns. In the backward pass, it calls `unpack` with that object, and uses the
# tensor that `unpack` returns.
#
# Write `kept_bytes`, which calls `forward()` once and returns how many bytes autograd keeps for the
# backward pass.
#
# - **Storages.** Several tensors can be views of one storage, as Q, K, and V are. Count each storage once, and count all of
#   it: even a small view keeps the whole storage in memory.
# - **Parameters** of `model` are in memory anyway. Do not count them or views of them, such as the transposed weight that a
#   product keeps. A parameter that needs no gradient does not count either.
# - **Everything else that is kept** counts, whatever its dtype: inputs, targets, masks, and buffers of the model, too.
# - **The pass stays the same.** If `forward` stores its result in a variable, a backward pass from that result gives the same
#   gradients as without your hooks.
# - **No copies.** Autograd keeps the same storages as without your hooks. If `pack` returned a
#   copy, the original could be freed, and a later tensor could get its address.
# - **Nothing is left in memory** when `kept_bytes` has returned and no variable refers to the result any more. An operation
#   such as softmax keeps its own output. If `pack` returned that very tensor, the tensor and the graph would refer to each
#   other, and would never be freed. Return `tensor.detach()`, which is a view.
#
# **Predict**: suppose that you replace the GELU with a ReLU. A GELU keeps its input, and a ReLU keeps its output. How many
# numbers does the block then keep, instead of 16?
#
# <details><summary>Hint 1</summary>
#
# `tensor.untyped_storage()` has the methods `data_ptr()`, where the storage begins in memory, and `nbytes()`. Two tensors
# share a storage if it begins at the same place.
# </details>
#
# <details><summary>Hint 2</summary>
#
# First collect the places of all parameters' storages in a set. In `pack`, if the tensor's storage is not in that set, write
# its bytes into a dict with the place as the key. `unpack` returns what it gets.
# </details>


# %% tags=["exercise"] exercise="kept_bytes"
# %%px
def kept_bytes(forward: Callable[[], Any], model: nn.Module) -> int:
    """Return the bytes that autograd keeps of `forward()` for the backward pass.

    Each storage counts once, and as a whole. Those of the parameters of `model` do not count.
    """
    # BEGIN SOLUTION
    parameters = {p.untyped_storage().data_ptr() for p in model.parameters()}
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in parameters:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return sum(kept.values())
    # END SOLUTION


# %% tags=["check"] exercise="kept_bytes" points=2
# %%px --timeout 20
check.kept_bytes(kept_bytes)


# %% tags=["hidden-check"] exercise="kept_bytes" points=1
# %%px --timeout 20
def counted(columns, activation):
    net = nn.Sequential(
        nn.Linear(6, columns), activation, nn.Linear(columns, 4), nn.Softmax(-1)
    ).to(device)
    inputs = torch.ones(5, 7, 6, device=device, requires_grad=True)
    results, places = [], []

    def forward():
        probabilities = net(inputs[1:3])
        places.append(weakref.ref(probabilities.untyped_storage()))
        return probabilities.chunk(2, -1)[0].exp() * net[2].bias[1]

    size = kept_bytes(lambda: results.append(forward()), net)
    in_memory = [places[0]() is not None]
    kept_bytes(forward, net)
    in_memory.append(places[1]() is not None)
    gradients = [torch.autograd.grad(y.sum(), net[0].weight)[0] for y in (results[0], forward())]
    return int(size), torch.equal(*gradients), in_memory


check.show_values(
    gelu=counted(8 + rank, nn.GELU()),
    relu=counted(8 + rank, nn.ReLU()),
    sigmoid=counted(3, nn.Sigmoid()),
)

# %% [markdown]
# The next cells count what a GPT with eight layers keeps, and compare it with your prediction. `forward_loss` runs each block
# through `run`, so that you can replace `run` by your own function later.

# %%
# %%px --timeout 60
config = models.GPTConfig(layers=8)
windows, next_bytes = training.text_batches(1, 16, config.sequence_length, device)[0]
torch.manual_seed(0)
eight_layers = models.GPT(config).to(device)


def plain_run(function, *args, **kwargs):
    return function(*args, **kwargs)


def forward_loss(model, run):
    """Return the loss of a GPT, each of whose blocks is called by `run(block, x)`."""
    x = model.tokens(windows) + model.positions.weight
    for block in model.blocks:
        x = run(block, x)
    return training.token_loss(model.unembed(model.norm(x)), next_bytes)


# %%
# %%px
class UnfusedAttention(models.Attention):
    """Attention whose scores and probabilities are tensors."""

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(x).chunk(3, -1)
        )
        scores = q @ k.transpose(-1, -2) / self.head_size**0.5
        later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)
        probabilities = scores.masked_fill(later, -torch.inf).softmax(-1)
        return self.out((probabilities @ v).transpose(1, 2).flatten(2))


unfused, with_relu = (models.Block(config).to(device) for _ in range(2))
unfused.attention = UnfusedAttention(config).to(device)
with_relu.mlp[1] = nn.ReLU()

# %%
# %%px
h, s, b = config.hidden_size, config.sequence_length, len(windows)
predicted = predict_kept(b, s, h, config.heads, config.layers, config.vocab_size)
x = torch.randn(b, s, h, device=device, requires_grad=True)
blocks = {"GELU": eight_layers.blocks[0], "ReLU": with_relu, "not fused": unfused}
kept = {name: kept_bytes(partial(block, x), block) for name, block in blocks.items()}
measured = {
    "block": kept["GELU"],
    "scores": kept["not fused"] - kept["GELU"],
    "model": kept_bytes(partial(forward_loss, eight_layers, plain_run), eight_layers),
}
if rank == 0:
    for name, size in measured.items():
        print(f"{name:>6}: {size / 1e6:5.2f} MB, {size / predicted[name]:.2f} of the prediction")
    numbers = (f"{name}: {size / (4 * b * s * h):.1f}" for name, size in kept.items())
    print(f"numbers for each of bsh: {', '.join(numbers)}")

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# With a ReLU, the block keeps 12 numbers. The ReLU's output is also the input of the next linear layer, which keeps it anyway,
# so the ReLU costs no memory of its own. The input of a GELU is a tensor that nothing else keeps.
# </details>

# %% [markdown]
# ## 2. Compute it again
#
# *Difficulty 4/5, 45 minutes.*
#
# *Activation checkpointing* trades time for memory. A segment of the model, such as a block, keeps only its inputs. When the
# backward pass reaches the segment, it runs the segment's forward pass a second time, now with a graph, and runs the backward
# pass through this graph.
#
# Write `checkpoint`, which is called in place of `function(*args, **kwargs)`, and returns the same results. You can use the
# skeleton of an `autograd.Function` below, or something of your own, but not `torch.utils.checkpoint`.
#
# - **Memory.** Between the forward and the backward pass, nothing that `function` computes is kept, apart from its outputs.
#   When the segment's backward pass is done, the arguments are freed, and so is everything that the second forward pass has
#   computed.
# - **Gradients** equal those without `checkpoint`, bit for bit. Parameters that `function` uses without getting them as an
#   argument, as a block does, also get gradients.
# - **Random numbers.** The second forward pass draws the same dropout masks as the first one, so it has to start with the
#   generator in the same state. After it, put back the state that the generator had before: the rest of the training must
#   draw the same numbers as without `checkpoint`. Use `training.generator_states()` and
#   `training.set_generator_states(states)`, which also handle the generator of a GPU.
# - **Time.** `function` runs once in the forward and once in the backward pass, unless it is inside another checkpoint.
#
# The check also tries:
#
# - **Arguments** of any type, by position or by keyword. Tensors of any dtype are passed directly, never in a list or a dict.
#   Some, or all of them, need no gradient.
# - **Several outputs** in a tuple. Some may be integers or need no gradient, and the loss may not depend on all of them.
# - **A checkpoint inside a checkpoint.**
# - **Inside `torch.no_grad()`**, `function` runs once, and the outputs need no gradient.
#
# **Predict**: suppose that a backward pass takes as long as two forward passes. How many forward passes does a training step
# with checkpoints take in total? How much longer is it than a step without checkpoints?
#
# <details><summary>Hint 1</summary>
#
# `forward` of an `autograd.Function` runs without a graph. Its tensors are arguments of `apply`, and only these get
# gradients, so pass the values of `kwargs` as further arguments. If no argument of `apply` needs a gradient, autograd never
# calls `backward`. So pass one more argument, an empty tensor that requires a gradient.
# </details>
#
# <details><summary>Hint 2</summary>
#
# In `backward`, detach each tensor, with the same `requires_grad` as before. Set the generators, call the function inside
# `with torch.enable_grad():`, and put back the states that the generators had before. Keep tensors with `ctx.save_for_backward`, which frees
# them after the backward pass. Then `torch.autograd.backward(outputs, gradients)` computes the
# gradients of the detached tensors and of all parameters. Leave out outputs that need no gradient
# or have received none: after `ctx.set_materialize_grads(False)`, a missing gradient is None.
# </details>


# %% tags=["exercise"] exercise="checkpoint"
# %%px
class Recomputation(torch.autograd.Function):
    """Calls `run` without keeping what it computes, and calls it again in the backward pass."""

    @staticmethod
    def forward(ctx, run, *values):
        # BEGIN SOLUTION
        ctx.run, ctx.others = (
            run,
            [None if isinstance(value, Tensor) else value for value in values],
        )
        ctx.save_for_backward(*(value if isinstance(value, Tensor) else None for value in values))
        ctx.set_materialize_grads(False)
        ctx.states = training.generator_states()
        return run(*values)
        # END SOLUTION

    @staticmethod
    def backward(ctx, *gradients):
        # BEGIN SOLUTION
        values = [
            other if saved is None else saved.detach().requires_grad_(saved.requires_grad)
            for other, saved in zip(ctx.others, ctx.saved_tensors, strict=True)
        ]
        states = training.generator_states()
        training.set_generator_states(ctx.states)
        with torch.enable_grad():
            outputs = ctx.run(*values)
        training.set_generator_states(states)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        ends, wanted = [], []
        for output, gradient in zip(outputs, gradients, strict=True):
            if gradient is not None and output.requires_grad:
                ends.append(torch.autograd.graph.get_gradient_edge(output))
                wanted.append(gradient)
        del outputs, output  # the graph alone is needed, not these numbers
        torch.autograd.backward(ends, wanted)
        return None, *(value.grad if isinstance(value, Tensor) else None for value in values)
        # END SOLUTION


def checkpoint(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return `function(*args, **kwargs)`, and keep only the arguments for the backward pass.

    `function` returns a tensor, or a tuple of tensors. If it is called again with the generators in
    the same state, it computes the same.
    """
    # BEGIN SOLUTION
    count, keywords = len(args), tuple(kwargs)

    def run(anchor, *values):
        return function(*values[:count], **dict(zip(keywords, values[count:], strict=True)))

    anchor = torch.empty(0, requires_grad=True)  # parameters may be all that needs a gradient
    return Recomputation.apply(run, anchor, *args, *kwargs.values())
    # END SOLUTION


# %% tags=["check"] exercise="checkpoint" points=4
# %%px --timeout 30
check.checkpoint(checkpoint)


# %% tags=["hidden-check"] exercise="checkpoint" points=2
# %%px --timeout 20
def trained_with(around):
    torch.manual_seed(rank)
    weight, table, scale = (torch.randn(shape, requires_grad=True) for shape in ((3, 3), (4, 3), 3))
    calls = []

    def segment(x, index, power, *, factor, name):
        calls.append(name)
        y = F.dropout((x @ weight).sin() * factor, 0.5) ** power
        return y, index + 1, y.cos() @ weight, y.exp(), y.detach().cos()

    first, index, second, _, constant = around(
        segment, torch.ones(4, 3), torch.arange(4), 3, factor=scale.tanh(), name="a"
    )
    third = around(lambda x: around(torch.exp, F.dropout(x, 0.25)), second)[0]
    rows = around(lambda index: table[index].square(), torch.tensor([2, 0]))
    (
        (first[index % 4] * constant).square().sum()
        + third.sum()
        + F.dropout(first, 0.5).sum()
        + rows.sum()
    ).backward()
    return [weight.grad, table.grad, scale.grad, torch.rand(3)], len(calls)


(right, _), (got, calls) = (
    trained_with(around) for around in (lambda f, *a, **k: f(*a, **k), checkpoint)
)
check.show_values(same=[torch.equal(a, b) for a, b in zip(got, right, strict=True)], calls=calls)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# A step with checkpoints takes as long as 4 forward passes: the forward pass, its repetition, and two for the backward pass.
# Without checkpoints, it takes 3, so the step takes 4/3 as long. In FLOPs, the ratio
# is at most 4/3, because the loss and the optimizer's step are not computed again. The time can grow by more than a third, for
# example if kernels are short.
# </details>
#
# What does the GPT keep if each block is checkpointed, and how many FLOPs does it compute again?

# %%
# %%px --timeout 100
from torch.utils.flop_counter import FlopCounterMode


def step_flops(model, run):
    """FLOPs of a forward and a backward pass."""
    with FlopCounterMode(display=False) as counter:
        forward_loss(model, run).backward()
    model.zero_grad()
    return counter.get_total_flops()


# %%
# %%px --timeout 100
with FlopCounterMode(display=False) as counter, torch.no_grad():
    for block in eight_layers.blocks:
        block(x)
forward_flops = counter.get_total_flops()
again = step_flops(eight_layers, checkpoint) - step_flops(eight_layers, plain_run)
size = kept_bytes(partial(forward_loss, eight_layers, checkpoint), eight_layers)
if rank == 0:
    print(
        f"checkpointed: {size / 1e6:.2f} MB, {size / predicted['checkpointed']:.2f} of the prediction"
    )
    print(f"computed again: {again / forward_flops:.2f} forward passes of all blocks")

# %% [markdown]
# The next cells record the memory of all tensors after each operation of one training step.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
from parlab.plots.memory_steps import memory_over_time


def recorded(run):
    """Return the memory in a step whose blocks are called by `run`."""
    with memory.History(device) as history:
        loss = forward_loss(eight_layers, run)
        history.mark("backward pass begins")
        loss.backward()
    eight_layers.zero_grad()
    return history


runs = {"without checkpoints": plain_run, "each block checkpointed": checkpoint}
histories = {name: recorded(run) for name, run in runs.items()}

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = memory_over_time(
    "Checkpoints keep one block's activations at a time", histories, "backward pass begins"
)

# %% [markdown]
# Without checkpoints, the memory grows during the whole forward pass, and the peak is near its end. With checkpoints, each block
# adds one tensor. In the backward pass, one block after another is computed again, which gives eight small hills. The line is
# longer, because this takes more operations.

# %% [markdown]
# ## 3. Plan recomputation
#
# *Difficulty 4/5, 25 minutes.*
#
# Checkpointing everything costs one more forward pass, and often leaves memory unused. So recompute only as much as
# the budget requires. Cut the model into a chain of *segments*, for example the attention and the MLP of each block. A *plan* decides
# for each segment whether its activations are kept or recomputed. For segment $i$, measure
#
# - $a_i$ (`input`): the bytes of its input,
# - $k_i$ (`kept`): the bytes that its forward pass keeps, the input included, so $k_i \ge a_i$,
# - $p_i$ (`peak`): the most bytes that it needs in its own backward pass: its activations (kept or recomputed) and gradients,
# - $f_i$ (`flops`): the FLOPs of its forward pass.
#
# How much memory does a plan need? The backward pass starts at the last segment. When it is at segment $j$, this segment holds $p_j$
# bytes, kept or recomputed. Each segment before it holds $k_i$ bytes if the plan keeps it, and otherwise only its input, $a_i$ bytes.
# The segments after it are finished and hold nothing. So with $h_i = k_i$ or $h_i = a_i$, the peak is
#
# $$
# M = \max_j \Big( p_j + \sum_{i<j} h_i \Big),
# $$
#
# and the plan recomputes $\sum f_i$ FLOPs over the segments that it does not keep. `peak_bytes(segments, keep)` and
# `recomputed_flops(segments, keep)` in `parlab.costs.recomputation` compute both, so you can compare your plans with all others.
#
# Return the plan that recomputes the fewest FLOPs among the plans with $M \le$ `budget`.
#
# - If several plans recompute equally few FLOPs, return any of them.
# - If no plan has $M \le$ `budget`, raise a ValueError whose text contains the smallest budget that works, in bytes.
# - The check tries 40 segments and budgets of gigabytes. You cannot try all $2^{40}$ plans, or keep
#   a table with an entry for each byte. But real models have only a few kinds of layers, so the
#   number of different sums of bytes is small.
#
# **Predict**: which segment should a plan never recompute? If all segments are alike, should the plan recompute the first or
# the last ones, or does it make no difference?
#
# <details><summary>Hint 1</summary>
#
# Go through the chain from the first segment to the last. For the segments so far, only two numbers of a plan matter: the bytes
# that they hold, $\sum h_i$, and the FLOPs that it recomputes. If two plans hold equally many bytes, drop the one that recomputes more.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Keep a dict from bytes held to (FLOPs, plan), which starts as `{0: (0, ())}`. At each segment, drop the entries with
# held + `segment.peak` > budget. Each of the others gives two new entries. If none is left, no plan fits. Which plan needs the least
# memory?
# </details>


# %% tags=["exercise"] exercise="plan_recomputation"
# %%px
def plan_recomputation(segments: list[Segment], budget: int) -> list[bool]:
    """Return the plan that recomputes the fewest FLOPs with a peak of at most `budget` bytes.

    Returns for each segment whether its activations are kept (True) or recomputed (False).
    Raises a ValueError that names the smallest budget that works, if no plan fits.
    """
    # BEGIN SOLUTION
    best: dict[int, tuple[int, tuple[bool, ...]]] = {0: (0, ())}  # by the bytes that are held
    for segment in segments:
        longer: dict[int, tuple[int, tuple[bool, ...]]] = {}
        for held, (flops, plan) in best.items():
            if held + segment.peak > budget:
                continue
            for keep in (True, False):
                total = held + (segment.kept if keep else segment.input)
                found = (flops + (0 if keep else segment.flops), (*plan, keep))
                longer[total] = min(longer.get(total, found), found)
        best = longer
    if not best:
        smallest = peak_bytes(segments, [False] * len(segments))
        raise ValueError(f"no plan fits into {budget} bytes: the smallest budget is {smallest}")
    return list(min(best.values())[1])
    # END SOLUTION


# %% tags=["check"] exercise="plan_recomputation" points=3
# %%px --timeout 30
check.plan_recomputation(plan_recomputation)

# %% tags=["hidden-check"] exercise="plan_recomputation" points=1
# %%px --timeout 20
attention, mlp = Segment(5, 31 + rank, 40, 70), Segment(6, 47, 75, 160)
other = Segment(6, 32 + rank, 40, 90)  # frees as much as attention
chain = [attention, other, mlp, attention, mlp, Segment(4, 30, 66, 40)]
plans = {budget: plan_recomputation(chain, budget) for budget in (97, 135, 171, 203, 260)}
try:
    plan_recomputation(chain, 95)
    refused = "accepted"
except ValueError as error:
    refused = str(peak_bytes(chain, [False] * 6) in map(int, re.findall(r"\d+", str(error))))
check.show_values(
    flops=[recomputed_flops(chain, plan) for plan in plans.values()],
    fits=[peak_bytes(chain, plan) <= budget for budget, plan in plans.items()],
    refused=refused,
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# A plan should never recompute the last segment. Its $h$ does not occur in any of the sums, so keeping its activations costs
# no memory. If all segments are alike, each recomputed segment before the last one frees the same bytes for the end of the
# chain, where the peak is, so it makes no difference which ones you recompute. The order matters if a segment in the middle
# has a large peak: then only the segments before it help.
# </details>
#
# Now measure the segments of the GPT, and plan for half of the memory that it needs if everything is kept:

# %% tags=["nbval-ignore-output"]
# %%px
torch.manual_seed(0)
gpt = models.GPT(models.GPTConfig(sequence_length=128, hidden_size=96, layers=4)).to(device)
tokens, targets = training.text_batches(1, 4, 128, device)[0]
functions = segments.of_gpt(gpt, targets)
profile = segments.measured(functions, segments.embedded(gpt, tokens), gpt, checkpoint)
everything, nothing = [True] * len(profile), [False] * len(profile)
budget = peak_bytes(profile, everything) // 2
plan = plan_recomputation(profile, budget)
if rank == 0:
    for name, part in {"attention": profile[0], "MLP": profile[1], "loss": profile[-1]}.items():
        kept = f"{part.kept / part.input:.0f} times its input"
        print(f"{name}: keeps {kept}, {part.flops / 1e6:.0f} million FLOPs")
    print("plan:", *("keep" if keep else "recompute" for keep in plan))


# %%
# %%px
def measured_step(keep):
    """Peak bytes and FLOPs of a step under a plan."""
    segments.zero_gradients(gpt)
    with memory.Peak(device) as peak:
        segments.run(functions, keep, segments.embedded(gpt, tokens), checkpoint).backward()
    with segments.count_flops() as counter:
        segments.run(functions, keep, segments.embedded(gpt, tokens), checkpoint).backward()
    return peak.bytes, counter.get_total_flops()


plain = measured_step(everything)[1]
found = {}
for way, keep in {"all kept": everything, "your plan": plan, "all recomputed": nothing}.items():
    peak, flops = measured_step(keep)
    found[way] = peak, flops - plain
    as_predicted = abs(peak / peak_bytes(profile, keep) - 1) < 0.05
    exactly = flops - plain == recomputed_flops(profile, keep)
    if rank == 0:
        print(f"{way}: peak as predicted, to 5%: {as_predicted}; FLOPs as predicted: {exactly}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
from parlab.plots import memory_plans

title = "Your plan is on the frontier: less memory would cost more FLOPs"
memory_plans.plan_frontier(title, profile, found, budget)

# %% [markdown]
# ## 4. Offload activations
#
# *Difficulty 4/5, 45 minutes.*
#
# Instead of recomputing an activation, you can move it out of the device after the forward pass has saved it, and bring it back when
# the backward pass needs it. That costs no FLOPs, but it uses a slow link. PyTorch calls two functions of yours for each saved
# tensor: `pack(tensor)` when the forward pass saves it, and `unpack(packed)` with whatever `pack` returned when the backward pass
# needs it. `torch.autograd.graph.saved_tensors_hooks(pack, unpack)` is the context manager in which this happens.
#
# `store_for(device)` gives you a place for the numbers. For a GPU, this is pinned memory of the host, with copies on their
# own stream. Otherwise, it is a file in the system's folder for temporary files (or in another `folder`, if that one is in
# memory). The file has no name, so the operating system removes it even if the process is killed. A store has one method:
# `ticket = store.write(numbers)` takes a flat uint8 tensor, and `ticket.read()` returns a new one with the same numbers. If
# nothing refers to a ticket any more, its place in the store is free again.
#
# Write a context manager that moves what autograd saves to a store:
#
# - **What stays**: tensors that share a storage with a parameter or buffer of `module`, such as a transposed weight, and
#   tensors whose storage has fewer than `smallest` bytes. Leave them in memory.
# - **What goes** is written as whole storages, each only once, even if autograd saves several views of it, such as Q, K, and
#   V. After that, your code must not keep it in memory.
# - **Coming back**: the backward pass gets tensors of the same shape, strides, and dtype, so all gradients are equal bit for
#   bit. Two views of one storage that it needs at the same time share memory again, and the storage is read only once for
#   both. If the graph is retained, the backward pass can run again.
# - **In place**: a storage may change after it has been saved. The backward pass then uses the old numbers, and if the
#   storage is saved again, the new ones are written too. You have no old copy of a tensor that stays. If it has changed in
#   place, raise a RuntimeError in the backward pass, as autograd does: **with hooks, PyTorch no longer checks this itself.**
# - **Afterwards**: only the graph keeps tickets. When it is freed, the store is empty. When the context ends, even with an
#   exception, nothing more is offloaded. The backward pass may run inside or outside of the context.
#
# **Predict**: the GPT below keeps about 50 MB for its backward pass. By how much will the process grow in a forward pass with your
# context manager?
#
# <details><summary>Hint 1</summary>
#
# `tensor.untyped_storage()` is the same object as long as the storage exists, and it can be a key: in a set, or in a
# `weakref.WeakKeyDictionary`, which does not keep it alive. An address or an `id` is not enough, because a storage that you offload is
# freed, and a new one soon gets its address. `tensor._version` counts the changes in place. A view and `tensor.detach()` share this
# count with the tensor.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `torch.empty(0, dtype=torch.uint8, device=…).set_(storage)` is a flat view of a storage, and `.set_(storage, offset, size, stride)`
# restores any view, except a conjugated or negated one, which the check does not try. For what stays, return the pair of
# `tensor.detach()` and its version: a hook that returns the tensor itself can create a cycle that is never freed.
# A `weakref.WeakValueDictionary` from tickets to storages that were read shares them.
# </details>


# %% tags=["exercise"] exercise="offload_activations"
# %%px
@contextmanager
def offload_activations(module: nn.Module, store: Store, smallest: int = 4096) -> Iterator[None]:
    """Move the tensors that autograd saves in this context to `store` until the backward pass.

    Parameters and buffers of `module` stay, and so do storages of fewer than `smallest` bytes.
    A tensor that stays and is changed in place raises a RuntimeError in the backward pass.
    """
    # BEGIN SOLUTION
    stays = {tensor.untyped_storage() for tensor in (*module.parameters(), *module.buffers())}
    tickets = WeakKeyDictionary()  # by storage: its tickets by version
    storages = WeakValueDictionary()  # by ticket: what was read and is in use

    def pack(tensor: Tensor) -> tuple[Any, ...]:
        storage = tensor.untyped_storage()
        if storage in stays or storage.nbytes() < smallest:
            return tensor.detach(), tensor._version
        versions = tickets.setdefault(storage, WeakValueDictionary())
        ticket = versions.get(tensor._version)
        if ticket is None:
            flat = torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage)
            ticket = versions[tensor._version] = store.write(flat)
        return ticket, tensor.dtype, tensor.storage_offset(), tensor.shape, tensor.stride()

    def unpack(packed: tuple[Any, ...]) -> Tensor:
        if len(packed) == 2:
            tensor, version = packed
            if tensor._version != version:
                raise RuntimeError("a saved tensor was changed in place before the backward pass")
            return tensor
        ticket, dtype, *view = packed
        storage = storages.get(ticket)
        if storage is None:
            storage = storages[ticket] = ticket.read().untyped_storage()
        return torch.empty(0, dtype=dtype, device=storage.device).set_(storage, *view)

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        yield
    # END SOLUTION


# %% tags=["check"] exercise="offload_activations" points=3
# %%px --timeout 30
check.offload_activations(offload_activations)

# %% tags=["hidden-check"] exercise="offload_activations" points=1
# %%px --timeout 20
store = check.RecordingStore()
torch.manual_seed(rank)
layer = nn.Linear(12, 50)
layer.register_buffer("scale", torch.rand(50, 50))
x = torch.randn(50, 12, requires_grad=True)
with offload_activations(layer, store, smallest=x.nbytes):
    q, k = (layer(x) * layer.scale).chunk(2, dim=-1)
    result = ((q * k.double().sin().float()).exp() @ layer.weight[:25]).mean()
    small = result.square()
small.backward(retain_graph=True)
with torch.no_grad():
    result.add_(1.0)
try:
    small.backward()
    changed = "accepted"
except RuntimeError:
    changed = "refused"
del small, result, q, k
check.show_values(
    written=sorted(store.sizes),
    left=store.left,
    changed=changed,
    gradient=round(x.grad.abs().sum().item(), 3),
    weight=round(layer.weight.grad.abs().sum().item(), 3),
)

# %% [markdown]
# Now run the GPT with and without your context manager, and look at the memory of the process. It really is smaller with
# offloading, because the file is outside of the process.


# %%
# %%px --timeout 60
def grown(context):
    """By how many bytes the process grows in the forward pass, and gradients."""
    gpt.zero_grad()
    start = memory.process_bytes(device)
    with context:
        loss = training.token_loss(gpt(tokens), targets)
    size = memory.process_bytes(device) - start
    loss.backward()
    return size, [p.grad.clone() for p in gpt.parameters()]


torch.manual_seed(0)
gpt = models.GPT(models.GPTConfig(sequence_length=128, hidden_size=128, layers=6)).to(device)
tokens, targets = training.text_batches(1, 8, 128, device)[0]
training.token_loss(gpt(tokens[:1]), targets[:1]).backward()  # loads what a step needs
with memory.Saved(gpt) as saved:
    gpt(tokens)
offloaded = grown(offload_activations(gpt, store_for(device)))
kept = grown(nullcontext())

# %%
# %%px
if rank == 0:
    close = partial(torch.allclose, rtol=1e-4, atol=1e-6)  # a GPU may add in another order
    print(f"same gradients: {all(map(close, offloaded[1], kept[1]))}")
    print(f"a forward pass keeps {saved.bytes / 1e6:.0f} MB")
    print(f"the process grows by less than a fifth of that: {offloaded[0] < saved.bytes / 5}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
for way, size in {"kept": kept[0], "offloaded": offloaded[0]}.items():
    print(f"{way}: the process grows by {size / 1e6:.0f} MB")

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The process hardly grows. During the forward pass, a few of the largest tensors exist at the same time. After it, only the
# small tensors are left, such as the statistics of the norms. Whether offloading costs time depends on the link. For each of
# the $bsh$ numbers between two layers, a block writes 16 numbers and computes at least $24h$ FLOPs. If a device computes $F$
# FLOP/s and its link takes $W$ bytes/s, then in float32 the writes can hide behind the computation if $24h/F \ge 64/W$, that
# is, if $h$ is large enough. [Chapter 08](../book/08_memory.md) has the numbers.
#
# `torch.autograd.graph.save_on_cpu` has the same hooks, but it copies each saved tensor on its own: parameters too, and a tensor
# twice if two operations save it. Plans can combine the three ways: keep a segment, recompute it, or offload its input.
# </details>

# %% [markdown]
# # Part B: the largest tensor

# %% [markdown]
# ## 5. A loss without all logits
#
# *Difficulty 3/5, 25 minutes.*
#
# The output layer gives each token one score for each word of the vocabulary, its *logits*. For $T$ tokens and a
# vocabulary of $V$ words, these are $TV$ numbers. With 2,048 tokens and 32,000 words, they take 262 MB in float32, and a
# backward pass needs several tensors of this size. They can be the largest tensors of the step.
#
# But the computation never needs all logits at the same time. Let $x_i$ be the hidden state of token $i$, a vector of $h$ numbers, and
# $W$ the output weight, of shape $(V, h)$. The token's logits are $z_i = W x_i$. Let $y_i$ be its target, and $n$ the
# number of tokens whose target is not ignored. Then the loss and its gradients are
#
# $$
# L = \frac{1}{n} \sum_i \left( \log \sum_v e^{z_{iv}} - z_{i y_i} \right), \qquad
# g_i = \frac{1}{n} \left( \operatorname{softmax}(z_i) - \operatorname{onehot}(y_i) \right), \qquad
# \frac{\partial L}{\partial x_i} = W^\top g_i, \qquad
# \frac{\partial L}{\partial W} = \sum_i g_i x_i^\top .
# $$
#
# The loss and the gradient of $W$ are sums over tokens, and everything else belongs to a single token. So take `chunk_size` tokens at a time. Compute their logits,
# their part of the loss, $g_i$ for these tokens, and what they contribute to both gradients. Then forget the logits. When
# the forward pass ends, both gradients are complete. The backward pass only multiplies them by the gradient that it
# receives.
#
# Write the two methods of `ChunkedCrossEntropy`. They compute the same loss and the same gradients as
# `F.cross_entropy(hidden @ weight.T, targets)`. Do not call `F.linear_cross_entropy`, which does this exercise for you.
#
# The check also tries:
#
# - **Ignored targets:** a target of −100 does not count. The loss is the mean over the targets that count, and the
#   gradient of an ignored token is zero. A whole chunk may be ignored, but at least one token of the batch counts.
# - **Chunk sizes** that do not divide the number of tokens, or that exceed it.
# - **A scaled loss:** the loss is multiplied by a number before the backward pass.
# - **Tied weights:** the output weight may also be the embedding, and then it gets gradients from both uses.
# - **Large logits** of several hundred.
# - **Frozen inputs:** the hidden states or the weight may require no gradient.
# - **A second backward pass** through the same loss may raise an error. It must not give wrong gradients.
#
# **Predict**: at its peak, how many tensors as large as all logits are alive in
# `F.cross_entropy(hidden @ weight.T, targets).backward()`? Which tensors remain large if you use small chunks?
#
# <details><summary>Hint 1</summary>
#
# `torch.log_softmax(logits, 1)` is stable for large logits. `gather` picks each target's value from it. The gradient of
# the logits is its `exp()`, with 1 subtracted at each target (`scatter_add_`), times 1/n, and times 0 for ignored tokens.
# Autograd does not record anything inside `forward`, so you may work in place.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Before the loop, make zeros for the gradient of the weight. In the loop, `of_weight.addmm_(g.T, x)` adds a chunk's part.
# Keep both gradients with `ctx.save_for_backward`. In `backward`, `mul_` scales them in place. Autograd raises an error if they are
# then used a second time. One buffer can hold the logits of each chunk in turn: `torch.mm(x, weight.T, out=buffer[: len(x)])`,
# and `log_softmax` takes `out=`, too.
# </details>


# %% tags=["exercise"] exercise="chunked_cross_entropy"
# %%px
class ChunkedCrossEntropy(torch.autograd.Function):
    """The loss and both gradients, one chunk of tokens after the other."""

    @staticmethod
    def forward(ctx, hidden, weight, targets, chunk_size):
        # BEGIN SOLUTION
        counts = targets != -100
        share = counts / counts.sum()  # of each token in the mean
        loss = hidden.new_zeros(())
        of_hidden, of_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        buffer = hidden.new_empty(min(chunk_size, len(hidden)), len(weight))
        for start in range(0, len(hidden), chunk_size):
            rows = slice(start, start + chunk_size)
            x, own = hidden[rows], share[rows, None]
            target = targets[rows, None].clamp(min=0)
            scores = torch.mm(x, weight.T, out=buffer[: len(x)])
            torch.log_softmax(scores, 1, out=scores)
            loss -= (scores.gather(1, target) * own).sum()
            scores.exp_().mul_(own).scatter_add_(1, target, -own)  # now the logits' gradient
            torch.mm(scores, weight, out=of_hidden[rows])
            of_weight.addmm_(scores.T, x)
        ctx.save_for_backward(of_hidden, of_weight)
        return loss
        # END SOLUTION

    @staticmethod
    def backward(ctx, gradient):
        # BEGIN SOLUTION
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden.mul_(gradient), of_weight.mul_(gradient), None, None
        # END SOLUTION


def chunked_cross_entropy(
    hidden: Tensor, weight: Tensor, targets: Tensor, chunk_size: int
) -> Tensor:
    """Return the mean cross-entropy of `hidden @ weight.T`, without ever holding all logits.

    Args:
        hidden: the hidden states, (tokens, hidden_size) float32.
        weight: the output weight, (vocab_size, hidden_size) float32.
        targets: the right word of each token, (tokens,) int64; −100 for tokens to ignore.
        chunk_size: how many tokens may have their logits in memory at the same time.
    """
    return ChunkedCrossEntropy.apply(hidden, weight, targets, chunk_size)


# %% tags=["check"] exercise="chunked_cross_entropy" points=4
# %%px --timeout 30
check.chunked_cross_entropy(chunked_cross_entropy)


# %% tags=["hidden-check"] exercise="chunked_cross_entropy" points=2
# %%px --timeout 20
def loss_and_gradients(tokens, chunk_size, factor):
    """Return the loss and the gradients for given numbers; every third target is ignored."""
    hidden = torch.linspace(-1, 1, tokens * 2, device=device).view(tokens, 2).requires_grad_()
    weight = torch.tensor([[3.0, -1.0], [0.5, 2.0], [rank, 0.25]], device=device).requires_grad_()
    targets = torch.tensor([(-100, 1, 2, -100, 0, 1)[i % 6] for i in range(tokens)], device=device)
    loss = chunked_cross_entropy(hidden, weight, targets, chunk_size)
    (loss * factor).backward()
    values = torch.cat([loss.detach().view(1), hidden.grad.flatten(), weight.grad.flatten()])
    return [f"{round(value, 3) + 0.0:.3f}" for value in values.tolist()]


def largest_share(tokens, vocab_size, chunk_size):
    """Return whether the memory at the peak is less than a fifth of all logits."""
    hidden, weight = torch.ones(tokens, 2), torch.ones(vocab_size, 2)
    targets = torch.arange(tokens) % vocab_size
    leaves = hidden.to(device).requires_grad_(), weight.to(device).requires_grad_()
    with memory.Peak(device) as peak:
        chunked_cross_entropy(*leaves, targets.to(device), chunk_size).backward()
    return peak.bytes < 0.2 * 4 * tokens * vocab_size


check.show_values(
    loss=[loss_and_gradients(*case) for case in ((7, 3, 1.0), (4, 9, -2.0), (6, 1, 0.5))],
    small=largest_share(640, 400, 10),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Three such tensors are alive. The forward pass keeps the logarithms of the probabilities, and frees the logits. The backward
# pass allocates two more: the gradient of these logarithms, and the gradient of the logits. With small chunks, the largest tensor
# is the gradient of the weight, of $Vh$ numbers, which training needs in any case. A chunk of $c$ tokens has $cV$ logits, so
# chunks of much fewer than $h$ tokens save little more.
# </details>
#
# The next cells measure the peak for several chunk sizes, and compare it with the bytes of all logits:

# %%
# %%px --targets 0 --timeout 60
T, V, h = 512, 8000, 32
torch.manual_seed(0)
states = torch.randn(T, h, device=device, requires_grad=True)
output_weight = (torch.randn(V, h, device=device) / h**0.5).requires_grad_()
words = torch.randint(V, (T,), device=device)


def one_pass(loss_of):
    """A forward and a backward pass."""
    states.grad = output_weight.grad = None
    loss_of(states, output_weight, words).backward()


def plain_loss(hidden, weight, targets):
    return F.cross_entropy(hidden @ weight.T, targets)


# %%
# %%px --targets 0 --timeout 60
ways = {"F.cross_entropy": plain_loss}
ways |= {c: partial(chunked_cross_entropy, chunk_size=c) for c in (512, 256, 128, 64, 32, 16, 8)}
peaks = {}
for way, loss_of in ways.items():
    one_pass(loss_of)
    states.grad = output_weight.grad = None
    with memory.Peak(device) as peak:
        one_pass(loss_of)
    peaks[way] = peak.bytes / (4 * T * V)
for way in ("F.cross_entropy", 512, 128, 32, 8):
    name = way if way == "F.cross_entropy" else f"chunks of {way}"
    print(f"{name}: {peaks[way]:.2f} times the bytes of all logits")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0 --timeout 60
calls = {way: partial(one_pass, loss_of) for way, loss_of in ways.items()}
seconds = timing.median_seconds(calls, MPI.COMM_SELF, rounds=8)
chunks = [way for way in ways if way != "F.cross_entropy"]
drawn, axes = plots.subplots("Smaller chunks save memory")
axes.plot(
    [peaks[c] for c in chunks],
    [seconds[c] / seconds["F.cross_entropy"] for c in chunks],
    **plots.artist("reference"),
)
for c in chunks:
    point = peaks[c], seconds[c] / seconds["F.cross_entropy"] + 0.06
    axes.text(*point, str(c), color=plots.NEUTRAL, ha="center")
axes.set(xlabel="peak / bytes of all logits", xscale="log", ylim=(0, 1.4))
label = axes.set_ylabel("time / time of F.cross_entropy")

# %% [markdown]
# The labels are the chunk sizes. Chunks can also be faster. The probable reason: the plain loss reads and writes tensors that do not
# fit into the processor's cache, but a small chunk stays in it. If chunks become too small, the products become inefficient, and each
# chunk goes through the whole gradient of the weight.
#
# In a GPT, the output layer and the embedding are often one weight. The next cell trains one with both losses. It replaces the output
# layer, so that the model returns its hidden states:


# %%
# %%px --timeout 60
def gpt_losses(loss_of):
    """Return the losses of 20 steps of a small GPT whose output weight is its embedding."""
    torch.manual_seed(0)
    model = models.GPT().to(device)
    weight, model.unembed = model.unembed.weight, nn.Identity()

    def loss(hidden, targets):
        return loss_of(hidden.flatten(0, 1), weight, targets.flatten())

    batches = training.text_batches(20, 4, 64, device)
    return training.plain_losses(model, training.GPT_OPTIMIZERS["Adam"], batches, loss)


both = {
    "plain": gpt_losses(lambda hidden, weight, y: F.cross_entropy(hidden @ weight.T, y)),
    "in chunks": gpt_losses(partial(chunked_cross_entropy, chunk_size=100)),
}
if rank == 0:
    training.print_same({"GPT": both}, 1e-3)

# %% [markdown]
# # Part C: small optimizer states

# %% [markdown]
# ## 6. What do optimizer states take?
#
# *Difficulty 2/5, 5 minutes.*
#
# Adam keeps a running mean of each number's gradient, its *first moment*, and divides it by the root of a *second moment*, a
# running mean of the squares. Each moment has as many numbers as the model. For a matrix, Adafactor does not keep the second
# moment. For each row and each column, it keeps a running mean of the squared gradients, and estimates the moment of a number from
# its row and its column. A vector keeps a moment for each of its numbers. Adafactor has no first moment, that is, no momentum.
#
# **Predict in numbers**: a model has parameters of the given shapes, in float32. Each shape is that of a vector, `(n,)`, or
# of a matrix, `(n, m)`. How many bytes of states do these optimizers keep in float32? Do not count the step counter.
#
# - `momentum`: SGD with momentum, a running mean of the gradients
# - `adam`: Adam
# - `adafactor`: Adafactor


# %% tags=["exercise"] exercise="predict_state_bytes"
# %%px
def predict_state_bytes(shapes: list[tuple[int, ...]]) -> dict[str, float]:
    """Return the bytes of the states of `momentum`, `adam`, and `adafactor`, in float32."""
    # BEGIN SOLUTION
    numbers = sum(math.prod(shape) for shape in shapes)
    return {"momentum": 4 * numbers, "adam": 8 * numbers, "adafactor": 4 * sum(map(sum, shapes))}
    # END SOLUTION


# %% tags=["check"] exercise="predict_state_bytes" points=1
# %%px
check.predict_state_bytes(predict_state_bytes)

# %% tags=["hidden-check"] exercise="predict_state_bytes" points=1
# %%px --timeout 20
check.show_values(
    **{
        name: [
            round(predict_state_bytes(shapes)[name])
            for shapes in ([(30, 50), (50,)], [(7,)], [(1, 9), (9, 1), (600, 2)])
        ]
        for name in ("momentum", "adam", "adafactor")
    }
)

# %% [markdown]
# ## 6b. A step of Adafactor
#
# *Difficulty 3/5, 20 minutes.*
#
# Here are Algorithms 4 and 5 of [Shazeer and Stern](https://arxiv.org/abs/1804.04235), for a parameter $X$ with gradient
# $G$ in step $t = 1, 2, \dots$ The root mean square of a tensor's numbers is its *RMS*, and squares and roots are elementwise.
#
# 1. The decay rate grows, so later averages cover more steps. With $\beta_t = 1 - t^{-0.8}$, the mean of row $i$ and that of column $j$ of a matrix are
#    $r_i \leftarrow \beta_t r_i + (1 - \beta_t) \operatorname{mean}_j (G_{ij}^2 + \epsilon_1)$ and
#    $c_j \leftarrow \beta_t c_j + (1 - \beta_t) \operatorname{mean}_i (G_{ij}^2 + \epsilon_1)$. Both start at zero.
# 2. They estimate the second moment: $V_{ij} = r_i c_j / \operatorname{mean}(r)$. For a vector, $V$ itself is a running mean:
#    $V \leftarrow \beta_t V + (1 - \beta_t) (G^2 + \epsilon_1)$.
# 3. The update is $U = G / \sqrt{V}$. Its RMS is about 1. If a gradient is much larger than those before it, the RMS is larger, and the update is
#    *clipped*: $\hat U = U / \max(1, \operatorname{RMS}(U) / d)$.
# 4. The step is *relative* to the size of the parameter: $X \leftarrow X - \alpha_t \hat U$, with
#    $\alpha_t = \max(\epsilon_2, \operatorname{RMS}(X)) \cdot \min(\mathrm{lr}, 1/\sqrt{t})$, and the RMS of $X$ before the step.
#
# Write `adafactor_step`. It changes `parameter` in place, and `gradient` stays as it is. `state` is a dict, which is empty before the first step. It
# keeps `"step"`, the number of steps so far, and tensors with names of your choice: $n + m$ float32 numbers for a matrix, and $n$ for a vector.
#
# The check also tries:
#
# - **Zeros:** rows or columns of the gradient may be zero, as in an embedding whose words are not in the batch. The whole
#   gradient may also be zero. Numbers with a zero gradient do not move. (In float32, a product of two numbers as small as
#   $\epsilon_1 = 10^{-30}$ is zero.)
# - **Other settings:** a large $\epsilon_1$, $\epsilon_2$, or `lr`, and a small $d$.
# - **Small parameters**, whose RMS is less than $\epsilon_2$.
#
# **Predict**: suppose that all gradients of a run are 1,000 times as large. How does the run change? How far does a bias that is zero move
# in its first step?
#
# <details><summary>Hint 1</summary>
#
# `gradient.square().mean(1)` has the means of the rows, and `mean(0)` those of the columns. `rows.lerp_(new, w)` computes
# (1 − w)·rows + w·new in place. `x.norm() / x.numel() ** 0.5` is the RMS.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Do not compute $V$. Multiply the gradient by `(rows / rows.mean()).rsqrt()[:, None]`, and then by `columns.rsqrt()`. No product
# of small numbers occurs, and you save two tensors of the matrix's size.
# </details>


# %% tags=["exercise"] exercise="adafactor_step"
# %%px
def adafactor_step(
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Any],
    lr: float = 1e-2,
    eps: tuple[float, float] = (1e-30, 1e-3),
    clip: float = 1.0,
) -> None:
    """Take a step of Adafactor in place, with factored second moments for a matrix.

    Args:
        parameter, gradient: vectors or matrices, float32; neither requires a gradient.
        state: empty before the first step; then "step", and what you keep of the second moments.
        lr: the largest relative step.
        eps: what is added to squares (ε₁), and the least size of a parameter (ε₂).
        clip: the largest RMS of an update (d).
    """

    # BEGIN SOLUTION
    def rms(x):
        return x.norm().item() / x.numel() ** 0.5

    step = state["step"] = state.get("step", 0) + 1
    new = step**-0.8  # 1 − β
    alpha = max(eps[1], rms(parameter)) * min(lr, step**-0.5)
    square = gradient.square().add_(eps[0])
    if gradient.dim() == 1:
        moment = state.setdefault("moment", torch.zeros_like(gradient)).lerp_(square, new)
        update = gradient * moment.rsqrt()
    else:
        rows = state.setdefault("rows", torch.zeros_like(gradient[:, 0]))
        columns = state.setdefault("columns", torch.zeros_like(gradient[0]))
        rows.lerp_(square.mean(1), new)
        columns.lerp_(square.mean(0), new)
        del square  # a second tensor of this size is enough
        update = gradient * (rows / rows.mean()).rsqrt()[:, None]
        update *= columns.rsqrt()
    parameter.sub_(update, alpha=alpha / max(1.0, rms(update) / clip))
    # END SOLUTION


# %% tags=["check"] exercise="adafactor_step" points=4
# %%px --timeout 30
check.adafactor_step(adafactor_step)


# %% tags=["hidden-check"] exercise="adafactor_step" points=2
# %%px --timeout 20
def moved(shape, steps, **settings):
    """Return how far a parameter moves in `steps` steps, if its state is small, and the count."""
    size = math.prod(shape)
    start = torch.linspace(-1, 2, size, device=device).view(shape)
    parameter, state = start.clone(), {}
    for step in range(steps):
        gradient = torch.linspace(-3, 1 + rank, size, device=device).roll(3 * step) * 4**step
        adafactor_step(parameter, gradient.view(shape), state, **settings)
    kept = memory.tensor_bytes(value for value in state.values() if torch.is_tensor(value))
    shown = [f"{x:.3f}" for x in (parameter - start).flatten().tolist()]
    return shown, kept <= 4 * sum(shape) + 64, int(state["step"])


check.show_values(
    matrix=moved((9, 4), 3, lr=0.5),
    vector=moved((5,), 4, lr=0.75, clip=0.5),
    others=moved((3, 2), 2, lr=0.5, eps=(2.0, 4.0)),
    zeros=moved((8, 6), 1)[0][-1] != "nan",
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The run does not change, because $U$ does not change. (The exception is gradients of about $10^{-15}$ or less, whose squares are
# not much larger than $\epsilon_1$.) A bias that is zero has a size of $\epsilon_2 = 10^{-3}$ in the formula, so its first step
# has an RMS of at most $10^{-5}$. Small parameters move slowly, in proportion to their size.
# </details>
#
# The next cells train the small GPT with Adam and with your Adafactor, and compare the states' bytes with your prediction:


# %%
# %%px
class Adafactor(torch.optim.Optimizer):
    """Your step, for all tensors of a model."""

    def __init__(self, parameters, lr=1e-2):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for settings in self.param_groups:
            for p in settings["params"]:
                if p.grad is not None:
                    adafactor_step(p, p.grad, self.state[p], settings["lr"])


# %%
# %%px --targets 0 --timeout 60
text_lines = training.text_batches(100, 8, 64, device)


def trained_with(make_optimizer):
    """Return the losses of 100 steps, and the bytes of the optimizer's states after them."""
    torch.manual_seed(0)
    model = models.GPT().to(device)
    optimizer = make_optimizer(model.parameters())
    losses = [training.one_step(model, optimizer, *b, training.token_loss) for b in text_lines]
    return losses, memory.optimizer_bytes(optimizer)


trainings = {
    "adam": trained_with(partial(torch.optim.Adam, lr=3e-3)),
    "adafactor": trained_with(partial(Adafactor, lr=0.05)),
}
predicted = predict_state_bytes([tuple(p.shape) for p in models.GPT().parameters()])
for name, (_, kept) in trainings.items():
    agrees = abs(kept - predicted[name]) < 0.01 * predicted[name]
    print(f"{name}: {kept / 1e3:.0f} kB of states, as you predicted, to 1%: {agrees}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("Adafactor learns with 2% of Adam's states")
for i, (name, (losses, kept)) in enumerate(trainings.items()):
    smooth = torch.tensor(losses).view(-1, 5).mean(1).tolist()
    style = plots.artist(plots.series(i, f"{name}: {kept / 1e3:.0f} kB of states"))
    axes.plot(range(0, len(losses), 5), smooth, **style)
axes.set(xlabel="step", ylabel="loss, mean of 5 steps")
legend = axes.legend(frameon=False, labelcolor=plots.NEUTRAL)

# %% [markdown]
# Both curves rise at the same steps, because each batch is the next piece of the text, and some pieces are harder to predict
# than others. Both learning rates are good ones for this small model. Do not conclude that Adafactor is as good everywhere.
# In DeepMind's experiments for Gopher, training with Adafactor was less stable and the loss was worse for the larger models.
# [Chapter 08](../book/08_memory.md) has more about this.

# %% [markdown]
# ## 7. Quantize a state in blocks
#
# *Difficulty 3/5, 15 minutes.*
#
# Adam keeps two float32 numbers for each parameter, its first moment $m$ and its second moment $v$. That takes 8 bytes, twice as much
# as the parameter. Dettmers et al. (2021) keep both in 8 bits. An 8-bit code has only 256 values, so a code is a position in a list of
# 256 *levels* between −1 and 1. Two ideas make this good enough:
#
# - **A dynamic map.** The moments of one tensor differ by many powers of ten, so evenly spaced levels would turn most of them into
#   zero. The levels of the dynamic map cover seven decades. `dynamic_map(signed=True)` returns those for $m$: 64 levels from 0.1 to 1, 32
#   from 0.01 to 0.1, and so on, down to one level between 10⁻⁷ and 10⁻⁶, and the same below zero. The levels 0 and 1 complete the list.
#   $v$ is never negative, so `dynamic_map(signed=False)` spends the sign's bit on twice as many levels in each decade.
# - **Blocks.** A state is cut into blocks of 256 numbers (2,048 in the paper). Each block is divided by its largest absolute value, its
#   *absmax*, which is kept in float32. Therefore, a very large number makes only its own block coarse.
#
# Write `quantize_blocks`. It returns the code of each number, which is the position of the level nearest to number / absmax. If two
# levels are equally near, return either.
#
# - Do not compare each number with all 256 levels at the same time: the distances would take a kilobyte for each number. The levels are
#   sorted, so `torch.bucketize` can search them. The check accepts up to 100 bytes for each number of a large state.
# - `values` stays as it is.
#
# Edge cases:
#
# - **The last block** may be shorter than the others.
# - **Zeros:** a block may contain only zeros. Its absmax is 0, and its codes are those of the level 0.
# - **Small numbers:** $v$ has squares of gradients, so an absmax may be as small as 10⁻³⁰.
# - **Other levels:** `levels` may be any sorted list of 256 numbers from −1 to 1.
#
# **Predict**: in a block of $m$, the largest number is 1, and another number is 0.001. With levels that are 1/127 apart, what does 0.001
# become? What does it become with the dynamic map?
#
# <details><summary>Hint 1</summary>
#
# `F.pad(values, (0, n))` appends n zeros, which change no absmax. Then `view(-1, block_size)` has a row for each block.
# </details>
#
# <details><summary>Hint 2</summary>
#
# A number becomes level $i$ if it lies between the middle of levels $i - 1$ and $i$ and the middle of levels $i$ and $i + 1$. So pass the 255
# middles to `torch.bucketize(scaled, middles)`. Divide by `absmax.where(absmax > 0, 1)`.
# </details>


# %% tags=["exercise"] exercise="quantize_blocks"
# %%px
def quantize_blocks(values: Tensor, levels: Tensor, block_size: int) -> tuple[Tensor, Tensor]:
    """Quantize a state to 8 bits, each block of it by its own absmax.

    Args:
        values: the state, flat, float32.
        levels: 256 numbers from −1 to 1 in ascending order, float32.
        block_size: how many numbers share an absmax.

    Returns:
        The codes, uint8, as many as `values`; and the blocks' absmax, flat, float32.
    """
    # BEGIN SOLUTION
    padding = -len(values) % block_size
    blocks = F.pad(values, (0, padding)).view(-1, block_size)
    absmax = blocks.abs().amax(1)
    scaled = blocks / absmax.where(absmax > 0, 1)[:, None]
    middles = (levels[1:] + levels[:-1]) / 2
    codes = torch.bucketize(scaled, middles, out_int32=True)
    return codes.flatten()[: len(values)].to(torch.uint8), absmax
    # END SOLUTION


# %% tags=["check"] exercise="quantize_blocks" points=3
# %%px --timeout 30
check.quantize_blocks(quantize_blocks)


# %% tags=["hidden-check"] exercise="quantize_blocks" points=1
# %%px --timeout 20
def quantized(values, signed, block_size):
    codes, absmax = quantize_blocks(values, dynamic_map(signed, device), block_size)
    return [codes.tolist(), [f"{x:.3e}" for x in absmax.tolist()], str(codes.dtype)]


ramp = torch.arange(-5.0, 8.0, device=device) / 7 * 10.0 ** (rank - 3)
check.show_values(
    ramp=quantized(ramp, True, 13),
    blocks=quantized(ramp, True, 4),
    squares=quantized(ramp.square(), False, 5),
    zeros=quantized(torch.tensor([0.0, 0, 0, -2, 1], device=device), True, 3),
    tiny=quantized(ramp.abs() * 1e-30, False, 6),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# With even levels, 0.001 is nearest to 0, so it is lost. In the dynamic map, the nearest levels are 0.00094 and 0.00128, and 0.001 becomes
# 0.00094. The relative error is 6%. From 0.1 to 1, where there are more levels, it is about 1% on average, and reaches 6% only near 0.1. The largest number of a block comes back without
# an error if it is positive. −1 is not a level, so a negative one comes back as −0.993 times the absmax.
# </details>
#
# ## 7b. Dequantize
#
# *Difficulty 1/5, 5 minutes.*
#
# Write `dequantize_blocks`, the way back from codes to numbers. Each number is the level at its code, multiplied by the
# absmax of its block.
#
# The last block may again be shorter. The result has its own memory, and the arguments stay as they are.
#
# **Predict**: how many bytes does an 8-bit state take for each number, with its absmax in blocks of 256? With blocks of 16?
#
# <details><summary>Hint 1</summary>
#
# `levels[codes.long()]` looks up all levels. Without `.long()`, PyTorch takes a uint8 tensor for a mask.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `absmax.repeat_interleave(block_size)` has one absmax for each number, and too many if the last block is shorter.
# </details>


# %% tags=["exercise"] exercise="dequantize_blocks"
# %%px
def dequantize_blocks(codes: Tensor, absmax: Tensor, levels: Tensor, block_size: int) -> Tensor:
    """Return the numbers, flat and float32, that `quantize_blocks` has turned into codes."""
    # BEGIN SOLUTION
    return levels[codes.long()] * absmax.repeat_interleave(block_size)[: len(codes)]
    # END SOLUTION


# %% tags=["check"] exercise="dequantize_blocks" points=1
# %%px --timeout 20
check.dequantize_blocks(dequantize_blocks)

# %% tags=["hidden-check"] exercise="dequantize_blocks" points=1
# %%px --timeout 20
codes = torch.arange(rank, 256, 23, device=device).to(torch.uint8)
absmax = torch.tensor([0.0, 1.92, 1.92e-20], device=device)[: -(-len(codes) // 5)]
check.show_values(
    numbers=[
        f"{x + 0:.4e}"  # no −0
        for x in dequantize_blocks(codes, absmax, dynamic_map(True, device), 5).tolist()
    ],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# A code takes 1 byte, and an absmax takes 4 bytes for each block: 1 + 4/256 = 1.016 bytes with blocks of 256, and 1.25 bytes with blocks
# of 16. So Adam's two states take 2.03 bytes for each parameter instead of 8.
# </details>
#
# The next cell quantizes a state of 65,536 normal numbers. One of them is a thousand times as large as the others. It prints how many of the
# others become zero, and the mean error:

# %%
# %%px --targets 0
even = torch.linspace(-127, 127, 255, device=device) / 127
LEVELS = {"even": torch.cat([even[:1], even]), "dynamic": dynamic_map(True, device)}
state = torch.randn(65_536, generator=torch.Generator().manual_seed(0)).to(device)
state[1000] = 1000.0
for name, levels in LEVELS.items():
    for block_size in (len(state), 256):
        codes, absmax = quantize_blocks(state, levels, block_size)
        back = dequantize_blocks(codes, absmax, levels, block_size)
        lost, error = 100 * (back == 0).float().mean(), (back - state).abs().mean()
        print(f"{name} levels, blocks of {block_size:>5}: {lost:.0f}% are zero, error {error:.3f}")

# %% [markdown]
# ## 7c. A step of Adam on 8-bit states
#
# *Difficulty 3/5, 15 minutes.*
#
# Between two steps, the states are codes. A step dequantizes them, updates them, changes the parameter, and quantizes them again:
#
# $$
# m \leftarrow \beta_1 m + (1 - \beta_1)\, g, \qquad v \leftarrow \beta_2 v + (1 - \beta_2)\, g^2, \qquad
# \theta \leftarrow \theta - \eta\, \frac{m / (1 - \beta_1^t)}{\sqrt{v / (1 - \beta_2^t)} + \epsilon}
# $$
#
# - The parameter moves along the moments as they are *before* they are quantized. Rounding then affects only later steps.
# - Use the signed map for $m$ and the unsigned map for $v$. Both start at zero, and $t$ is 1 in the first step.
# - `state` is a dict, which is empty before the first step. After a step, it contains `"step"`, the number of steps so far, and `"m"` and
#   `"v"`, each as the pair (codes, absmax) that `quantize_blocks` returns. It keeps no other tensors.
# - Change `parameter` in place. `gradient` stays as it is.
#
# **Predict**: in a block, the gradient of one number is 1 in each step, and that of another is 1/10,000. Which of its moments does the
# second number lose? Then its gradient is 0 in one step. How far does this parameter move?
#
# <details><summary>Hint 1</summary>
#
# `state.get("step", 0) + 1` is $t$. In the first step, the moments are `torch.zeros_like(parameter)`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `m = dequantize_blocks(*state["m"], signed, block_size)`, with `signed = dynamic_map(True, parameter.device)`. Then the three formulas above
# as for float32, and `state["m"] = quantize_blocks(m, signed, block_size)`.
# </details>


# %% tags=["exercise"] exercise="adam_8bit_step"
# %%px
def adam_8bit_step(
    parameter: Tensor,
    gradient: Tensor,
    state: dict[str, Any],
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    block_size: int = 256,
) -> None:
    """Take a step of Adam in place, with states that are 8-bit codes between the steps.

    Args:
        parameter, gradient: flat, float32; neither requires a gradient.
        state: empty before the first step; then "step", "m", and "v".
        lr: the learning rate.
        betas, eps: as in `torch.optim.Adam`.
        block_size: how many numbers share an absmax.
    """
    # BEGIN SOLUTION
    signed = dynamic_map(True, parameter.device)
    unsigned = dynamic_map(False, parameter.device)
    step = state.get("step", 0) + 1
    if step == 1:
        m, v = torch.zeros_like(parameter), torch.zeros_like(parameter)
    else:
        m = dequantize_blocks(*state["m"], signed, block_size)
        v = dequantize_blocks(*state["v"], unsigned, block_size)
    m.mul_(betas[0]).add_(gradient, alpha=1 - betas[0])
    v.mul_(betas[1]).addcmul_(gradient, gradient, value=1 - betas[1])
    denominator = (v / (1 - betas[1] ** step)).sqrt_().add_(eps)
    parameter.addcdiv_(m, denominator, value=-lr / (1 - betas[0] ** step))
    state["step"] = step
    state["m"] = quantize_blocks(m, signed, block_size)
    state["v"] = quantize_blocks(v, unsigned, block_size)
    # END SOLUTION


# %% tags=["check"] exercise="adam_8bit_step" points=3
# %%px --timeout 30
check.adam_8bit_step(adam_8bit_step)


# %% tags=["hidden-check"] exercise="adam_8bit_step" points=1
# %%px --timeout 20
def stepped(steps, **settings):
    parameter, state = torch.linspace(-1, 1, 11, device=device), {}
    for step in range(steps):
        gradient = torch.linspace(-2, 3, 11, device=device) * (1 + step * (rank + 1))
        adam_8bit_step(parameter, gradient.roll(step), state, 2.0**-6, **settings)
    bytes_kept = memory.tensor_bytes([*state["m"], *state["v"]])
    return [[f"{x:.4f}" for x in parameter.tolist()], state["step"], bytes_kept <= 22 + 8 * 11]


check.show_values(
    one=stepped(1),
    five=stepped(5, block_size=4),
    others=stepped(4, betas=(0.5, 0.75), eps=0.5, block_size=8),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The second number keeps its $m$, which is 10⁻⁴ of the block's absmax. It loses its $v$, which is 10⁻⁸ of the absmax. This is
# less than half of the smallest level, 3.25·10⁻⁷, so $v$ becomes zero. In a step with gradient 0, only $\epsilon$ is left of
# the denominator, and the parameter moves by thousands of learning rates. The rows of an embedding have a gradient of 0 if
# their token is not in the batch. The paper keeps the states of embeddings in 32 bits.
# </details>
#
# The next cells train the small GPT with float32 Adam and with your step. Your step has 8-bit states for all of its tensors.


# %%
# %%px
class Adam8bit(torch.optim.Optimizer):
    """Your step, for all tensors of a model."""

    def __init__(self, parameters, lr):
        super().__init__(parameters, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for settings in self.param_groups:
            for p in settings["params"]:
                adam_8bit_step(p.view(-1), p.grad.view(-1), self.state[p], settings["lr"])


# %%
# %%px --targets 0 --timeout 60
lines = training.text_batches(100, 8, 64, device)


def adam_run(make_optimizer):
    """Return the losses of 100 steps, and the bytes of the optimizer's states after them."""
    torch.manual_seed(0)
    model = models.GPT().to(device)
    optimizer = make_optimizer(model.parameters(), lr=1e-3)
    losses = [training.one_step(model, optimizer, *b, training.token_loss) for b in lines]
    return losses, memory.optimizer_bytes(optimizer)


runs = {"float32": adam_run(torch.optim.Adam), "8 bits, yours": adam_run(Adam8bit)}
adam_curves = {name: losses for name, (losses, _) in runs.items()}
ends = {name: sum(losses[-20:]) / 20 for name, losses in adam_curves.items()}
held = [kept for _, kept in runs.values()]
print(f"float32's states take {held[0] / held[1]:.1f} times the bytes")
print(
    f"same mean loss in the last 20 steps: {abs(ends['8 bits, yours'] / ends['float32'] - 1) < 0.02}"
)

# %% [markdown]
# You should see 3.9, which is 8 / 2.03. If you see less, your codes may be a slice of a padded tensor. A slice keeps the whole
# tensor in memory, and most of a short tensor is then padding.

# %% [markdown]
# # Part D: on several ranks

# %% [markdown]
# ## 8. What a rank holds
#
# *Difficulty 2/5, 10 minutes.*
#
# Now put the methods together on N ranks. The model is a GPT in float32, with Ψ parameters and l layers. Each rank trains on b sequences of
# s tokens, with hidden size h. The ranks shard Adam's states as in ZeRO's stage 1, and a shard holds 8-bit states in blocks of 256. Each layer
# is checkpointed. **Predict in numbers** what a rank holds and sends:
#
# - `parameters` and `gradients`: bytes at the end of the backward pass, before the gradients are reduced
# - `states`: bytes of both of Adam's states, with the absmax of their blocks
# - `activations`: bytes that the checkpointed layers keep from the forward pass for the backward pass
# - `sent`: bytes that the rank sends in a step, on a ring
#
# Leave out padding and step counters. After the next exercise, you measure all five.


# %% tags=["exercise"] exercise="predict_rank_bytes"
# %%px
def predict_rank_bytes(
    parameters: int, world_size: int, layers: int, batch: int, sequence: int, hidden: int
) -> dict[str, float]:
    """Return a rank's bytes: `parameters`, `gradients`, `states`, `activations`, and `sent`."""
    # BEGIN SOLUTION
    shard = parameters / world_size
    return {
        "parameters": 4 * parameters,
        "gradients": 4 * parameters,
        "states": 2 * (shard + 4 * shard / 256),
        "activations": layers * 4 * batch * sequence * hidden,
        "sent": 2 * 4 * (parameters - shard),
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_rank_bytes" points=2
# %%px --timeout 20
check.predict_rank_bytes(predict_rank_bytes)

# %% tags=["hidden-check"] exercise="predict_rank_bytes" points=1
# %%px --timeout 20
check.show_values(
    six={k: round(v) for k, v in sorted(predict_rank_bytes(1_536_000, 6, 5, 3, 40, 24).items())},
    alone={k: round(v) for k, v in sorted(predict_rank_bytes(25_600, 1, 1, 7, 9, 11).items())},
)

# %% [markdown]
# ## 8b. A step of ZeRO-1 with 8-bit states
#
# *Difficulty 3/5, 25 minutes.*
#
# Write `Sharded8bitAdam`. It checkpoints layers, and it trains the model as one rank with all samples would, apart from rounding.
#
# As in lab 03, all parameters are in one flat buffer, and their gradients are in a second one. Rank r owns the r-th of N equal parts, its
# shard. If a boundary between two shards cut a block, its two parts would have different absmaxes, and
# the codes would depend on N. So **every shard consists of whole blocks**: the buffers are padded to a multiple of N · `block_size`. With
# k blocks in a shard, rank r has the blocks rk to rk + k − 1, and they are the same blocks as on one rank.
#
# - In `__init__`, make each forward pass of a module in `layers` checkpointed. Use your `checkpoint` or
#   `torch.utils.checkpoint.checkpoint(…, use_reentrant=False)`. `flat_buffers(parameters, multiple)` makes the buffers: the
#   parameters and their `.grad` become views of them. Then rank 0 of the group broadcasts its buffer to all ranks of the group.
#   (`dist.broadcast` takes `group_src=0` for it. `src` would be a rank's global number, which can differ.) `self.shard` is this
#   rank's part of `self.flat`.
# - `self.state` is the state of `adam_8bit_step` for this rank's shard.
# - `step(loss)` runs the backward pass, sums the gradients over the ranks, takes an 8-bit Adam step on the shard, and gathers
#   all shards. The loss of a rank is already multiplied by its share of the samples, so sum the gradients, and do not average
#   them. Each step starts from a gradient of zero, even if an earlier backward pass has left
#   another one.
# - **Reduce the gradients once in a step**, and send no more than 2 · 4Ψ · (N − 1)/N bytes, plus padding. The backward pass
#   runs each layer's forward pass a second time, so whatever the forward pass of a layer sends or registers (such as a hook on a
#   tensor) would be sent or registered twice. Keep communication out of the forward pass, and reduce when the backward pass has ended.
#
# Edge cases:
#
# - **Frozen parameters** are not in the buffers and do not change.
# - **Tied weights:** `model.parameters()` returns each parameter once.
# - **Unused parameters** keep a gradient of zero.
# - **Inputs:** the input of a layer may need no gradient. The layer's parameters still get theirs.
#
# **Predict**: there are 1,000 numbers on 4 ranks, in blocks of 100. How long are the buffers? Which blocks does rank 3 have, and what is in them?
#
# <details><summary>Hint 1</summary>
#
# `layer.forward = partial(torch.utils.checkpoint.checkpoint, layer.forward, use_reentrant=False)` replaces the method of this one module.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `self.flat.chunk(n)[r]` is a view. `dist.reduce_scatter_single(part, self.gradient, group=self.group)` sums, and
# `dist.all_gather_single(self.flat, self.shard, group=self.group)` gathers.
# </details>


# %% tags=["exercise"] exercise="sharded_8bit_step"
# %%px
class Sharded8bitAdam:
    """ZeRO's stage 1, with 8-bit states in whole blocks, for a model with checkpointed layers.

        optimizer = Sharded8bitAdam(model, model.blocks, lr, group)
        loss = share * loss_function(model(inputs), targets)  # of this rank's samples
        optimizer.step(loss)

    All ranks start from rank 0's parameters.
    """

    def __init__(
        self,
        model: nn.Module,
        layers: Iterable[nn.Module],
        lr: float,
        group: dist.ProcessGroup,
        block_size: int = 256,
    ) -> None:
        self.lr, self.group, self.block_size = lr, group, block_size
        self.state: dict[str, Any] = {}
        parameters = [p for p in model.parameters() if p.requires_grad]
        # BEGIN SOLUTION
        for layer in layers:
            layer.forward = partial(
                torch.utils.checkpoint.checkpoint, layer.forward, use_reentrant=False
            )
        self.flat, self.gradient = flat_buffers(parameters, group.size() * block_size)
        dist.broadcast(self.flat, group_src=0, group=group)
        self.shard = self.flat.chunk(group.size())[group.rank()]
        # END SOLUTION

    def step(self, loss: Tensor) -> None:
        """Take a training step along the sum of all ranks' losses."""
        # BEGIN SOLUTION
        self.gradient.zero_()
        loss.backward()
        part = self.gradient.chunk(self.group.size())[self.group.rank()]
        dist.reduce_scatter_single(part, self.gradient, group=self.group)
        adam_8bit_step(self.shard, part, self.state, self.lr, block_size=self.block_size)
        dist.all_gather_single(self.flat, self.shard, group=self.group)
        # END SOLUTION


# %% tags=["check"] exercise="sharded_8bit_step" points=4
# %%px --timeout 60
check.sharded_8bit_step(Sharded8bitAdam)


# %% tags=["hidden-check"] exercise="sharded_8bit_step" points=2
# %%px --timeout 30
def wide(inputs, outputs):
    return nn.Sequential(
        nn.Linear(inputs, 9, bias=False), nn.Tanh(), nn.Linear(9, outputs, bias=False)
    )


def sharded_steps(block_size):
    """Three steps of two wide layers around a frozen one; other weights on each rank."""
    model, ledger = nn.Sequential(wide(2, 3), nn.Linear(3, 3), wide(3, 2)).to(device), Ledger()
    for i, parameter in enumerate(model.parameters()):
        nn.init.constant_(parameter, 0.25 + 0.0625 * i + rank)
    for parameter in model[1].requires_grad_(False).parameters():
        nn.init.constant_(parameter, 0.75)
    x = torch.tensor([[1.0, rank - 0.5]], device=device, requires_grad=True)
    optimizer = Sharded8bitAdam(model, [model[0], model[2]], 2.0**-5, group, block_size)
    with ledger:
        for _ in range(3):
            with memory.Saved(model) as saved:
                loss = model(x).square().sum() / 2**30  # gradients about as small as eps
            optimizer.step(loss)
    trained = [f"{v:.3f}" for p in model.parameters() for v in p.flatten().tolist()[::8]]
    kept = memory.tensor_bytes([optimizer.flat, optimizer.shard]) == optimizer.flat.nbytes
    lengths = [len(optimizer.flat), len(optimizer.shard), len(optimizer.state["m"][1])]
    return [trained, lengths, kept, saved.bytes <= 60, ledger.ring_bytes() <= 24 * lengths[0]]


check.show_values(four=sharded_steps(4), one=sharded_steps(1), large=sharded_steps(32))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The buffers have 1,200 numbers, the next multiple of 400. A shard has 3 blocks. Rank 3 has the blocks 9 to 11: block 9 has the last 100
# numbers, and the other two contain only padding. Such blocks have an absmax of 0 and stay zero. In a real model, padding is negligible.
# Without it, a shard would have 250 numbers. Then the middle of block 2 would be a boundary, and training on 4 ranks would round
# differently from training on one.
# </details>
#
# The next cells measure what you predicted in exercise 8, for a GPT with four layers. `memory.Saved` counts what the layers keep from a
# forward pass, before and after they are checkpointed, and the ledger counts the bytes that a step sends.


# %%
# %%px --timeout 60
def kept_by_layers(model, tokens):
    """Return the bytes that the model's layers keep of a forward pass."""
    x = model.tokens(tokens)
    with memory.Saved(model) as saved:
        for block in model.blocks:
            x = block(x)
    return saved.bytes


torch.manual_seed(0)
sizes = models.GPTConfig(layers=4)
deep = models.GPT(sizes).to(device)
inputs, targets = training.text_batches(world_size, 4, sizes.sequence_length, device)[rank]
without = kept_by_layers(deep, inputs)
optimizer = Sharded8bitAdam(deep, deep.blocks, 1e-3, group)
activations = kept_by_layers(deep, inputs)

# %%
# %%px --timeout 60
with Ledger() as ledger:
    optimizer.step(training.token_loss(deep(inputs), targets) / world_size)
measured = {
    "parameters": memory.parameter_bytes(deep),
    "gradients": memory.gradient_bytes(deep),
    "states": memory.tensor_bytes([*optimizer.state["m"], *optimizer.state["v"]]),
    "activations": activations,
    "sent": ledger.ring_bytes(),
}
shape = (sizes.layers, *inputs.shape, sizes.hidden_size)
predicted = predict_rank_bytes(models.parameter_count(deep), world_size, *shape)
for what, got in measured.items():
    as_predicted = all(comm.allgather(abs(got - predicted[what]) <= 0.02 * predicted[what]))
    if rank == 0:
        print(f"{what}: as you predicted, to 2%: {as_predicted}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
both = {kind: measured[kind] for kind in ("parameters", "gradients")}
ways = {
    "float32 states": both
    | {"optimizer_states": 2 * measured["parameters"], "activations": without},
    "8-bit shards, checkpointed": both
    | {"optimizer_states": measured["states"], "activations": activations},
}
title = f"Mostly parameters and gradients remain (N = {world_size})"
drawn, axes = plots.memory_bars(title, ways)

# %% [markdown]
# # Against the library

# %% [markdown]
# ## Checkpoints
#
# `torch.utils.checkpoint` has two implementations. With `use_reentrant=True`, it is a `Function` like yours, whose `backward`
# starts a backward pass inside the backward pass. With `use_reentrant=False`, which is recommended, it uses saved-tensor
# hooks. A segment is computed again when `unpack` is called for the first of its tensors. The next cells compare both with
# yours, on blocks with dropout.

# %%
# %%px --timeout 100
from torch.utils.checkpoint import checkpoint as library_checkpoint


class DropoutBlock(models.Block):
    """A block whose attention and MLP end in a dropout."""

    def forward(self, x):
        x = x + F.dropout(self.attention(self.norm_1(x)), 0.1)
        return x + F.dropout(self.mlp(self.norm_2(x)), 0.1)


# %%
# %%px
config = models.GPTConfig(layers=8)
torch.manual_seed(0)
with_dropout = models.GPT(config)
with_dropout.blocks = nn.ModuleList(DropoutBlock(config) for _ in range(config.layers))
with_dropout.to(device)
checkpoints = {
    "no checkpoints": plain_run,
    "ours": checkpoint,
    "hooks": partial(library_checkpoint, use_reentrant=False),
    "reentrant": partial(library_checkpoint, use_reentrant=True),
}


# %%
# %%px --timeout 100
def step(run):
    torch.manual_seed(rank)
    with_dropout.zero_grad()
    forward_loss(with_dropout, run).backward()


peaks, gradients = {}, {}
for name, run in checkpoints.items():
    with_dropout.zero_grad()
    with memory.Peak(device) as peak:
        step(run)
    peaks[name] = peak.bytes
    gradients[name] = [p.grad.clone() for p in with_dropout.parameters()]
same = all(map(torch.equal, gradients["ours"], gradients["no checkpoints"]))
if rank == 0:
    print(f"the gradients of a step without checkpoints, bit for bit: {same}")
    for name in ("hooks", "reentrant"):
        print(f"our peak, relative to that of {name}: {peaks['ours'] / peaks[name]:.2f}")

# %%
# %%px --targets 0 --timeout 60
plain_flops = step_flops(with_dropout, plain_run)
again = {name: step_flops(with_dropout, run) - plain_flops for name, run in checkpoints.items()}
without_dropout = step_flops(eight_layers, checkpoints["hooks"]) - plain_flops
for name, flops in (again | {"hooks, no dropout": without_dropout}).items():
    print(f"{name}: {flops / forward_flops:.2f} forward passes more")

# %% tags=["nbval-ignore-output"]
# %%px --timeout 100
seconds = timing.median_seconds(
    {n: partial(step, run) for n, run in checkpoints.items()}, comm, rounds=4, warm_up=1
)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
ratios = {"time": seconds, "peak memory": peaks}
ratios = {
    title: {name: value / values["hooks"] for name, value in values.items()}
    for title, values in ratios.items()
}
drawn, axes = plots.ratio_bars(
    "A step with checkpoints, relative to the library's",
    ratios,
    "ratio to use_reentrant=False",
    ("hooks", "reentrant"),
)

# %% [markdown]
# What to look for:
#
# - **The same work.** All three compute the same gradients, and their peaks differ by a few percent.
# - **The library can stop early.** The hooks know which tensor is the last one that the backward pass needs. If a block ends with
#   a linear layer and a sum, the backward pass needs neither of their results, so the library skips both. The product is a third of the
#   FLOPs of the block's linear layers. (On a CPU, this counter leaves out fused attention.) A dropout at the end saves its mask.
#   The mask is drawn after the product, so the library must compute the product first.
# - **What the library does in addition.** It restores the settings of autocast, detects a second forward pass with
#   other shapes, and lets a `context_fn` choose which operations to recompute.

# %% [markdown]
# ## The loss and Adafactor
#
# `F.linear_cross_entropy(hidden, weight, targets)` is PyTorch's name for the loss of exercise 5. By default, it computes all logits. With
# `LinearCrossEntropyOptions`, it works in chunks and computes the gradients in the forward pass, as yours does. Both sides use chunks of
# 64 tokens:

# %%
# %%px --targets 0 --timeout 60
T, V, h, CHUNK = 512, 16000, 64, 64
torch.manual_seed(0)
states = torch.randn(T, h, device=device, requires_grad=True)
output_weight = (torch.randn(V, h, device=device) / h**0.5).requires_grad_()
words = torch.randint(V, (T,), device=device)
options = torch.nn.LinearCrossEntropyOptions(chunking_method=None, batch_chunk_size=CHUNK)
ways = {
    "yours": partial(chunked_cross_entropy, chunk_size=CHUNK),
    "F.cross_entropy": plain_loss,
    "F.linear_cross_entropy": F.linear_cross_entropy,
    "in chunks": partial(F.linear_cross_entropy, options=options),
}

# %%
# %%px --targets 0 --timeout 60
peaks, gradients = {}, {}
for way, loss_of in ways.items():
    one_pass(loss_of)
    gradients[way] = states.grad, output_weight.grad
    states.grad = output_weight.grad = None
    with memory.Peak(device) as peak:
        one_pass(loss_of)
    peaks[way] = peak.bytes
for way in ways:
    pairs = zip(gradients["yours"], gradients[way], strict=True)
    alike = all((a - b).norm() < 1e-4 * b.norm() for a, b in pairs)
    part = peaks[way] / peaks["F.cross_entropy"]
    print(f"{way}: the same gradients: {alike}; {part:.2f} times the peak of F.cross_entropy")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0 --timeout 60
calls = {way: partial(one_pass, loss_of) for way, loss_of in ways.items()}
seconds = timing.median_seconds(calls, MPI.COMM_SELF, rounds=5, warm_up=1)
panels = {
    "time": {way: seconds["yours"] / seconds[way] for way in ways if way != "yours"},
    "peak": {way: peaks["yours"] / peaks[way] for way in ways if way != "yours"},
}
drawn, axes = plots.ratio_bars(
    "Your loss, relative to each of PyTorch's", panels, "yours / PyTorch's"
)

# %% [markdown]
# In PyTorch, the loss in chunks is a single operation, and `memory.Peak` does not see the buffers inside it. Its real peak is
# higher than shown.
#
# `torch.optim.Adafactor` differs from your step in two ways:
#
# - It has a weight decay, which is off here.
# - It does not add $\epsilon_1$ to the squares. Instead, it replaces the mean of $r$ and the root of $V$ by $\epsilon_1$ if
#   they are smaller. By default, $\epsilon_1$ is $1.2 \cdot 10^{-7}$, the gap between 1 and the next float32.
#
# **Predict**: for which sizes of gradients do your steps agree with PyTorch's?


# %%
# %%px --targets 0 --timeout 60
def change(make_optimizer, size):
    """What five steps change in a matrix, for gradients of a given size."""
    torch.manual_seed(0)
    matrix = nn.Parameter(torch.randn(64, 48, device=device))
    start = matrix.detach().clone()
    optimizer = make_optimizer([matrix])
    for _ in range(5):
        matrix.grad = torch.randn_like(matrix) * size
        optimizer.step()
    return matrix.detach() - start


def library(parameters, **settings):
    return torch.optim.Adafactor(parameters, weight_decay=0, **settings)


# %%
# %%px --targets 0 --timeout 60
ways = {"default": library, "ε₁ = 1e-20": partial(library, eps=(1e-20, 1e-3))}
for size in (1.0, 1e-3, 1e-4, 1e-6, 1e-8):
    own = change(Adafactor, size)
    found = []
    for way, make_optimizer in ways.items():
        other = change(make_optimizer, size)
        same = (other - own).norm() < 1e-3 * own.norm()
        differs = f"changes {other.norm() / own.norm():.1f} times as large"
        found.append(f"{way}: {'the same' if same else differs}")
    print(f"gradients of {size:.0e}: {'; '.join(found)}")

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The mean of $r$ is the mean of the squares. It reaches $1.2 \cdot 10^{-7}$ when the RMS of the gradient is
# $3.5 \cdot 10^{-4}$. Below that, PyTorch's $V$ is too small and its update too large, but clipping hides most of it. Below
# about $6 \cdot 10^{-6}$, the root of $V$ is at its limit, which clipping still hides. Below $1.2 \cdot 10^{-7}$, the update
# is smaller than 1, nothing is clipped, and the parameter hardly moves. With `eps=(1e-20, 1e-3)`, both limits are far away
# for gradients down to about 10⁻⁹.
# </details>
#
# The next cell trains the GPT with both, and measures a step:

# %%
# %%px --targets 0 --timeout 60
ways = {
    "yours": partial(Adafactor, lr=0.05),
    "library": partial(library, lr=0.05, eps=(1e-16, 1e-3)),
}
runs, calls = {}, {}
for way, make_optimizer in ways.items():
    torch.manual_seed(0)
    model = models.GPT().to(device)
    optimizer = make_optimizer(model.parameters())
    steps = (training.one_step(model, optimizer, *b, training.token_loss) for b in text_lines[:20])
    runs[way] = list(steps)
    calls[way] = optimizer.step
training.print_same({"Adafactor": runs}, 1e-3)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
seconds = timing.median_seconds(calls, MPI.COMM_SELF, rounds=20)
print(f"time of your step, relative to the library's: {seconds['yours'] / seconds['library']:.2f}")

# %% [markdown]
# ## 8-bit Adam
#
# `bitsandbytes.optim.Adam8bit` is the implementation of the paper's authors. It has the same maps, the same blocks, and the same order of
# operations. By default, it keeps the states of tensors with fewer than 4,096 numbers in float32. Here, it quantizes all of them, as yours does.
#
# The first cell gives the same 20 gradients to both, and compares the codes. The second one trains the GPT of exercise 7c with the library.

# %%
# %%px --targets 0 --timeout 60
from parlab.libraries.memory import adam_8bit, codes

gradients = torch.randn(20, 50_000, generator=torch.Generator().manual_seed(1)).to(device)
pair = [nn.Parameter(torch.zeros(50_000, device=device)) for _ in range(2)]
optimizers = Adam8bit([pair[0]], lr=1e-3), adam_8bit([pair[1]], lr=1e-3)
for gradient in gradients:
    for parameter, optimizer in zip(pair, optimizers, strict=True):
        parameter.grad = gradient.clone()
        optimizer.step()
own = [optimizers[0].state[pair[0]][moment][0] for moment in "mv"]
library = codes(optimizers[1], pair[1])
equal = [(a == b).float().mean().item() for a, b in zip(own, library, strict=True)]
print(f"at least 95% of the codes are the library's after 20 steps: {sum(equal) / 2 >= 0.95}")

# %%
# %%px --targets 0 --timeout 60
adam_curves["8 bits, library"] = adam_run(adam_8bit)[0]
ends = {name: sum(losses[-20:]) / 20 for name, losses in adam_curves.items()}
same = abs(ends["8 bits, yours"] / ends["8 bits, library"] - 1) < 0.02
print(f"same mean loss in the last 20 steps as the library: {same}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.same_curves("8-bit states do not change the loss curve", {"GPT": adam_curves})

# %% [markdown]
# The codes that differ belong mostly to small numbers of $v$. On a CPU, bitsandbytes finds a code in a table of 65,536 entries, which are
# 3·10⁻⁵ apart, so it does not always take the nearest level below 10⁻³. Yours does. For the loss, this makes no difference.

# %% [markdown]
# # Going further
#
# - Give your planner the segments of a larger GPT, and draw how many FLOPs it recomputes for each budget.
# - Checkpoint segments of two blocks each. How do the peak and the FLOPs change?
# - Offload only the inputs of checkpointed blocks. How many bytes does the store then hold?
# - Quantize $m$ with the levels of $v$, or $v$ with those of $m$. What happens to the loss?
