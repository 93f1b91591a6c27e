"""Answers to `stage_3`."""

import torch
import torch.distributed as dist

from parlab.answers import Answers

answers = Answers("stage_3")
Reference = answers.reference()
Stage2 = answers.reference("stage_2")

RESIZE = "unit.flat.untyped_storage().resize_(unit.flat.nbytes)"
GATHER = "dist.all_gather_single(unit.flat, unit.shard.detach(), group=self.group)"
REDUCE = "        super().reduce(unit)\n"
HOOK = "    def {}(self, unit: Unit) -> None:\n        # BEGIN SOLUTION\n        self.{}(unit)\n"
BEFORE_FORWARD = HOOK.format("before_forward", "gather")
BEFORE_BACKWARD = HOOK.format("before_backward", "gather")
AFTER_FORWARD = HOOK.format("after_forward", "free")
STEP = "        self.optimizer.step()\n"


def without(text):
    """The method that does nothing."""
    head, _, _ = text.rpartition("        self.")
    return head + "        pass\n"


answers.edit("not_whole_forward", "not_gathered_forward", (BEFORE_FORWARD, without(BEFORE_FORWARD)))
answers.edit(
    "not_whole_backward", "not_gathered_backward", (BEFORE_BACKWARD, without(BEFORE_BACKWARD))
)
answers.edit("kept_after_forward", "never_freed", (AFTER_FORWARD, without(AFTER_FORWARD)))
answers.edit(
    "kept_after_backward",
    "freed_in_forward_only",
    (REDUCE + "        self.free(unit)\n", REDUCE),
)
answers.edit("not_reduced", "freed_only", (REDUCE, "        self.waiting = self.waiting\n"))
answers.edit(
    "kept_after_step",
    "whole_again_after_the_step",
    (STEP, STEP + "        for unit in self.units:\n            self.gather(unit)\n"),
)
answers.edit("sent_too_much", "gathered_twice", (GATHER, f"{GATHER}\n        {GATHER}"))
answers.edit("default_group", "default_group", (GATHER, GATHER.replace(", group=self.group", "")))
answers.edit("no_memory", "stage_2_s_step", (STEP, "        super().step()\n"))
answers.edit("no_memory", "not_given_back", (RESIZE, "pass"))
answers.edit("no_memory", "numbers_not_bytes", (RESIZE, RESIZE.replace("nbytes", "numel()")))
answers.edit(
    "other_memory",
    "a_new_tensor",
    (RESIZE, "unit.flat = unit.shard.new_empty(len(unit.shard) * self.group.size()).detach()"),
)
answers.edit(None, "zeros_instead", (GATHER, "unit.flat.zero_()"), says="gradient")


@answers.wrong("kept_between")
class LastStaysWhole(Reference):
    """As FSDP does it: the last layer's backward pass comes next anyway."""

    def gather(self, unit):
        if not unit.flat.untyped_storage().nbytes():
            super().gather(unit)

    def after_forward(self, unit):
        if unit is not self.units[-1]:
            self.free(unit)


@answers.wrong("gradients_kept")
class GradientsStay(Reference):
    """Reduced, and not freed: a shard of the parameters, and all gradients."""

    def reduce(self, unit):
        kept = [(p, p.grad) for p in unit.parameters]
        super().reduce(unit)
        for parameter, gradient in kept:
            parameter.grad = gradient


@answers.wrong("whole_kept")
class ViewOfTheWholeGradient(Reference):
    def reduce(self, unit):
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in unit.parameters]
        for parameter in unit.parameters:
            parameter.grad = None
        flat = torch.cat([g.flatten() for g in gradients])
        whole = torch.cat([flat, flat.new_zeros(unit.flat.numel() - len(flat))])
        part = whole.chunk(self.group.size())[self.group.rank()]
        dist.reduce_scatter_single(part, whole, group=self.group)
        unit.shard.grad = part.add_(unit.shard.grad)
        self.free(unit)


@answers.wrong("buffer_kept")
class CopyOnTheSide(Reference):
    """The model frees its parameters, and the stage has them all in a list."""

    def gather(self, unit):
        super().gather(unit)
        unit.copy = unit.flat.detach().clone()


@answers.right
class WithoutAnother(Reference):
    """A layer that is whole already is not gathered again."""

    def gather(self, unit):
        if not unit.flat.untyped_storage().nbytes():
            super().gather(unit)


@answers.right
class NewMemory(Reference):
    """Whole parameters are new memory each time, and the parameters point there."""

    def gather(self, unit):
        storage = unit.flat.untyped_storage()
        whole = unit.shard.new_empty(len(unit.shard) * self.group.size()).detach()
        dist.all_gather_single(whole, unit.shard.detach(), group=self.group)
        storage.resize_(whole.nbytes)
        unit.flat.copy_(whole)

    def free(self, unit):
        if unit.flat.untyped_storage().nbytes() > 0:
            unit.flat.untyped_storage().resize_(0)


@answers.right
class AwaitedLater(Reference):
    def gather(self, unit):
        unit.flat.untyped_storage().resize_(unit.flat.numel() * unit.flat.element_size())
        work = dist.all_gather_single(unit.flat, unit.shard.data, group=self.group, async_op=True)
        work.wait()


@answers.right
class FreesBeforeItSends(Reference):
    """The gradients are complete: the parameters are not needed for the reduce-scatter."""

    def reduce(self, unit):
        self.free(unit)
        Stage2.reduce(self, unit)


@answers.right
class AsLists(Reference):
    """The older call, with a list of chunks."""

    def gather(self, unit):
        unit.flat.untyped_storage().resize_(unit.flat.nbytes)
        parts = list(unit.flat.chunk(self.group.size()))
        dist.all_gather(parts, unit.shard.detach(), group=self.group)


@answers.right
class ShardsRead(Reference):
    def before_forward(self, unit):
        with torch.no_grad():
            self.gather(unit)

    def before_backward(self, unit):
        with torch.no_grad():
            self.gather(unit)
