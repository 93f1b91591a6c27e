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
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from parlab import memory, models, plots, segments, timing, training
from parlab.activation_stores import Store, store_for
from parlab.checks import memory as check
from parlab.costs.recomputation import Segment, peak_bytes, recomputed_flops
from parlab.plots import memory_steps
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference

# %% [markdown]
# If you are stuck on an exercise, run `use_reference("its_name")` in a `%%px` cell. It puts a solution in place, and you can
# continue.
#
# # Part A: activations

# %% [markdown]
# SECTION 1 STARTS (kept_bytes)

# %% [markdown]
# SECTION 2 STARTS (checkpoint)

# %% [markdown]
# ## 3. Plan recomputation
#
# *Difficulty 4/5, 25 minutes.*
#
# Checkpointing everything costs one more forward pass, and most devices have memory left after that. So recompute only as much as
# the budget requires. Cut the model into a chain of *segments*, for example the attention and the MLP of each block. A *plan* decides
# for each segment whether its activations are kept or recomputed. For segment $i$, measure
#
# - $a_i$ (`input`): the bytes of its input,
# - $k_i$ (`kept`): the bytes that its forward pass keeps, the input included, so $k_i \ge a_i$,
# - $p_i$ (`peak`): the most bytes that its own backward pass holds at once: what it kept or has just recomputed, and gradients,
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
# - The check tries 40 segments and budgets of gigabytes. That is too much for trying all $2^{40}$ plans, and for a table with an
#   entry for each byte. But real models have only a few kinds of layers, so few different sums of bytes occur.
#
# **Predict**: which segment should a plan never recompute? If all segments are alike, are the first or the last ones recomputed, or
# does it make no difference?
#
# <details><summary>Hint 1</summary>
#
# Go through the chain from the first segment to the last. All that matters of a plan for the segments so far is how many bytes they
# hold, $\sum h_i$, and how many FLOPs it recomputes. If two plans hold equally many bytes, drop the one that recomputes more.
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
    """The plan that recomputes the fewest FLOPs with a peak of at most `budget` bytes.

    Returns for each segment whether its activations are kept (True) or recomputed (False).
    A ValueError names the smallest budget that works, if no plan fits.
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
chain = [attention, mlp, mlp, attention, mlp, Segment(4, 30, 66, 40)]
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
# Never recompute the last segment. Its $h$ occurs in no sum, so keeping it costs no memory. If all segments are alike, each
# recomputed segment before the last one frees the same bytes for the end of the chain, where the peak is, so it makes no difference
# which ones you recompute. The order matters if a segment in the middle has a large peak: then only the segments before it help.
# </details>
#
# Now measure the segments of the GPT, and plan for half of the memory that it needs if everything is kept:

# %%
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
title = "Your plan is on the frontier: less memory would cost more FLOPs"
drawn = memory_steps.plan_frontier(title, profile, found, budget)

# %% [markdown]
# ## 4. Offload activations
#
# *Difficulty 4/5, 30 minutes.*
#
# Instead of recomputing an activation, you can move it out of the device after the forward pass has saved it, and bring it back when
# the backward pass needs it. That costs no FLOPs, but it uses a slow link. PyTorch calls two functions of yours for each saved
# tensor: `pack(tensor)` when the forward pass saves it, and `unpack(packed)` with whatever `pack` returned when the backward pass
# needs it. `torch.autograd.graph.saved_tensors_hooks(pack, unpack)` is the context manager in which this happens.
#
# `store_for(device)` gives you a place for the numbers: pinned memory of the host for a GPU, with copies on their own stream, and
# otherwise a file. The file has no name, so the operating system removes it even if the process is killed. A store has one method.
# `ticket = store.write(numbers)` takes a flat uint8 tensor, and `ticket.read()` returns a new one with the same numbers. If nothing
# refers to a ticket any more, its place in the store is free again.
#
# Write a context manager that moves what autograd saves to a store:
#
# - **What stays**: tensors that share a storage with a parameter or buffer of `module`, such as a transposed weight, and tensors whose
#   storage has fewer than `smallest` bytes. Leave them in memory.
# - **What goes** is written by storages, whole and only once, even if several views of it are saved, as Q, K, and V are. After
#   that, your code must not keep it in memory.
# - **Coming back**: the backward pass gets tensors of the same shape, strides, and dtype, so all gradients are equal bit for bit. Two
#   views of one storage that it needs at the same time share memory again, and the storage is read only once for both. If the graph
#   is retained, the backward pass can run again.
# - **In place**: a storage may change after it has been saved. The backward pass then uses the old numbers, and if the storage is saved
#   again, the new ones are written too. A tensor that stays has only its new numbers. For that one, raise a RuntimeError in the
#   backward pass, as autograd does: **with hooks, PyTorch no longer checks this itself.**
# - **Afterwards**: only the graph keeps tickets. When it is freed, the store is empty. When the context ends, even with an exception,
#   nothing more is offloaded. The backward pass may run inside or outside of the context.
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
# restores any other view. For what stays, return `tensor.detach()`, since a hook that returns the tensor itself can create a cycle
# that is never freed, and its version. A `weakref.WeakValueDictionary` from tickets to storages that were read shares them.
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
layer = nn.Linear(12, 24)
x = torch.randn(50, 12, requires_grad=True)
with offload_activations(layer, store, smallest=1500):
    q, k = (layer(x) * 2.0).chunk(2, dim=-1)
    result = ((q * k).exp() @ layer.weight[:12]).sum()
result.backward()
check.show_values(
    written=sorted(store.sizes),
    left=store.left,
    gradient=round(x.grad.sum().item(), 3),
    weight=round(layer.weight.grad.abs().sum().item(), 3),
)

# %% [markdown]
# Now run the GPT with and without your context manager, and look at the process: its memory really falls, because the file is outside
# of it.


# %%
# %%px --timeout 60
def grown(context):
    """Loss, gradients, and by how many bytes the process grows in the forward pass."""
    gpt.zero_grad()
    start = memory.process_bytes(device)
    with context:
        loss = training.token_loss(gpt(tokens), targets)
    size = memory.process_bytes(device) - start
    loss.backward()
    return loss.item(), [p.grad.clone() for p in gpt.parameters()], size


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
    same = all(map(torch.equal, offloaded[1], kept[1])) and offloaded[0] == kept[0]
    print(f"loss and gradients are equal bit for bit: {same}")
    print(f"a forward pass keeps {saved.bytes / 1e6:.0f} MB")
    print(f"the process grows by less than a fifth of that: {offloaded[2] < saved.bytes / 5}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
print(
    f"kept: the process grows by {kept[2] / 1e6:.0f} MB; offloaded: by {offloaded[2] / 1e6:.0f} MB"
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Hardly at all. During the forward pass, a few of the largest tensors exist at the same time. After it, only the small tensors are
# left, such as the statistics of the norms. Whether this costs time depends on the link: for each of the $bsh$ numbers between two
# layers, a block writes 16 numbers and computes at least $24h$ FLOPs. If a device computes $F$ FLOP/s and its link takes $W$ bytes/s,
# then in float32 the writes can hide behind the computation if $24h/F \ge 64/W$, that is, if $h$ is large enough.
# [Chapter 08](../book/08_memory.md) has the numbers.
#
# `torch.autograd.graph.save_on_cpu` has the same hooks, but it copies each saved tensor on its own: parameters too, and Q, K, and V three
# times. Plans can combine the three ways: keep a segment, recompute it, or offload its input.
# </details>

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
