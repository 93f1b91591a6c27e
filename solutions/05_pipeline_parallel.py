# %% [markdown]
# # Lab 05: Pipeline parallelism
#
# Tensor parallelism cuts each layer and sends messages in each of them. In pipeline parallelism, each rank
# has several whole layers, a *stage*, and sends its output to the next rank. In each direction, there is one
# message at each cut and none inside a stage. The price is waiting: a rank has nothing to do until the rank
# before it has finished. In this lab, you cut a model and run it naively. Then you also cut the batch, and write
# the schedules that reduce the idle time. You train with them, get the same gradients as on a single rank, and
# **compare idle time and activations with the formulas**.
#
# | | |
# |---|---|
# | **You will be able to** | cut a model into stages; send activations and their gradients without a deadlock; predict the bubble and the activations that a rank holds; write GPipe, 1F1B, and interleaved 1F1B as lists of actions; run any schedule; sum the gradient of a tied weight |
# | **Time** | 125 minutes: 110 for exercises, 10 for reading, 5 for the library |
# | **You need** | PyTorch; [lab 02](02_data_parallel.ipynb), or basic knowledge of ranks and messages. No GPU |
# | **Background** | [chapter 05](../book/05_pipeline_parallel.md) of the book explains what you build here |
#
# First start the ranks. They are four processes, and each has its own Python. Cells that begin with `%%px`
# run on all ranks. Other cells run in this notebook.

# %% tags=["nbval-ignore-output"]
from parlab import cluster

cluster.start()

# %%
# %%px --timeout 120
import copy
from functools import partial

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab import memory, models, timing, training
from parlab.checks import pipeline_parallel as check
from parlab.ledger import Ledger
from parlab.pipeline import Action, backward, forward
from parlab.pipeline.recorded import record
from parlab.pipeline.stages import Share, layers_of, share_of, tied_weight
from parlab.pipeline.timed import fastest_spans, mean_square, timed_share
from parlab.rank import comm, device, group, rank, world_size
from parlab.reference import use_reference
from parlab.timeline import Span, Timeline, draw, with_idle

# %% [markdown]
# All functions communicate through `torch.distributed`, on the `group` that they get as an argument:
# `group.rank()` is this rank's number, and `group.size()` is the number of ranks. If you are stuck on an
# exercise, run `use_reference("its_name")` in a `%%px` cell. It puts a solution in place, and you can
# continue.
#
# # Part A: one batch, several ranks
#
# ## 1. Cut the model
#
# *Difficulty 1/5, 5 minutes.*
#
# In this lab, a model is a list of layers. A stage is a part of this list. Stage 0 has the first layers, and
# the last stage has the last ones.
#
# - Return a list of `stages` modules of type `nn.Sequential`, with the layers in order.
# - The numbers of layers in any two stages differ by one at most. If `stages` does not divide the number of
#   layers, the **first** stages have one more. (The last stage has additional work: a model's output layer is
#   often large, and there is the loss.)
#
# Edge cases: the layers are the given objects, not copies, and the list `layers` does not change.
# With more stages than layers, or fewer than one stage, raise a `ValueError` that says so.
#
# **Predict**: there are nine layers and four ranks. Which layers does rank 1 have?
#
# <details><summary>Hint 1</summary>
#
# `divmod(len(layers), stages)` returns how many layers each stage has, and how many stages have one more.
# </details>
#
# <details><summary>Hint 2</summary>
#
# Loop over the stages, and keep the number of layers that you have already used.
# </details>


