"""Answers to `stage_1`."""

import torch
import torch.distributed as dist
from torch import nn

from parlab.answers import Answers

answers = Answers("stage_1")
Reference = answers.reference()

SHARD = "self.shard = nn.Parameter(shard)"
GRADIENT = "self.shard.grad = self.gradient.chunk(group.size())[group.rank()]"
OPTIMIZER = "self.optimizer = make_optimizer([self.shard])"
REDUCE = "dist.reduce_scatter_single(self.shard.grad, self.gradient, group=self.group)"
STEP = "self.optimizer.step()"
GATHER = "dist.all_gather_single(self.flat, self.shard.detach(), group=self.group)"

answers.edit("not_summed", "not_reduced", (REDUCE, "pass"))
answers.edit(
    "averaged_again",
    "averaged_again",
    (REDUCE, REDUCE + "\n        self.shard.grad /= self.group.size()"),
)
answers.edit(
    "averaged_again",
    "divided_before",
    (REDUCE, "self.gradient /= self.group.size()\n        " + REDUCE),
)
answers.edit("not_gathered", "not_gathered", (GATHER, "pass"))
answers.edit("shard_copied", "shard_copied", (SHARD, "self.shard = nn.Parameter(shard.clone())"))
answers.edit("gradient_copied", "gradient_copied", (GRADIENT, GRADIENT + ".clone()"))
answers.edit(
    "sent_too_much", "reduced_twice",
    (REDUCE, REDUCE + "\n        dist.all_reduce(self.gradient.clone(), group=self.group)"),
)  # fmt: skip
answers.edit("default_group", "default_group", (GATHER, GATHER.replace(", group=self.group", "")))


answers.edit("no_gradient", "no_gradient", (GRADIENT, "pass"))
answers.edit(
    "no_gradient", "gradient_set_to_none", (GATHER, GATHER + "\n        self.optimizer.zero_grad()")
)
answers.edit(
    "weights_averaged",
    "weights_averaged",
    (
        GATHER,
        "dist.all_reduce(self.flat, group=self.group)\n        self.flat /= self.group.size()",
    ),
)
answers.edit(
    None,
    "one_rank_s_weights",
    (GATHER, "dist.broadcast(self.flat, group_src=0, group=self.group)"),
)


@answers.wrong("no_gradient")
class GradientSetLate(Reference):
    """In finish(): the shard has none before, as the text wants."""

    def __init__(self, model, make_optimizer, group):
        super().__init__(model, make_optimizer, group)
        self.shard.grad = None

    def finish(self):
        dist.all_reduce(self.gradient, group=self.group)
        self.shard.grad = self.gradient.chunk(self.group.size())[self.group.rank()]


@answers.wrong("full_states")
class StatesOfEverything(Reference):
    """The whole optimizer on every rank, of which a shard's result is used."""

    def __init__(self, model, make_optimizer, group):
        super().__init__(model, make_optimizer, group)
        self.whole = nn.Parameter(self.flat)
        self.whole.grad = self.gradient
        self.optimizer = make_optimizer([self.whole])

    def finish(self):
        dist.all_reduce(self.gradient, group=self.group)


@answers.wrong("not_gathered")
class GathersBeforeTheStep(Reference):
    def step(self):
        dist.all_gather_single(self.flat, self.shard.detach(), group=self.group)
        self.optimizer.step()


@answers.right
class AllReduce(Reference):
    def finish(self):
        dist.all_reduce(self.gradient, group=self.group)


@answers.right
class GathersWithoutSync(Reference):
    def step(self):
        self.optimizer.step()
        work = dist.all_gather_single(self.flat, self.shard.data, group=self.group, async_op=True)
        work.wait()


@answers.right
class AsLists(Reference):
    """The older calls, with a list of chunks."""

    def finish(self):
        parts = [part.clone() for part in self.gradient.chunk(self.group.size())]
        dist.reduce_scatter(self.shard.grad, parts, group=self.group)

    def step(self):
        self.optimizer.step()
        parts = list(self.flat.chunk(self.group.size()))
        dist.all_gather(parts, self.shard.detach().clone(), group=self.group)


@answers.right
class ExchangedAndAdded(Reference):
    """A reduce-scatter by hand: each rank's part from everyone, and their sum."""

    def finish(self):
        parts = torch.empty_like(self.gradient)
        dist.all_to_all_single(parts, self.gradient, group=self.group)
        self.shard.grad.copy_(parts.view(self.group.size(), -1).sum(0))


@answers.right
class ByMessages(Reference):
    """Shards go to everyone as messages, without a collective."""

    def step(self):
        self.optimizer.step()
        rank, size = self.group.rank(), self.group.size()
        parts, mine = self.flat.chunk(size), self.shard.detach().clone()
        for distance in range(1, size):
            work = dist.isend(mine, group_dst=(rank + distance) % size, group=self.group)
            source = (rank - distance) % size
            dist.recv(parts[source], group_src=source, group=self.group)
            work.wait()


@answers.right
class ReducedIntoNewMemory(Reference):
    def finish(self):
        part = torch.empty_like(self.shard.grad)
        dist.reduce_scatter_single(part, self.gradient, group=self.group)
        self.shard.grad.copy_(part)


@answers.right
class BroadcastByOwner(Reference):
    """Each shard from its owner, as ZeroRedundancyOptimizer does: the same bytes in N messages."""

    def step(self):
        self.optimizer.step()
        for owner, part in enumerate(self.flat.chunk(self.group.size())):
            dist.broadcast(part, group_src=owner, group=self.group)
