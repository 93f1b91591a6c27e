# %% [markdown]
# # Lab 02: Data parallelism
#
# Every rank holds the whole model and a share of each batch. The ranks compute their gradients independently, sum them, and take
# the same step. In this lab, you build this three times: first correctly, then with one message instead of many, and then with
# messages that are hidden behind the backward pass. And you show what matters most: **the learning curve is the same as on a single
# rank.**
#
# | | |
# |---|---|
# | **You will be able to** | shard a data set without losing or repeating a sample; start all ranks from the same model; average gradients correctly, for uneven shards, too; explain what flat buffers, buckets, overlap, and `no_sync` save |
# | **Time** | 145 minutes: 110 for exercises, 25 for reading, 10 for the library |
# | **You need** | PyTorch; [lab 01](01_mpi.ipynb), or basic knowledge of ranks and all-reduces. No GPU |
# | **Background** | [chapter 02](../book/02_data_parallel.md) of the book explains what you build here |
#
# First start the ranks. They are four processes, and each has its own Python. Cells that begin with `%%px` run on all ranks, or only on
# rank 0 with `--targets 0`. Other cells run in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px --timeout 120
import itertools
from contextlib import contextmanager, nullcontext
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from mpi4py import MPI
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from parlab import models, timing, training
from parlab.checks import data_parallel as check
from parlab.ledger import Ledger
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference
from parlab.timeline import Timeline, draw

# %% [markdown]
# A check runs your function on all ranks and on fewer ranks, and on models with unusual properties. (`models.Awkward` has two layers that
# share a weight, a frozen weight, a weight without a gradient, and buffers. Some checks also transpose one of its weights in memory.) So use the
# function's arguments inside a function: `comm.rank` and `comm.size`, not the notebook's `rank` and `world_size`. If you are stuck on an exercise, run
# `use_reference("its_name")` in a `%%px` cell. It puts a solution in place, and you can continue.
#
# Exercises that use mpi4py have their tensors on the CPU, because most installations of MPI cannot
# read a GPU's memory. From exercise 9 on, messages go through `torch.distributed`, and everything
# runs on `device`: the rank's GPU if it has one.
#
# # Why
#
# The samples of a batch are independent: a batch of 256 images is 256 forward and backward passes and a sum. With four ranks, each rank
# computes a quarter of them. The ranks have to exchange only the sum, which is the gradient: 1.1 MB in each step for the first model of
# this lab in float32, whatever the size of the batch. So the more work a rank has in a step, the less the message matters. The result is the model that a
# single rank would have trained, so you can find mistakes by comparing the two.
#
# (This does not hold for a model that mixes the samples of a batch, such as one with BatchNorm. Also make the comparison with SGD: with
# Adam, gradients that are N times too large give almost the same curve.)
#
# # Part A: correct
#
# ## 1. A sampler that shards
#
# *Difficulty 2/5, 10 minutes.*
#
# Shuffle the data set in each epoch. In step $i$, a single rank would train on the $i$-th group of `batch_size` indices, the *global batch*. With
# $N$ ranks, each rank takes a share of this global batch. Write the function that returns the shares of one rank.
#
# - Each epoch has a new shuffle. It is the same on all ranks and for every number of ranks. No rank sends it: all ranks compute it.
# - In each step, the sizes of any two shares differ by one index at most. Together, the shares are the global batch: no index is missing, and
#   no index occurs twice.
# - The last global batch contains the rest. Every rank makes the same number of steps, even if its last share is empty.
# - The function uses its own random generator. The global generators of torch, NumPy, and Python do not change. (Dropout and initialization
#   use torch's.)
#
# **Predict** before you write: there are 10 samples, global batches of 4, and 4 ranks. How many samples does each rank get in the last step?
# What would happen if the ranks without samples left the loop?
#
# <details><summary>Hint 1</summary>
#
# To compute the same shuffle on all ranks, you need a random generator with a seed that all ranks know and that changes with the epoch.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `torch.randperm(size, generator=torch.Generator().manual_seed(...))`, and then `.split(batch_size)`, returns the global batches. A slice with a
# stride, `batch[start::step]`, distributes a batch like playing cards.
# </details>


# %% tags=["exercise"] exercise="sharded_sampler"
# %%px
def sharded_sampler(
    size: int, batch_size: int, epoch: int, rank: int, world_size: int
) -> list[torch.Tensor]:
    """Return the indices on which `rank` trains in each step of an epoch.

    Step i's global batch is the i-th `batch_size` indices of a shuffle of 0 … size − 1. The last
    global batch has the indices that are left. Return this rank's share of each: one int64 tensor
    for each step, the same number of tensors on every rank. A share may be empty.
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
from parlab.checks.base.unchanged import generators


def planned(size, batch_size, epoch, ranks):
    """Return each step's global batch, the sizes of its shares, and the types of their indices."""
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
# The steps have 4, 4, and 2 samples. In the last step, two ranks get one sample each, and two ranks get none. If these two left the loop, the
# others would wait for them in the all-reduce forever.
# </details>
#
# ## 2. The same model on every rank
#
# *Difficulty 1/5, 5 minutes.*
#
# The ranks start from different seeds, so they have different weights. Give all of them the model of rank 0: its *parameters* and its *buffers*.
# (Buffers are tensors of a model that are not trained, such as BatchNorm's running mean.)
#
# mpi4py accepts torch tensors: `comm.Bcast(tensor, root=0)` sends rank 0's values and overwrites those of all other ranks. It refuses a tensor that
# requires a gradient. `tensor.detach()` is the same memory without a gradient.
#
# - Overwrite the values in place, because an optimizer, or a layer that shares a weight, keeps its tensor.
# - Every rank except 0 receives each tensor once. This includes shared tensors and all buffers, even those that `state_dict()` leaves out.
# - No rank sends a tensor more than $\lceil \log_2 N \rceil$ times. `Bcast` and lab 01's tree comply; rank 0 must not send to the other ranks
#   one by one.
# - Tensors are sent as they are, not as pickled Python objects (`comm.bcast`, in small letters).
#
# Edge cases: a tensor's numbers may be in a different order in memory than its indices suggest, as
# in a transposed matrix. `Bcast` accepts such a matrix as it is, but `.contiguous()` or
# `.reshape(-1)` would make a copy. (mpi4py refuses tensors that are in neither row-major nor
# column-major order, such as those in `channels_last` format. This exercise has none.) Nothing else
# changes, in particular not `requires_grad` and `.grad`.
#
# **Predict**: somebody leaves the broadcast out and uses the same seed on all ranks instead. When is this just as good, and when does it go wrong?
#
# <details><summary>Hint 1</summary>
#
# `model.parameters()` and `model.buffers()` return each tensor once, even if two layers share it.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `for tensor in itertools.chain(model.parameters(), model.buffers()): ...`
# </details>


