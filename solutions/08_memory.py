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
# There is no dropout. Attention is *fused*: it keeps its output, which the list already has as the input of a linear layer,
# and computes its scores again in the backward pass.
#
# **Predict in numbers**: how many bytes are kept in float32? Leave out small things, such as the tokens and the norms' means.
#
# - `block`: by one block
# - `scores`: by one block *in addition*, if attention is not fused. The softmax keeps its output, which has a probability for
#   each of the $a$ heads and each pair of tokens. The scores before the softmax are not kept
# - `model`: by $l$ blocks, the last norm, the output layer, and the loss. The norm and the output layer keep their inputs,
#   and the cross-entropy keeps one logarithm for each token and each of the $V$ entries of the vocabulary
# - `checkpointed`: by the same model, if each block keeps only its input. (You will write this in exercise 2.)


# %% tags=["exercise"] exercise="predict_kept"
# %%px
def predict_kept(
    batch: int, sequence: int, hidden: int, heads: int, layers: int, vocabulary: int
) -> dict[str, float]:
    """Bytes kept in float32 by a `block`, by its `scores`, by the `model`, and `checkpointed`."""
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
# calls `pack(tensor)` and keeps what `pack` returns. In the backward pass, it calls `unpack` with that object, and expects the
# tensor.
#
# Write `kept_bytes`, which calls `forward()` once and returns the bytes that autograd keeps of it.
#
# - **Storages.** Several tensors can be views of one storage, as Q, K, and V are. Count each storage once, and count all of
#   it: even a small view keeps the whole storage in memory.
# - **Parameters** of `model` are in memory anyway. Do not count them, nor views of them, such as the transposed weight that a
#   product keeps. A parameter that needs no gradient does not count either.
# - **Everything else that is kept** counts, whatever its dtype: inputs, targets, and masks, too.
# - **The pass stays the same.** If `forward` puts its result somewhere, the result's backward pass computes the same gradients
#   as without your hooks.
# - **Nothing is left** when `kept_bytes` has returned. An operation such as softmax keeps its own output. If `pack` returned
#   that very tensor, the tensor and the graph would refer to each other, and would never be freed. Return
#   `tensor.detach()`, which is a view.
#
# **Predict**: somebody replaces the GELU by a ReLU. A GELU keeps its input, and a ReLU keeps its output. How many numbers does
# the block then keep, instead of 16?
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
    """Bytes that autograd keeps of `forward()` for the backward pass.

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
    inputs = torch.ones(5, 7, 6, device=device)
    return int(
        kept_bytes(lambda: net(inputs[1:3]).chunk(2, -1)[0].exp() * net[0].weight[1, 2], net)
    )


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
tokens, targets = training.text_batches(1, 16, config.sequence_length, device)[0]
torch.manual_seed(0)
gpt = models.GPT(config).to(device)


def plain_run(function, *args, **kwargs):
    return function(*args, **kwargs)


def forward_loss(run):
    """The loss of the GPT, each of whose blocks is called by `run(block, x)`."""
    x = gpt.tokens(tokens) + gpt.positions.weight
    for block in gpt.blocks:
        x = run(block, x)
    return training.token_loss(gpt.unembed(gpt.norm(x)), targets)


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
h, s, b = config.hidden_size, config.sequence_length, len(tokens)
predicted = predict_kept(b, s, h, config.heads, config.layers, config.vocab_size)
x = torch.randn(b, s, h, device=device, requires_grad=True)
blocks = {"GELU": gpt.blocks[0], "ReLU": with_relu, "not fused": unfused}
kept = {name: kept_bytes(partial(block, x), block) for name, block in blocks.items()}
measured = {
    "block": kept["GELU"],
    "scores": kept["not fused"] - kept["GELU"],
    "model": kept_bytes(partial(forward_loss, plain_run), gpt),
}
if rank == 0:
    for name, size in measured.items():
        print(f"{name:>6}: {size / 1e6:5.2f} MB, {size / predicted[name]:.2f} of the prediction")
    print(", ".join(f"{name}: {size / (4 * b * s * h):.1f} numbers" for name, size in kept.items()))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# With a ReLU, the block keeps 12 numbers. The ReLU's output is also the input of the next linear layer, which keeps it anyway,
# so the ReLU costs no memory of its own. The input of a GELU is a tensor that nothing else keeps.
# </details>

# %% [markdown]
# ## 2. Compute it again
#
# *Difficulty 4/5, 30 minutes.*
#
# *Activation checkpointing* trades time for memory. A segment of the model, such as a block, keeps only its inputs. When the
# backward pass reaches the segment, it runs the segment's forward pass a second time, now with a graph, and runs the backward
# pass through this graph.
#
# Write `checkpoint`, which is called in place of `function(*args, **kwargs)`, and returns the same. You can use the skeleton of
# an `autograd.Function` below, or something of your own, but not `torch.utils.checkpoint`.
#
# - **Memory.** Between the forward and the backward pass, nothing that `function` computes is kept, apart from its outputs.
#   What the second forward pass computes is freed when the segment's backward pass is done.
# - **Gradients** equal those without `checkpoint`, bit for bit. Parameters that `function` uses without getting them as an
#   argument, as a block does, have gradients, too.
# - **Random numbers.** The second forward pass draws the same dropout masks as the first one, so it has to start with the
#   generator in the same state. After it, put back the state that the generator had before: the rest of the training must draw
#   the same numbers as without `checkpoint`.
# - **Time.** `function` runs once in the forward and once in the backward pass.
#
# The check also tries:
#
# - **Arguments** of any type, by position or by keyword. Tensors, of any dtype, are arguments themselves, not elements of a list.
#   Some, or all of them, need no gradient.
# - **Several outputs** in a tuple. Some may be integers, and the loss may not depend on all of them.
# - **A checkpoint inside a checkpoint.**
# - **Inside `torch.no_grad()`**, `function` runs once, and the outputs need no gradient.
#
# **Predict**: how many forward passes of computing does a training step with checkpoints take, if a backward pass takes as long
# as two? How much longer does the step take than without?
#
# <details><summary>Hint 1</summary>
#
# `forward` of an `autograd.Function` runs without a graph. Its tensors are arguments of `apply`, and only these get gradients,
# so pass the values of `kwargs` as further arguments. If no argument of `apply` needs a gradient, autograd never calls
# `backward`. An empty tensor that requires a gradient, as one more argument, is enough.
# </details>
#
# <details><summary>Hint 2</summary>
#
# In `backward`, detach each tensor, with the same `requires_grad` as before. Within `torch.random.fork_rng(devices=[])`, which
# puts the generator's state back at its end, and `torch.enable_grad()`, call `torch.set_rng_state` and the function. Then
# `torch.autograd.backward(outputs, gradients)` computes the gradients of the detached tensors and of all parameters. Leave out
# the outputs that need no gradient, or have none: after `ctx.set_materialize_grads(False)`, such a gradient is None.
# </details>


# %% tags=["exercise"] exercise="checkpoint"
# %%px
class Recomputation(torch.autograd.Function):
    """Calls `run` without keeping what it computes, and calls it again in the backward pass."""

    @staticmethod
    def forward(ctx, run, *values):
        # BEGIN SOLUTION
        tensors = [value if isinstance(value, Tensor) else None for value in values]
        ctx.run, ctx.others = (
            run,
            [None if isinstance(value, Tensor) else value for value in values],
        )
        ctx.save_for_backward(*tensors)
        ctx.set_materialize_grads(False)
        ctx.gpus = sorted(
            {t.device.index for t in tensors if t is not None and t.device.type == "cuda"}
        )
        ctx.states = torch.get_rng_state(), [torch.cuda.get_rng_state(gpu) for gpu in ctx.gpus]
        return run(*values)
        # END SOLUTION

    @staticmethod
    def backward(ctx, *gradients):
        # BEGIN SOLUTION
        values = [
            other if saved is None else saved.detach().requires_grad_(saved.requires_grad)
            for other, saved in zip(ctx.others, ctx.saved_tensors, strict=True)
        ]
        with torch.random.fork_rng(ctx.gpus), torch.enable_grad():
            torch.set_rng_state(ctx.states[0])
            for gpu, state in zip(ctx.gpus, ctx.states[1], strict=True):
                torch.cuda.set_rng_state(state, gpu)
            outputs = ctx.run(*values)
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

    `function` returns a tensor, or a tuple of tensors. If it is called again with the generators in the same state, it computes
    the same.
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
    weight, scale = torch.randn(3, 3, requires_grad=True), torch.randn(3, requires_grad=True)
    calls = []

    def segment(x, index, *, factor):
        calls.append(index.dtype)
        y = F.dropout((x @ weight).sin() * factor, 0.5)
        return y, index + 1, y.cos() @ weight

    first, index, second = around(segment, torch.ones(4, 3), torch.arange(4), factor=scale.tanh())
    third = around(lambda x: around(torch.exp, F.dropout(x, 0.25)), second)[0]
    (first[index % 4].square().sum() + third.sum() + F.dropout(first, 0.5).sum()).backward()
    return [weight.grad, scale.grad, torch.rand(3)], len(calls)


(right, _), (got, calls) = (
    trained_with(around) for around in (lambda f, *a, **k: f(*a, **k), checkpoint)
)
check.show_values(same=[torch.equal(a, b) for a, b in zip(got, right, strict=True)], calls=calls)

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