# %% tags=["exercise"] exercise="split_model"
# %%px
def split_model(layers: list[nn.Module], stages: int) -> list[nn.Sequential]:
    """Split the `layers` of a model into `stages` stages, in order, of nearly equal size."""
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
# 9 = 3 + 2 + 2 + 2. Rank 1 has layers 3 and 4, counted from 0.
# </details>
#
# `share_of(stages, sample, rank, world_size)` returns this rank's part of the stages, a `Share`:
#
# | | |
# |---|---|
# | `share.count` | the number of stages of the whole model. Stage s is on rank s % p, where p is the number of ranks, so a rank may have several stages |
# | `share.own` | this rank's stages by number: `{2: Sequential(…)}` |
# | `share.room(action, samples)` | an empty tensor of the size that an action needs from another stage |
# | `share.number(action)` | a number that no other action has |
# | `share.parameters()` | the parameters of this rank's stages, for its optimizer |
#
# A receiver must know the size of the tensor that arrives. `share_of` finds the sizes before training, with
# one sample.
#
# ## 2. Messages between stages
#
# *Difficulty 3/5, 15 minutes.*
#
# A rank executes a list of *actions*: `forward(stage, micro_batch)` and `backward(stage, micro_batch)`. An
# action has the attributes `kind` ("forward" or "backward"), `stage`, and `micro_batch`, and it can be the key
# of a dict. Most actions need a tensor from another stage. A forward pass needs the output of the stage before
# it. A backward pass needs the gradient of its own output, from the stage after it. A mailbox sends a tensor
# **to the action that needs it**.
#
# - `send(action, tensor)` sends to the rank that has `action.stage`. It **does not wait** for the receiver,
#   because two neighbors may send to each other before either receives.
# - `receive(action, samples)` returns the tensor that was sent to `action`, with this number of samples. It
#   waits until the tensor has arrived. The result has no gradient and requires none.
# - Tensors may be received in **another order** than they were sent.
# - `finish()` waits until everything that was sent has left. It is called at the end of a step, and the
#   mailbox can be used again after it.
#
# Edge cases:
#
# - If both stages are on this rank, nothing goes through `group`. Each tensor is sent once, and nothing else is
#   sent.
# - A tensor that has been sent does not keep its autograd graph alive. After `finish()`, the mailbox keeps no
#   tensor that has left or that was received.
# - `tensor` may be a view that is not contiguous, but libraries send only contiguous memory.
# - Each mailbox has its own tensors. Another mailbox on this rank does not know them.
#
# **Predict**: there are two ranks with two stages each. Rank 0 sends two activations of micro-batch 3 to rank
# 1, one for stage 1 and one for stage 3. How does rank 1 distinguish them?
#
# <details><summary>Hint 1</summary>
#
# `dist.isend(tensor, group=group, group_dst=…, tag=…)` immediately returns a handle. Keep it for `finish()`.
# Use a tag to distinguish messages. `share.number(action)` is a good one.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `dist.recv(room, group=group, group_src=…, tag=…)`. Which rank is the source? A forward pass gets its tensor
# from stage − 1, and a backward pass gets it from stage + 1. `tensor.detach()` is the same memory without the
# graph.
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
        """Return the tensor of `samples` that this rank's `action` needs from another stage."""
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
# Only the tag distinguishes them. Both come from rank 0, and both belong to micro-batch 3. Without tags, the
# tensor that was sent first is received first, whichever action it is for.
# </details>
#
# ## 3. The naive split
#
# *Difficulty 3/5, 10 minutes.*
#
# The whole batch goes through the stages, and its gradients come back. Each rank has one stage.
#
# - The batch is micro-batch 0, the only one. Only the rank of the first stage has the right `inputs`, and only
#   the rank of the last stage has the right `targets`. On other ranks, they have the same number of samples and
#   other values.
# - The last rank computes `loss_of(scores, targets)`, a tensor of shape (), and returns it as a float. All other
#   ranks return None.
# - Afterwards, each parameter of this rank has its gradient of the whole model's loss in `.grad`.
# - Each stage computes **once**. Between ranks, only activations and their gradients travel, and all of them
#   have arrived at the end.
#
# Edge cases:
#
# - `.grad` is None before the step, because the caller calls `zero_grad`. The weights do not change, and each
#   stage stays in training or evaluation mode.
# - Parameters may be *frozen* (`requires_grad=False`), even all parameters of a stage. They get no gradient and
#   stay frozen. The stages still send all gradients, because what a stage gets does not depend on what another
#   stage trains.
# - `inputs` may be tokens (integers), which have no gradient. No rank needs the gradient of the first stage's
#   inputs.
#
# Autograd does not know about other ranks. A tensor that you receive is a leaf. Ask for its gradient, and send
# the gradient back.
#
# **Predict**: for what fraction of the step does each of four ranks compute?
#
# <details><summary>Hint 1</summary>
#
# `x = mailbox.receive(forward(stage, 0), len(inputs)).requires_grad_()`. After the backward pass, `x.grad` is
# what the stage before needs.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `y.backward(gradient)` continues from a gradient that came from another rank. The last stage needs no such
# gradient, because its `y` is the loss.
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
    """Run a batch forward and backward through all stages, one stage on each rank."""
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
    if y.requires_grad:  # False if the first stage is frozen
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
    """Return layers of changing widths, whose weights count up."""
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
# Each rank computes for a quarter of the step: while one computes, three wait. The batch takes as long as on
# one rank, plus the time of the messages. The gain is memory: each rank has a quarter of the weights.
# </details>
#
# The next cells show this. The passes of these stages take a set time, during which the rank sleeps, so that
# your number of cores does not matter. The network is emulated. The picture shows your own run:

# %%
# %%px --timeout 60
from parlab.network import Link, Network, emulated_group, sub_group