# %% tags=["exercise"] exercise="broadcast_state"
# %%px
def broadcast_state(model: nn.Module, comm: MPI.Intracomm) -> None:
    """Give every rank of `comm` rank 0's parameters and buffers, in place.

    Ranks other than 0 receive each tensor once.
    """
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
once = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
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
    received_once=rank == 0 or watched.bytes_received() == once,
    sent_as_in_a_tree=watched.bytes_sent() <= max(world_size - 1, 1).bit_length() * once,
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The same seed is just as good if every rank draws the same random numbers in the same order. It goes wrong if one rank draws an additional random
# number before it builds the model, has another version of a library, or loads a checkpoint alone. Then the ranks differ, and there is no error.
# </details>
#
# ## 3. All-reduce the gradients
#
# *Difficulty 2/5, 10 minutes.*
#
# Each rank has called `backward()` on the mean loss over its own samples. The optimizer needs the gradient of the mean loss over the global batch,
#
# $$ g = \frac1n \sum_{i=1}^{n} \nabla \ell_i = \sum_{r} \frac{n_r}{n}\, g_r , $$
#
# with $n_r$ samples on rank $r$ and $n$ samples in total. So each rank multiplies its gradient by its `share` $n_r/n$, and an all-reduce sums the
# results. This is the plain mean only if all shards have the same size.
#
# - `comm.Allreduce(MPI.IN_PLACE, tensor)` replaces `tensor` by the sum over all ranks.
# - The gradient of each trainable tensor goes through an all-reduce once, in its own dtype (float32 or float64), without pickling. This includes a tensor that has no gradient
#   on this rank, because other ranks may have one. A frozen parameter (`requires_grad=False`) has no gradient and needs no message.
# - A rank with an empty share has no backward pass, so all of its `.grad` are `None`. They count as zeros. The rank makes the same calls as the other
#   ranks, which would otherwise wait for it forever.
#
# Edge cases: replace gradients in place, because other code may hold a `.grad` or a buffer that it is a view of. A `.grad` has the same order in memory
# as its parameter, so it may be transposed.
#
# **Predict**: a model has 4 trainable tensors, and two of its layers share one of them. How many all-reduces are there, if each tensor has its own?
#
# <details><summary>Hint 1</summary>
#
# First multiply, then sum. After the sum, it is too late for weights that differ between ranks.
# </details>
#
# <details><summary>Hint 2</summary>
#
# For each parameter that requires a gradient: if its `.grad` is `None`, set it to `torch.zeros_like(parameter)`. Multiply it in place by `share`. Then call
# `comm.Allreduce(MPI.IN_PLACE, parameter.grad)`.
# </details>


