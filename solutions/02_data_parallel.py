# %% [markdown]
# # Lab 02: Data parallelism
#
# Every rank holds the whole model and a share of each batch. The ranks compute gradients on their
# own, add them up, and take the same step. You build that three times: correct, then with one
# message instead of many, then with the messages hidden behind the backward pass. And you show
# the one thing that matters: **the learning curve is the one that a single rank would have had.**
#
# | | |
# |---|---|
# | **You will be able to** | shard a data set without losing or repeating a sample; start all ranks from the same model; average gradients correctly, for uneven shards too; say what flat buffers, buckets, overlap and `no_sync` buy |
# | **Time** | 110 minutes |
# | **You need** | PyTorch; [lab 01](01_mpi.ipynb), or the knowledge of what a rank and an all-reduce are. No GPU |
# | **Background** | [chapter 02](../book/02_data_parallel.md) of the book explains what you build here |
#
# Start the ranks: four processes, each with a Python of its own. Cells that begin with `%%px` run
# on all of them, other cells in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px --timeout 120
import itertools
import statistics
import time
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parlab import models
from parlab.checks import data_parallel as check
from parlab.data import mnist, text
from parlab.ledger import Ledger
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference
from parlab.timeline import Timeline, draw

# %% [markdown]
# A check answers at once. It runs your function on all ranks and on fewer of them, on models that
# are awkward on purpose (`models.Awkward`: two layers that share one weight, a frozen weight, a
# weight that no gradient reaches, one that lies in memory transposed, buffers). So inside a function use what it is given,
# `comm.rank` and `comm.size`, not the notebook's `rank` and `world_size`. If you are stuck on an
# exercise, `use_reference("its_name")` in a `%%px` cell puts a solution in its place, and you go on
# with the next.
#
# Where messages go through mpi4py, tensors are on the CPU: MPI reads a process's own memory. From
# exercise 9 on they go through `torch.distributed`, and everything runs on `device`: the rank's
# GPU, where it has one.
#
# # Why
#
# The samples of a batch do not need each other: a batch of 256 images is 256 forward and backward
# passes, and a sum. Four ranks take a quarter of them each. All that they must tell each other is
# that sum, the gradient: 1.1 MB a step for the smaller model of this lab, whatever the batch. So
# the more work a rank has in a step, the less the message counts; and the model is what one rank
# alone would have trained, which makes every mistake visible.
#
# # Part A: correct
#
# ## 1. A sampler that shards
#
# *Difficulty 2/5, 10 minutes.*
#
# In step $i$ of an epoch, a single rank would train on the $i$-th `batch_size` indices of a
# shuffle of the data set: the *global batch*. With $N$ ranks, each takes a share of that same
# global batch. Write the function that says which.
#
# - The shuffle is a new one in each epoch. It is the same on all ranks (nobody sends it: they all
#   compute it) and for every number of ranks.
# - In a step, no two shares differ by more than one index. Together they are the global batch:
#   nothing lost, nothing twice.
# - The last global batch has what is left. Every rank makes the same number of steps, even if its
#   last share is empty.
# - The random generator is the function's own. No library's global one moves, be it torch's,
#   NumPy's or Python's: torch's belongs to dropout and to initialisation.
#
# **Predict** before you write: 10 samples, global batches of 4, 4 ranks. How many samples does
# each rank get in the last step? What would happen if the ranks that get none left the loop?
#
# <details><summary>Hint 1</summary>
#
# A shuffle that everyone can compute needs a random generator of its own, seeded by something
# that all ranks know and that changes with the epoch.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `torch.randperm(size, generator=torch.Generator().manual_seed(...))`, then `.split(batch_size)`
# gives the global batches. Slicing with a stride, `batch[start::step]`, deals a batch out like
# cards.
# </details>


# %% tags=["exercise"] exercise="sharded_sampler"
# %%px
def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    """The indices on which `rank` trains in each step of an epoch.

    Step i's global batch is the i-th `batch_size` indices of a shuffle of 0 … size − 1, the
    last one what is left. Returns this rank's share of each: one int64 tensor a step, the same
    number of steps on every rank; a share may be empty.
    """
    # BEGIN SOLUTION
    shuffle = torch.randperm(size, generator=torch.Generator().manual_seed(epoch))
    return [batch[rank::world_size] for batch in shuffle.split(batch_size)]
    # END SOLUTION


# %% tags=["check"] exercise="sharded_sampler" points=2
# %%px
check.sharded_sampler(sharded_sampler)

# %% tags=["hidden-check"] exercise="sharded_sampler" points=1
# %%px --timeout 20
from parlab.checks.untouched import generators


def planned(size, batch_size, epoch, ranks):
    """The global batch of each step, the sizes of its shares, and the types of their indices."""
    shares = [sharded_sampler(size, batch_size, epoch, r, ranks) for r in range(ranks)]
    steps = list(zip(*shares, strict=True))
    batches = [sorted(torch.cat(step).tolist()) for step in steps]
    sizes = [sorted(len(share) for share in step) for step in steps]
    return batches, sizes, sorted({str(share.dtype) for step in steps for share in step})


cases = [(22, 8, 4), (33, 8, 4), (24, 8, 4), (5, 8, 4), (29, 7, 3)]
with generators() as watched:
    plans = [planned(*case[:2], 3, case[2]) for case in cases]
