# %% [markdown]
# # Lab 05: Pipeline parallelism
#
# Tensor parallelism cuts a layer, and sends at every one of them. Here each rank takes some whole
# layers, a *stage*, and hands its output to the next: one message where the model is cut, and none
# inside. The price is waiting: a rank has nothing to do until the one before it is done. You cut the
# model, run it naively, then cut the batch too and write the schedules that fill the time; you run
# them with the gradients of one rank, and **measure idle time and activations beside the formula**.
#
# | | |
# |---|---|
# | **You will be able to** | cut a model into stages; send activations and their gradients without a deadlock; predict the bubble and the activations that a rank holds; write GPipe, 1F1B and interleaved 1F1B as lists of actions, and run any schedule; sum the gradient of a tied weight |
# | **Time** | 110 minutes |
# | **You need** | PyTorch; [lab 02](02_data_parallel.ipynb), or the knowledge of what a rank and a message are. No GPU |
# | **Background** | [chapter 05](../book/05_pipeline_parallel.md) of the book explains what you build here |
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
import time
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab import memory, models
from parlab.checks import pipeline_parallel as check
from parlab.data import mnist, text
from parlab.ledger import Ledger
from parlab.pipeline import (
    Action,
    Deadlock,
    backward,
    bubble,
    forward,
    live,
    simulate,
    sizes,
    texts,
)
from parlab.pipeline.recorded import record
from parlab.pipeline.stages import Share, layers_of, share_of
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference
from parlab.timeline import Span, Timeline, draw, with_idle

# %% [markdown]
# Everything here speaks through `torch.distributed`, on the `group` that a function is given:
# `group.rank()` and `group.size()` are this rank's number and how many there are. If you are stuck on
# an exercise, `use_reference("its_name")` in a `%%px` cell puts a solution in its place, and you go on.
#
# # Part A: one batch, several ranks
#
# ## 1. Cut the model
#
# *Difficulty 1/5, 5 minutes.*
#
# A model is a row of layers here. A stage is some layers that follow each other; stage 0 has the
# first, the last stage has the last.
#
# - Returns a list of `stages` modules, `nn.Sequential` each, with the layers in order. They are the
#   layers themselves, no copies: they keep their weights.
# - The numbers of layers of any two stages differ by one at most. Where `stages` does not divide the
#   layers, the **first** stages have one more. (The last one has the output layer and the loss: it is
#   busy enough.)
# - More stages than layers, or fewer than one, are refused with a `ValueError` that says so. `layers` stays as it is.
#
# **Predict**: nine layers on four ranks. Which layers has rank 1?
#
# <details><summary>Hint 1</summary>
#
# `divmod(len(layers), stages)` gives the layers of every stage, and how many stages have one more.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Go through the stages with the number of layers that are given out already.
# </details>


# %% tags=["exercise"] exercise="split_model"
# %%px
def split_model(layers: list[nn.Module], stages: int) -> list[nn.Sequential]:
    """The `layers` of a model in so many `stages`, in order and of even size."""
    # BEGIN SOLUTION
    if not 1 <= stages <= len(layers):
        raise ValueError(f"{len(layers)} layers do not make {stages} stages")
    short, longer = divmod(len(layers), stages)
    cut, first = [], 0
    for stage in range(stages):
        after = first + short + (stage < longer)
        cut.append(nn.Sequential(*layers[first:after]))
        first = after
    return cut
    # END SOLUTION


# %% tags=["check"] exercise="split_model" points=1
# %%px
check.split_model(split_model)


# %% tags=["hidden-check"] exercise="split_model" points=1
# %%px --timeout 20
def cut_sizes(layers, stages):
    row = [nn.Linear(1, i + 1) for i in range(layers)]
    try:
        return [[layer.out_features for layer in stage] for stage in split_model(row, stages)]
    except ValueError:
        return "refused"


rows = [nn.Sequential(nn.Linear(1, 1), nn.Tanh()) for _ in range(3)]
check.show_values(
    even=cut_sizes(6, 3), odd=cut_sizes(11, 4), all=cut_sizes(5, 5), many=cut_sizes(4, 5),
    whole=cut_sizes(3, 1), none=cut_sizes(3, 0), rows=[len(stage) for stage in split_model(rows, 2)],
)  # fmt: skip

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# 9 = 3 + 2 + 2 + 2: rank 1 has layers 3 and 4, counted from 0.
# </details>
#
# `share_of(stages, sample, rank, world_size)` is what a rank takes of the stages, a `Share`:
#
# | | |
# |---|---|
# | `share.count` | stages of the whole model. Stage s is on rank s % p: a rank may have several |
# | `share.own` | this rank's stages, by number: `{2: Sequential(…)}` |
# | `share.room(action, samples)` | an empty tensor of the size of what an action needs from another stage |
# | `share.number(action)` | a number that no other action has |
# | `share.parameters()` | the parameters of this rank's stages, for its optimizer |
#
# Receivers must know the size of what comes. `share_of` finds it before training, from one sample.
#
# ## 2. Messages between stages
#
# *Difficulty 3/5, 15 minutes.*
#
# What a rank does is a row of *actions*: `forward(stage, micro_batch)` and `backward(stage,
# micro_batch)`. An action has `action.kind`, "forward" or "backward", `action.stage` and
# `action.micro_batch`; it can be the key of a dict. An action needs a tensor from another stage: a forward pass the output of the stage
# before; a backward pass the gradient of its own output, from the stage after. A mailbox sends a
# tensor **to the action that needs it**.
#
# - `send(action, tensor)`: to the rank that has `action.stage`. It **does not wait** for the receiver:
#   two neighbours may send to each other before either receives. What is under way does not keep the
#   autograd graph of `tensor` alive. `tensor` may be a view that is not contiguous; the libraries send
#   contiguous memory alone.
# - `receive(action, samples)`: what was sent to `action`, of so many samples; waits until it is there. The result
#   has no gradient and requires none.
# - Tensors may be received in **another order** than they were sent.
# - Both stages may be on this rank: then nothing goes through `group`. Nothing else is sent than the
#   tensors, each once.
# - `finish()` waits until all that was sent has left. It comes at the end of a step, and a mailbox may
#   be used again after it. What has left and what was received it lets go of: it keeps no tensor then.
# - Each mailbox has its own tensors: another one on this rank knows nothing of them.
#
# **Predict**: p = 2 with two stages each. Rank 0 sends two activations of micro-batch 3 to rank 1, for
# stage 1 and for stage 3. How does rank 1 tell them apart?
#
# <details><summary>Hint 1</summary>
#
# `dist.isend(tensor, group=group, group_dst=…, tag=…)` returns a handle at once; keep it for
# `finish()`. A tag tells messages apart: `share.number(action)` is one.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `dist.recv(room, group=group, group_src=…, tag=…)`. From where? A forward pass gets its tensor from
# stage − 1, a backward pass from stage + 1. `tensor.detach()` is the same memory without the graph.
# </details>


