"""Answers to `sharded_adam`."""

import torch
import torch.distributed as dist
from torch import nn

from parlab_staff.answers import Answers

answers = Answers("sharded_adam")
reference = answers.reference()
FusedAdam = answers.reference("fused_adam")

MEAN = "whole = self.flat([p.grad for p in self.parameters]) / self.group.size()"
SCATTER = "dist.reduce_scatter_single(self.shard.grad, whole, group=self.group)"
GATHER = "dist.all_gather_single(whole, self.shard.detach(), group=self.group)"
STEP = "self.optimizer.step()"
COPY = "p.copy_(part.view_as(p))"
PAD = "(0, -len(whole) % self.group.size())"
OWN = "whole.chunk(self.group.size())[self.group.rank()]"
ALONE = (SCATTER, f"self.shard.grad.copy_({OWN})")
OLD = "whole = self.flat([p.detach() for p in self.parameters])"
OWN_PART = (
    (GATHER, f"{OLD}\n        {OWN}.copy_(self.shard)"),
    (SCATTER, f"{SCATTER}\n        {GATHER}"),
)
ALL_REDUCED = (SCATTER, f"dist.all_reduce(whole, group=self.group)\n        {ALONE[1]}")
PARTS = "parts = [*whole.chunk(self.group.size())]"
LISTS = (
    (SCATTER, f"{PARTS}\n        {SCATTER.replace('_single', '').replace('whole', 'parts')}"),
    (GATHER, f"{GATHER.replace('_single(whole', '(parts')}\n        whole = torch.cat(parts)"),
)
IN_FRONT = (
    (PAD, "(-len(whole) % self.group.size(), 0)"),
    ("whole[: sum(sizes)].split", "whole[-sum(sizes) :].split"),
)

answers.edit("summed", "summed", (MEAN, MEAN.replace(" / self.group.size()", "")))
answers.edit("own_gradient", "own", (SCATTER, f"self.shard.grad.copy_({OWN} * self.group.size())"))
answers.edit("not_gathered", "own_part_alone", *OWN_PART)
answers.edit(None, "never_copied", (COPY, "pass"))
answers.edit(None, "two_steps", (STEP, f"{STEP}\n        {STEP}"), says="2 launches in a step")
answers.edit("sent_too_much", "all_reduced", ALL_REDUCED)
answers.edit(
    None, "padded_too_much", (PAD, f"(0, self.group.size() + {PAD[4:]}"), says="`shard` has"
)
answers.edit("nothing_sent", "alone", ALONE, (GATHER, "pass"))
answers.edit(None, "averaged_twice", (SCATTER, f"{SCATTER}\n        self.shard.grad /= 5"))
answers.edit(None, "padded_in_front", *IN_FRONT, says="`shard`")
answers.edit(
    None,
    "no_optimizer",
    ("self.optimizer = Fused", "self.adam = Fused"),
    (STEP, "self.adam.step()"),
    says="no `optimizer`",
)


@answers.wrong("states_whole")
class Unsharded(reference):
    """Every rank updates everything."""

    def __init__(self, parameters, group, **settings):
        self.parameters, self.group = parameters, group
        self.shard = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
        self.optimizer = FusedAdam([self.shard], **settings)

    @torch.no_grad()
    def step(self):
        self.shard.grad = torch.cat([p.grad.flatten() for p in self.parameters])
        dist.all_reduce(self.shard.grad, group=self.group)
        self.optimizer.step()


answers.right_edit(
    "divided_after",
    (MEAN, MEAN.replace(" / self.group.size()", "")),
    (SCATTER, f"{SCATTER}\n        self.shard.grad /= self.group.size()"),
)
answers.right_edit("lists", *LISTS)


@answers.right
class GradientsGone(reference):
    def step(self):
        super().step()
        for p in self.parameters:
            p.grad = None
        self.optimizer.zero_grad()


@answers.right
class KeptBuffers(reference):
    def __init__(self, parameters, group, **settings):
        super().__init__(parameters, group, **settings)
        self.whole = torch.zeros(self.shard.numel() * group.size(), device=self.shard.device)
        sizes = [p.numel() for p in parameters]
        self.parts = self.whole[: sum(sizes)].split(sizes)
        self.shard.grad = torch.zeros_like(self.shard)

    @torch.no_grad()
    def step(self):
        for p, part in zip(self.parameters, self.parts, strict=True):
            part.copy_(p.grad.flatten())
        dist.reduce_scatter_single(self.shard.grad, self.whole, group=self.group)
        self.shard.grad /= self.group.size()
        self.optimizer.step()
        dist.all_gather_single(self.whole, self.shard.detach(), group=self.group)
        for p, part in zip(self.parameters, self.parts, strict=True):
            p.copy_(part.view_as(p))


@answers.right
class ViewsOfABuffer(reference):
    """Parameters are views of one buffer, and the shard is too."""

    def __init__(self, parameters, group, **settings):
        self.parameters, self.group = parameters, group
        self.buffer = self.flat([p.detach() for p in parameters])
        sizes = [p.numel() for p in parameters]
        for p, part in zip(parameters, self.buffer[: sum(sizes)].split(sizes), strict=True):
            p.data = part.view_as(p)
        self.shard = nn.Parameter(self.buffer.chunk(group.size())[group.rank()])
        self.optimizer = FusedAdam([self.shard], **settings)

    def step(self):
        gradient = self.flat([p.grad for p in self.parameters])
        self.shard.grad = torch.empty_like(self.shard)
        dist.reduce_scatter_single(self.shard.grad, gradient, group=self.group)
        self.shard.grad /= self.group.size()
        self.optimizer.step()
        dist.all_gather_single(self.buffer, self.shard.detach().clone(), group=self.group)