epochs = [planned(64, 8, epoch, 1)[0] for epoch in range(12)]
check.show_values(
    sizes=[sizes for _, sizes, _ in plans],
    dtypes=[dtypes for _, _, dtypes in plans],
    complete=[
        sorted(itertools.chain(*batches)) == list(range(size))
        for (batches, _, _), (size, _, _) in zip(plans, cases, strict=True)
    ],
    batches_of_one_rank=[
        batches == planned(*case[:2], 3, 1)[0]
        for (batches, _, _), case in zip(plans, cases, strict=True)
    ],
    alike_on_all_ranks=len({str(plan) for plan in comm.allgather(plans)}),
    different_shuffles=len({str(sorted(batches)) for batches in epochs}),
    mixed=all(max(batch) - min(batch) > 8 for batches in epochs for batch in batches),
    generators_left_alone=watched.moved() is None,
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Steps of 4, 4 and 2 samples. In the last, two ranks get one each and two get none. If those two
# left the loop, the others would wait for them in the all-reduce, for ever.
# </details>
#
# ## 2. The same model on every rank
#
# *Difficulty 1/5, 5 minutes.*
#
# The ranks start from different seeds, so they start from different weights. Give them all rank
# 0's: its *parameters* and its *buffers* (the tensors of a model that are not trained, such as
# BatchNorm's running mean).
#
# mpi4py takes torch tensors as they are: `comm.Bcast(tensor, root=0)` sends rank 0's values and
# overwrites everybody else's. It refuses a tensor that requires a gradient; `tensor.detach()`
# is the same memory without that.
#
# - Values are overwritten in place: an optimizer, or a layer that shares a weight, holds the
#   tensor that it has. Its memory may be in another order than its indices, as a transposed
#   matrix's is: `Bcast` takes that as it is, where `.contiguous()` or `.reshape(-1)` give a copy.
# - Each tensor is sent once, a shared one too, and every buffer, also one that `state_dict()`
#   leaves out; and as it is, not as a pickled Python object (`comm.bcast`, in small letters).
# - Nothing else changes: not `requires_grad`, and no `.grad`.
#
# **Predict**: someone leaves the broadcast out and seeds all ranks alike instead. When is that
# just as good, and what makes it go wrong?
#
# <details><summary>Hint 1</summary>
#
# `model.parameters()` and `model.buffers()` give each tensor once, also if two layers share it.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `for tensor in itertools.chain(model.parameters(), model.buffers()): ...`
# </details>


# %% tags=["exercise"] exercise="broadcast_state"
# %%px
def broadcast_state(model: nn.Module, comm: MPI.Intracomm) -> None:
    """Give every rank of `comm` rank 0's parameters and buffers, in place, each tensor once."""
    # BEGIN SOLUTION
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        comm.Bcast(tensor.detach(), root=0)
    # END SOLUTION


# %% tags=["check"] exercise="broadcast_state" points=2
# %%px
check.broadcast_state(broadcast_state)

# %% tags=["hidden-check"] exercise="broadcast_state" points=1
# %%px --timeout 20
model = nn.BatchNorm1d(2)
model.linear = nn.Linear(2, 1, bias=False).requires_grad_(False)
model.tied = model.linear
model.register_buffer("mask", torch.full((2,), 7.0 - rank), persistent=False)
nn.init.constant_(model.weight, rank + 1)
nn.init.constant_(model.linear.weight, 3 - rank)
model.transposed = nn.Parameter((torch.arange(6.0) + 10 * rank).view(2, 3).t())
model.running_mean.fill_(10 * rank + 5)
model.weight.grad = torch.full((2,), float(rank))
before = {name: (id(t), t.data_ptr()) for name, t in model.state_dict(keep_vars=True).items()}
watched = Ledger()
returned = broadcast_state(model, watched.watch(comm))
after = {name: (id(t), t.data_ptr()) for name, t in model.state_dict(keep_vars=True).items()}
check.show_values(
    weight=model.weight.tolist(),
    transposed=model.transposed.tolist(),
    frozen=model.linear.weight.tolist(),
    running_mean=model.running_mean.tolist(),
    mask=model.mask.tolist(),
    gradient=model.weight.grad.tolist(),
    in_place=before == after,
    requires_grad=[p.requires_grad for p in model.parameters()],
    returned=returned is None,
    pickled=any(call.api[0].islower() for call in watched.calls),
    each_once=watched.bytes_sent() + watched.bytes_received()
    == sum(t.nbytes for t in [*model.parameters(), *model.buffers()]),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# A common seed is as good while every rank draws the same random numbers in the same order. One
# layer more on one rank, another version of a library, a checkpoint that only rank 0 loads: and
# the ranks differ, and nothing says so.
# </details>
#
# ## 3. All-reduce the gradients
#
# *Difficulty 2/5, 10 minutes.*
#
# Each rank has called `backward()` on the mean loss over its own samples. What the optimizer
# needs is the gradient of the mean loss over the global batch,
#
# $$ g = \frac1n \sum_{i=1}^{n} \nabla \ell_i = \sum_{r} \frac{n_r}{n}\, g_r , $$
#
# with $n_r$ samples on rank $r$ and $n$ in all. So each rank weights its gradient with its
# `share` $n_r/n$, and an all-reduce adds them up. Only if all shards are equal is that the plain
# mean.
#
# - `comm.Allreduce(MPI.IN_PLACE, tensor)` replaces `tensor` by the sum over all ranks.
# - A rank whose share is empty had no backward pass: its `.grad` are all `None`. It counts as
#   zeros, and it makes the same calls as the others, or they wait for it for ever.
# - A frozen parameter (`requires_grad=False`) has no gradient and needs no message.
# - Each trainable tensor goes through one all-reduce, once, and as it is: no pickles. That holds
#   for one without a gradient on this rank too, since others may have one.
# - Gradients are replaced in place: who holds a `.grad`, or a buffer that it is a view of, sees
#   the sum. A `.grad` lies in memory as its parameter does, so it may be transposed.
#
# **Predict**: how many messages will the check count for a model of 4 trainable tensors, two of
# whose layers share one of them?
#
# <details><summary>Hint 1</summary>
#
# Weight first, then sum: after the sum it is too late for weights that differ from rank to rank.
# </details>
#
# <details><summary>Hint 2</summary>
#
# For each parameter that requires a gradient: give it `torch.zeros_like(parameter)` if its
# `.grad` is `None`; multiply in place by `share`; `comm.Allreduce(MPI.IN_PLACE, parameter.grad)`.
# </details>


# %% tags=["exercise"] exercise="all_reduce_gradients"
# %%px
def all_reduce_gradients(model: nn.Module, share: float, comm: MPI.Intracomm) -> None:
    """Replace each gradient by that of the mean loss over the global batch, in place.

    `share` is this rank's number of samples over that of the global batch; its gradients are
    those of the mean loss over its own samples, or None where it has none, which counts as zeros.
    Parameters that do not require a gradient stay without.
    """
    # BEGIN SOLUTION
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        parameter.grad *= share
        comm.Allreduce(MPI.IN_PLACE, parameter.grad)
    # END SOLUTION


# %% tags=["check"] exercise="all_reduce_gradients" points=3
# %%px
check.all_reduce_gradients(all_reduce_gradients)

# %% tags=["hidden-check"] exercise="all_reduce_gradients" points=1
# %%px --timeout 20
model = nn.Sequential(nn.Linear(2, 1), nn.Linear(1, 1).requires_grad_(False))
model.append(model[0])  # a tied layer
model.transposed = nn.Parameter(torch.ones(3, 2).t())
model.unused = nn.Parameter(torch.zeros(2))
nn.init.constant_(model[1].weight, 1.0)
if rank != 1:
    x = torch.full((1, 2), 4.0 * (rank + 1))
    (model[1](model[0](x)) + (x @ model.transposed @ torch.arange(3.0))).sum().backward()
trainable = [p for p in model.parameters() if p.requires_grad]
held = [p.grad for p in trainable]
watched = Ledger()
share = 0.0 if rank == 1 else 2.0 ** -(rank + 1)
returned = all_reduce_gradients(model, share, watched.watch(comm))
now = [p.grad for p in trainable]
check.show_values(
    gradients=[grad.tolist() for grad in now],
    in_place=all(a is None or a.data_ptr() == b.data_ptr() for a, b in zip(held, now, strict=True)),
    frozen=model[1].weight.grad is None,
    returned=returned is None,
    messages=watched.count() <= 4,
    bytes_sent=watched.bytes_sent(),
    pickled=any(call.api[0].islower() for call in watched.calls),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Four messages: a shared tensor is one tensor, whatever the number of layers that use it.
# </details>
#
# ## 4. Train, and compare the learning curves
#
# *Difficulty 3/5, 15 minutes.*
#
# Put the three together into a training loop. Every rank starts with its own random model and the
# whole data set at hand, and trains on its share of each global batch. The model is broadcast
# once, before the first step; each epoch has a new shuffle; and every rank takes a step for every
# global batch, also where its own share is empty. Nothing else changes: not the data, and no
# library's global random generator.
#
# The list that you return is the learning curve: the mean loss over each *global* batch, the same
# on every rank. `comm.allreduce(x)`, in small letters, sums a Python number.
#
# **Predict**: you run this on 1, 2 and 4 ranks with the same `batch_size`. Which curve falls
# fastest? Which run sends the most bytes per rank and step?
#
# <details><summary>Hint 1</summary>
#
# Broadcast once, before the first step. Then per step: `optimizer.zero_grad()`, forward and
# backward on your share (if it is not empty), `all_reduce_gradients`, `optimizer.step()`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `total = comm.allreduce(len(indices))` is the size of the global batch, and
# `share = len(indices) / total`. The loss over the global batch is the sum over the ranks of
# `share * loss`; a rank without samples adds 0.
# </details>


# %% tags=["exercise"] exercise="train"
# %%px
def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    batch_size: int,
    epochs: int,
    comm: MPI.Intracomm,
) -> list[float]:
    """Train `model` with cross-entropy on all ranks of `comm`; return the loss of each step.

    `inputs` (size, …) and `targets` (size,) int64 are the whole data set, the same on all ranks.
    `batch_size` is that of the global batch. `optimizer` has the model's parameters. The losses
    are means over the global batch, taken before the step, equal on all ranks. What is in `.grad`
    on entry does not count.
    """
    # BEGIN SOLUTION
    broadcast_state(model, comm)
    losses = []
    for epoch in range(epochs):
        for indices in sharded_sampler(len(inputs), batch_size, epoch, comm.rank, comm.size):
            total = comm.allreduce(len(indices))
            share = len(indices) / total
            optimizer.zero_grad()
            weighted_loss = 0.0
            if len(indices):
                loss = F.cross_entropy(model(inputs[indices]), targets[indices])
                loss.backward()
                weighted_loss = share * loss.item()
            all_reduce_gradients(model, share, comm)
            optimizer.step()
            losses.append(comm.allreduce(weighted_loss))
    return losses
    # END SOLUTION


# %% tags=["check"] exercise="train" points=4
# %%px
check.train(train)


# %% tags=["hidden-check"] exercise="train" points=2
# %%px --timeout 20
from parlab.checks.untouched import generators


def trained(comm, size, batch_size, make_optimizer):
    """The samples of each step, as all ranks together have them; whether a plain loop on them
    gives the same losses and weights; and the losses."""
    model, seen, together = nn.Linear(2, 3), [[]], []
    nn.init.constant_(model.weight, 0.5 * comm.rank)
    nn.init.constant_(model.bias, 0.5 * comm.rank)
    plain, inputs = nn.Linear(2, 3), torch.arange(2.0 * size).view(size, 2) / size
    targets = torch.arange(size) % 3
    for parameter in plain.parameters():
        nn.init.zeros_(parameter)

    def note(_, given, scores):
        numbers = [round(first * size / 2) for first in given[0][:, 0].tolist()]
        if scores.requires_grad:
            scores.register_hook(lambda _: seen[-1].extend(numbers))

    model.register_forward_hook(note)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = make_optimizer(model.parameters())
    optimizer.register_step_post_hook(lambda *_: seen.append([]))
    losses = train(model, optimizer, inputs, targets, batch_size, 3, comm)
    for shares in zip(*comm.allgather(seen[:-1]), strict=True):
        together.append(sorted(itertools.chain(*shares)))
    optimizer, right = make_optimizer(plain.parameters()), []
    for batch in together:
        optimizer.zero_grad()
        loss = F.cross_entropy(plain(inputs[batch]), targets[batch])
        loss.backward()
        optimizer.step()
        right.append(loss.item())
    pairs = zip(model.parameters(), plain.parameters(), strict=True)
    weights = torch.cat([(a - b).flatten() for a, b in pairs])
    gaps = [*(a - b for a, b in zip(losses, right, strict=True)), *weights.tolist()]
    return together, all(abs(gap) < 1e-4 for gap in gaps), losses


sgd = partial(torch.optim.SGD, lr=0.5, momentum=0.5)
with generators() as watched:
    runs = [trained(comm, *sizes, sgd) for sizes in ((14, 14), (23, 6), (13, 6))]
alone = trained(comm.Split(rank), 23, 6, sgd)
epochs = [runs[1][0][start : start + 4] for start in (0, 4, 8)]
check.show_values(
    losses=[f"{loss:.3f}" for loss in runs[0][2]],
    steps=[[len(batch) for batch in batches] for batches, _, _ in runs],
    like_a_plain_loop=[right for _, right, _ in runs],
    complete=[sorted(itertools.chain(*epoch)) == list(range(23)) for epoch in epochs],
    different_shuffles=len({str(sorted(epoch)) for epoch in epochs}),
    batches_of_one_rank=alone[0] == runs[1][0],
    generators_left_alone=watched.moved() is None,
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The curves are the same: that is the point of it. On a ring, 2 ranks send the gradient once
# each, 4 ranks one and a half times: 2(N−1)/N. A single rank sends nothing.
# </details>
#
# Now the real thing: 6,000 MNIST images minus one, so that the last global batch of 111 does not
# divide by 4, on 1, 2 and 4 ranks, with SGD and with Adam. Every rank starts from a seed of its
# own.

# %%
# %%px
images, labels = map(torch.from_numpy, mnist("train", limit=5999))
optimizers = {
    "SGD": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=1e-3),
}
world_sizes = [n for n in (1, 2, 4) if n <= world_size]
curves = {}
for name, make_optimizer in optimizers.items():
    for n in world_sizes:
        part = comm.Split(0 if rank < n else MPI.UNDEFINED)
        if rank < n:
            torch.manual_seed(rank)
            model = models.mlp(256)
            optimizer = make_optimizer(model.parameters())
            curves[name, n] = train(model, optimizer, images, labels, 256, 2, part)
if rank == 0:
    for name in optimizers:
        alone = curves[name, 1]
        for n in world_sizes[1:]:
            gap = max(abs(a - b) for a, b in zip(alone, curves[name, n], strict=True))
            print(f"{name}: {len(alone)} steps on {n} ranks and on 1: {gap < 1e-4}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
from parlab import plots

runs = {
    name: {f"{n} rank" + "s" * (n > 1): curves[name, n] for n in world_sizes} for name in optimizers
}
drawn, axes = plots.same_curves(
    "One curve: 1, 2 and 4 ranks train alike", runs, "loss over the global batch"
)

# %% [markdown]
# The curves lie on each other. Sums of floating-point numbers depend on their order in the last
# digits, so the runs are not equal bit by bit; but nothing in the curve tells how many ranks there
# were. That is what makes data parallelism easy to trust: **a run on N ranks has a run on one rank
# to be checked against.**
#
# # Part B: fast
#
# ## 5. One flat buffer
#
# *Difficulty 3/5, 10 minutes.*
#
# A GPT has dozens of small tensors (layer norms, biases), and each message costs its latency α
# whatever its size. So put all gradients side by side in one buffer and send that.
#
# The trick is to copy nothing: make each `.grad` a *view* into the buffer. `backward()` adds into
# `.grad` in place when there is one, so the gradients are born in the buffer, and the optimizer
# reads them there.
#
# **Predict**: `optimizer.zero_grad()` sets every `.grad` to `None`. What does the all-reduce send
# after that? What must a training loop call instead?
#
# <details><summary>Hint 1</summary>
#
# One `torch.zeros` as long as all trainable parameters together; a tied one counts once, and
# `model.parameters()` sees to that.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `flat.split([p.numel() for p in trainable])` cuts the buffer into views, one a parameter;
# `view_as(p)` gives a view the parameter's shape.
# </details>


# %% tags=["exercise"] exercise="flat_gradients"
# %%px
def flat_gradients(model: nn.Module) -> torch.Tensor:
    """Make the gradients of all trainable parameters views into one new buffer of zeros.

    Returns the buffer: one dimension, as long as the trainable parameters together, of their
    dtype (one for all) and device. What was in `.grad` before is dropped; nothing else of the
    model changes, be it one with a single trainable parameter.
    """
    # BEGIN SOLUTION
    trainable = [p for p in model.parameters() if p.requires_grad]
    sizes = [p.numel() for p in trainable]
    flat = trainable[0].new_zeros(sum(sizes))
    for parameter, part in zip(trainable, flat.split(sizes), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat
    # END SOLUTION


# %% tags=["check"] exercise="flat_gradients" points=2
# %%px
check.flat_gradients(flat_gradients)

# %% tags=["hidden-check"] exercise="flat_gradients" points=1
# %%px --timeout 20
model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2), nn.Linear(2, 1, bias=False))
model[1].requires_grad_(False)
model.tied = model[0]
model = model.double()
for parameter in model.parameters():
    nn.init.constant_(parameter, 1.0)
    parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
flat = flat_gradients(model)
start = flat.tolist()
for _ in range(2):
    model[:3](torch.ones(1, 3).double()).sum().backward()
grads = [p.grad for p in model.parameters() if p.requires_grad]
places = {place for g in grads for place in range(g.data_ptr(), g.data_ptr() + g.nbytes, 8)}
check.show_values(
    shape=list(flat.shape),
    dtype=str(flat.dtype),
    start=start,
    values=sorted(flat.tolist()),
    places=sorted((place - flat.data_ptr()) // 8 for place in places),
    frozen=[p.grad is None for p in model[1].parameters()],
    another_buffer=flat_gradients(model).data_ptr() != flat.data_ptr(),
    of_one=flat_gradients(model[2]).tolist(),
    tensors=list(model.state_dict()),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The next backward pass makes new tensors for `.grad`, and the all-reduce sends the buffer as the
# last step left it. So zero the buffer in place: `flat.zero_()`.
# </details>
#
# ## 6. A step with one all-reduce
#
# *Difficulty 3/5, 10 minutes.*
#
# Now a whole training step on that buffer, with one message. Two things change against part A.
#
# - Weights go to where they cost nothing. Scaling the gradients by `share` is one more pass over
#   all of them; scaling the *loss* is one multiplication, and backward carries it into every
#   gradient: $\nabla(\frac{n_r}{n} L_r) = \frac{n_r}{n} g_r$. Then the all-reduce is a plain sum.
# - Zeroing is your prediction from above: the gradients must stay in the buffer, in which the
#   step before has left what it left.
#
# The share may be empty: no backward pass, and the same all-reduce as everybody. Return this
# rank's part of the loss, so that the step needs no second message.
#
# **Predict**: on a rank whose share is empty, what is in `flat` before the all-reduce, and what
# after it?
#
# <details><summary>Hint 1</summary>
#
# Five things in a row: zero, forward and backward if there are samples, all-reduce, optimizer,
# return.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `flat.zero_()`, `loss = F.cross_entropy(model(inputs), targets) * (len(inputs) / total)`,
# `comm.Allreduce(MPI.IN_PLACE, flat)`.
# </details>


# %% tags=["exercise"] exercise="flat_step"
# %%px
def flat_step(
    model: nn.Module,
    flat: torch.Tensor,
    optimizer: torch.optim.Optimizer,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    total: int,
    comm: MPI.Intracomm,
) -> float:
    """Take one training step, with one message, and return this rank's part of the mean loss.

    All gradients of `model` are views into `flat`, and stay so. `inputs` and `targets` are this
    rank's share, perhaps empty, of a global batch of `total` samples; the loss is cross-entropy.
    The ranks' return values add up to the mean loss over the global batch.
    """
    # BEGIN SOLUTION
    flat.zero_()
    weighted_loss = 0.0
    if len(inputs):
        loss = F.cross_entropy(model(inputs), targets) * (len(inputs) / total)
        loss.backward()
        weighted_loss = loss.item()
    comm.Allreduce(MPI.IN_PLACE, flat)
    optimizer.step()
    return weighted_loss
    # END SOLUTION


# %% tags=["check"] exercise="flat_step" points=3
# %%px
check.flat_step(flat_step)

# %% tags=["hidden-check"] exercise="flat_step" points=1
# %%px --timeout 20
model = nn.Linear(1, 3)
for parameter in model.parameters():
    nn.init.constant_(parameter, 0.5)
flat, ledger = torch.full((6,), 100.0), Ledger()
model.weight.grad, model.bias.grad = flat[:3].view(3, 1), flat[3:]
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
few = min(world_size, 3)  # the last rank has no samples
inputs = torch.arange(10.0)[rank::few, None] if rank < few else torch.empty(0, 1)
targets = (torch.arange(10) % 3)[rank::few] if rank < few else torch.empty(0, dtype=torch.int64)
watched = ledger.watch(comm)
losses = [flat_step(model, flat, optimizer, inputs, targets, 10, watched) for _ in range(3)]
check.show_values(
    losses=[f"{comm.allreduce(loss):.4f}" for loss in losses],
    numbers=all(isinstance(loss, float | int) for loss in losses),
    weight=[f"{weight:.4f}" for weight in model.weight.flatten().tolist()],
    in_the_buffer=[p.grad.data_ptr() - flat.data_ptr() for p in model.parameters()],
    messages=ledger.count(),
    bytes_sent=ledger.bytes_sent(),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Zeros before, and after it the same as on all other ranks: the sum, in which this rank's part is 0.
# </details>
#
# ## 7. What does one buffer buy?
#
# *Difficulty 2/5, 5 minutes.*
#
# **Predict in numbers**, before you measure. The small GPT, `models.GPT()`, has float32 weights:
# an embedding of the tokens, which is the output layer too, one of the positions, two layers of
# 12 tensors, and a last layer norm of 2. `models.parameter_count(model)` is Ψ.
#
# - `messages`, `bytes`: what a rank hands in for one all-reduce a tensor;
# - `messages_flat`, `bytes_flat`: what it hands in for one all-reduce of one buffer;
# - `bytes_ring`: what it sends to its neighbour, if that one all-reduce goes around a ring.
#
# Numbers, or expressions that give them. The check measures all five and compares.


# %% tags=["exercise"] exercise="predict_messages"
# %%px
def predict_messages(world_size: int) -> dict[str, float]:
    """`messages`, `bytes`, `messages_flat`, `bytes_flat`, `bytes_ring` of one rank.

    For the sum of the small GPT's gradients over `world_size` ranks.
    """
    # BEGIN SOLUTION
    gradient_bytes = 4 * models.parameter_count(models.GPT())
    return {
        "messages": 28,
        "bytes": gradient_bytes,
        "messages_flat": 1,
        "bytes_flat": gradient_bytes,
        "bytes_ring": 2 * (world_size - 1) / world_size * gradient_bytes,
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_messages" points=1
# %%px
check.predict_messages(predict_messages)

# %% tags=["hidden-check"] exercise="predict_messages" points=1
# %%px --timeout 20
check.show_values(**{name: round(value) for name, value in predict_messages(4).items()})

# %% [markdown]
# See it: the same gradients, both ways.

# %%
# %%px
model = models.GPT()
model(torch.randint(256, (2, 64))).sum().backward()
per_parameter, one_buffer = Ledger(), Ledger()
all_reduce_gradients(model, 1 / world_size, per_parameter.watch(comm))
one_buffer.watch(comm).Allreduce(MPI.IN_PLACE, flat_gradients(model))
for name, ledger in [("per parameter", per_parameter), ("flat", one_buffer)]:
    print(f"{name}: {ledger.count()} messages, {ledger.bytes_sent():,} bytes")

# %% [markdown]
# ## 8. Buckets
#
# *Difficulty 2/5, 10 minutes.*
#
# One message at the very end means that the network idles through the whole backward pass, and
# the processor through the whole all-reduce. But the gradients of the *last* layers are complete
# first. Pack them into buckets in that order, and each bucket can leave while the layers before
# it are still computing.
#
# Which parameters share a bucket: go through them in reverse, and open a new bucket whenever the
# next one would make the current one larger than `bucket_bytes`. A parameter that is larger than
# that by itself gets a bucket of its own.
#
# **Predict**: buckets of 1 byte give the earliest possible start. Why does nobody use them?
#
# <details><summary>Hint 1</summary>
#
# `p.numel() * p.element_size()` are the bytes of a parameter, and of its gradient.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Keep the list of buckets and the size of the last one. Open a new bucket if there is none yet,
# or if size plus the next parameter's bytes is more than the limit.
# </details>


# %% tags=["exercise"] exercise="assign_buckets"
# %%px
def assign_buckets(model: nn.Module, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """The model's trainable parameters, in reverse order, in buckets of up to `bucket_bytes`.

    Each parameter is in one bucket; one larger than `bucket_bytes` is alone in its bucket.
    """
    # BEGIN SOLUTION
    buckets: list[list[nn.Parameter]] = []
    size = 0
    for parameter in reversed([p for p in model.parameters() if p.requires_grad]):
        bytes_more = parameter.numel() * parameter.element_size()
        if not buckets or size + bytes_more > bucket_bytes:
            buckets.append([])
            size = 0
        buckets[-1].append(parameter)
        size += bytes_more
    return buckets
    # END SOLUTION


# %% tags=["check"] exercise="assign_buckets" points=2
# %%px
check.assign_buckets(assign_buckets)

# %% tags=["hidden-check"] exercise="assign_buckets" points=1
# %%px --timeout 20
model = models.mlp(8, inputs=6, classes=3)
model[5].double()
model[3].bias.requires_grad_(False)
model.tied = model[1]
names = {id(p): name for name, p in model.named_parameters()}
limits = [1, 23, 24, 215, 216, 217, 287, 288, 448, 471, 472, 473, 695, 696, 10_000]
check.show_values(
    buckets={
        limit: [[names[id(p)] for p in bucket] for bucket in assign_buckets(model, limit)]
        for limit in limits
    },
    requires_grad=[p.requires_grad for p in model.parameters()],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# A bucket for each tensor is a message for each tensor, and every one of them pays its latency.
# </details>
#
# ## 9. Overlap with the backward pass
#
# *Difficulty 4/5, 20 minutes.*
#
# This is what PyTorch's `DistributedDataParallel` does, in its essence. The frame is given: each
# bucket has a flat buffer, the gradients are views into it, and PyTorch calls
# `gradient_ready(i)` in the middle of the backward pass, each time a gradient of bucket `i` has
# been added up completely. You write what happens then:
#
# - When the last gradient of a bucket is ready, its all-reduce **starts** and the backward pass
#   goes on: `dist.all_reduce(buffer, group=self.group, async_op=True)` returns a handle at once.
# - All ranks start the buckets in the same order, 0, 1, 2, …: bucket 2 waits until bucket 1 has
#   started, even if it is complete before.
# - A parameter that no gradient reaches never calls. `finish()` starts the buckets that are still
#   left, then waits for all handles, and gets everything ready for the next step.
#
# As in exercise 6 the weights are in the loss: the caller does `(share * loss).backward()`, and
# here the ranks' gradients are simply summed.
#
# **Predict**: in which order do the parameters of `models.mlp()` become ready? With one bucket
# for all, how much of the all-reduce is hidden?
#
# <details><summary>Hint 1</summary>
#
# `self.missing[i]` counts down. `self.started` is the number of the bucket that goes next.
# </details>
#
# <details><summary>Hint 2</summary>
#
# After counting down: `while self.started < len(self.buckets) and
# self.missing[self.started] == 0: self.start_next()`. In `finish()`, first start those that are
# left, then `work.wait()` for each in `self.works`, then `self.restart()`.
# </details>


# %% tags=["exercise"] exercise="bucketed_data_parallel"
# %%px
class BucketedDataParallel(nn.Module):
    """A model whose gradients are summed over `group`, bucket by bucket, during `backward()`.

        parallel = BucketedDataParallel(model, group)
        (share * loss_function(parallel(inputs), targets)).backward()
        parallel.finish()
        optimizer.step()
        parallel.zero_grad()

    `finish()` must come before anyone reads a gradient. All ranks start from rank 0's state.
    """

    def __init__(
        self, model: nn.Module, group: dist.ProcessGroup, bucket_bytes: int = 25 * 2**20
    ) -> None:
        super().__init__()
        self.model, self.group = model, group
        for tensor in itertools.chain(model.parameters(), model.buffers()):
            dist.broadcast(tensor.detach(), group_src=0, group=group)
        self.buckets = assign_buckets(model, bucket_bytes)
        self.buffers = []
        for i, bucket in enumerate(self.buckets):
            sizes = [p.numel() for p in bucket]
            buffer = bucket[0].new_zeros(sum(sizes))
            for parameter, part in zip(bucket, buffer.split(sizes), strict=True):
                parameter.grad = part.view_as(parameter)
                parameter.register_post_accumulate_grad_hook(lambda _, i=i: self.gradient_ready(i))
            self.buffers.append(buffer)
        self.synchronise = True
        self.restart()

    def restart(self) -> None:
        """Get ready for the next backward pass."""
        self.missing = [len(bucket) for bucket in self.buckets]  # gradients not ready, by bucket
        self.started = 0  # buckets 0 … started − 1 are under way
        self.works: list[dist.Work] = []  # their handles

    def start_next(self) -> None:
        """Start the all-reduce of the next bucket, without waiting for it."""
        # BEGIN SOLUTION
        buffer = self.buffers[self.started]
        self.works.append(dist.all_reduce(buffer, group=self.group, async_op=True))
        self.started += 1
        # END SOLUTION

    def gradient_ready(self, i: int) -> None:
        """One more gradient of bucket `i` is complete: start every bucket whose turn it is."""
        if not self.synchronise:
            return
        # BEGIN SOLUTION
        self.missing[i] -= 1
        while self.started < len(self.buckets) and self.missing[self.started] == 0:
            self.start_next()
        # END SOLUTION

    def finish(self) -> None:
        """Start what is left, wait until all gradients are summed, and restart."""
        # BEGIN SOLUTION
        while self.started < len(self.buckets):
            self.start_next()
        for work in self.works:
            work.wait()
        self.restart()
        # END SOLUTION

    @contextmanager
    def no_sync(self):
        """Within this context, backward passes only accumulate: nothing is sent."""
        self.synchronise = False
        try:
            yield
        finally:
            self.synchronise = True

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.model(*inputs)

    def zero_grad(self, set_to_none: bool = False) -> None:
        """Zero the gradients in place: with None they would no longer be in the buffers."""
        for buffer in self.buffers:
            buffer.zero_()


# %% tags=["check"] exercise="bucketed_data_parallel" points=5
# %%px
check.bucketed_data_parallel(BucketedDataParallel)


# %% tags=["hidden-check"] exercise="bucketed_data_parallel" points=2
# %%px --timeout 20
class Skipping(nn.Sequential):
    """Uses the first of its layers and the last; no gradient reaches those between."""

    def forward(self, x):
        return self[-1](self[0](x))


def step(parallel, x, passes=1):
    """What a step sends, and when; and the gradients after it. `started` is a count of buckets."""
    parallel.zero_grad()
    ledger.clear()
    for _ in range(passes - 1):
        with parallel.no_sync():
            parallel(x).sum().backward()
    parallel(x).sum().backward()
    started = parallel.started
    parallel.finish()
    sent, every = ledger.count("all_reduce"), len(parallel.buckets)
    return {
        "started": started == every,
        "sent": sent == every,
        "ready_again": parallel.started == 0 and not parallel.works,
        "gradients": [p.grad.flatten().tolist() for p in parallel.parameters()],
    }


ledger, steps = Ledger(), []
late = check.late_group(comm, ledger)
for layers in (2, 3):
    model = Skipping(
        nn.Linear(2, 2), *(nn.Linear(2, 2) for _ in range(layers - 2)), nn.Linear(2, 1)
    )
    for parameter in model.parameters():
        nn.init.constant_(parameter, rank + 1)
    parallel = BucketedDataParallel(model, late, bucket_bytes=12)
    x = torch.full((1, 2), rank + 1.0)
    steps += [step(parallel, x), step(parallel, 2 * x), step(parallel, x, passes=2)]
check.show_values(steps=steps)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The last layer's first, and the first layer's last. A single bucket is complete when the
# backward pass is over: nothing is hidden.
# </details>
#
# See it happen. The next cell trains the larger MLP on the default group (NCCL, or Gloo on the
# CPU), which does overlap; the labs' `group` on the CPU completes each call before it returns.
#
# **Predict** before you run it: the layers have 3.2, 4.2 and 0.04 MB of gradients, from first to
# last, and buckets take up to 5 MiB. Which layers are in bucket 0, and when can it leave? What has
# bucket 1 left to hide behind?

# %% tags=["nbval-ignore-output"]
# %%px
timeline = Timeline(comm)


class Traced(BucketedDataParallel):
    """Notes when each bucket's all-reduce starts and ends."""

    def start_next(self):
        name, start = f"bucket {self.started}", time.perf_counter()
        super().start_next()
        self.works[-1].get_future().add_done_callback(
            lambda _: timeline.add(name, "communication", start, time.perf_counter())
        )


parallel = Traced(models.mlp(1024).to(device), dist.group.WORLD, bucket_bytes=5 * 2**20)
x, y = images[rank * 256 :][:256].to(device), labels[rank * 256 :][:256].to(device)
for _ in range(5):  # the last step is the one that is drawn
    comm.Barrier()
    timeline.clear()
    loss = F.cross_entropy(parallel(x), y) / world_size
    with timeline.span("backward", "compute"):
        loss.backward()
    parallel.finish()
    comm.Barrier()
spans = timeline.gather()

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = draw(spans, "Bucket 0 leaves while the backward pass goes on")

# %% [markdown]
# # Part C: larger batches than fit
#
# If a rank's share of the global batch does not fit into its memory, it goes through it in
# micro-batches and lets `.grad` add up. The sum over ranks is needed once, at the end: all but
# the last backward pass run within `parallel.no_sync()`.
#
# ## 10. What if you forget `no_sync`?
#
# *Difficulty 3/5, 5 minutes.*
#
# **Predict in numbers**: four micro-batches, and `no_sync` is forgotten, so that no backward pass
# is within it. In our class, `finish()` comes once, after the four; `DistributedDataParallel`
# averages in each backward pass and needs no `finish()`.
#
# - `bytes_here`, `bytes_ddp`: bytes that a rank hands in for all-reduces, in multiples of the
#   bytes of all gradients;
# - `alike_here`, `alike_ddp`: 1 if all ranks then hold the same gradients, else 0.
#
# <details><summary>Hint</summary>
#
# Follow `missing` and `started` through the second backward pass. What sets them back?
# </details>


# %% tags=["exercise"] exercise="predict_no_sync"
# %%px
def predict_no_sync() -> dict[str, float]:
    """`bytes_here`, `alike_here`, `bytes_ddp`, `alike_ddp`, for four passes without `no_sync`."""
    # BEGIN SOLUTION
    return {"bytes_here": 1, "alike_here": 0, "bytes_ddp": 4, "alike_ddp": 1}
    # END SOLUTION


# %% tags=["check"] exercise="predict_no_sync" points=1
# %%px
check.predict_no_sync(predict_no_sync)

# %% tags=["hidden-check"] exercise="predict_no_sync" points=1
# %%px --timeout 20
check.show_values(**predict_no_sync())

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# In this class the first backward pass counts every bucket down to zero and sends it. The other
# three find nothing left to count: what they add to `.grad` never leaves the rank. So the ranks
# hold different gradients, and their models drift apart, with no error and a loss that still
# falls. `DistributedDataParallel` starts all over again in each backward pass: there it comes out
# right, and costs four times the bytes.
# </details>
#
# ## 11. Accumulate, and synchronise once
#
# *Difficulty 3/5, 10 minutes.*
#
# - Each micro-batch's loss is a mean over its own samples. Weight it so that the sum of all of
#   them, over micro-batches and ranks, is the mean over the `total` samples of the global batch.
#   The last micro-batch may be smaller than the others.
# - Each micro-batch has its own backward pass, which frees what its forward pass has kept.
# - A rank may have no micro-batch at all. It still has to `finish()`, as all do, once.
#
# <details><summary>Hint 1</summary>
#
# The weight of a micro-batch is `len(inputs) / total`, whatever rank it is on.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `with nullcontext() if last else parallel.no_sync():` around forward and backward; `finish()`
# once, after the loop.
# </details>


# %% tags=["exercise"] exercise="accumulate"
# %%px
def accumulate(
    parallel: nn.Module, micro_batches: list[tuple[torch.Tensor, torch.Tensor]], total: int
) -> float:
    """Leave in `.grad` the gradient of the mean loss over a global batch of `total` samples.

    `parallel` is a `BucketedDataParallel` whose gradients are zero; `micro_batches` are this
    rank's (inputs, targets), perhaps none; the loss is cross-entropy. One synchronisation.
    Returns this rank's part of the mean loss: the ranks' parts add up to it.
    """
    # BEGIN SOLUTION
    weighted_loss = 0.0
    for i, (inputs, targets) in enumerate(micro_batches):
        last = i == len(micro_batches) - 1
        with nullcontext() if last else parallel.no_sync():
            loss = F.cross_entropy(parallel(inputs), targets) * (len(inputs) / total)
            loss.backward()
        weighted_loss += loss.item()
    parallel.finish()
    return weighted_loss
    # END SOLUTION


# %% tags=["check"] exercise="accumulate" points=3
# %%px
check.accumulate(accumulate)

# %% tags=["hidden-check"] exercise="accumulate" points=1
# %%px --timeout 20
from parlab.checks.data_parallel.accumulate import Replica

model = nn.Linear(2, 2).to(device)
for parameter in model.parameters():
    nn.init.constant_(parameter, 0.5)
parallel = Replica(model, group)
micro_batches = [
    (torch.full((n, 2), n + rank / 4, device=device), torch.full((n,), n % 2, device=device))
    for n in (3, 2, 1)[: 3 - rank]
]
given = len(micro_batches)
loss = accumulate(parallel, micro_batches, 14)
check.show_values(
    loss=f"{loss:.4f}",
    gradient=[f"{value:.4f}" for value in model.weight.grad.flatten().tolist()],
    synchronised=parallel.synchronised,
    finished=parallel.finished,
    untouched=len(micro_batches) == given,
)

# %% [markdown]
# ## A small GPT, with everything together
#
# The second model has what MNIST's has not: 28 parameter tensors, and an embedding that is also the
# output layer, so one tied weight. It learns to predict the next byte of Python's own source code.
# Each rank takes its share of 32 sequences a step and goes through it in micro-batches of 3: eight
# sequences make three, the last one smaller.
#
# For comparison, each rank runs the same 30 steps by itself, in a plain PyTorch loop.

# %%
# %%px --timeout 90
windows = torch.from_numpy(text("train", 30 * 32 * 65).astype("int64")).view(-1, 65)
sequences, next_bytes = windows[:, :-1].to(device), windows[:, 1:].to(device)


def make_gpt(seed):
    torch.manual_seed(seed)
    # (batch, seq) bytes → (batch · seq, 256) scores, as cross-entropy wants them
    model = nn.Sequential(models.GPT(), nn.Flatten(0, 1)).to(device)
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


model, optimizer = make_gpt(seed=rank)
parallel = BucketedDataParallel(model, group, bucket_bytes=2**17)
parallel_losses = []
for indices in sharded_sampler(len(sequences), 32, 0, rank, world_size):
    micro_batches = [(sequences[i], next_bytes[i].flatten()) for i in indices.split(3)]
    loss = accumulate(parallel, micro_batches, total=32)
    optimizer.step()
    parallel.zero_grad()
    parallel_losses.append(comm.allreduce(loss))

model, optimizer = make_gpt(seed=0)
serial_losses = []
for indices in sharded_sampler(len(sequences), 32, 0, rank=0, world_size=1):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(sequences[indices]), next_bytes[indices].flatten())
    loss.backward()
    optimizer.step()
    serial_losses.append(loss.item())

gap = max(abs(a - b) for a, b in zip(parallel_losses, serial_losses, strict=True))
print(f"{len(serial_losses)} steps, the same losses as a plain loop: {gap < 1e-3}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("The GPT learns on all ranks what it learns on one")
axes.plot(serial_losses, **plots.artist("library", "plain loop on one rank") | {"linewidth": 5})
axes.plot(parallel_losses, **plots.artist("reference", f"{world_size} ranks, accumulated"))
axes.set(xlabel="step", ylabel="loss (nats a byte)")
legend = axes.legend(frameon=False, labelcolor=plots.NEUTRAL)

# %% [markdown]
# # Against the library
#
# `DistributedDataParallel` does all of this in C++. It averages over the ranks, so it needs equal
# shares: 64 images on each rank. First the same work: four ways, 10 steps of Adam, the same losses.


# %%
# %%px --timeout 90
def make_mlp(hidden_size):
    torch.manual_seed(0)
    model = models.mlp(hidden_size).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


def per_parameter(hidden_size, comm):
    """A training step with one message for each parameter; returns this rank's loss."""
    model, optimizer = make_mlp(hidden_size)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        all_reduce_gradients(model, 1 / world_size, comm)
        optimizer.step()
        return loss.item()

    return step


def one_buffer(hidden_size, comm):
    model, optimizer = make_mlp(hidden_size)
    flat = flat_gradients(model)

    def step(x, y):
        total = len(x) * world_size
        return world_size * flat_step(model, flat, optimizer, x, y, total, comm)

    return step


def in_buckets(hidden_size, group):
    model, optimizer = make_mlp(hidden_size)
    parallel = BucketedDataParallel(model, group)

    def step(x, y):
        parallel.zero_grad()
        loss = F.cross_entropy(parallel(x), y)
        (loss / world_size).backward()
        parallel.finish()
        optimizer.step()
        return loss.item()

    return step


def library(hidden_size, group):
    model, optimizer = make_mlp(hidden_size)
    parallel = DistributedDataParallel(model, process_group=group)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(parallel(x), y)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


ledger = Ledger()
mpi = ledger.watch(comm)
steps = {"library": library(1024, group), "buckets": in_buckets(1024, group)}
if device.type == "cpu":
    steps |= {"flat": one_buffer(1024, mpi), "per parameter": per_parameter(1024, mpi)}
shares = [images[rank::world_size].split(64), labels[rank::world_size].split(64)]
batches = [(x.to(device), y.to(device)) for x, y in zip(*shares, strict=True)][:10]
losses = {name: [comm.allreduce(step(x, y)) for x, y in batches] for name, step in steps.items()}
for name in steps:
    gap = max(abs(a - b) for a, b in zip(losses[name], losses["library"], strict=True))
    print(f"{name}: the library's losses, step by step: {gap / world_size < 1e-4}")

# %% [markdown]
# What each of them sends in a step, by the ledger:

# %%
# %%px
for name, step in steps.items():
    ledger.clear()
    with ledger:
        step(*batches[0])
    if rank == 0:
        calls, sent = ledger.count("all_reduce"), ledger.bytes_sent("all_reduce")
        print(f"{name:>13}: {calls} all-reduces, {sent:,} bytes")

# %% [markdown]
# The bytes are the same: 4 for each of the 1,863,690 parameters, whoever sends them. The number of
# messages is not: DDP makes its first bucket small (1 MiB), so that something can leave early. Now
# the time, on both groups, taken in turn; a bar left of the line is ahead of
# DDP on Gloo (NCCL on GPUs).
#
# **Predict**: which of the ways gains most when the model grows from 256 to 1024 hidden units?


# %% tags=["nbval-ignore-output"]
# %%px --timeout 100
def median_milliseconds(steps, rounds):
    """Median time of a step of each kind, all taken in turn; the slowest rank counts."""
    spent = {name: [] for name in steps}
    for i in range(rounds + 2):
        for name, step in steps.items():
            comm.Barrier()
            start = time.perf_counter()
            step(*batches[i % len(batches)])
            spent[name].append(comm.allreduce(time.perf_counter() - start, op=MPI.MAX))
    return {name: 1e3 * statistics.median(times[2:]) for name, times in spent.items()}


ddp = f"DDP on {dist.get_backend()}"
measured = {}
for hidden_size in (256, 1024):
    ways = {
        ddp: library(hidden_size, dist.group.WORLD),
        f"buckets on {dist.get_backend()}": in_buckets(hidden_size, dist.group.WORLD),
    }
    if device.type == "cpu":
        ways |= {
            "DDP on group": library(hidden_size, group),
            "buckets on group": in_buckets(hidden_size, group),
            "flat, mpi4py": one_buffer(hidden_size, comm),
            "per parameter, mpi4py": per_parameter(hidden_size, comm),
        }
    measured[hidden_size] = median_milliseconds(ways, rounds=12)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("A training step, over that of DDP", 1, 2, sharey=True)
for column, (hidden_size, times) in zip(axes, measured.items(), strict=True):
    rows = list(times.items())[::-1]  # bars are drawn from the bottom up
    for row, (name, milliseconds) in enumerate(rows):
        role = "library" if name.startswith("DDP") else "reference"
        column.barh(row, milliseconds / times[ddp], height=0.7, **plots.hatched(role))
    column.axvline(1, color=plots.NEUTRAL, linewidth=1)
    column.set_title(f"{hidden_size} hidden units")
drawn.supxlabel(f"time over that of {ddp}", color=plots.NEUTRAL, fontsize="medium")
axes[0].set_yticks(range(len(times)), [name for name, _ in rows])
for hidden_size, times in measured.items():
    ratios = ", ".join(f"{name} {time / times[ddp]:.2f}" for name, time in times.items())
    print(f"{hidden_size} hidden units, {times[ddp]:.1f} ms for {ddp}: {ratios}")

# %% [markdown]
# What to look for:
#
# - **The number of messages.** One a tensor pays its latency six times here, and 28 times in the
#   GPT. The flat buffer pays once. For large tensors that hardly shows: the bytes are the same.
# - **The backend.** Gloo goes through TCP, with the operating system's network stack, also between
#   two processes of one machine. `group` and mpi4py go through shared memory.
# - **Overlap wins nothing here.** Where ranks outnumber cores, sending and computing compete for
#   them, and what is sent during the backward pass slows that pass down. On GPUs the copy engines
#   and the network card send while the GPU computes: there overlap decides, and that is why
#   libraries bother. The next part lets it decide on your machine too.
# - **Yours beside DDP.** The same buckets and the same bytes; C++ against a hook in Python for each
#   parameter, some microseconds each. It matters where layers are many and small.
#
# # On an emulated cluster
#
# The last measurements hid what this lab is about. So describe a cluster with a network that is
# slow and a computation that needs no core, and measure there. On an
# [emulated network](../book/emulated_network.md) messages are real, and take as long as the α–β model
# says; a rank that waits for one sleeps. A `Stage` is a layer whose backward pass takes a set time,
# asleep as well. **Every time from here on is emulated**: it tells how your code orders its work, and
# nothing about a real cluster's speed.
#
# The model is the [chapter's](../book/02_data_parallel.md), 24 layers of 5 ms, with a thousandth of
# its gradients on a network that is slower still: two nodes, 100 MB/s inside a node, 20 MB/s between
# them, and each call costs 2 ms.

# %%
# %%px
from parlab.costs import data_parallel as costs
from parlab.network import Link, Network, Stage, emulated, emulated_group, sub_group

LAYERS, WIDTH, LAYER_SECONDS = 24, 160, 5e-3
LAYER_BYTES = 4 * WIDTH * WIDTH
BACKWARD, GRADIENTS = LAYERS * LAYER_SECONDS, LAYERS * LAYER_BYTES

per_node = 2 if world_size % 2 == 0 else 1
network = Network(
    nodes=world_size // per_node,
    ranks_per_node=per_node,
    inside=Link.of(alpha=0.2e-3, bandwidth=100e6),
    between=Link.of(alpha=1e-3, bandwidth=20e6),
    call=2e-3,
)
slow = emulated_group(network)
if rank == 0:
    chosen = network.collective("all_reduce", GRADIENTS)
    print(f"emulated: {network}")
    print(f"backward pass: {1e3 * BACKWARD:.0f} ms, {LAYERS} layers of {LAYER_BYTES:,} bytes")
    print(
        f"one all-reduce of {GRADIENTS:,} bytes: {1e3 * chosen.seconds:.0f} ms, {chosen.algorithm}"
    )

# %% [markdown]
# ## Does overlap win?
#
# **Predict**, from these numbers: what does a step take if all gradients leave in one message, after
# the backward pass? What does it take with 8 buckets that leave when they are ready, and what would
# be the best that any number of buckets could reach?


# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
def make_stages():
    layers = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
    return nn.Sequential(*(Stage(layer, forward=0, backward=LAYER_SECONDS) for layer in layers))


def after_backward():
    """A step without overlap: one flat buffer, all-reduced when the backward pass is over."""
    model = make_stages()
    flat = flat_gradients(model)

    def step(loss):
        loss.backward()
        dist.all_reduce(flat, group=slow)

    return model, step


def during_backward(pieces):
    """A step of your class, with so many equal buckets."""
    parallel = BucketedDataParallel(make_stages(), slow, bucket_bytes=GRADIENTS // pieces)

    def step(loss):
        loss.backward()
        parallel.finish()

    return parallel, step


def ddp(pieces):
    megabytes = GRADIENTS / pieces / 2**20
    model = DistributedDataParallel(make_stages(), process_group=slow, bucket_cap_mb=megabytes)
    return model, torch.Tensor.backward


def emulated_seconds(model, step, rounds=3):
    """From the start of the backward pass until all gradients are there (s), emulated.

    The fastest of some steps counts: a machine that is busy makes a step late, and never early.
    """
    spent = []
    for _ in range(rounds + 2):  # in its first step DDP does not know its buckets yet
        loss = model(torch.zeros(1, WIDTH)).sum()
        comm.Barrier()
        start = time.perf_counter()
        step(loss)
        spent.append(comm.allreduce(time.perf_counter() - start, op=MPI.MAX))
    return min(spent[2:])


def predicted_seconds(pieces):
    """The model: equal buckets, one after the other on the link."""
    sending = network.collective("all_reduce", GRADIENTS / pieces).seconds
    return costs.bucket_timeline([BACKWARD / pieces] * pieces, [sending] * pieces)[-1].end


for name, made, predicted in [
    ("one buffer, after backward", after_backward(), predicted_seconds(1)),
    ("8 buckets, during backward", during_backward(8), predicted_seconds(8)),
    ("8 buckets, DDP", ddp(8), predicted_seconds(8)),
]:
    seconds = emulated_seconds(*made)
    if rank == 0:
        print(
            f"emulated: {name:<27} {1e3 * seconds:4.0f} ms, by the model {1e3 * predicted:4.0f} ms"
        )

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# After the backward pass: 120 ms and 90 ms, one after the other. With buckets the sum of both cannot
# be reached any more, nor can less than the longer of the two: no step ends before the backward pass
# has, and then the last bucket still has to go. Eight buckets take 14 ms each, which fits beside the
# 15 ms of the backward pass that fill the next one: 120 ms and one bucket.
# </details>
#
# Look at one step of your class: every bucket leaves while the layers before it compute, and the last
# one sticks out.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
timeline = Timeline(comm)
parallel = Traced(make_stages(), slow, bucket_bytes=GRADIENTS // 8)
for _ in range(2):
    loss = parallel(torch.zeros(1, WIDTH)).sum()
    comm.Barrier()
    timeline.clear()
    with timeline.span("backward", "compute"):
        loss.backward()
    parallel.finish()
    comm.Barrier()
spans = timeline.gather()

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = draw(spans, "Emulated: seven of eight buckets hide", emulated("time (ms)"))

# %% [markdown]
# ## The valley of bucket sizes
#
# **Predict**: each all-reduce costs 3.4 ms besides its bytes. Which of these numbers of buckets is the
# best, and what loses at either end: 1, 2, 3, 4, 6, 8, 12 or 24?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 90
numbers = [24, 12, 8, 6, 4, 3, 2, 1]
valley = {pieces: emulated_seconds(*during_backward(pieces), rounds=6) for pieces in numbers}
if rank == 0:
    for pieces, seconds in valley.items():
        size, predicted = GRADIENTS // pieces, predicted_seconds(pieces)
        print(f"emulated: {pieces:2} buckets of {size:9,} bytes: {1e3 * seconds:4.0f} ms", end="")
        print(f", by the model {1e3 * predicted:4.0f} ms")
    print(f"emulated: the best number of buckets is {min(valley, key=valley.get)}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("Emulated: small buckets pay for calls, large ones cannot hide")
sizes = [GRADIENTS / pieces / 1e3 for pieces in numbers]
predicted = [1e3 * predicted_seconds(pieces) for pieces in numbers]
axes.plot(sizes, predicted, **plots.artist("model"))
measured_ms = [1e3 * seconds for seconds in valley.values()]
axes.plot(sizes, measured_ms, **plots.artist("reference", "your class, emulated"))
axes.axhline(1e3 * BACKWARD, **plots.artist("compute", "backward pass alone") | {"marker": ""})
axes.set(xscale="log", xlabel="bucket (kB)", ylabel=emulated("time of a step (ms)"), ylim=(0, None))
axes.set_xticks(sizes, [f"{size:.0f}" for size in sizes])
axes.minorticks_off()
legend = axes.legend(frameon=False, labelcolor=plots.NEUTRAL)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 8 by the model, and 6 and 12 within 3%. One bucket a layer waits for the link: 24 times 3.4 ms is
# more than hides. One bucket for all hides nothing. In between, take the smallest bucket whose
# all-reduce still fits beside the backward pass that fills the next one: that one leaves the least
# behind at the end. `DistributedDataParallel`'s 25 MiB are the same compromise, for links of
# gigabytes a second and calls of some microseconds. (A busy machine makes single points late: run
# the cell again.)
# </details>
#
# ## What does the hierarchy gain?
#
# `slow` took the fastest algorithm there is. Build two by hand, on the same emulated links: lab 01's
# ring through all ranks, and the hierarchy in three calls on groups of your own. **Predict**: the ring
# has 6 rounds, each with a message between the nodes. How many bytes does a rank send to the other node
# in the ring, and how many in the hierarchy?


# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
def flat_ring(x):
    """Sum `x` over all ranks, in place, on one ring, with messages to the next rank."""
    parts, right, left = x.chunk(world_size), (rank + 1) % world_size, (rank - 1) % world_size
    incoming = torch.empty_like(parts[0])
    for i in range(2 * (world_size - 1)):
        sending = dist.isend(parts[(rank - i) % world_size], right, group=slow)
        dist.recv(incoming, left, group=slow)
        sending.wait()
        part = parts[(rank - i - 1) % world_size]
        part.copy_(part + incoming if i < world_size - 1 else incoming)


node_ranks = torch.arange(world_size).view(network.nodes, per_node)
nodes = [sub_group(slow, ranks) for ranks in node_ranks.tolist()]
columns = [sub_group(slow, ranks) for ranks in node_ranks.T.tolist()]
node, column = nodes[rank // per_node], columns[rank % per_node]


def hierarchy(x):
    """The same sum: inside the nodes, between them, and inside again."""
    part = x.new_empty(len(x) // per_node)
    dist.reduce_scatter_single(part, x, group=node)
    dist.all_reduce(part, group=column)
    dist.all_gather_single(x, part, group=node)


def library(x):
    dist.all_reduce(x, group=slow)


for sum_over_ranks in (flat_ring, hierarchy, library):
    spent = []
    for _ in range(3):
        x = torch.ones(GRADIENTS // 4)
        comm.Barrier()
        start = time.perf_counter()
        sum_over_ranks(x)
        spent.append(comm.allreduce(time.perf_counter() - start, op=MPI.MAX))
        assert (x == world_size).all()
    if rank == 0:
        milliseconds = 1e3 * min(spent)
        print(f"emulated: all-reduce by {sum_over_ranks.__name__:<10} {milliseconds:4.0f} ms")

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# In the ring, 6 quarters: one and a half times the gradients, from the ranks whose neighbour is on the
# other node, and all others wait for them. In the hierarchy, half of the gradients, from every rank:
# a third. Inside the nodes it sends as much again, on links five times as fast.
# </details>
#
# # Going further
#
# - Put `nn.BatchNorm1d` into the MLP and run the comparison of part A again. The curves part at the
#   first step: each rank normalises with the mean of its own shard. What does
#   `nn.SyncBatchNorm` send, and when?
# - `torch.nn.utils.clip_grad_norm_`: before or after the all-reduce? Try both, and see which one
#   leaves the learning curve alone.
# - Describe another cluster: calls of 0.5 ms, or four nodes of one rank. Predict where its valley is
#   before you sweep it on the emulated network.
# - Send the buckets in bfloat16: half the bytes. Where do you round, and what does that do to the
#   sum over many ranks? `DistributedDataParallel.register_comm_hook` is the library's place for it.
# - Multiply the batch size by 8 and the learning rate with it. Does the loss after the same number
#   of *samples* stay? Add a warm-up.