FORWARD, BACKWARD = 30e-3, 60e-3  # seconds of a pass of one micro-batch through one stage
link = Link.of(alpha=20e-6, bandwidth=1e9)
network = Network(nodes=world_size, ranks_per_node=1, inside=link, between=link)
emulated = emulated_group(network)

share, timeline = timed_share(rank, world_size, 1, FORWARD, BACKWARD), Timeline(comm)
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
# Cut the batch into m *micro-batches*. While the second rank computes the first micro-batch, the first rank
# continues with the next one. The *bubble* is the idle time of all ranks, divided by the time that they compute.
#
# There are p ranks. For each micro-batch, a rank computes f seconds forward and 2f backward in all
# of its layers. A step ends when the last gradient is complete. All forward passes come first, and
# then all backward passes. Draw this for p = 3 and m = 4.
#
# **Predict in numbers**:
#
# - `naive`: the bubble if the batch is one piece
# - `gpipe`: the bubble with m micro-batches
# - `interleaved`: the bubble with m micro-batches if each rank has v short stages instead of one long stage. A pass
#   through a short stage takes a v-th of the time. A rank waits for as many passes as before, but
#   these are short. (With m < p, the bubble may be larger. Ignore this here.)
# - `enough`: the smallest m (1 or more) with which `gpipe`'s bubble is a tenth or less


# %% tags=["exercise"] exercise="predict_bubble"
# %%px
def predict_bubble(ranks: int, micro_batches: int, chunks: int) -> dict[str, float]:
    """Return the bubbles `naive`, `gpipe`, and `interleaved` (`chunks` = v), and `enough`."""
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
def predicted_bubbles(*sizes):
    names, predicted = ("naive", "gpipe", "interleaved", "enough"), predict_bubble(*sizes)
    return {name: round(predicted[name], 6) for name in names}


check.show_values(**predicted_bubbles(6, 20, 3), alone=predicted_bubbles(1, 7, 2))

# %% [markdown]
# ## 5. GPipe
#
# *Difficulty 1/5, 5 minutes.*
#
# A *schedule* has a list of actions for each rank, in the order in which the rank executes them. A schedule does
# not run anything by itself. You can draw it, count its actions, and search it for deadlocks before anything is
# sent. The next cell imports the tools for that: `simulate(schedule)` computes when each action runs, and
# `bubble` and `live` evaluate the result.

# %%
# %%px
from parlab.pipeline import Deadlock, bubble, live, simulate, sizes, texts

# %% [markdown]
# In GPipe's schedule, each rank does all its forward passes, and then all its backward passes. Each rank has one
# stage, and each micro-batch goes once forward and once backward through it.
#
# - Return a list of p lists of `Action`s. p and m are 1 or more.
# - The bubble is (p − 1)/m.
#
# **Predict**: how many micro-batches' activations does a rank hold at the end of its forward
# passes?
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
# It holds all m. More micro-batches make the bubble smaller, but they do not reduce what a rank holds.
# </details>
#
# ## 6. 1F1B
#
# *Difficulty 3/5, 15 minutes.*
#
# A backward pass frees what its forward pass kept, so do it as soon as possible: **one forward, one backward**. A
# rank first does some forward passes, the *warm-up*, because its first gradient comes back only after the ranks
# after it have done their passes. Then it alternates between one forward and one backward pass, and begins with a
# forward pass. Finally, it does the remaining backward passes.
#
# - The bubble is GPipe's, (p − 1)/m.
# - Rank r holds the activations of p − r micro-batches at most, or of m if that is less.
# - There is no deadlock. p and m are 1 or more, and m < p is possible.
#
# **Predict**: p = 4 and m = 6. How many forward passes does rank 1 do before its first backward pass?
#
# <details><summary>Hint 1</summary>
#
# The last rank has no warm-up: its first forward pass is followed by its first backward pass. The rank before it
# has to send one micro-batch first.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `warm_up = min(p - r - 1, m)`. The actions are `F[:warm_up]`, then pairs of `F[warm_up + i]` and `B[i]`, and
# then the rest of `B`.
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
    few = all(held <= limit + 1e-9 for held, limit in zip(live(spans), limits, strict=True))
    return [list(sizes(schedule)), f"{bubble(spans):.6f}", few]


check.show_values(
    many=holds_little(one_f_one_b(5, 12), [5, 4, 3, 2, 1]),
    few=holds_little(one_f_one_b(4, 2), [2, 2, 2, 1]),
    alone=holds_little(one_f_one_b(1, 3), [1]),
)