# %% tags=["exercise"] exercise="all_reduce_gradients"
# %%px
def all_reduce_gradients(model: nn.Module, share: float, comm: MPI.Intracomm) -> None:
    """Replace each gradient by that of the mean loss over the global batch, in place.

    `share` is this rank's number of samples divided by that of the global batch. Its gradients
    are those of the mean loss over its own samples. A gradient that this rank does not have is
    None, and counts as zeros.
    Parameters that do not require a gradient do not get one.
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
# There are four. A shared tensor is one tensor, whatever the number of layers that use it.
# </details>
#
# ## 4. Train, and compare the learning curves
#
# *Difficulty 3/5, 15 minutes.*
#
# Combine the three functions into a training loop. Every rank starts with its own random model and the whole data set, and it trains on its share of each
# global batch.
#
# - The model is broadcast once, before the first step.
# - Each epoch has a new shuffle. Every rank takes a step for every global batch, even if its own share is empty.
# - Return the learning curve: the mean loss over each *global* batch, the same on every rank. `comm.allreduce(x)`, in small letters, sums a Python number.
#
# Edge case: neither the data nor a library's global random generator changes.
#
# **Predict**: you run this on 1, 2, and 4 ranks with the same `batch_size`. Which curve falls fastest? In which run does a rank send the most bytes in a step?
#
# <details><summary>Hint 1</summary>
#
# Broadcast once, before the first step. Then, in each step: `optimizer.zero_grad()`, forward and backward on your share (if it is not empty),
# `all_reduce_gradients`, and `optimizer.step()`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `total = comm.allreduce(len(indices))` is the size of the global batch, and `share = len(indices) / total`. The loss over the global batch is the sum over the
# ranks of `share * loss`, and a rank without samples adds 0.
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
    are means over the global batch, taken before the step, equal on all ranks. Ignore what `.grad`
    contains on entry.
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
from parlab.checks.base.unchanged import generators


def trained(comm, size, batch_size, make_optimizer):
    """Return all ranks' samples of each step, whether a plain loop on them gives the same losses and
    weights, and the losses."""
    model, samples, together = nn.Linear(2, 3), [[]], []
    nn.init.constant_(model.weight, 0.5 * comm.rank)
    nn.init.constant_(model.bias, 0.5 * comm.rank)
    plain, inputs = nn.Linear(2, 3), torch.arange(2.0 * size).view(size, 2) / size
    targets = torch.arange(size) % 3
    for parameter in plain.parameters():
        nn.init.zeros_(parameter)

    def note(_, given, scores):
        numbers = [round(first * size / 2) for first in given[0][:, 0].tolist()]
        if scores.requires_grad:
            scores.register_hook(lambda _: samples[-1].extend(numbers))

    model.register_forward_hook(note)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer = make_optimizer(model.parameters())
    optimizer.register_step_post_hook(lambda *_: samples.append([]))
    losses = train(model, optimizer, inputs, targets, batch_size, 3, comm)
    for shares in zip(*comm.allgather(samples[:-1]), strict=True):
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
# The curves are the same. This is the purpose of data parallelism. On a ring, a rank sends 2(N−1)/N times the gradient: once with 2 ranks, one and a half times with
# 4 ranks, and nothing with a single rank.
# </details>
#
# Now train on 1, 2, and 4 ranks, with SGD and with Adam. There are 2,999 MNIST images in global batches of 256, so the last batch of an epoch has 183 images, and the
# shares of 2 or 4 ranks are uneven. Every rank starts from its own seed. The numbers are float64: in float32, a rounding difference can switch a ReLU on or off, and the
# curves of right answers may then differ by about 0.001.

# %%
# %%px
images, labels = training.mnist_batches(5999, 5999)[0]
precise, their_labels = images[:2999].double(), labels[:2999]
world_sizes = [n for n in (1, 2, 4) if n <= world_size]
curves = {name: {} for name in training.OPTIMIZERS}
for name, make_optimizer in training.OPTIMIZERS.items():
    for n in world_sizes:
        part = comm.Split(0 if rank < n else MPI.UNDEFINED)
        if rank < n:
            torch.manual_seed(rank)
            model = models.mlp().double()
            optimizer = make_optimizer(model.parameters())
            losses = train(model, optimizer, precise, their_labels, 256, 2, part)
            curves[name][f"{n} rank" + "s" * (n > 1)] = losses
            part.Free()
if rank == 0:
    training.print_same(curves, 1e-4)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
from parlab import plots

drawn, axes = plots.same_curves(
    "One curve: 1, 2 and 4 ranks train alike", curves, "loss over the global batch"
)

# %% [markdown]
# The curves cover each other. The last digits of a sum of floating-point numbers depend on the order of the numbers, so the runs are not equal bit by bit. But nothing
# in the curve shows how many ranks there were. This is why data parallelism is easy to trust: **you can compare a run on N ranks with a run on one rank.**
#
# ## When one rank makes an extra call
#
# *An experiment, 5 minutes.*
#
# Ranks match their collectives by order: the second call of one rank belongs to the second call of every other rank, whatever the calls mean. In
# the next cell, each gradient is the number of its step, so the right sum is N times the step. But rank 1 also sums a validation loss in step 2,
# which the others do not. **Predict** which lines the ranks print, and where the cell stops.

# %% tags=["raises-exception"]
# %%px --timeout 2
for step in (1, 2, 3):
    if rank == 1 and step == 2:
        print("validation:", comm.allreduce(0))  # only rank 1 calls this
    print(f"step {step}: sum {comm.allreduce(step)}, expected {step * world_size}")

# %% [markdown]
# <details><summary>What happened?</summary>
#
# In step 2, the other ranks add their gradients to rank 1's validation loss. From then on, rank 1 is one call behind: its gradient of step 2 goes
# into everybody's sum of step 3. From step 2 on, every sum is wrong on every rank, and nothing reports an error. At the end, rank 1 waits for a
# fourth call that no other rank makes.
#
# A real program has thousands of steps, so it can train with such sums for hours before it hangs. Therefore, call a collective on all ranks or on none:
# never inside an `if rank == …`.
# </details>
#
# # Part B: fast
#
# ## 5. One flat buffer
#
# *Difficulty 3/5, 10 minutes.*
#
# A GPT has dozens of small tensors (layer norms and biases), and each message costs its latency α, whatever its size. So put all gradients into one buffer, and send this
# buffer.
#
# You can do this without copying: make each `.grad` a *view* into the buffer. If a `.grad` exists, `backward()` adds to it in place. So the gradients are computed in the
# buffer, and the optimizer reads them there.
#
# **Predict**: `optimizer.zero_grad()` sets every `.grad` to `None`. What does the all-reduce send after that? What must a training loop call instead?
#
# <details><summary>Hint 1</summary>
#
# Make one `torch.zeros` that is as long as all trainable parameters together. A tied parameter counts once, and `model.parameters()` takes care of this.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `flat.split([p.numel() for p in trainable])` cuts the buffer into views, one for each parameter. `view_as(p)` gives a view the parameter's shape.
# </details>


# %% tags=["exercise"] exercise="flat_gradients"
# %%px
def flat_gradients(model: nn.Module) -> torch.Tensor:
    """Make the gradients of all trainable parameters views into one new buffer of zeros.

    Returns the buffer: one dimension, as long as the trainable parameters together, of their
    dtype (one for all) and device. What was in their `.grad` before is dropped. Nothing else
    about the model changes, except that frozen parameters may lose their `.grad`. The model may
    have a single trainable parameter.
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
# The next backward pass creates new tensors for `.grad`, and the all-reduce sends the buffer with the values of the step before. So set the buffer to zero in place:
# `flat.zero_()`.
# </details>
#
# ## 6. A step with one all-reduce
#
# *Difficulty 3/5, 10 minutes.*
#
# Now write a whole training step on this buffer, with one message. Two things are different from part A.
#
# - Multiply where it costs nothing. Multiplying the gradients by `share` is a pass over all of them. Multiplying the *loss* is one multiplication, and the backward pass
#   applies it to every gradient. If $L_r$ is the mean loss over the samples of rank $r$, then $\nabla(\frac{n_r}{n} L_r) = \frac{n_r}{n} g_r$. The all-reduce is then a plain sum.
# - The gradients must stay in the buffer, which still contains the values of the step before. Your prediction above shows how to set it to zero.
#
# Edge case: if the share is empty, there is no backward pass, but the same all-reduce. Return this rank's part of the loss, so that the step needs no second message.
#
# **Predict**: on a rank with an empty share, what is in `flat` before the all-reduce, and what is in it after the all-reduce?
#
# <details><summary>Hint 1</summary>
#
# Do five things in this order: set to zero, forward and backward if there are samples, all-reduce, optimizer, return.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `flat.zero_()`, `loss = F.cross_entropy(model(inputs), targets) * (len(inputs) / total)`, `comm.Allreduce(MPI.IN_PLACE, flat)`.
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

    All gradients of `model` are views into `flat`, and must remain so. `inputs` and `targets` are
    this rank's share of a global batch of `total` samples, and can be empty. The loss is
    cross-entropy. The ranks' return values add up to the mean loss over the global batch.
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
# It contains zeros before the all-reduce. After it, it contains the same sum as on all other ranks, to which this rank has added 0.
# </details>
#
# ## 7. What does one buffer save?
#
# *Difficulty 2/5, 5 minutes.*
#
# **Predict in numbers**, before you measure. The small GPT, `models.GPT()`, has float32 weights: a token embedding, which is also the output layer, a position embedding, two
# layers with 12 tensors each, and a final layer norm with 2 tensors. `models.parameter_count(model)` is Ψ.
#
# - `messages`, `bytes`: what a rank passes to all-reduces if there is one for each tensor
# - `messages_flat`, `bytes_flat`: what it passes to one all-reduce of one buffer
# - `bytes_ring`: what it sends to its neighbor if this one all-reduce uses a ring
#
# Return numbers, or expressions that compute them. The check measures all five and compares.


