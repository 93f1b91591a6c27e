"""Answers to `stage_2`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.utils import parameters_to_vector

from parlab_staff.answers import Answers

answers = Answers("stage_2")
Reference = answers.reference()

FREE = "            parameter.grad = None\n"
WHOLE = "whole = torch.zeros_like(unit.flat)"
REDUCE = "dist.reduce_scatter_single(part, whole, group=self.group)"
OWN_CHUNK = "part = whole.chunk(self.group.size())[self.group.rank()]"
ADD = "unit.shard.grad += part"
GATHER = "            dist.all_gather_single(unit.flat, unit.shard.detach(), group=self.group)\n"

for mistake, name, *edit in (
    ("gradients_kept", "not_freed", FREE, ""),
    ("overwritten", "overwritten", ADD, "unit.shard.grad = part"),
    ("averaged_again", "averaged_again", ADD, ADD + " / self.group.size()"),
    ("not_summed", "own_part", REDUCE, f"{REDUCE}\n        {OWN_CHUNK}.clone()"),
    ("not_gathered", "not_gathered", GATHER, "            pass\n"),
    (None, "all_reduced", REDUCE, f"dist.all_reduce(whole, group=self.group)\n        {OWN_CHUNK}"),
    ("raises", "none_not_expected", "if parameter.grad is not None:", "if True:"),
    ("raises", "zero_grad", GATHER, f"{GATHER}        self.optimizer.zero_grad()\n"),
    ("buffer_kept", "each_buffer_kept", WHOLE, f"unit.whole = {WHOLE}"),
    ("buffer_kept", "last_buffer_kept", WHOLE, f"self.whole = {WHOLE}"),
    ("buffer_kept", "kept_by_a_closure", ADD, f"{ADD}\n        self.last = lambda: whole"),
    (None, "not_awaited", REDUCE, REDUCE.replace(")", ", async_op=True)")),
    ("default_group", "default_group", REDUCE, "dist.reduce_scatter_single(part, whole)"),
):
    answers.edit(mistake, name, tuple(edit))


def padded_gradients(unit):
    """Free the unit's gradients, and return them in a buffer like `unit.flat`."""
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in unit.parameters]
    for parameter in unit.parameters:
        parameter.grad = None
    whole = parameters_to_vector(gradients)
    return F.pad(whole, (0, len(unit.flat) - len(whole)))


@answers.wrong(None, says="gradient")
class NoGapForNone(Reference):
    """A parameter without a gradient leaves no room, so all after it are in the wrong place."""

    def reduce(self, unit):
        every = unit.parameters
        unit.parameters = [p for p in every if p.grad is not None]
        super().reduce(unit)
        unit.parameters = every


@answers.wrong("does_not_end")
class SkipsUnitsWithoutGradient(Reference):
    def reduce(self, unit):
        if any(p.grad is not None for p in unit.parameters):
            super().reduce(unit)


@answers.wrong(None, says="no memory after step()")
class GathersLate(Reference):
    """Nothing is whole until the next step begins."""

    def step(self):
        self.optimizer.step()
        for unit in self.units:
            unit.shard.data = unit.shard.data.clone()
            unit.flat.untyped_storage().resize_(0)

    def zero_grad(self):
        super().zero_grad()
        for unit in self.units:
            unit.flat.untyped_storage().resize_(unit.flat.nbytes)
            dist.all_gather_single(unit.flat, unit.shard.detach(), group=self.group)


@answers.wrong("freed_late")
class FreedInFinish(Reference):
    def reduce(self, unit):
        kept = [(p, p.grad) for p in unit.parameters]
        super().reduce(unit)
        for parameter, gradient in kept:
            parameter.grad = gradient

    def finish(self):
        super().finish()
        for unit in self.units:
            for parameter in unit.parameters:
                parameter.grad = None


@answers.wrong("whole_kept")
class ViewOfTheBuffer(Reference):
    def reduce(self, unit):
        whole = padded_gradients(unit)
        part = whole.chunk(self.group.size())[self.group.rank()]
        dist.reduce_scatter_single(part, whole, group=self.group)
        part += unit.shard.grad
        unit.shard.grad = part


@answers.right
class Concatenated(Reference):
    def reduce(self, unit):
        whole = padded_gradients(unit)
        part = whole.new_empty(len(unit.shard))
        dist.reduce_scatter_single(part, whole, group=self.group)
        unit.shard.grad = unit.shard.grad + part


@answers.right
class BuffersUntilFinish(Reference):
    """Reduce-scatters run during the backward pass, and their buffers live until finish()."""

    def restart(self):
        super().restart()
        self.under_way = []

    def reduce(self, unit):
        whole, part = padded_gradients(unit), torch.empty_like(unit.shard.grad)
        work = dist.reduce_scatter_single(part, whole, group=self.group, async_op=True)
        self.under_way.append((work, part, unit))

    def finish(self):
        while self.waiting:
            self.reduce(self.waiting.pop())
        for work, part, unit in self.under_way:
            work.wait()
            unit.shard.grad += part
        self.restart()


@answers.right
class AsLists(Reference):
    def reduce(self, unit):
        chunks = list(padded_gradients(unit).chunk(self.group.size()))
        part = torch.zeros_like(unit.shard.detach())
        dist.reduce_scatter(part, chunks, group=self.group)
        unit.shard.grad.add_(part)


@answers.right
class GathersAllAtOnce(Reference):
    def step(self):
        self.optimizer.step()
        works = [
            dist.all_gather_single(u.flat, u.shard.data, group=self.group, async_op=True)
            for u in self.units
        ]
        for work in works:
            work.wait()


@answers.right
class AddsInANewTensor(Reference):
    def reduce(self, unit):
        before = unit.shard.grad
        unit.shard.grad = torch.zeros_like(before)
        super().reduce(unit)
        unit.shard.grad += before
