"""Answers to `sharded_adam`."""

import torch
import torch.distributed as dist
from torch import nn

from parlab.answers import Answers

answers = Answers("sharded_adam")
REFERENCE = answers.reference()
FusedAdam = answers.reference("fused_adam")

MEAN = "whole = self.flat([p.grad for p in self.parameters]) / self.group.size()"
SCATTER = "dist.reduce_scatter_single(self.shard.grad, whole, group=self.group)"
GATHER = "dist.all_gather_single(whole, self.shard.detach(), group=self.group)"
STEP = "self.optimizer.step()"
COPY = "p.copy_(part.view_as(p))"
CHUNK = ".chunk(group.size())[group.rank()]"
MINE = "whole.chunk(self.group.size())[self.group.rank()]"
ADAM = "FusedAdam([self.shard], **settings)"

answers.edit("summed", "summed", (MEAN, MEAN.replace(" / self.group.size()", "")))
answers.edit(
    "own_gradient", "no_reduction", (SCATTER, f"self.shard.grad.copy_({MINE} * self.group.size())")
)
answers.edit(
    "not_gathered",
    "own_part_alone",
    (GATHER, "whole = self.flat([p.detach() for p in self.parameters])\n        "
             + MINE + ".copy_(self.shard)"),
    (SCATTER, SCATTER + "\n        " + GATHER),
)  # fmt: skip
answers.edit("shard_not_gathered", "never_copied", (COPY, "pass"))
answers.edit("launched_otherwise", "two_steps", (STEP, f"{STEP}\n        {STEP}"))
answers.edit(
    "sent_too_much",
    "all_reduced",
    (SCATTER, f"dist.all_reduce(whole, group=self.group)\n        self.shard.grad.copy_({MINE})"),
)
answers.edit(
    "wrong_shard",
    "padded_too_much",
    ("-len(whole) % self.group.size()", "2 * self.group.size() - len(whole) % self.group.size()"),
)
answers.edit("nothing_sent", "alone", (SCATTER, f"self.shard.grad.copy_({MINE})"), (GATHER, "pass"))
answers.edit(
    None,
    "averaged_twice",
    (SCATTER, SCATTER + "\n        self.shard.grad /= self.group.size() + 1"),
)


answers.edit(
    None,
    "padded_in_front",
    ("(0, -len(whole) % self.group.size())", "(-len(whole) % self.group.size(), 0)"),
    ("whole[: sum(sizes)].split", "whole[-sum(sizes) :].split"),
    says="`shard`",
)


answers.edit(
    None,
    "no_optimizer",
    ("self.optimizer = Fused", "self.adam = Fused"),
    (STEP, "self.adam.step()"),
    says="no `optimizer`",
)


@answers.wrong("states_whole")
class Unsharded:
    """Every rank updates everything."""

    def __init__(self, parameters, group, **settings):
        self.parameters, self.group = parameters, group
        self.shard = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
        self.optimizer = FusedAdam([self.shard], **settings)

    @torch.no_grad()
    def step(self):
        self.shard.grad = torch.cat([p.grad.flatten() for p in self.parameters])
        dist.all_reduce(self.shard.grad, group=self.group)
        self.shard.grad /= self.group.size()
        self.optimizer.step()
        sizes = [p.numel() for p in self.parameters]
        for p, part in zip(self.parameters, self.shard.split(sizes), strict=True):
            p.copy_(part.view_as(p))


@answers.right
class ViewsOfABuffer:
    """Parameters are views of one buffer, and the shard is too."""

    def __init__(self, parameters, group, **settings):
        n, size = sum(p.numel() for p in parameters), group.size()
        part = -(-n // size)
        self.group, self.parameters = group, parameters
        self.buffer = torch.zeros(part * size, device=parameters[0].device)
        place = 0
        for p in parameters:
            view = self.buffer[place : place + p.numel()].view_as(p)
            view.copy_(p.detach())
            p.data = view
            place += p.numel()
        self.shard = nn.Parameter(self.buffer[part * group.rank() : part * (group.rank() + 1)])
        self.optimizer = FusedAdam([self.shard], **settings)

    def step(self):
        gradient = torch.zeros_like(self.buffer)
        place = 0
        for p in self.parameters:
            gradient[place : place + p.numel()] = p.grad.flatten()
            place += p.numel()
        mine = torch.empty(self.shard.shape, device=self.buffer.device)
        dist.reduce_scatter_single(mine, gradient, group=self.group)
        self.shard.grad = mine / self.group.size()
        self.optimizer.step()
        dist.all_gather_single(self.buffer, self.shard.detach().clone(), group=self.group)


@answers.right
class DividedAfter(REFERENCE):
    @torch.no_grad()
    def step(self):
        whole = self.flat([p.grad for p in self.parameters])
        part = torch.empty_like(self.shard)
        dist.reduce_scatter_single(part, whole, group=self.group)
        self.shard.grad = part.div_(self.group.size())
        self.optimizer.step()
        everyone = torch.empty_like(whole)
        dist.all_gather_single(everyone, self.shard.detach(), group=self.group)
        place = 0
        for p in self.parameters:
            p.copy_(everyone[place : place + p.numel()].view_as(p))
            place += p.numel()


@answers.right
class Lists(REFERENCE):
    """With the collectives that take lists."""

    @torch.no_grad()
    def step(self):
        whole = self.flat([p.grad for p in self.parameters]) / self.group.size()
        size = self.group.size()
        self.shard.grad = torch.zeros_like(self.shard)
        dist.reduce_scatter(self.shard.grad, list(whole.chunk(size)), group=self.group)
        self.optimizer.step()
        parts = [torch.empty_like(self.shard) for _ in range(size)]
        dist.all_gather(parts, self.shard.detach(), group=self.group)
        sizes = [p.numel() for p in self.parameters]
        for p, part in zip(
            self.parameters, torch.cat(parts)[: sum(sizes)].split(sizes), strict=True
        ):
            p.copy_(part.view_as(p))


@answers.right
class GradientsGone(REFERENCE):
    def step(self):
        super().step()
        for p in self.parameters:
            p.grad = None
        self.optimizer.zero_grad()


@answers.right
class Kept(REFERENCE):
    """With buffers that are made once."""

    def __init__(self, parameters, group, **settings):
        super().__init__(parameters, group, **settings)
        self.sizes = [p.numel() for p in parameters]
        padding = self.shard.numel() * group.size() - sum(self.sizes)
        self.whole = torch.zeros(sum(self.sizes) + padding, device=self.shard.device)
        self.parts = self.whole.split([*self.sizes, padding])[: len(self.sizes)]
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