# %% tags=["exercise"] exercise="predict_messages"
# %%px
def predict_messages(world_size: int) -> dict[str, float]:
    """Return `messages`, `bytes`, `messages_flat`, `bytes_flat`, and `bytes_ring` of one rank.

    They are for the sum of the small GPT's gradients over `world_size` ranks.
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
# The next cell counts the messages and bytes of both ways:

# %%
# %%px
model = models.GPT()
model(torch.randint(256, (2, 64))).sum().backward()
per_parameter, one_buffer = Ledger(), Ledger()
all_reduce_gradients(model, 1 / world_size, per_parameter.watch(comm))
one_buffer.watch(comm).Allreduce(MPI.IN_PLACE, flat_gradients(model))
for name, ledger in [("per parameter", per_parameter), ("flat", one_buffer)]:
    print(f"{name}: messages: {ledger.count()}, bytes: {ledger.bytes_sent():,}")

# %% [markdown]
# ## 8. Buckets
#
# *Difficulty 2/5, 10 minutes.*
#
# If there is one message at the very end, the network is idle during the whole backward pass, and the processor is idle during the whole all-reduce. But the gradients of the
# *last* layers are complete first. Put them into buckets in this order. Then each bucket can be sent while the backward pass of the earlier layers still runs.
#
# Go through the parameters in reverse order. Open a new bucket if the next parameter would make the
# current one larger than `bucket_bytes`. A parameter that is larger than `bucket_bytes` gets its
# own bucket.
#
# **Predict**: buckets of 1 byte give the earliest possible start. Why does nobody use them?
#
# <details><summary>Hint 1</summary>
#
# A parameter and its gradient have `p.numel() * p.element_size()` bytes.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Keep the list of buckets and the size of the last one. Open a new bucket if there is none yet, or if the size plus the next parameter's bytes is more than the limit.
# </details>


# %% tags=["exercise"] exercise="assign_buckets"
# %%px
def assign_buckets(model: nn.Module, bucket_bytes: int) -> list[list[nn.Parameter]]:
    """Return the trainable parameters, in reverse order, in buckets of up to `bucket_bytes`.

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
# One bucket for each tensor means one message for each tensor, and every message pays its latency.
# </details>
#
# ## 9. Overlap with the backward pass
#
# *Difficulty 4/5, 20 minutes.*
#
# This is the core of PyTorch's `DistributedDataParallel`. A part of the class is given: each bucket has a flat buffer, and the gradients are views into it. During the backward pass, PyTorch
# calls `gradient_ready(i)` each time a gradient of bucket `i` is complete. You write what happens then:
#
# - When the last gradient of a bucket is ready, its all-reduce **starts**, and the backward pass continues. `dist.all_reduce(buffer, group=self.group, async_op=True)` immediately
#   returns a handle.
# - All ranks start the buckets in the same order: 0, 1, 2, … Bucket 2 waits until bucket 1 has started, even if it is complete earlier.
# - `finish()` starts the buckets that have not started, because a parameter without a gradient never calls `gradient_ready`. Then it waits for all handles and prepares the next step.
#
# As in exercise 6, the weights are in the loss: the caller runs `(share * loss).backward()`, and your class sums the ranks' gradients.
#
# **Predict**: in which order do the parameters of `models.mlp()` become ready? How much of the all-reduce is hidden if there is only one bucket?
#
# <details><summary>Hint 1</summary>
#
# `self.missing[i]` counts down. `self.started` is the number of the bucket that starts next.
# </details>
#
# <details><summary>Hint 2</summary>
#
# After you count down: `while self.started < len(self.buckets) and self.missing[self.started] == 0: self.start_next()`. In `finish()`, first start the remaining buckets, then call
# `work.wait()` for each handle in `self.works`, and then call `self.restart()`.
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
        self.synchronize = True
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
        if not self.synchronize:
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
        self.synchronize = False
        try:
            yield
        finally:
            self.synchronize = True

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
# Those of the last layer become ready first, and those of the first layer become ready last. A single bucket is complete only when the backward pass is over, so nothing is hidden.
# </details>
#
# The next cells show this. They train the larger MLP on the default group (NCCL, or Gloo on the CPU), which can overlap. The labs' `group` completes each collective before the call
# returns. If ranks share a GPU, `group` is also the default group, and nothing overlaps.
#
# **Predict** before you run them: the layers have 3.2, 4.2, and 0.04 MB of gradients, from first to last, and buckets take up to 4.24 MB. Which layers are in bucket 0, and when can it
# be sent? What can bucket 1 hide behind?


