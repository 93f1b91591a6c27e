"""Answers to `stage_2`."""

import torch
import torch.distributed as dist

from parlab.answers import Answers

answers = Answers("stage_2")
Reference = answers.reference()

FREE = "            parameter.grad = None\n"
REDUCE = "dist.reduce_scatter_single(part, whole, group=self.group)"
ADD = "unit.shard.grad += part"
GATHER = "            dist.all_gather_single(unit.flat, unit.shard.detach(), group=self.group)\n"

answers.edit("gradients_kept", "not_freed", (FREE, ""))
answers.edit("overwritten", "overwritten", (ADD, "unit.shard.grad = part"))
answers.edit(
    "averaged_again", "averaged_again", (ADD, "unit.shard.grad += part / self.group.size()")
)
answers.edit(
    "not_summed",
    "own_part",
    (
        REDUCE,
        REDUCE.replace("part,", "torch.empty_like(part),")
        + "\n        part = whole.chunk(self.group.size())[self.group.rank()].clone()",
    ),
)
answers.edit("not_gathered", "not_gathered", (GATHER, "            pass\n"))
answers.edit(
    "all_reduced",
    "all_reduced",
    (
        REDUCE,
        "dist.all_reduce(whole, group=self.group)\n"
        "        part = whole.chunk(self.group.size())[self.group.rank()]",
    ),
)
answers.edit("raises", "none_not_expected", ("if parameter.grad is not None:", "if True:"))
answers.edit(
    "no_gradient",
    "gradient_set_to_none",
    (GATHER, GATHER + "        self.optimizer.zero_grad()\n"),
)
answers.edit(
    "buffer_kept",
    "buffer_kept",
    ("whole = torch.zeros_like(unit.flat)", "whole = unit.whole = torch.zeros_like(unit.flat)"),
)
answers.edit(None, "not_awaited", (REDUCE, REDUCE.replace(")", ", async_op=True)")))
answers.edit("default_group", "default_group", (REDUCE, "dist.reduce_scatter_single(part, whole)"))


@answers.wrong("buffer_kept")
class OneBufferForAllSteps(Reference):
    """Each unit's buffer is made once: nothing is freed."""

    def __init__(self, layers, make_optimizer, group):
        super().__init__(layers, make_optimizer, group)
        self.buffers = {unit: torch.zeros_like(unit.flat) for unit in self.units}

    def reduce(self, unit):
        whole, at = self.buffers[unit].zero_(), 0
        for p in unit.parameters:
            if p.grad is not None:
                whole[at : at + p.numel()] = p.grad.flatten()
            p.grad = None
            at += p.numel()
        part = torch.empty_like(unit.shard)
        dist.reduce_scatter_single(part, whole, group=self.group)
        unit.shard.grad += part


@answers.wrong(None, says="gradient")
class NoGapForNone(Reference):
    """What got no gradient leaves no room: all after it are in the wrong place."""

    def reduce(self, unit):
        there = [p for p in unit.parameters if p.grad is not None]
        whole = torch.zeros_like(unit.flat)
        if there:
            flat = torch.cat([p.grad.flatten() for p in there])
            whole[: len(flat)] = flat
        for p in there:
            p.grad = None
        part = torch.empty_like(unit.shard)
        dist.reduce_scatter_single(part, whole, group=self.group)
        unit.shard.grad += part


@answers.wrong("does_not_end")
class SkipsWhatHasNone(Reference):
    def reduce(self, unit):
        if any(p.grad is not None for p in unit.parameters):
            super().reduce(unit)


@answers.wrong("freed_late")
class FreedInFinish(Reference):
    """Gradients are reduced when they are complete, and freed when all are."""

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
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in unit.parameters]
        for parameter in unit.parameters:
            parameter.grad = None
        flat = torch.cat([g.flatten() for g in gradients])
        whole = torch.cat([flat, flat.new_zeros(len(unit.flat) - len(flat))])
        part = whole.chunk(self.group.size())[self.group.rank()]
        dist.reduce_scatter_single(part, whole, group=self.group)
        part += unit.shard.grad
        unit.shard.grad = part


@answers.wrong(None)
class OwnFirst(Reference):
    """The padding goes to the front of the buffer, where the parameters' is at its end."""

    def reduce(self, unit):
        used = sum(p.numel() for p in unit.parameters)
        whole = torch.zeros_like(unit.flat)
        at = len(whole) - used + 1
        for parameter in unit.parameters:
            if parameter.grad is not None:
                piece = whole[at : at + parameter.numel()]
                piece.copy_(parameter.grad.flatten()[: len(piece)])
            parameter.grad = None
            at += parameter.numel()
        part = torch.empty_like(unit.shard)
        dist.reduce_scatter_single(part, whole, group=self.group)
        unit.shard.grad += part


@answers.right
class Concatenated(Reference):
    def reduce(self, unit):
        pieces = []
        for parameter in unit.parameters:
            gradient = parameter.grad
            parameter.grad = None
            pieces.append((torch.zeros_like(parameter) if gradient is None else gradient).flatten())
            del gradient
        pieces.append(pieces[0].new_zeros(len(unit.flat) - sum(map(len, pieces))))
        whole = torch.cat(pieces)
        part = whole.new_empty(len(unit.shard))
        dist.reduce_scatter_single(part, whole, group=self.group)
        unit.shard.grad.add_(part)


@answers.right
class StartedAndAwaited(Reference):
    """Reduce-scatters go on beside the backward pass; their buffers live until finish()."""

    def restart(self):
        super().restart()
        self.under_way = []

    def reduce(self, unit):
        whole, at = unit.flat.new_zeros(unit.flat.shape), 0
        for p in unit.parameters:
            if p.grad is not None:
                whole[at : at + p.numel()].view_as(p).copy_(p.grad)
            p.grad = None
            at += p.numel()
        part = torch.empty_like(unit.shard.grad)
        work = dist.reduce_scatter_single(part, whole, group=self.group, async_op=True)
        self.under_way.append((work, part, whole, unit))

    def finish(self):
        while self.waiting:
            self.reduce(self.waiting.pop())
        for work, part, _, unit in self.under_way:
            work.wait()
            unit.shard.grad += part
        self.restart()


@answers.right
class AsLists(Reference):
    def reduce(self, unit):
        flat = torch.nn.utils.parameters_to_vector(
            [torch.zeros_like(p) if p.grad is None else p.grad for p in unit.parameters]
        )
        for p in unit.parameters:
            p.grad = None
        whole = torch.nn.functional.pad(flat, (0, len(unit.flat) - len(flat)))
        part = torch.zeros_like(unit.shard.detach())
        dist.reduce_scatter(part, list(whole.chunk(self.group.size())), group=self.group)
        unit.shard.grad += part


@answers.right
class GathersAllAtOnce(Reference):
    """All gathers under way together."""

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
        unit.shard.grad = unit.shard.grad + before