# %% [markdown]
# <details><summary>What you predicted</summary>
#
# It does three: two for the warm-up, and the forward pass of its first pair. At this point, it holds three
# micro-batches, which is p − r.
# </details>
#
# You can find out what a schedule leads to before anything is sent. The next cell prints one (`F2` is the forward
# pass of micro-batch 2). Then it moves rank 1's first backward pass a little too early. Which ranks wait for each
# other after that?

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
# - `gpipe`: the largest number of micro-batches whose activations rank `rank` (counted from 0) holds, with one stage
#   on each rank
# - `one_f_one_b`: the same number with 1F1B
# - `messages`: the number of tensors that all ranks together send in a step, if each rank has `chunks` = v stages
#   (p is 2 or more)


# %% tags=["exercise"] exercise="predict_live"
# %%px
def predict_live(ranks: int, micro_batches: int, chunks: int, rank: int) -> dict[str, float]:
    """Return how many micro-batches a rank holds (two schedules), and the `messages` of a step."""
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
def live_values(*sizes):
    names, predicted = ("gpipe", "one_f_one_b", "messages"), predict_live(*sizes)
    return {name: round(predicted[name], 6) for name in names}


check.show_values(middle=live_values(8, 32, 2, 3), few=live_values(6, 2, 1, 0))

# %% [markdown]
# ## 8. Run any schedule
#
# *Difficulty 4/5, 20 minutes.*
#
# Now write a class that runs any schedule, with any number of stages for each rank, and in any order that has no
# deadlock.
#
# `__init__` gets the rank's `share`, the `schedule` of all ranks, `loss_of`, and the `group`. It refuses a
# schedule with a deadlock or with missing actions: `simulate(schedule)` raises an error for both. If the schedule
# is for another number of ranks or stages than those of `group` and `share`, it raises a `ValueError`. `__init__`
# sends nothing.
#
# `step(inputs, targets)` does the following:
#
# - It executes this rank's actions, **in the schedule's order**, each once. No stage computes a forward pass again.
#   (Dropout would draw other numbers, and BatchNorm would count the batch twice.)
# - All ranks cut the batch into m micro-batches with `tensor_split(m)`, so their sizes may differ by one.
# - `loss_of` returns the *mean* loss of the samples that it gets. The step's loss is the mean over all samples of
#   the batch: **each micro-batch counts by its share of the samples**. The rank of the last stage returns it as a
#   float, and all others return None.
# - Afterwards, `.grad` is the gradient of this loss, summed over the micro-batches. The weights change between
#   steps, not between micro-batches.
# - A backward pass **frees** what its forward pass kept. After it, the rank holds nothing of this micro-batch,
#   except what it has sent (the mailbox may keep this until `finish()`), and what a local variable still names
#   during the next action.
#
# Edge cases, most of them as in exercise 3:
#
# - With fewer samples than m, raise a `ValueError`.
# - `inputs` have the right values on the rank of the first stage, and `targets` on the rank of the last one. On
#   other ranks, they have the right number of samples. `inputs` may be tokens.
# - `.grad` is None before the step. Parameters may be frozen. A stage stays in its mode.
# - Stages on the same rank pass tensors directly. Only activations and their gradients are sent, each once, and
#   all have arrived at the end.
#
# **Predict**: somebody sums the gradients of the micro-batches' mean losses, and does not divide by m. (The loss
# that `step` returns is right.) What does the learning curve look like with SGD? And with Adam?
#
# <details><summary>Hint 1</summary>
#
# `held[stage, micro_batch] = x, y` after a forward pass, and `x, y = held.pop((stage, micro_batch))` before the
# backward pass. `inputs.tensor_split(m)` returns views, which cost nothing.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `y = loss_of(y, targets_i) * (len(targets_i) / len(targets))` in the last stage. `sizes(schedule)` returns p, v,
# and m.
# </details>
#
# <details><summary>Hint 3</summary>
#
# `naive_step` is the pattern. The part before `y.backward(…)` is the forward action, and the rest is the backward
# action.
# </details>


# %% tags=["exercise"] exercise="pipeline"
# %%px
class Pipeline:
    """Runs a schedule: `step(inputs, targets)` computes gradients and returns the batch's loss."""

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
        """Compute the gradients of the mean loss. The rank of the last stage returns the loss."""
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
# SGD's steps are m times too long, and it may well diverge. Adam divides by the size of its gradients, so its curve
# is nearly right and hides the mistake. Test with SGD.
# </details>
#
# The next cells draw your own runs of GPipe and 1F1B, on stages of a set duration.

# %%
# %%px --timeout 60
PIECES = 6