# %% tags=["nbval-ignore-output"]
# %%px
class Traced(BucketedDataParallel):
    """Records when each bucket's all-reduce starts and ends."""

    def start_next(self):
        name, start = f"bucket {self.started}", timeline.now()
        super().start_next()
        self.works[-1].get_future().add_done_callback(
            lambda _: timeline.add(name, "communication", start, timeline.now())
        )


# %% tags=["nbval-ignore-output"]
# %%px
timeline = Timeline(comm)
parallel = Traced(models.mlp(1024).to(device), dist.group.WORLD, bucket_bytes=4_240_000)
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
drawn, axes = draw(spans, "Bucket 0 is sent while the backward pass continues")

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# The gradients of the last two layers together, 4.24 MB, are bucket 0. It can be sent when the backward pass reaches the first layer, so it can hide behind that layer's backward pass.
# Bucket 1 has the gradients of the first layer. It is complete only when the backward pass is over, so it can hide behind nothing.
# </details>
#
# # Part C: larger batches than fit
#
# If a rank's share of the global batch does not fit into its memory, the rank computes it in micro-batches and lets `.grad` accumulate. The sum over the ranks is needed only once, at
# the end. So all backward passes except the last one run within `parallel.no_sync()`.
#
# ## 10. What if you forget `no_sync`?
#
# *Difficulty 3/5, 5 minutes.*
#
# **Predict in numbers**: there are four micro-batches, and somebody forgets `no_sync` for all four backward passes. In our class, `finish()` is called once, after the four.
# `DistributedDataParallel` averages in each backward pass and needs no `finish()`.
#
# - `bytes_here`, `bytes_ddp`: the bytes that a rank passes to all-reduces, in multiples of the bytes of all gradients
# - `alike_here`, `alike_ddp`: 1 if all ranks have the same gradients afterwards, otherwise 0
#
# <details><summary>Hint</summary>
#
# Follow `missing` and `started` through the second backward pass. What resets them?
# </details>


# %% tags=["exercise"] exercise="predict_no_sync"
# %%px
def predict_no_sync() -> dict[str, float]:
    """Return `bytes_here`, `alike_here`, `bytes_ddp`, `alike_ddp`: four passes, no `no_sync`."""
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
# In this class, the first backward pass counts every bucket down to zero and sends it. After that, all buckets have started. The other three passes send nothing, and what they add
# to `.grad` never leaves the rank, because `group` completes each all-reduce before the call returns. (With Gloo or NCCL, an all-reduce may still be under way. Then the other passes
# change the buffer that it sums, and the result depends on the timing.) The ranks then hold different gradients, and their models become more and more different. There is no error, and the loss can still fall.
#
# `DistributedDataParallel` starts again in each backward pass. Its result is right, but it sends four times as many bytes.
# </details>
#
# ## 11. Accumulate, and synchronize once
#
# *Difficulty 3/5, 10 minutes.*
#
# - Each micro-batch's loss is a mean over its own samples. Weight it so that the sum over all micro-batches and ranks is the mean over the `total` samples of the global batch. The last
#   micro-batch may be smaller than the others.
#   A sample may have several targets (64 in the GPT below), so count samples with `len(inputs)`.
# - Each micro-batch has its own backward pass. It frees what the forward pass has kept, before the next forward pass begins.
# - Only the last backward pass sends the buckets. All others run within `parallel.no_sync()`.
# - A rank may have no micro-batch at all. It still calls `finish()` once, like all other ranks.
#
# <details><summary>Hint 1</summary>
#
# The weight of a micro-batch is `len(inputs) / total`, on every rank.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Use `with nullcontext() if last else parallel.no_sync():` around forward and backward. Call `finish()` once, after the loop.
# </details>


