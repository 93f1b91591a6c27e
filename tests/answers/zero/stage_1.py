"""Answers to `stage_1`."""

import torch
import torch.distributed as dist
from torch import nn

from parlab_staff.answers import Answers

answers = Answers("stage_1")
Reference = answers.reference()

SHARD = "self.shard = nn.Parameter(shard)"
GRADIENT = "self.shard.grad = self.gradient.chunk(group.size())[group.rank()]"
REDUCE = "dist.reduce_scatter_single(self.shard.grad, self.gradient, group=self.group)"
GATHER = "dist.all_gather_single(self.flat, self.shard.detach(), group=self.group)"
AVERAGE = "dist.all_reduce(self.flat, group=self.group); self.flat /= self.group.size()"
AFTER_REDUCE, AFTER_GATHER = f"{REDUCE}\n        ", f"{GATHER}\n        "

for mistake, name, *edit in (
    ("not_summed", "not_reduced", REDUCE, "pass"),
    ("averaged_again", "averaged_again", REDUCE, AFTER_REDUCE + "self.shard.grad /= 4"),
    ("not_gathered", "not_gathered", GATHER, "pass"),
    ("own_memory", "shard_copied", SHARD, "self.shard = nn.Parameter(shard.clone())"),
    ("own_memory", "gradient_copied", GRADIENT, GRADIENT + ".clone()"),
    (
        None,
        "reduced_twice",
        REDUCE,
        AFTER_REDUCE + REDUCE.replace("self.gradient", "self.flat + 0"),
    ),
    ("default_group", "default_group", GATHER, GATHER.replace(", group=self.group", "")),
    ("other_part", "first_part", GRADIENT, GRADIENT.replace("group.rank()", "0")),
    ("raises", "no_gradient", GRADIENT, "pass"),
    ("raises", "gradient_set_to_none", GATHER, AFTER_GATHER + "self.optimizer.zero_grad()"),
    (None, "weights_averaged", GATHER, AVERAGE),
):
    answers.edit(mistake, name, tuple(edit))


@answers.wrong("own_memory")
class StatesOfEverything(Reference):
    """Every rank has the whole optimizer, and uses a shard of its result."""

    def __init__(self, model, make_optimizer, group):
        super().__init__(model, make_optimizer, group)
        self.whole = nn.Parameter(self.flat)
        self.whole.grad = self.gradient
        self.optimizer = make_optimizer([self.whole])

    def finish(self):
        dist.all_reduce(self.gradient, group=self.group)


@answers.right
class AllReduce(Reference):
    def finish(self):
        dist.all_reduce(self.gradient, group=self.group)


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
    def finish(self):
        parts = torch.empty_like(self.gradient)
        dist.all_to_all_single(parts, self.gradient, group=self.group)
        self.shard.grad.copy_(parts.view(self.group.size(), -1).sum(0))


answers.right_edit(
    "asks_torch_for_its_rank",
    ("group.rank(), group.size()", "dist.get_rank(group), dist.get_world_size(group)"),
)


@answers.right
class ByMessages(Reference):
    def step(self):
        self.optimizer.step()
        rank, size = self.group.rank(), self.group.size()
        parts, own = self.flat.chunk(size), self.shard.detach().clone()
        for distance in range(1, size):
            work = dist.isend(own, group_dst=(rank + distance) % size, group=self.group)
            source = (rank - distance) % size
            dist.recv(parts[source], group_src=source, group=self.group)
            work.wait()


@answers.right
class BroadcastByOwner(Reference):
    """As ZeroRedundancyOptimizer does it: the same bytes in N messages."""

    def finish(self):
        part = torch.empty_like(self.shard.grad)
        work = dist.reduce_scatter_single(part, self.gradient, group=self.group, async_op=True)
        work.wait()
        self.shard.grad.copy_(part)

    def step(self):
        self.optimizer.step()
        for owner, part in enumerate(self.flat.chunk(self.group.size())):
            dist.broadcast(part, group_src=owner, group=self.group)