def timed_run(schedule, group):
    """Return the spans of the fastest step of your pipeline on stages of a set duration."""
    ranks, stages, micro_batches = sizes(schedule)
    share = timed_share(rank, ranks, stages, FORWARD / stages, BACKWARD / stages)
    timeline = Timeline(comm.Split(rank < ranks))
    record(share, timeline, ranks, micro_batches)
    if rank >= ranks:
        return []
    pipeline = Pipeline(share, schedule, mean_square, group)
    return fastest_spans(pipeline, timeline, micro_batches, group)


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
    "1F1B: the same bubble, but backward passes start earlier",
    "emulated time (ms)",
)

# %% [markdown]
# The next cell compares the measured bubble with the formula, on two ranks and on all ranks, for several m. (Each
# value is from the fastest of three steps, because everything that disturbs a step makes it longer.)

# %% tags=["nbval-ignore-output"]
# %%px --timeout 90
COUNTS = (1, 2, 4)
bubbles = []  # (ranks, schedule, m, measured, formula)
for ranks in sorted({min(2, world_size), world_size}):
    part = emulated if ranks == world_size else sub_group(emulated, range(ranks))
    for make in (gpipe, one_f_one_b):
        for m in COUNTS:
            if spans := timed_run(make(ranks, m), part):
                bubbles.append((ranks, make.__name__, m, bubble(spans), (ranks - 1) / m))
far = [abs(measured / right - 1) for *_, measured, right in bubbles if right]
if rank == 0 and far:
    print(f"the bubbles are within {100 * max(far):.0f} % of (p − 1)/m")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
for ranks, name, m, measured, right in bubbles:
    print(f"p = {ranks}, m = {m}, {name}: {measured:.3f} emulated, {right:.3f} by the formula")

# %% [markdown]
# Now measure what a rank holds: the small GPT, with more and more micro-batches of the same size. The value is the
# largest number of bytes that the tensors of a step take at the same time. Weights and gradients, which exist
# before the step, do not count. Sent tensors count until the mailbox drops them. If it does this only in
# `finish()`, 1F1B's peak also grows with m, but only by one or two small messages for each micro-batch.

# %%
# %%px --timeout 90
config = models.GPTConfig(hidden_size=32, sequence_length=32, layers=2 * world_size - 1)


def fresh_gpt():
    torch.manual_seed(0)
    return models.GPT(config).to(device)


def gpt_pipeline(schedule, tokens):
    """Your pipeline on the small GPT."""
    stages = split_model(layers_of(fresh_gpt()), world_size)
    share = share_of(stages, tokens[:1], rank, world_size, device)
    return Pipeline(share, schedule, training.token_loss, group)


# %%
# %%px --timeout 90
SAMPLES, peaks = 8, {}
(tokens, targets), *_ = training.text_batches(1, 16 * SAMPLES, 32, device)
for make in (gpipe, one_f_one_b):
    for m in (4, 8, 16):
        pipeline = gpt_pipeline(make(world_size, m), tokens)
        batch = tokens[: SAMPLES * m], targets[: SAMPLES * m]
        pipeline.step(*batch)  # creates the gradients, so that the next step does not count them
        with memory.Peak(device) as peak:
            pipeline.step(*batch)
        peaks[make.__name__, m] = comm.allgather(peak.bytes)


# %%
# %%px
def growth(schedule):
    """Return how many times as much each rank holds with twice the micro-batches."""
    return [
        large / small for large, small in zip(peaks[schedule, 16], peaks[schedule, 8], strict=True)
    ]


if rank == 0:
    print("with twice the micro-batches,")
    print(f"GPipe's peak grows by more than 50% on every rank: {min(growth('gpipe')) > 1.5}")
    print(f"1F1B's peak grows by less than 20% on every rank: {max(growth('one_f_one_b')) < 1.2}")

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
from parlab import plots

drawn, axes = plots.subplots("1F1B: what a rank holds hardly grows with m", 1, 2, sharey=True)
for column, name in zip(axes, ("gpipe", "one_f_one_b"), strict=True):
    for r in range(world_size):
        values = [peaks[name, m][r] / 1e6 for m in (4, 8, 16)]
        column.plot((4, 8, 16), values, **plots.artist(plots.series(r, f"rank {r}")))
    column.set(title=name, xlabel="micro-batches", xticks=(4, 8, 16))
axes[0].set_ylabel("peak of a step (MB)")
legend = axes[0].legend(frameon=False, labelcolor=plots.NEUTRAL)

# %% [markdown]
# How many micro-batches are best? PyTorch's tutorial on model parallelism trains with batches of 120 images on two
# GPUs. With micro-batches of 20 images, three steps take 2.51 s, compared with 3.75 s on one GPU (49% faster) and
# 4.02 s with the naive split (60% faster). More micro-batches fill the pipeline better, but each pass has a fixed
# cost. In the next cell, a pass of the whole batch through one stage takes 60 ms forward and 120 ms backward. Each
# pass, however small its micro-batch, takes 3% of this in addition.

# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
WHOLE, FIXED = 60e-3, 0.03


def one_batch(ranks, pieces, group):
    """Return a function that runs a step in `pieces` micro-batches, on stages of a set duration."""
    seconds = WHOLE * (FIXED + 1 / pieces)
    share = timed_share(rank, ranks, 1, seconds, 2 * seconds)
    pipeline = Pipeline(share, gpipe(ranks, pieces), mean_square, group)
    return partial(pipeline.step, torch.ones(120, 8), torch.zeros(120, 8))


two = min(2, world_size)
pair = emulated if two == world_size else sub_group(emulated, range(two))
pair_comm, took = comm.Split(rank < two), {}
if rank < two:
    steps = {pieces: one_batch(two, pieces, pair) for pieces in (1, 2, 3, 6, 12, 24)}
    took = timing.fastest_seconds(steps, pair_comm, rounds=3, warm_up=0)
gain = took[1] / min(took.values()) - 1 if took else 0.0

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.subplots("Two ranks: too few or too many micro-batches slow a step down")
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
# While the pipeline fills and empties, a rank is idle for p − 1 forward and p − 1 backward passes of a long stage.
# Give each rank v short stages instead of a long one, with stage s on rank s % p. Then the first micro-batch reaches
# the last rank in a v-th of the time, and the last gradient comes back in a v-th of the time. The bubble is v times
# smaller.
#
# Each rank numbers its forward passes k = 0, 1, 2, …, m·v − 1 in this order: p micro-batches go through its first
# stage, the same p through its second stage, and so on, through its v-th stage. Then the next p micro-batches
# follow. The backward passes have the same order of micro-batches, but go through the rank's stages **from the last
# to the first**.
#
# For v > 1, the warm-up on rank r has 2 (p − r − 1) + (v − 1) p forward passes, or all of them if there are
# fewer. (For v = 1, it is that of 1F1B, p − r − 1.) Then one forward and one backward pass alternate, and then
# the remaining backward passes follow.
#
# - The bubble is (p − 1)/(v m).
# - A rank never holds more than its warm-up and one more forward pass.
# - If m is not a multiple of p, raise a `ValueError` that contains both numbers.
# - There is no deadlock. Another order that has all these properties is also right.
#
# **Predict**: what does the smaller bubble cost?
#
# <details><summary>Hint 1</summary>
#
# For the k-th forward pass, the group of micro-batches is `k // (p * v)`, and the place in this group is `k % p`. The
# rank's own stage is `k // p % v`. In the model, this is stage `r + p * (k // p % v)`.
# </details>
#
# <details><summary>Hint 2</summary>
#
# The backward passes are the same, with `v - 1 - k // p % v`. The rest is `one_f_one_b` with longer lists.
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
# It costs messages: 2m(pv − 1) instead of 2m(p − 1), because the model is cut at the end of each stage. This is more
# than v times as many: for v = 2, 2.3 times with p = 4, and 3 times with p = 2. It also costs activations: if m > p,
# rank 0 holds more than with 1F1B.
# </details>
#
# Now run it with 2p micro-batches and two stages on each rank, and compare it with 1F1B on 2p micro-batches. (The
# pictures of GPipe and 1F1B above have six micro-batches, so compare the idle time in them, not the end of the step.)

# %% tags=["nbval-ignore-output"]
# %%px --timeout 60
one_stage = bubble(timed_run(one_f_one_b(world_size, 2 * world_size), emulated))
spans = timed_run(interleaved(world_size, 2 * world_size, 2), emulated)
if rank == 0 and world_size > 1:
    print(f"{bubble(spans) / one_stage:.2f} of the bubble of 1F1B, emulated; by the formula 0.5")

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
# The GPT's output layer *is* its embedding. After the cut, the first rank has one of them, and the last rank has
# the other. These are two copies of one weight, and each copy gets only a part of its gradient. Sum the two parts.
# Then both copies take the same steps and stay equal.
#
# - `weight` is this rank's copy on the ranks `first` and `last` of `group`, and None on all others.
# - Afterwards, `.grad` of both copies is the sum, with the same numbers. A copy whose `.grad` is None counts as
#   zeros.
# - Each of the two ranks sends the other one message. No other rank sends or waits.
#
# Edge cases: `weight` itself does not change. Do not change the gradient that you send before `wait()` on its handle
# returns. If `first == last`, the weight is one parameter, and autograd has already summed its gradient. Then there is
# nothing to do, and a `.grad` that is None stays None.
#
# **Predict**: somebody sums the gradient only on the last rank. What happens to the two copies?
#
# <details><summary>Hint 1</summary>
#
# Each of the two ranks sends its own part and receives the other one. If both first wait until they have sent, neither
# receives.
# </details>
#
# <details><summary>Hint 2</summary>
#
# `work = dist.isend(weight.grad, group=group, group_dst=other)`, then
# `dist.recv(theirs, group=group, group_src=other)`, then `work.wait()`. Sum only after that.
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
# They drift apart: the embedding gets only its own part of the gradient, and the output layer gets the whole gradient.
# The loss still falls, so the curve alone does not show the mistake. Compare it with the curve of one rank. With SGD,
# the difference is larger than with Adam.
# </details>
#
# Now train MNIST and the small GPT, with SGD and Adam, with three schedules. A plain loop on one rank is the
# reference. On four ranks, 250 images do not divide evenly into micro-batches, nor does the odd number of layers into
# stages.