# %% tags=["exercise"] exercise="accumulate"
# %%px
def accumulate(
    parallel: nn.Module, micro_batches: list[tuple[torch.Tensor, torch.Tensor]], total: int
) -> float:
    """Leave in `.grad` the gradient of the mean loss over a global batch of `total` samples.

    `parallel` is a `BucketedDataParallel` whose gradients are zero. `micro_batches` lists this
    rank's (inputs, targets), and can be empty. The loss is cross-entropy. Synchronize once. Return
    this rank's part of the mean loss: the ranks' parts add up to it.
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
model = nn.Linear(2, 2).to(device)
for parameter in model.parameters():
    nn.init.constant_(parameter, 0.5)
parallel = check.Replica(model, group)
micro_batches = [
    (torch.full((n, 2), n + rank / 4, device=device), torch.full((n,), n % 2, device=device))
    for n in (3, 2, 1)[: 3 - rank]
]
given = len(micro_batches)
loss = accumulate(parallel, micro_batches, 14)
check.show_values(
    loss=f"{loss:.4f}",
    gradient=[f"{value:.4f}" for value in model.weight.grad.flatten().tolist()],
    synchronized=parallel.synchronized,
    finished=parallel.finished,
    untouched=len(micro_batches) == given,
)

# %% [markdown]
# ## A small GPT, with everything together
#
# The second model has what the MLP lacks: 28 parameter tensors, and an embedding that is also the output layer, so one weight is tied. It learns to predict the next byte of Python's own
# source code. Each rank takes its share of 32 sequences in each step, in micro-batches of 3. Eight sequences make three micro-batches, and the last one is smaller.
#
# For comparison, rank 0 also runs the same 30 steps alone, in a plain PyTorch loop.

# %%
# %%px --timeout 90
sequences, next_bytes = training.text_batches(1, 30 * 32, 64, device)[0]
adamw = partial(torch.optim.AdamW, lr=3e-3)


def make_gpt(seed):
    torch.manual_seed(seed)
    # (batch, seq) bytes → (batch · seq, 256) scores, as cross-entropy wants them
    return nn.Sequential(models.GPT(), nn.Flatten(0, 1)).to(device)


def samples(indices):
    return sequences[indices], next_bytes[indices].flatten()


# %%
# %%px --timeout 90
parallel = BucketedDataParallel(make_gpt(seed=rank), group, bucket_bytes=2**17)
optimizer, parallel_losses = adamw(parallel.parameters()), []
for indices in sharded_sampler(len(sequences), 32, 0, rank, world_size):
    loss = accumulate(parallel, [samples(part) for part in indices.split(3)], total=32)
    optimizer.step()
    parallel.zero_grad()
    parallel_losses.append(comm.allreduce(loss))

if rank == 0:
    batches = map(samples, sharded_sampler(len(sequences), 32, 0, rank=0, world_size=1))
    serial_losses = training.plain_losses(make_gpt(seed=0), adamw, batches)
    runs = {"a plain loop": serial_losses, f"{world_size} ranks, accumulated": parallel_losses}
    training.print_same({"GPT": runs}, 1e-3)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.same_curves(
    "The GPT learns on all ranks what it learns on one", {"GPT": runs}, "loss (nats per byte)"
)

# %% [markdown]
# # Against the library
#
# `DistributedDataParallel` does all of this in C++. It averages over the ranks. If the loss has no
# weights, this is right only for equal shares: here, 64 images on each rank. First, the next cells
# train in four ways (two on GPUs) for 5 steps of Adam, and check that the losses are the same. (With Adam, this check can
# miss gradients that are N times too large. Part A compared the curves with SGD, too.)


# %%
# %%px --timeout 90
def make_mlp(hidden_size):
    torch.manual_seed(0)
    model = models.mlp(hidden_size).to(device)
    return model, torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)


def library(hidden_size, group):
    """A training step of DDP; returns this rank's loss."""
    model, optimizer = make_mlp(hidden_size)
    parallel = DistributedDataParallel(model, process_group=group)

    def step(x, y):
        return training.one_step(parallel, optimizer, x, y)

    return step


# %%
# %%px
def per_parameter(hidden_size, comm):
    """Return a function that takes the step with one message for each parameter."""
    model, optimizer = make_mlp(hidden_size)

    def step(x, y):
        share = partial(all_reduce_gradients, model, 1 / world_size, comm)
        return training.one_step(model, optimizer, x, y, after_backward=share)

    return step


# %%
# %%px
def one_buffer(hidden_size, comm):
    """Return a function that takes the step with one message for all gradients."""
    model, optimizer = make_mlp(hidden_size)
    flat = flat_gradients(model)

    def step(x, y):
        total = len(x) * world_size
        return world_size * flat_step(model, flat, optimizer, x, y, total, comm)

    return step


# %%
# %%px
def in_buckets(hidden_size, group):
    """Return a function that takes the step with your class."""
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


# %%
# %%px --timeout 90
ledger = Ledger()
mpi = ledger.watch(comm)
steps = {"DDP": library(1024, group), "buckets": in_buckets(1024, group)}
if device.type == "cpu":
    steps |= {"flat": one_buffer(1024, mpi), "per parameter": per_parameter(1024, mpi)}
shares = [images[rank::world_size].split(64), labels[rank::world_size].split(64)]
batches = [(x.to(device), y.to(device)) for x, y in zip(*shares, strict=True)][:5]
losses = {
    name: [comm.allreduce(step(x, y)) / world_size for x, y in batches]
    for name, step in steps.items()
}
if rank == 0:
    training.print_same({"MLP": losses}, 1e-4)

# %% [markdown]
# **Predict**: how many all-reduces does a step make with one message for each tensor, and how many with the flat buffer? The ledger
# shows what each way sends in a step:

# %%
# %%px
for name, step in steps.items():
    ledger.clear()
    with ledger:
        step(*batches[0])
    if rank == 0:
        calls, sent = ledger.count("all_reduce"), ledger.bytes_sent("all_reduce")
        print(f"{name:>13}: all-reduces: {calls}, bytes: {sent:,}")

# %% [markdown]
# All ways send the same bytes: 4 for each of the 1,863,690 parameters. The number of messages differs.
# With its default settings, DDP closes its first bucket as soon as it holds 1 MiB, so that it can send
# early. Its buckets close when they have *reached* the limit. Those of your `assign_buckets` never exceed it,
# unless a single parameter does. The next cell measures the time of each way, in turn. DDP and your class run on
# both groups. In the figure, a bar that ends left of the line is faster than DDP on Gloo (NCCL on
# GPUs).
#
# **Predict**: which way is the fastest? Do the number of messages, the backend, or the overlap make a difference here?