# %% tags=["exercise"] exercise="mailbox"
# %%px
class Mailbox:
    """Carries tensors between the stages of a model, over `group`, to the actions that need them."""

    def __init__(self, share: Share, group: dist.ProcessGroup) -> None:
        self.share, self.group = share, group
        # BEGIN SOLUTION
        self.own = {}
        self.sends = []
        # END SOLUTION

    def send(self, action: Action, tensor: torch.Tensor) -> None:
        """Send `tensor`, which `action` needs, to the rank that does it; do not wait."""
        # BEGIN SOLUTION
        tensor, to = tensor.detach(), action.stage % self.group.size()
        if to == self.group.rank():
            self.own[action] = tensor
        else:
            tensor, tag = tensor.contiguous(), self.share.number(action)
            self.sends.append(dist.isend(tensor, group=self.group, group_dst=to, tag=tag))
        # END SOLUTION

    def receive(self, action: Action, samples: int) -> torch.Tensor:
        """What `action`, of this rank, needs from another stage, for so many samples."""
        # BEGIN SOLUTION
        if action in self.own:
            return self.own.pop(action)
        step = -1 if action.kind == "forward" else 1
        source = (action.stage + step) % self.group.size()
        room = self.share.room(action, samples)
        dist.recv(room, group=self.group, group_src=source, tag=self.share.number(action))
        return room
        # END SOLUTION

    def finish(self) -> None:
        """Wait until all that was sent has left."""
        # BEGIN SOLUTION
        while self.sends:
            self.sends.pop().wait()
        # END SOLUTION


# %% tags=["check"] exercise="mailbox" points=3
# %%px
check.mailbox(Mailbox)


# %% tags=["hidden-check"] exercise="mailbox" points=1
# %%px --timeout 20
def around(stages_a_rank, group):
    """What each action of one micro-batch gets; sent in order, received in reverse."""
    ranks, count = group.size(), group.size() * stages_a_rank
    stages = [nn.Linear(i + 1, i + 2) for i in range(count)]
    share = share_of(stages, torch.zeros(1, 1), group.rank(), ranks, device)
    mailbox, ledger, actions = Mailbox(share, group), Ledger(), []
    for stage in range(count):
        if stage + 1 < count:
            actions.append(backward(stage, 1))
        if stage:
            actions.append(forward(stage, 1))
    with ledger, memory.LiveStorages() as storages:
        for number, action in enumerate(actions):
            source = action.stage + (1 if action.kind == "backward" else -1)
            if source in share.own:
                numbers = torch.arange(2.0 * share.room(action, 1).numel(), device=device) + number
                mailbox.send(action, numbers.view(-1, 2).t().requires_grad_())
        numbers = None
        got = [mailbox.receive(action, 2) for action in actions[::-1] if action.stage in share.own]
        mailbox.finish()
        shown = [[x.requires_grad, x.tolist()] for x in got]
        got = None
    return [shown, ledger.bytes_sent(), storages.live]


alone = dist.new_group([rank], use_local_synchronization=True)
check.show_values(one=around(1, group), two=around(2, group), alone=around(3, alone))
dist.destroy_process_group(alone)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# By nothing but what the sender writes on them. Both come from rank 0, both are of micro-batch 3. Without
# tags the first that was sent is the first that is received, whatever it is for.
# </details>
#
# ## 3. The naive split
#
# *Difficulty 3/5, 10 minutes.*
#
# The whole batch goes through the stages, and its gradients come back. Each rank has one stage.
#
# - The batch is micro-batch 0, the only one. Only the first stage's rank has the right `inputs`, only the last one's
#   the right `targets`; on other ranks these have as many samples, and other numbers.
# - The last rank computes `loss_of(scores, targets)`, a tensor of shape (), and returns it as a float; all others
#   return None.
# - Afterwards each parameter of this rank has its gradient in `.grad`, that of the whole model's loss. (Before
#   the step it is None: `zero_grad` is the caller's.) Weights stay as they are, and stages in the mode, training or
#   evaluation, in which they are.
# - Parameters may be *frozen* (`requires_grad=False`), all of a stage's too: these have no gradient and stay frozen.
#   Of the gradients between stages, all are sent nevertheless: what a stage gets does not depend on what another one
#   trains.
# - `inputs` may be tokens, whole numbers: they have no gradient, and nobody needs the one of the first stage's inputs.
# - Each stage computes **once**; between ranks only activations and their gradients travel, and all have arrived at
#   the end.
#
# Autograd knows nothing of other ranks: what you receive is a leaf. Ask for its gradient, and send it back.
#
# **Predict**: for which part of the step does each of four ranks compute?
#
# <details><summary>Hint 1</summary>
#
# `x = mailbox.receive(forward(stage, 0), len(inputs)).requires_grad_()`; after the backward pass
# `x.grad` is what the stage before needs.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `y.backward(gradient)` goes on from a gradient that came from elsewhere. The last stage needs none: its
# `y` is the loss.
# </details>


# %% tags=["exercise"] exercise="naive_step"
# %%px
def naive_step(
    share: Share,
    inputs: torch.Tensor,
    targets: torch.Tensor,
    loss_of,
    group: dist.ProcessGroup,
) -> float | None:
    """Forward and backward pass of a batch through all stages, one a rank: loss and gradients."""
    # BEGIN SOLUTION
    stage, last = group.rank(), share.count - 1
    mailbox = Mailbox(share, group)
    x = inputs
    if stage > 0:
        x = mailbox.receive(forward(stage, 0), len(inputs)).requires_grad_()
    y = share.own[stage](x)
    gradient = None
    if stage == last:
        y = loss_of(y, targets)
    else:
        mailbox.send(forward(stage + 1, 0), y)
        gradient = mailbox.receive(backward(stage, 0), len(inputs))
    if y.requires_grad:  # a first stage that is frozen has no way back
        y.backward(gradient)
    if stage > 0:
        mailbox.send(backward(stage - 1, 0), x.grad)
    mailbox.finish()
    return y.item() if stage == last else None
    # END SOLUTION


# %% tags=["check"] exercise="naive_step" points=3
# %%px
check.naive_step(naive_step)


# %% tags=["hidden-check"] exercise="naive_step" points=1
# %%px --timeout 20
def counting_layers(count):
    """Layers of changing widths, whose weights count up."""
    layers = []
    for i in range(count):
        layer = nn.Linear(2 + i % 3, 2 + (i + 1) % 3, dtype=torch.float64, device=device)
        for parameter in layer.parameters():
            numbers = torch.arange(1.0, parameter.numel() + 1, device=device).double()
            parameter.data = (numbers / 10).sin().view_as(parameter)
        layers.append(nn.Sequential(layer, nn.Tanh()))
    return layers


def squares(y, targets):
    return (y - 2 * targets).square().mean()


def shown(loss, share):
    kept = [[] if p.grad is None else p.grad.flatten()[:3].tolist() for p in share.parameters()]
    number = f"{loss:.8f}" if isinstance(loss, float) else str(type(loss))
    return [number, [[f"{value:.8f}" for value in gradient] for gradient in kept]]


def naive_values(samples, frozen=()):
    layers = counting_layers(2 * world_size + 1)
    x = torch.arange(2.0 * samples, dtype=torch.float64, device=device).view(samples, 2) / 7
    targets = torch.ones(samples, layers[-1][0].out_features, dtype=torch.float64, device=device)
    share = share_of(split_model(layers, world_size), x[:1], rank, world_size, device)
    for stage in share.own.keys() & set(frozen):
        share.own[stage].requires_grad_(False)
    return shown(naive_step(share, x, targets, squares, group), share)