# %%
# %%px --timeout 120
def mnist_layers():
    torch.manual_seed(0)
    first = nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.LayerNorm(64), nn.ReLU())
    inner = [nn.Sequential(nn.Linear(64, 64), nn.LayerNorm(64), nn.ReLU())
             for _ in range(2 * world_size - 1)]  # fmt: skip
    return [layer.to(device) for layer in (first, *inner, nn.Linear(64, 10))]


image_batches = training.mnist_batches(1750, 250, device)
token_batches = training.text_batches(7, 48, 32, device)
micro_batches = 2 * world_size
schedules = {
    "GPipe": gpipe(world_size, micro_batches),
    "1F1B": one_f_one_b(world_size, micro_batches),
    "interleaved": interleaved(world_size, micro_batches, 2),
}


# %%
# %%px
def pipeline_losses(layers, loss_function, make_optimizer, batches, schedule):
    stages = split_model(layers, world_size * sizes(schedule)[1])
    share = share_of(stages, batches[0][0][:1], rank, world_size, device)
    weight = tied_weight(share)
    pipeline = Pipeline(share, schedule, loss_function, group)
    optimizer, losses = make_optimizer(share.parameters()), []
    for x, y in batches:
        optimizer.zero_grad()
        loss = pipeline.step(x, y)
        if comm.allreduce(int(weight is not None)):
            sum_tied(weight, 0, world_size - 1, group)
        optimizer.step()
        losses.append(comm.bcast(loss, root=world_size - 1))
    return losses


# %%
# %%px --timeout 120
tasks = {
    "MNIST": (mnist_layers, F.cross_entropy, image_batches),
    "GPT": (lambda: layers_of(fresh_gpt()), training.token_loss, token_batches),
}
curves = {}
for task, (make_layers, loss_function, batches) in tasks.items():
    for optimizer_name, make_optimizer in training.OPTIMIZERS.items():
        curve = curves[f"{task}, {optimizer_name}"] = {}
        if rank == 0:
            whole = nn.Sequential(*make_layers())
            curve["one rank"] = training.plain_losses(whole, make_optimizer, batches, loss_function)
        for name, schedule in schedules.items():
            # Every rank makes the whole model and keeps its own stages, so the first and the
            # last rank have separate copies of the tied weight.
            curve[name] = pipeline_losses(
                make_layers(), loss_function, make_optimizer, batches, schedule
            )
if rank == 0:
    training.print_same(curves, 1e-3)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.same_curves("One rank and all three schedules have the same curve", curves)

# %% [markdown]
# # With remote calls
#
# There is another way to write the naive split: one rank runs the loop and *calls* the stages of the other ranks. A
# remote reference (`RRef`) stands for an object on another rank. Distributed autograd records the calls and sends the
# gradients back, and the distributed optimizer updates the parameters where they are. PyTorch has the calls and the
# references in `torch.distributed.rpc`, with its own store and port. The other two are in
# `torch.distributed.autograd` and `torch.distributed.optim`.
#
# **Predict**: how long does a step take, compared with your naive split? Which rank computes when?

# %% tags=["nbval-ignore-output"]
# %%px --timeout 90
import socket

from parlab.libraries.pipelining import SCHEDULES, LibraryPipeline, train_step
from parlab.libraries.rpc_pipeline import rpc_losses


class Naive:
    """Your naive split with the `step` of a pipeline."""

    def __init__(self, stages, inputs):
        self.share = share_of(stages, inputs[:1], rank, world_size)

    def step(self, x, y):
        return naive_step(self.share, x, y, F.cross_entropy, dist.group.WORLD)


on_one_machine = len(set(comm.allgather(socket.gethostname()))) == 1