# %% tags=["nbval-ignore-output"]
# %%px --timeout 100
def measure(hidden_size):
    """Median seconds of a step of each kind."""
    world, backend = dist.group.WORLD, dist.get_backend()
    steps = {f"DDP on {backend}": library(hidden_size, world)}
    steps[f"buckets on {backend}"] = in_buckets(hidden_size, world)
    if device.type == "cpu":
        steps["DDP on group"] = library(hidden_size, group)
        steps["buckets on group"] = in_buckets(hidden_size, group)
        steps["flat, mpi4py"] = one_buffer(hidden_size, comm)
        steps["per parameter, mpi4py"] = per_parameter(hidden_size, comm)
    calls = {name: partial(step, *batches[0]) for name, step in steps.items()}
    return timing.median_seconds(calls, comm, rounds=12)


steps.clear()  # so that the models above do not take memory
measured = {hidden_size: measure(hidden_size) for hidden_size in (256, 512)}
ddp = f"DDP on {dist.get_backend()}"

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.ratio_bars(
    "Time of a training step, relative to DDP's",
    {
        f"{hidden_size} hidden units": {name: t / times[ddp] for name, t in times.items()}
        for hidden_size, times in measured.items()
    },
    f"time / time of {ddp}",
    libraries=[ddp, "DDP on group"],
)
for hidden_size, times in measured.items():
    ratios = ", ".join(f"{name} {seconds / times[ddp]:.2f}" for name, seconds in times.items())
    print(f"{hidden_size} hidden units, {1e3 * times[ddp]:.1f} ms for {ddp}: {ratios}")

# %% [markdown]
# What to look for:
#
# - **The number of messages.** With one message for each tensor, a step pays the latency six times here, and 28 times in the GPT. With the flat buffer, it pays once. For large tensors,
#   this hardly matters, because their bytes take most of the time.
# - **The backend.** Gloo uses TCP and the operating system's network stack, even between two processes on the same machine. `group` and mpi4py use shared memory.
# - **Overlap hardly matters here.** With these models, your class has a single bucket, so nothing overlaps.
#   With more buckets, it would gain little if there are more ranks than cores: communication and computation
#   compete for the cores, so messages during the backward pass slow it down. On GPUs, the network card
#   transfers data while the GPU computes. (NCCL's collectives use a few of the GPU's multiprocessors.)
#   There, overlap usually pays off. The next part shows this on your machine too.
# - **Yours compared with DDP.** Both send the same bytes, in one or two buckets. DDP is written in
#   C++, and your hooks are Python, which takes some microseconds for each parameter. This matters if a
#   model has many small layers. But by default, DDP copies the gradients into its buckets and back, and your
#   class only adds them to the buffers.
#
# # On an emulated cluster
#
# The last measurements hide what this lab is about. So the next cells emulate a cluster with a slow
# network and computations that need no core, and measure there. On an [emulated
# network](../book/emulated_network.md), messages are real and take as long as the α–β model says. A
# rank that waits for a message sleeps. A `Stage` is a layer whose backward pass takes a set time,
# during which the rank also sleeps. **Every time from here on is emulated.** It shows how well your
# code orders its work, but nothing about the speed of a real cluster.
#
# The model has 24 layers, like the one in the [chapter](../book/02_data_parallel.md), and a backward pass of 5 ms for each. Its gradients are about a thousand times smaller than there, and the network
# is much slower: two nodes, 100 MB/s inside a node, 20 MB/s between them, and 2 ms for each call.

# %%
# %%px
from parlab.costs import data_parallel as costs
from parlab.network import Link, Network, Stage, emulated, emulated_group, sub_group

LAYERS, WIDTH, LAYER_SECONDS = 24, 160, 5e-3
LAYER_BYTES = 4 * WIDTH * WIDTH
BACKWARD, GRADIENTS = LAYERS * LAYER_SECONDS, LAYERS * LAYER_BYTES

per_node = 2 if world_size % 2 == 0 else 1
inside, between = Link.of(alpha=0.2e-3, bandwidth=100e6), Link.of(alpha=1e-3, bandwidth=20e6)
network = Network(world_size // per_node, per_node, inside=inside, between=between, call=2e-3)
slow = emulated_group(network)
if rank == 0:
    chosen = network.collective("all_reduce", GRADIENTS)
    print(f"emulated: {network}")
    print(f"backward pass: {1e3 * BACKWARD:.0f} ms, {LAYERS} layers of {LAYER_BYTES:,} bytes")
    print(f"one all-reduce of {GRADIENTS:,} bytes: {1e3 * chosen.seconds:.0f} ms", end="")
    print(f", {chosen.algorithm}")

# %% [markdown]
# ## Does overlap win?
#
# **Predict**, from these numbers: how long does a step take if all gradients are sent in one message after the backward pass? How long does it take with 8 buckets that are sent when they are
# ready? What is the best that any number of buckets could reach?


# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
def make_stages():
    layers = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(LAYERS))
    return nn.Sequential(*(Stage(layer, forward=0, backward=LAYER_SECONDS) for layer in layers))


def after_backward():
    """A step without overlap: one flat buffer, all-reduced when the backward pass is over."""
    model = make_stages()
    flat = flat_gradients(model)
    return model, lambda: dist.all_reduce(flat, group=slow)


# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
def during_backward(pieces):
    """A step of your class, with so many equal buckets."""
    parallel = BucketedDataParallel(make_stages(), slow, bucket_bytes=GRADIENTS // pieces)
    return parallel, parallel.finish


def ddp_step(pieces):
    megabytes = GRADIENTS / pieces / 2**20
    stages = make_stages()
    parallel = DistributedDataParallel(stages, process_group=slow, bucket_cap_mb=megabytes)
    return parallel, lambda: None


def predicted_seconds(pieces):
    """Return the model's time, with equal buckets, one after the other on the link."""
    sending = network.collective("all_reduce", GRADIENTS / pieces).seconds
    return costs.bucket_timeline([BACKWARD / pieces] * pieces, [sending] * pieces)[-1].end


# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
def emulated_seconds(ways, rounds=3):
    """Return each way's emulated seconds of a step, until all gradients are summed."""

    def step(model, finish):  # the forward pass takes no emulated time
        model(torch.zeros(1, WIDTH)).sum().backward()
        finish()

    # In its first step, DDP does not know its buckets yet.
    calls = {name: partial(step, *way) for name, way in ways.items()}
    return timing.fastest_seconds(calls, comm, rounds, warm_up=2)


ways = {
    "one buffer, after backward": after_backward(),
    "8 buckets, during backward": during_backward(8),
    "8 buckets, DDP": ddp_step(8),
}
# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
seconds = emulated_seconds(ways)
for name, pieces in zip(ways, (1, 8, 8), strict=True):
    predicted = 1e3 * predicted_seconds(pieces)
    if rank == 0:
        print(f"emulated: {name:<27} {1e3 * seconds[name]:4.0f} ms", end="")
        print(f", by the model {predicted:4.0f} ms")

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# If everything is sent after the backward pass, a step takes 120 + 89 = 209 ms. With buckets, the two overlap, but no number of buckets makes the step shorter than the longer of the two. Not even
# 120 ms can be reached, because the last bucket is complete only when the backward pass ends, and then still has to be sent. Each of eight buckets takes 14 ms, and the backward pass takes 15 ms to
# fill the next one. So only the last bucket is not hidden, and the step takes 120 + 14 = 134 ms. (On a busy machine, the steps take longer than in the model.)
# </details>
#
# The next cells draw one step of your class: every bucket is sent while the layers before it compute, and only the last one is sent after the end.

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
# ## The best size of a bucket
#
# **Predict**: each all-reduce costs 3.4 ms in addition to its bytes. Which of these numbers of buckets is the best: 1, 2, 3, 4, 6, 8, 12, or 24? Why are the smallest and the largest number worse?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 90
numbers = [24, 12, 8, 6, 4, 3, 2, 1]
valley = emulated_seconds({pieces: during_backward(pieces) for pieces in numbers}, rounds=6)
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
# 8 is the best according to the model, and 6 and 12 are within 3%. If each layer has its own bucket, the link is busy for too long: 24 times 3.4 ms, and 86 ms for the bytes, are more than the
# 120 ms of the backward pass. If there is only one bucket, nothing is hidden. In between, take the smallest bucket whose all-reduce is not longer than the part of the backward pass that fills the
# next bucket, because then the last bucket is as small as possible. `DistributedDataParallel`'s
# default of 25 MiB is the same compromise, for links with gigabytes per second and calls of some
# microseconds. (On a busy machine, points can be too slow. Then run the cell again.)
# </details>
#
# ## What does the hierarchy save?
#
# `slow` uses the fastest algorithm that it knows. The next cells contain two algorithms on the same emulated links: lab 01's ring through all ranks, and the hierarchy, which takes three calls on smaller
# groups. **Predict**: the ring has 6 rounds, and each has messages between the nodes. How many bytes does a rank send to the other node in the ring, and how many in the hierarchy?


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


# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
node_ranks = torch.arange(world_size).view(network.nodes, per_node)
nodes = [sub_group(slow, ranks) for ranks in node_ranks.tolist()]
columns = [sub_group(slow, ranks) for ranks in node_ranks.T.tolist()]
node, column = nodes[rank // per_node], columns[rank % per_node]


def hierarchy(x):
    """Sum x over all ranks in place: inside the nodes, between them, and inside again."""
    part = x.new_empty(len(x) // per_node)
    dist.reduce_scatter_single(part, x, group=node)
    dist.all_reduce(part, group=column)
    dist.all_gather_single(x, part, group=node)


# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
sums = {"flat ring": flat_ring, "hierarchy": hierarchy}
sums["library"] = partial(dist.all_reduce, group=slow)
for sum_over_ranks in sums.values():
    x = torch.ones(GRADIENTS // 4)
    sum_over_ranks(x)
    assert (x == world_size).all()
zeros = torch.zeros(GRADIENTS // 4)
calls = {name: partial(sum_over_ranks, zeros) for name, sum_over_ranks in sums.items()}
seconds = timing.fastest_seconds(calls, comm, rounds=3)
for name in sums if rank == 0 else ():
    print(f"emulated: all-reduce by {name:<10} {1e3 * seconds[name]:4.0f} ms")

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# In the ring, a rank whose neighbor is on the other node sends 6 quarters over the slow link, one and a
# half times the gradients, and all other ranks wait for it. In the hierarchy, every rank sends half of
# the gradients over the slow link, a third as much. Inside a node, it sends twice that, on links that
# are five times as fast.
# </details>
#
# # Going further
#
# - Put `nn.BatchNorm1d` into the MLP, and run the comparison of part A again. The curves differ from the first step on, because each rank normalizes with the mean of its own shard. What does
#   `nn.SyncBatchNorm` send, and when? (In training on several ranks, it refuses tensors on the CPU, so read its source if you have no GPU.)
# - Should you call `torch.nn.utils.clip_grad_norm_` before or after the all-reduce? Try both, and see which order gives four ranks the same learning curve as one rank.
# - Describe another cluster: calls of 0.5 ms, or four nodes with one rank each. Predict its best number of buckets before you measure it on the emulated network.
# - Send the buckets in bfloat16, with half of the bytes. Where do you round, and how does this change the sum over many ranks? `DistributedDataParallel.register_comm_hook` is the library's place
#   for this.
# - Multiply the batch size and the learning rate by 8. Does the loss after the same number of *samples* stay the same? Add a warm-up.