check.show_values(
    five=naive_values(5), one=naive_values(1), frozen=naive_values(4, range(world_size - 1))
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# A quarter each: while one computes, three wait. The batch takes as long as on one rank, and the messages come on
# top. What is won is memory: each rank has a quarter of the weights.
# </details>
#
# See it. Stages whose passes take a set time (asleep, so that your cores do not matter), on an
# emulated network, and the picture of your own run:

# %%
# %%px --timeout 60
from parlab.network import Link, Network, Stage, emulated_group, sub_group

FORWARD, BACKWARD = 30e-3, 60e-3  # seconds of a pass of one micro-batch through one stage
link = Link.of(alpha=20e-6, bandwidth=1e9)
network = Network(nodes=world_size, ranks_per_node=1, inside=link, between=link)
emulated = emulated_group(network)


def timed_share(ranks, stages_a_rank, forward_seconds, backward_seconds):
    """Small layers whose passes take so many seconds, one a stage, on the first ranks."""
    stages = [nn.Linear(8, 8) for _ in range(ranks * stages_a_rank)]
    share = share_of(stages, torch.zeros(1, 8), rank % ranks, ranks)
    for number, stage in share.own.items():
        share.own[number] = Stage(stage, forward_seconds, backward_seconds)
    return share


def mean_square(y, targets):
    return (y - targets).square().mean()


share = timed_share(world_size, 1, FORWARD, BACKWARD)
timeline = Timeline(comm)
record(share, timeline, world_size, 1)
comm.Barrier()
loss = naive_step(share, torch.ones(4, 8), torch.zeros(4, 8), mean_square, emulated)
spans = timeline.gather()

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = draw(
    with_idle(spans), "The naive split: one rank computes, the others wait", "emulated time (ms)"
)

# %% [markdown]
# # Part B: schedules
#
# ## 4. How large is the bubble?
#
# *Difficulty 2/5, 5 minutes.*
#
# Cut the batch into m *micro-batches*: while the second rank has the first of them, the first rank goes on with the
# second. The *bubble* is the idle time of all ranks over the time that they compute.
#
# On p ranks, each micro-batch takes a rank f seconds forward and 2f backward, with all of its layers
# together. A step ends when the last gradient is there. All forward passes come first, then all
# backward passes. Draw it for p = 3 and m = 4.
#
# **Predict in numbers**:
#
# - `naive`: the bubble of one batch in one piece;
# - `gpipe`: the bubble with m micro-batches;
# - `interleaved`: the bubble where each rank has v short stages instead of one, with an order that leaves
#   a rank idle only until the first short stage has come to it, and in the same way at the end;
# - `enough`: the smallest m (1 or more) with which `gpipe`'s bubble is a tenth or less.


# %% tags=["exercise"] exercise="predict_bubble"
# %%px
def predict_bubble(ranks: int, micro_batches: int, chunks: int) -> dict[str, float]:
    """Bubbles `naive`, `gpipe`, `interleaved` (of `chunks` = v stages a rank), and `enough`."""
    # BEGIN SOLUTION
    return {
        "naive": ranks - 1,
        "gpipe": (ranks - 1) / micro_batches,
        "interleaved": (ranks - 1) / (chunks * micro_batches),
        "enough": max(1, 10 * (ranks - 1)),
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_bubble" points=1
# %%px
check.predict_bubble(predict_bubble)

# %% tags=["hidden-check"] exercise="predict_bubble" points=1
# %%px --timeout 20
check.show_values(
    **{name: round(value, 6) for name, value in predict_bubble(6, 20, 3).items()},
    alone=[round(value, 6) for value in predict_bubble(1, 7, 2).values()],
)

# %% [markdown]
# ## 5. GPipe
#
# *Difficulty 1/5, 5 minutes.*
#
# A *schedule* is for each rank the list of its actions, in the order in which it does them. It runs
# nothing: it can be drawn, counted, and searched for deadlocks before anything is sent.
# `simulate(schedule)` plays it, `bubble` and `live` say what came out.
#
# GPipe: every rank does all its forward passes, then all its backward passes. One stage a rank; each micro-batch once
# forward and once backward.
#
# - The bubble is (p − 1)/m.
# - Any p and m from 1 on. A list of p lists of `Action`s.
#
# **Predict**: of how many micro-batches does a rank hold the activations at the end of its forward passes?
#
# <details><summary>Hint 1</summary>
#
# All ranks do the same, each with its own stage r.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `[forward(r, i) for i in range(micro_batches)]`
# </details>


# %% tags=["exercise"] exercise="gpipe"
# %%px
def gpipe(ranks: int, micro_batches: int) -> list[list[Action]]:
    """GPipe's schedule: for each rank all forward passes, then all backward passes."""
    # BEGIN SOLUTION
    return [
        [forward(r, i) for i in range(micro_batches)]
        + [backward(r, i) for i in range(micro_batches)]
        for r in range(ranks)
    ]
    # END SOLUTION


# %% tags=["check"] exercise="gpipe" points=1
# %%px
check.gpipe(gpipe)


# %% tags=["hidden-check"] exercise="gpipe" points=1
# %%px --timeout 20
def facts(schedule):
    """What every right schedule has in common."""
    spans = simulate(schedule)
    return [list(sizes(schedule)), f"{bubble(spans):.6f}", live(spans)]


check.show_values(five=facts(gpipe(5, 3)), alone=facts(gpipe(1, 2)), one=facts(gpipe(3, 1)))

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Of all m. More micro-batches make the bubble smaller, and do not lower what a rank has to hold.
# </details>
#
# ## 6. 1F1B
#
# *Difficulty 3/5, 15 minutes.*
#
# A backward pass frees what its forward pass kept. So do it as soon as you can: **one forward, one
# backward**. A rank first does as many forward passes as it takes until the first gradient can come back to
# it (*warm-up*), then one forward and one backward pass by turns, then the backward passes that are left.
#
# - The bubble is GPipe's, (p − 1)/m.
# - Rank r holds the activations of p − r micro-batches at most (of m, where that is less).
# - No deadlock. Any p and m from 1 on, also m < p.
#
# **Predict**: p = 4. How many forward passes does rank 1 do before its first backward pass?
#
# <details><summary>Hint 1</summary>
#
# The last rank has no warm-up: its first forward pass is followed by its first backward pass. The rank
# before has to give one micro-batch away first.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `warm_up = min(p - r - 1, m)`: the actions are `F[:warm_up]`, then pairs of `F[warm_up + i]` and
# `B[i]`, then the rest of `B`.
# </details>


# %% tags=["exercise"] exercise="one_f_one_b"
# %%px
def one_f_one_b(ranks: int, micro_batches: int) -> list[list[Action]]:
    """1F1B: the bubble of GPipe, with the activations of `ranks` micro-batches at most."""
    # BEGIN SOLUTION
    schedule = []
    for r in range(ranks):
        forwards = [forward(r, i) for i in range(micro_batches)]
        backwards = [backward(r, i) for i in range(micro_batches)]
        warm_up = min(ranks - r - 1, micro_batches)
        actions = forwards[:warm_up]
        for number, action in enumerate(forwards[warm_up:]):
            actions += [action, backwards[number]]
        schedule.append(actions + backwards[micro_batches - warm_up :])
    return schedule
    # END SOLUTION


# %% tags=["check"] exercise="one_f_one_b" points=3
# %%px
check.one_f_one_b(one_f_one_b)


# %% tags=["hidden-check"] exercise="one_f_one_b" points=1
# %%px --timeout 20
def holds_little(schedule, limits):
    """As `facts`, with whether no rank holds more than its limit."""
    spans = simulate(schedule)
    few = all(held <= most + 1e-9 for held, most in zip(live(spans), limits, strict=True))
    return [list(sizes(schedule)), f"{bubble(spans):.6f}", few]


check.show_values(
    many=holds_little(one_f_one_b(5, 12), [5, 4, 3, 2, 1]),
    few=holds_little(one_f_one_b(4, 2), [2, 2, 2, 1]),
    alone=holds_little(one_f_one_b(1, 3), [1]),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Three: two for the warm-up, and the forward pass of its first pair. At that point it holds three micro-batches, p − r.
# </details>
#
# What such lists lead to is known before anything is sent. `F2` is the forward pass of micro-batch 2 here. Once they are
# printed, the cell moves rank 1's first backward pass a little too early. Which ranks then wait for each other?

# %%
# %%px --targets 0
lists = one_f_one_b(4, 6)
for r, actions in enumerate(lists):
    print(f"rank {r}: {texts(actions, 4)}")
lists[1].remove(backward(1, 0))
lists[1].insert(1, backward(1, 0))
try:
    simulate(lists)
except Deadlock as error:
    print(error)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
planned = simulate(one_f_one_b(4, 6), forward=1e-3, backward=2e-3)
passes = [Span(s.rank, texts([s.action], 4), "compute", s.start, s.end) for s in planned]
drawn, axes = draw(
    with_idle(passes), "1F1B, from its lists: nothing has run yet", "time (forward passes)"
)

# %% [markdown]
# ## 7. What does a rank hold and send?
#
# *Difficulty 2/5, 5 minutes.*
#
# **Predict in numbers**, for a step on p = `ranks` ranks with m = `micro_batches`:
#
# - `gpipe`: of how many micro-batches rank `rank` (from 0) holds the activations at most;
# - `one_f_one_b`: the same with 1F1B;
# - `messages`: how many tensors go from one rank to another in a step, on all ranks together, where each
#   rank has `chunks` = v stages (p is 2 or more).


# %% tags=["exercise"] exercise="predict_live"
# %%px
def predict_live(ranks: int, micro_batches: int, chunks: int, rank: int) -> dict[str, float]:
    """Micro-batches held with `gpipe` and `one_f_one_b`; `messages` of a step."""
    # BEGIN SOLUTION
    return {
        "gpipe": micro_batches,
        "one_f_one_b": min(ranks - rank, micro_batches),
        "messages": 2 * micro_batches * (ranks * chunks - 1),
    }
    # END SOLUTION


# %% tags=["check"] exercise="predict_live" points=1
# %%px
check.predict_live(predict_live)

# %% tags=["hidden-check"] exercise="predict_live" points=1
# %%px --timeout 20
check.show_values(
    middle=[round(value, 6) for value in predict_live(8, 32, 2, 3).values()],
    few=[round(value, 6) for value in predict_live(6, 2, 1, 0).values()],
)

# %% [markdown]
# ## 8. Run any schedule
#
# *Difficulty 4/5, 20 minutes.*
#
# Now the schedule is run, whichever it is: any number of stages a rank, any order that is no deadlock.
#
# `__init__` takes the rank's `share`, the `schedule` of all ranks, `loss_of`, and the `group`. It refuses a schedule
# with a deadlock, or one that is not complete: `simulate(schedule)` raises for both. It refuses one for other numbers
# of ranks or stages than those of `group` and `share` with a `ValueError`. Nothing is sent by it.
#
# `step(inputs, targets)`:
#
# - Does this rank's actions, **in the schedule's order**, each once: no stage computes a forward pass again. (Dropout
#   would draw again, and BatchNorm count the batch twice.)
# - The batch is cut into m micro-batches, with `tensor_split(m)`: their sizes may differ by one. All ranks cut alike.
#   Fewer samples than m are refused with a `ValueError`. As before, `inputs` count on the first stage's rank and
#   `targets` on the last one's; elsewhere, their number of samples does.
# - `loss_of` gives the *mean* loss of the samples that it gets. The step's loss is the mean over all samples of the
#   batch: **each micro-batch counts by its share of the samples**. The rank of the last stage returns it as a float,
#   all others None.
# - Afterwards `.grad` is the gradient of that loss, summed over the micro-batches. (Before the step it is None.) The
#   weights stay as they are: they change between steps, not between micro-batches. As before, a stage stays in its
#   mode, its parameters may be frozen, and `inputs` may be tokens.
# - A backward pass **frees** what its forward pass kept: then the rank holds nothing of that micro-batch but what is
#   still on its way to another rank.
# - Stages on one rank hand over directly. Only activations and their gradients are sent, each once, and all have
#   arrived at the end.
#
# **Predict**: the loss is not divided by m, and SGD steps by it. What does the curve look like? And with Adam?
#
# <details><summary>Hint 1</summary>
#
# `held[stage, micro_batch] = x, y` after a forward pass; `x, y = held.pop((stage, micro_batch))` before the backward
# pass. `inputs.tensor_split(m)` are views: they cost nothing.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `y = loss_of(y, targets_i) * (len(targets_i) / len(targets))` in the last stage. `sizes(schedule)` gives p, v and m.
# </details>
#
# <details><summary>Hint 3</summary>
#
# `naive_step` is the pattern: what it does before `y.backward(…)` is the forward action, the rest is the backward
# action.
# </details>


# %% tags=["exercise"] exercise="pipeline"
# %%px
class Pipeline:
    """Runs a schedule: `step(inputs, targets)` leaves the batch's gradients, and gives its loss."""

    def __init__(
        self, share: Share, schedule: list[list[Action]], loss_of, group: dist.ProcessGroup
    ) -> None:
        self.share, self.loss_of, self.group = share, loss_of, group
        # BEGIN SOLUTION
        simulate(schedule)
        ranks, chunks, self.micro_batches = sizes(schedule)
        if ranks != group.size() or ranks * chunks != share.count:
            raise ValueError(
                f"a schedule for {ranks} ranks with {chunks} stages each: there are "
                f"{group.size()} ranks, and {share.count} stages"
            )
        self.actions = schedule[group.rank()]
        # END SOLUTION

    def step(self, inputs: torch.Tensor, targets: torch.Tensor) -> float | None:
        """Gradients of the mean loss of a batch; the loss, on the rank of the last stage."""
        # BEGIN SOLUTION
        if len(inputs) < self.micro_batches:
            raise ValueError(
                f"{len(inputs)} samples do not make {self.micro_batches} micro-batches"
            )
        xs, ts = inputs.tensor_split(self.micro_batches), targets.tensor_split(self.micro_batches)
        mailbox = Mailbox(self.share, self.group)
        last = self.share.count - 1
        held, losses = {}, []
        for action in self.actions:
            kind, stage, i = action
            if kind == "forward":
                x = xs[i]
                if stage > 0:
                    x = mailbox.receive(action, len(x)).requires_grad_()
                y = self.share.own[stage](x)
                if stage == last:
                    y = self.loss_of(y, ts[i]) * (len(ts[i]) / len(targets))
                    losses.append(y.detach())
                else:
                    mailbox.send(forward(stage + 1, i), y)
                held[stage, i] = x, y
            else:
                x, y = held.pop((stage, i))
                gradient = None if stage == last else mailbox.receive(action, len(xs[i]))
                if y.requires_grad:
                    y.backward(gradient)
                if stage > 0:
                    mailbox.send(backward(stage - 1, i), x.grad)
        mailbox.finish()
        return sum(losses).item() if losses else None
        # END SOLUTION


# %% tags=["check"] exercise="pipeline" points=5
# %%px --timeout 90
check.pipeline(Pipeline)


# %% tags=["hidden-check"] exercise="pipeline" points=2
# %%px --timeout 20
def in_rounds(ranks, chunks, micro_batches):
    """A schedule of its own: micro-batches two by two, each pair forward and then back."""
    schedule = [[] for _ in range(ranks)]
    stages = range(ranks * chunks)
    for first in range(0, micro_batches, 2):
        pair = range(first, min(first + 2, micro_batches))
        for stage in stages:
            schedule[stage % ranks] += [forward(stage, i) for i in pair]
        for stage in reversed(stages):
            schedule[stage % ranks] += [backward(stage, i) for i in reversed(pair)]
    return schedule


def pipeline_values(chunks, micro_batches, samples, frozen=()):
    layers = counting_layers(2 * world_size + 1)
    x = torch.arange(2.0 * samples, dtype=torch.float64, device=device).view(samples, 2) / 9
    targets = torch.ones(samples, layers[-1][0].out_features, dtype=torch.float64, device=device)
    share = share_of(split_model(layers, world_size * chunks), x[:1], rank, world_size, device)
    for stage in share.own.keys() & set(frozen):
        share.own[stage].requires_grad_(False)
    pipeline = Pipeline(share, in_rounds(world_size, chunks, micro_batches), squares, group)
    try:
        return shown(pipeline.step(x, targets), share)
    except ValueError:
        return "refused"


def refuses(schedule):
    stages = split_model(counting_layers(world_size), world_size)
    sample = torch.zeros(1, 2, dtype=torch.float64, device=device)
    try:
        Pipeline(share_of(stages, sample, rank, world_size, device), schedule, squares, group)
    except ValueError:
        return True
    return False


check.show_values(
    even=pipeline_values(1, 3, 9),
    odd=pipeline_values(2, 5, 13),
    one=pipeline_values(2, 1, 1),
    few=pipeline_values(1, 4, 3),
    frozen=pipeline_values(1, 2, 5, range(world_size - 1)),
    refused=[
        refuses([own[::-1] for own in in_rounds(world_size, 1, 3)]),
        refuses(in_rounds(2 * world_size, 1, 3)),
        refuses(in_rounds(world_size, 2, 3)),
        refuses(in_rounds(1, world_size, 3)) or world_size == 1,
    ],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# SGD steps m times too far, and may well diverge. Adam divides by the size of its gradients: the curve is nearly
# right, and the mistake stays. Test with SGD.
# </details>
#
# Your own runs, drawn: GPipe and 1F1B on stages of a set duration.

# %%
# %%px --timeout 60
PIECES = 6


def timed_run(schedule, group):
    """The spans of a step on stages of a set duration, of the quickest of three."""
    ranks, stages_a_rank, micro_batches = sizes(schedule)
    share = timed_share(ranks, stages_a_rank, FORWARD / stages_a_rank, BACKWARD / stages_a_rank)
    timeline, runs = Timeline(comm.Split(rank < ranks)), []
    record(share, timeline, ranks, micro_batches)
    if rank >= ranks:
        return []
    pipeline = Pipeline(share, schedule, mean_square, group)
    inputs, targets = torch.ones(micro_batches, 8), torch.zeros(micro_batches, 8)
    for _ in range(3):
        timeline.clear()
        dist.barrier(group=group)
        pipeline.step(inputs, targets)
        runs.append(timeline.gather())
    return min(runs, key=lambda spans: max(span.end for span in spans))


def bubble_of(spans):
    """Idle time over computing time, of what was recorded."""
    ranks = len({span.rank for span in spans})
    busy = sum(span.seconds for span in spans)
    return ranks * max(span.end for span in spans) / busy - 1


gpipe_spans = timed_run(gpipe(world_size, PIECES), emulated)
turns_spans = timed_run(one_f_one_b(world_size, PIECES), emulated)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = draw(
    with_idle(gpipe_spans),
    "GPipe: all forward passes, then all backward passes",
    "emulated time (ms)",
)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = draw(
    with_idle(turns_spans),
    "1F1B: the same bubble, and a backward pass at once",
    "emulated time (ms)",
)

# %% [markdown]
# The bubble, measured beside the formula, on two ranks and on all of them, for several m. (Each of the
# quickest of three steps: what disturbs a step makes it longer.)

# %% tags=["nbval-ignore-output"]
# %%px --timeout 90
COUNTS = (1, 2, 4)
bubbles = []  # (ranks, schedule, m, measured, formula)
for ranks in sorted({min(2, world_size), world_size}):
    part = emulated if ranks == world_size else sub_group(emulated, range(ranks))
    for make in (gpipe, one_f_one_b):
        for m in COUNTS:
            if spans := timed_run(make(ranks, m), part):
                bubbles.append((ranks, make.__name__, m, bubble_of(spans), (ranks - 1) / m))
far = [abs(measured / right - 1) for *_, measured, right in bubbles if right]
if rank == 0 and far:
    print(f"the bubbles are within {100 * max(far):.0f} % of (p − 1)/m")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
for ranks, name, m, measured, right in bubbles:
    print(f"p = {ranks}, m = {m}, {name}: {measured:.3f} emulated, {right:.3f} by the formula")

# %% [markdown]
# And what a rank holds: the small GPT with more and more micro-batches of the same size. The most bytes that the
# tensors of a step take at a time, beside weights and gradients, which are there before.

# %%
# %%px --timeout 90
config = models.GPTConfig(hidden_size=32, sequence_length=32, layers=2 * world_size - 1)


def fresh_gpt():
    torch.manual_seed(0)
    return models.GPT(config).to(device)


def token_loss(scores, targets):
    return F.cross_entropy(scores.flatten(0, 1), targets.flatten())


SAMPLES = 8
windows = torch.from_numpy(text("train", 10 * 48 * 33).astype("int64")).view(-1, 33).to(device)
peaks = {}
for make in (gpipe, one_f_one_b):
    for m in (4, 8, 16):
        tokens = windows[: SAMPLES * m]
        stages = split_model(layers_of(fresh_gpt()), world_size)
        share = share_of(stages, tokens[:1, :-1], rank, world_size, device)
        pipeline = Pipeline(share, make(world_size, m), token_loss, group)
        pipeline.step(tokens[:, :-1], tokens[:, 1:])  # gradients are there from here on
        with memory.Peak(device) as peak:
            pipeline.step(tokens[:, :-1], tokens[:, 1:])
        peaks[make.__name__, m] = comm.allgather(peak.bytes)
if rank == 0:
    grows = [peaks["gpipe", 16][r] / peaks["gpipe", 8][r] > 1.5 for r in range(world_size)]
    flat = [peaks["one_f_one_b", 16][r] / peaks["one_f_one_b", 8][r] < 1.2
            for r in range(world_size)]  # fmt: skip
    print(f"twice the micro-batches: GPipe's peak grows on every rank {all(grows)}, "
          f"1F1B's on none {all(flat)}")  # fmt: skip

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
from parlab import plots

drawn, axes = plots.subplots("1F1B: what a rank holds does not grow with m", 1, 2, sharey=True)
for column, name in zip(axes, ("gpipe", "one_f_one_b"), strict=True):
    for r in range(world_size):
        values = [peaks[name, m][r] / 1e6 for m in (4, 8, 16)]
        column.plot((4, 8, 16), values, **plots.artist(plots.series(r, f"rank {r}")))
    column.set(title=name, xlabel="micro-batches", xticks=(4, 8, 16))
axes[0].set_ylabel("peak of a step (MB)")
legend = axes[0].legend(frameon=False, labelcolor=plots.NEUTRAL)

# %% [markdown]
# How many micro-batches? PyTorch's tutorial on model parallelism cuts a batch of 120 images for two GPUs, and
# takes 2.51 s for it in pieces of 20: 49 % faster than one GPU (3.75 s), and 60 % faster than the naive split (4.02 s).
# More pieces fill the pipeline, and each pass has a fixed cost of its own. Here a pass of the whole batch takes 60 ms
# forward and 120 ms backward, and each pass 3 % of that besides, however small its piece.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
WHOLE, FIXED = 60e-3, 0.03


def split_seconds(ranks, pieces, group):
    """The quickest of three steps of a batch in so many pieces."""
    took = []
    for _ in range(3):
        one = WHOLE * (FIXED + 1 / pieces)
        share = timed_share(ranks, 1, one, 2 * one)
        pipeline = Pipeline(share, gpipe(ranks, pieces), mean_square, group)
        dist.barrier(group=group)
        start = time.perf_counter()
        pipeline.step(torch.ones(120, 8), torch.zeros(120, 8))
        dist.barrier(group=group)
        took.append(time.perf_counter() - start)
    return min(took)


two = min(2, world_size)
pair = emulated if two == world_size else sub_group(emulated, range(two))
pieces_tried = (1, 2, 3, 6, 12, 24)
took = {n: split_seconds(two, n, pair) for n in pieces_tried} if rank < two else {}
gain = took[1] / min(took.values()) - 1 if took else 0.0

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("Two ranks: too few pieces wait, too many cost")
bars = axes.bar(
    [str(120 // n) for n in took], [1e3 * s for s in took.values()], **plots.hatched("compute")
)
axes.set(xlabel="samples in a micro-batch, of 120", ylabel="emulated step (ms)")
print(f"{100 * gain:.0f} % faster than the naive split")

# %% [markdown]
# ## 9. Interleaved 1F1B
#
# *Difficulty 5/5, 20 minutes.*
#
# A rank idles while the pipeline fills and while it empties, for p − 1 passes of a whole share each way. Give each
# rank v short stages instead of a long one, stage s to rank s % p: the first micro-batch comes to the last rank v
# times sooner, the last gradient back to the first as much sooner, and the bubble is v times smaller.
#
# Each rank counts its forward passes k = 0, 1, 2, …, m·v − 1, and goes through them like this: p micro-batches
# through its first stage, the same p through its second, …, through its v-th; then the next p micro-batches. The
# backward passes are in the same order of micro-batches, but go through its stages **from the last to the first**.
# Warm-up on rank r, for v > 1: 2 (p − r − 1) + (v − 1) p forward passes, or all where these are fewer. (With v = 1 it
# is that of 1F1B, p − r − 1.) Then one forward and one backward pass by turns; then the backward passes that are
# left.
#
# - The bubble is (p − 1)/(v m).
# - A rank never holds more than its warm-up and one forward pass more.
# - m is a multiple of p: else a `ValueError` that names both. Any p, v and m otherwise.
# - No deadlock. An order of your own that keeps all this is as right.
#
# **Predict**: what does the smaller bubble cost?
#
# <details><summary>Hint 1</summary>
#
# Of the k-th forward pass: the micro-batches' group is `k // (p * v)`, its place in the group `k % p`, and the rank's
# stage `k // p % v`, which is stage `r + p * (k // p % v)` of the model.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Backward the same, with `v - 1 - k // p % v`. The rest is `one_f_one_b` with longer lists.
# </details>


# %% tags=["exercise"] exercise="interleaved"
# %%px
def interleaved(ranks: int, micro_batches: int, chunks: int) -> list[list[Action]]:
    """1F1B with `chunks` stages a rank; stage s is on rank s % `ranks`."""
    # BEGIN SOLUTION
    if micro_batches % ranks:
        raise ValueError(f"{micro_batches} micro-batches are no multiple of {ranks} ranks")
    schedule = []
    for r in range(ranks):
        forwards, backwards = [], []
        for k in range(micro_batches * chunks):
            i = k // (ranks * chunks) * ranks + k % ranks
            chunk = k // ranks % chunks
            forwards.append(forward(r + ranks * chunk, i))
            backwards.append(backward(r + ranks * (chunks - 1 - chunk), i))
        ahead = ranks - r - 1
        warm_up = min(2 * ahead + (chunks - 1) * ranks if chunks > 1 else ahead, len(forwards))
        actions = forwards[:warm_up]
        for number, action in enumerate(forwards[warm_up:]):
            actions += [action, backwards[number]]
        schedule.append(actions + backwards[len(forwards) - warm_up :])
    return schedule
    # END SOLUTION


# %% tags=["check"] exercise="interleaved" points=4
# %%px
check.interleaved(interleaved)


# %% tags=["hidden-check"] exercise="interleaved" points=1
# %%px --timeout 20
def refused(*sizes):
    try:
        interleaved(*sizes)
    except ValueError as error:
        return all(str(number) in str(error) for number in sizes[:2])
    return False


check.show_values(
    two=holds_little(interleaved(3, 9, 2), [4, 3, 2]),
    four=holds_little(interleaved(2, 4, 4), [9 / 4, 7 / 4]),
    one=holds_little(interleaved(4, 8, 1), [4, 3, 2, 1]),
    alone=holds_little(interleaved(1, 3, 2), [1]),
    refused=[refused(4, 6, 2), refused(3, 8, 1)],
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# Messages: 2m(pv − 1) instead of 2m(p − 1), a little more than v times as many, since every stage's end is a place
# where the model is cut. And activations: rank 0 holds more than with 1F1B.
# </details>
#
# Now run it with two micro-batches for each rank, beside 1F1B with as many. (The pictures of GPipe and 1F1B have six
# in all: compare what is idle there, not when it ends.)

# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
one_stage = bubble_of(timed_run(one_f_one_b(world_size, 2 * world_size), emulated))
spans = timed_run(interleaved(world_size, 2 * world_size, 2), emulated)
if rank == 0 and world_size > 1:
    print(f"{bubble_of(spans) / one_stage:.2f} of the bubble of 1F1B, emulated; by the formula 0.5")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = draw(
    with_idle(spans),
    "Interleaved: the last rank begins sooner, and all end sooner",
    "emulated time (ms)",
)

# %% [markdown]
# # Part C: the same curve
#
# ## 10. A weight at both ends
#
# *Difficulty 3/5, 10 minutes.*
#
# The GPT's output layer *is* its embedding. Cut into stages, the first rank has one and the last has the other: two
# copies of one weight, and each gets only a part of its gradient. Sum the two, and both take the same step for ever.
#
# - `weight` is this rank's copy on ranks `first` and `last` of `group`, and None on all others.
# - Afterwards both copies' `.grad` is the sum, the same numbers on both. A copy whose `.grad` is None counts as zeros.
# - The two ranks send each other one message; nobody else sends or waits. `weight` itself stays as it is, and what is
#   on its way does not change before `wait()` on its handle returns.
# - With `first == last` the weight is one parameter, and autograd has summed it already: nothing to do, and a `.grad`
#   that is None stays None.
#
# **Predict**: somebody adds the gradient on the last rank only. What happens to the two copies?
#
# <details><summary>Hint 1</summary>
#
# Each of the two sends its own and receives the other's. If both wait to send first, nobody receives.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `work = dist.isend(weight.grad, group=group, group_dst=other)`, then
# `dist.recv(theirs, group=group, group_src=other)`, then `work.wait()`, and only then the sum.
# </details>


# %% tags=["exercise"] exercise="sum_tied"
# %%px
def sum_tied(weight: nn.Parameter | None, first: int, last: int, group: dist.ProcessGroup) -> None:
    """Sum the gradients of a weight that ranks `first` and `last` both have a copy of."""
    # BEGIN SOLUTION
    if first == last or group.rank() not in (first, last):
        return
    other = first + last - group.rank()
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    theirs = torch.empty_like(weight.grad)
    work = dist.isend(weight.grad, group=group, group_dst=other)
    dist.recv(theirs, group=group, group_src=other)
    work.wait()
    weight.grad += theirs
    # END SOLUTION


# %% tags=["check"] exercise="sum_tied" points=2
# %%px
check.sum_tied(sum_tied)


# %% tags=["hidden-check"] exercise="sum_tied" points=1
# %%px --timeout 20
def tied(first, last, empty=False):
    weight = None
    if rank in (first, last):
        weight = nn.Parameter(torch.ones(2, 3, dtype=torch.float64, device=device))
        if not (empty and rank == last):
            weight.grad = torch.arange(6.0, device=device).double().view(2, 3) * (rank + 1) / 3
    comm.Barrier()  # no message of the next call comes into this one
    sum_tied(weight, first, last, group)
    if weight is None:
        return None
    return [weight.tolist(), None if weight.grad is None else weight.grad.tolist()]


check.show_values(
    ends=tied(0, world_size - 1),
    empty=tied(0, world_size - 1, empty=world_size > 1),
    inner=tied(world_size - 1, world_size // 2),
    one=tied(world_size - 1, world_size - 1),
    nothing=tied(world_size - 1, world_size - 1, empty=True),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# They drift apart: the embedding learns from its tokens alone, the output layer from both. The loss falls all the same.
# </details>
#
# Now train. MNIST and the small GPT, with SGD and Adam, with three schedules, beside a plain loop on one rank. 250
# images do not divide into the micro-batches, and an odd number of layers not into the stages.


# %%
# %%px --timeout 120
def mnist_layers():
    torch.manual_seed(0)
    first = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.LayerNorm(64), nn.ReLU())
    inner = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())
             for _ in range(2 * world_size - 1)]  # fmt: skip
    return [layer.to(device) for layer in (first, *inner, nn.Linear(64, 10))]


images, labels = (torch.from_numpy(part).to(device) for part in mnist("train", limit=2500))
image_batches = list(zip(images.split(250), labels.split(250), strict=True))
token_batches = [(b[:, :-1], b[:, 1:]) for b in windows.split(48)]
micro_batches = 2 * world_size
schedules = {
    "GPipe": gpipe(world_size, micro_batches),
    "1F1B": one_f_one_b(world_size, micro_batches),
    "interleaved": interleaved(world_size, micro_batches, 2),
}
optimizers = {
    "SGD": partial(torch.optim.SGD, lr=0.05, momentum=0.9),
    "Adam": partial(torch.optim.Adam, lr=1e-3),
}
tasks = {
    "MNIST": (mnist_layers, F.cross_entropy, image_batches),
    "GPT": (lambda: layers_of(fresh_gpt()), token_loss, token_batches),
}


def serial_losses(layers, loss_of, make_optimizer, batches):
    model, losses = nn.Sequential(*layers), []
    optimizer = make_optimizer(model.parameters())
    for x, y in batches:
        optimizer.zero_grad()
        loss = loss_of(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def tied_weight(layers, share):
    """This rank's copy of the GPT's tied weight; None where it has none."""
    for layer, stage, name in ((layers[0], 0, "tokens"), (layers[-1], share.count - 1, "unembed")):
        if stage in share.own and hasattr(layer, name):
            return getattr(layer, name).weight
    return None


def pipeline_losses(layers, loss_of, make_optimizer, batches, schedule):
    stages = split_model(layers, world_size * sizes(schedule)[1])
    share = share_of(stages, batches[0][0][:1], rank, world_size, device)
    weight = tied_weight(layers, share)
    pipeline = Pipeline(share, schedule, loss_of, group)
    optimizer, losses = make_optimizer(share.parameters()), []
    for x, y in batches:
        optimizer.zero_grad()
        loss = pipeline.step(x, y)
        if comm.allreduce(int(weight is not None)):
            sum_tied(weight, 0, world_size - 1, group)
        optimizer.step()
        losses.append(comm.bcast(loss, root=world_size - 1))
    return losses


def gap(losses, others):
    return max(abs(a - b) for a, b in zip(losses, others, strict=True))


curves = {}
for task, (make_layers, loss_of, batches) in tasks.items():
    for optimizer_name, make_optimizer in optimizers.items():
        curve = curves[f"{task}, {optimizer_name}"] = {
            "one rank": serial_losses(make_layers(), loss_of, make_optimizer, batches)
        }
        for name, schedule in schedules.items():
            # Every rank makes the same model and keeps its own stages: copies tie no ranks.
            curve[name] = pipeline_losses(make_layers(), loss_of, make_optimizer, batches, schedule)
        same = max(gap(curve["one rank"], losses) for losses in curve.values()) < 1e-3
        if rank == 0:
            print(f"{task}, {optimizer_name}: the losses of one rank, step by step: {same}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.same_curves("One curve: one rank, and a pipeline by three schedules", curves)

# %% [markdown]
# # With remote calls
#
# There is another way to write the naive split: one rank runs the loop, and *calls* the stages of the others. A remote
# reference (`RRef`) stands for an object on another rank; distributed autograd follows the calls and sends the
# gradients back; its optimizer steps where the parameters are. PyTorch has all of it in `torch.distributed.rpc`, with a
# store and a port of its own.
#
# **Predict**: what does a step take, over your naive split? Who computes when?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 90
import logging
import os
import socket
import warnings

import torch.distributed.autograd as dist_autograd
from torch.distributed import rpc
from torch.distributed.optim import DistributedOptimizer

warnings.filterwarnings("ignore", message="You are using a Backend")  # rpc's own way with Gloo
logging.getLogger("torch.distributed.optim.optimizer").setLevel(logging.ERROR)  # see `SGD` below
with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = comm.bcast(("127.0.0.1", free.getsockname()[1]))
on_one_machine = len(set(comm.allgather(socket.gethostname()))) == 1
called_layers = split_model([layer.cpu() for layer in mnist_layers()], world_size)


class SGD(torch.optim.SGD):
    """A class of its own: for torch's, the optimizer takes TorchScript, which is to be retired."""


class Remote:
    """A stage on the rank that made it, for others to call."""

    def __init__(self, number):
        self.stage = called_layers[number]

    def forward(self, x):
        return self.stage(x)

    def parameters(self):
        return [rpc.RRef(p) for p in self.stage.parameters()]


def called_losses(batches):
    stages = [rpc.remote(f"rank{r}", Remote, (r,)) for r in range(world_size)]
    owned = [p for stage in stages for p in stage.rpc_sync().parameters()]
    optimizer = DistributedOptimizer(SGD, owned, lr=0.05)
    losses, took = [], []
    for x, y in batches:
        start = time.perf_counter()
        with dist_autograd.context() as context:
            for stage in stages:
                x = stage.rpc_sync().forward(x)
            loss = F.cross_entropy(x, y)
            dist_autograd.backward(context, [loss])
            optimizer.step(context)
        took.append(time.perf_counter() - start)
        losses.append(loss.item())
    return losses, statistics.median(took[2:])


def naive_losses(batches):
    stages = split_model([layer.cpu() for layer in mnist_layers()], world_size)
    share = share_of(stages, batches[0][0][:1], rank, world_size)
    optimizer, losses, took = torch.optim.SGD(share.parameters(), lr=0.05), [], []
    for x, y in batches:
        start = time.perf_counter()
        optimizer.zero_grad()
        loss = naive_step(share, x, y, F.cross_entropy, dist.group.WORLD)
        optimizer.step()
        losses.append(comm.bcast(loss, root=world_size - 1))
        took.append(time.perf_counter() - start)
    return losses, statistics.median(took[2:])


on_cpu = [(x.cpu(), y.cpu()) for x, y in image_batches]
called = None
if on_one_machine and device.type == "cpu":
    naive, naive_seconds = naive_losses(on_cpu)
    os.environ["GLOO_SOCKET_IFNAME"] = os.environ["TP_SOCKET_IFNAME"] = "lo"
    options = rpc.TensorPipeRpcBackendOptions(
        init_method=f"tcp://{address[0]}:{address[1]}", rpc_timeout=60
    )
    rpc.init_rpc(f"rank{rank}", rank=rank, world_size=world_size, rpc_backend_options=options)
    if rank == 0:
        called, called_seconds = called_losses(on_cpu)
    rpc.shutdown()
    if rank == 0:
        print(f"same losses as the naive split: {gap(called, naive) < 1e-3}")
        print(
            f"a step takes {called_seconds / naive_seconds:.1f} times as long as naive_step on Gloo"
        )
elif rank == 0:
    print("not run: this cell is for CPU ranks on one machine")

# %% [markdown]
# It is short, and it is naive: the loop waits in each call. To fill the time it would have to make calls for many
# micro-batches at once, and say in which order each rank takes them. That is a schedule, and then the ranks may as
# well have it from the start and run it without a caller.
#
# # Against the library
#
# `torch.distributed.pipelining` has `ScheduleGPipe`, `Schedule1F1B` and `ScheduleInterleaved1F1B`. A `PipelineStage` is
# one stage of one rank; a schedule runs the steps. The same MNIST model, cut in the same places, on the default
# group (Gloo on CPUs, NCCL on GPUs); and yours on `group` besides.

# %%
# %%px --timeout 110
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)

LIBRARY = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}
even_batches = [(x[:240], y[:240]) for x, y in image_batches]  # the library wants equal pieces


class LibraryPipeline:
    """The library's schedule of that name, with the `step` of yours."""

    def __init__(self, name, share, micro_batches):
        self.stages = [
            PipelineStage(stage, number, share.count, device) for number, stage in share.own.items()
        ]
        several = name == "interleaved"
        self.schedule = LIBRARY[name](
            self.stages if several else self.stages[0], micro_batches, loss_fn=F.cross_entropy
        )

    def step(self, inputs, targets):
        arguments = (inputs,) if rank == 0 else ()
        losses = []
        last = {"target": targets, "losses": losses} if rank == world_size - 1 else {}
        self.schedule.step(*arguments, **last)
        return torch.stack(losses).mean().item() if losses else None


def contestants(name):
    """A step of the library and of yours, each with a model and an optimizer of its own."""
    chunks, made = 2 if name == "interleaved" else 1, {}
    for who, on in {"library": None, "ours": dist.group.WORLD, "ours on group": group}.items():
        stages = split_model(mnist_layers(), world_size * chunks)
        share = share_of(stages, images[:1], rank, world_size, device)
        if who == "library":
            runner = LibraryPipeline(name, share, micro_batches)
        else:
            runner = Pipeline(share, schedules[name], F.cross_entropy, on)
        made[who] = runner, torch.optim.SGD(share.parameters(), lr=0.05)
    return made


def one_step(runner, optimizer, x, y):
    optimizer.zero_grad()
    loss = runner.step(x, y)
    optimizer.step()
    return comm.bcast(loss, root=world_size - 1)


ratios, library_runs = {}, world_size > 1
for name in LIBRARY if library_runs else ():
    made, spent = contestants(name), {}
    learned = {
        who: [one_step(*pair, *batch) for batch in even_batches[:6]] for who, pair in made.items()
    }
    for batch in even_batches[:8]:
        for who, pair in made.items():
            comm.Barrier()
            start = time.perf_counter()
            one_step(*pair, *batch)
            spent.setdefault(who, []).append(max(comm.allgather(time.perf_counter() - start)))
    ratios[name] = {
        who: statistics.median(times[1:]) / statistics.median(spent["library"][1:])
        for who, times in spent.items() if who != "library"
    }  # fmt: skip
    same = max(gap(learned["library"], learned[who]) for who in ratios[name]) < 1e-3
    if rank == 0:
        print(f"{name}: the library's losses, step by step: {same}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("A training step, over that of torch.distributed.pipelining")
rows = [(f"{name}, {who}", ratio) for name, both in ratios.items() for who, ratio in both.items()]
for row, (_, ratio) in enumerate(rows[::-1]):
    axes.barh(row, ratio, height=0.6, **plots.hatched("reference"))
axes.axvline(1, color=plots.NEUTRAL, linewidth=1)
ticks = axes.set_yticks(range(len(rows)), [name for name, _ in rows[::-1]])
axes.set_xlabel("time over the library's on the default group")
print(", ".join(f"{name} {ratio:.2f}" for name, ratio in rows))

# %% [markdown]
# What to look for:
#
# - **The same losses, the same messages.** A schedule is a schedule; the library has its own as lists of actions, too.
# - **What is left is overhead.** Stages this small take less time than their messages. A pipeline pays where a stage
#   takes much longer than its output takes to travel: the chapter has a formula for it.
# - **The library wants equal micro-batches.** Yours takes what there is.
#
# # Going further
#
# - Receive ahead: post the `irecv` of the next action before you compute this one. On which link does it win?
# - Split the backward pass: gradients of inputs first, of weights when there is nothing else to do. The bubble
#   shrinks to what the chapter calls zero bubble. `torch.autograd.grad` gives you the first half.
# - Cut by time, not by layers: measure what each takes, and let `split_model` balance the sum.
# - Throw the activations away and compute them again in the backward pass (`torch.utils.checkpoint`). What does a
#   rank hold then, and what has to be kept of dropout?
# - Two pipelines side by side with data parallelism: which ranks average which gradients, and when can they begin?