# %% tags=["nbval-ignore-output"]
# %%px --timeout 90
if on_one_machine and device.type == "cpu":
    stages = split_model(mnist_layers(), world_size)
    naive = Naive(copy.deepcopy(stages), image_batches[0][0])
    optimizer = torch.optim.SGD(naive.share.parameters(), lr=0.05)
    losses = [train_step(naive, optimizer, *batch) for batch in image_batches]
    step = partial(train_step, naive, optimizer, *image_batches[0])
    seconds = timing.median_seconds({"naive": step}, comm, rounds=8)["naive"]
    called, called_seconds = rpc_losses(stages, image_batches, 0.05, comm)
    if rank == 0:
        training.print_same({"MNIST": {"the naive split": losses, "rpc": called}}, 1e-3)
        print(f"a step takes {called_seconds / seconds:.1f} times as long as naive_step on Gloo")
elif rank == 0:
    print("not run: this cell is for CPU ranks on one machine")

# %% [markdown]
# The code is short (`_train` in `parlab/libraries/rpc_pipeline.py`), and it is naive: rank 0 waits in each call, so only
# one rank computes at a time. A step therefore takes about as long as in your naive split. To keep all ranks busy, rank 0
# would have to call for many micro-batches at once, and tell each rank their order. That is a schedule. Then the ranks can
# just as well have the schedule from the start and run it without a caller.
#
# # Against the library
#
# `torch.distributed.pipelining` has `ScheduleGPipe`, `Schedule1F1B`, and `ScheduleInterleaved1F1B`. A `PipelineStage`
# is one stage on one rank, and a schedule runs the steps. The next cells compare them with your class: the same MNIST
# model, cut in the same places, on the default group (Gloo on CPUs, NCCL on GPUs). Your class also runs on
# `group`. On NCCL, it runs only there: NCCL ignores tags, and it may deadlock if two ranks both send first.

# %%
# %%px --timeout 110
even_batches = [(x[:240], y[:240]) for x, y in image_batches]  # the library wants equal pieces


def contestants(name):
    """A step of the library and of yours, each with a model and an optimizer of its own."""
    steps, groups = {}, {"library": None, "ours": dist.group.WORLD, "ours on group": group}
    if dist.get_backend() == "nccl":
        del groups["ours"]
    for who, on in groups.items():
        stages = split_model(mnist_layers(), world_size * (2 if name == "interleaved" else 1))
        share = share_of(stages, image_batches[0][0][:1], rank, world_size, device)
        if who == "library":
            pipeline = LibraryPipeline(name, share, micro_batches, F.cross_entropy)
        else:
            pipeline = Pipeline(share, schedules[name], F.cross_entropy, on)
        steps[who] = partial(train_step, pipeline, torch.optim.SGD(share.parameters(), lr=0.05))
    return steps


# %%
# %%px --timeout 110
ratios = {}
for name in SCHEDULES if world_size > 1 else ():
    steps = contestants(name)
    losses = {who: [step(*batch) for batch in even_batches[:3]] for who, step in steps.items()}
    calls = {who: partial(step, *even_batches[6]) for who, step in steps.items()}
    seconds = timing.median_seconds(calls, comm, rounds=7, warm_up=1)
    relative = timing.relative_to("library", seconds)
    ratios |= {f"{name}, {who}": ratio for who, ratio in relative.items()}
    if rank == 0:
        training.print_same({name: losses}, 1e-3)

# %% tags=["nbval-ignore-output"]
# %%px --targets 0
drawn, axes = plots.ratio_bars(
    "Time of a training step, relative to the library's",
    {"MNIST": ratios},
    "time / time of torch.distributed.pipelining on the default group",
)
print(", ".join(f"{name} {ratio:.2f}" for name, ratio in ratios.items()))

# %% [markdown]
# What to look for:
#
# - **The losses are the same**, and so are the activations and gradients that are sent. (In its first step, the library
#   also sends their sizes.) The library, too, describes its schedules as lists of actions.
# - **The difference is overhead.** Stages as small as these take less time than their messages. A pipeline pays off if
#   a stage takes much longer than its output takes to travel. The chapter has a formula for this.
# - **The library needs equal micro-batches.** Your class accepts m samples or more.
#
# # Going further
#
# - Receive ahead: start the `irecv` of the next action before you compute this one. Does this save time? Try it on
#   emulated networks with fast and with slow links.
# - Split the backward pass: first compute the gradients of the inputs, and compute those of the weights when there is
#   nothing else to do. The bubble shrinks, at best to zero (*zero bubble* in the chapter).
#   `torch.autograd.grad` computes the first half.
# - Cut by time instead of layers: measure the time of each layer, and let `split_model` balance the sum.
# - Discard the activations, and compute them again in the backward pass (`torch.utils.checkpoint`). What does a rank
#   hold then, and what does it have to store for dropout?
# - Combine two pipelines with data parallelism. Which ranks average which gradients, and when can they start?
