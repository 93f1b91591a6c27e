"""Answers to `stage_3`."""

import torch
import torch.distributed as dist

from parlab_staff.answers import Answers

answers = Answers("stage_3")
Reference = answers.reference()
Stage2 = answers.reference("stage_2")

RESIZE = "unit.flat.untyped_storage().resize_(unit.flat.nbytes)"
NEW = "unit.flat = unit.shard.new_empty(len(unit.shard) * self.group.size()).detach()"
GATHER = "dist.all_gather_single(unit.flat, unit.shard.detach(), group=self.group)"
REDUCE, FREE = "        super().reduce(unit)\n", "        self.free(unit)\n"
STEP = "        self.optimizer.step()\n"
GATHER_ALL = "        for unit in self.units:\n            self.gather(unit)\n"


def hook(name, call):
    """Return the start of a method as it is, and without its call."""
    head = f"    def {name}(self, unit: Unit) -> None:\n        # BEGIN SOLUTION\n"
    return f"{head}        self.{call}(unit)\n", f"{head}        pass\n"


def freed_with_gradients():
    """Return `after_forward` as it is, and freeing only in training."""
    old, _ = hook("after_forward", "free")
    return old, old.replace("self.free(unit)", "torch.is_grad_enabled() and self.free(unit)")


for mistake, name, *edit in (
    ("not_whole", "not_gathered_forward", *hook("before_forward", "gather")),
    ("not_whole", "not_gathered_backward", *hook("before_backward", "gather")),
    ("kept_whole", "never_freed", *hook("after_forward", "free")),
    ("kept_whole", "kept_without_gradients", *freed_with_gradients()),
    ("kept_whole", "freed_in_forward_only", REDUCE + FREE, REDUCE),
    ("not_reduced", "freed_only", REDUCE, ""),
    ("kept_whole", "gathered_after_the_step", STEP, STEP + GATHER_ALL),
    (None, "gathered_twice", GATHER, f"{GATHER}\n        {GATHER}"),
    ("default_group", "default_group", GATHER, GATHER.replace(", group=self.group", "")),
    ("no_memory", "stage_2_s_step", STEP, "        super().step()\n"),
    ("no_memory", "elements_not_bytes", RESIZE, RESIZE.replace("nbytes", "numel()")),
    ("other_memory", "a_new_tensor", RESIZE, NEW),
    (None, "zeros_instead", GATHER, "unit.flat.zero_()"),
    (
        "buffer_kept",
        "copy_kept",
        GATHER,
        f"{GATHER}\n        unit.copy = unit.flat.detach().clone()",
    ),
):
    answers.edit(mistake, name, tuple(edit))

answers.edit(
    None,
    "barrier_after_the_step",
    (STEP, f"{STEP}        dist.barrier(group=self.group)\n"),
    says="a step makes barrier",
)


class GathersOnce(Reference):
    """A layer that is whole is not gathered again."""

    def gather(self, unit):
        if not unit.flat.untyped_storage().nbytes():
            super().gather(unit)


answers.right(GathersOnce)


@answers.wrong("kept_whole")
class LastStaysWhole(GathersOnce):
    """As FSDP does it, because the last layer's backward pass comes next."""

    def after_forward(self, unit):
        if unit is not self.units[-1]:
            self.free(unit)


@answers.wrong("gradients_kept")
class GradientsStay(Reference):
    def reduce(self, unit):
        kept = [(p, p.grad) for p in unit.parameters]
        super().reduce(unit)
        for parameter, gradient in kept:
            parameter.grad = gradient


@answers.right
class NewMemory(Reference):
    """Gather into new memory, and copy from there."""

    def gather(self, unit):
        whole = unit.shard.new_empty(len(unit.shard) * self.group.size()).detach()
        dist.all_gather_single(whole, unit.shard.detach(), group=self.group)
        unit.flat.untyped_storage().resize_(whole.nbytes)
        unit.flat.copy_(whole)


@answers.right
class Awaited(Reference):
    def gather(self, unit):
        unit.flat.untyped_storage().resize_(unit.flat.numel() * unit.flat.element_size())
        work = dist.all_gather_single(unit.flat, unit.shard.data, group=self.group, async_op=True)
        work.wait()


@answers.right
class FreesBeforeItSends(Reference):
    def reduce(self, unit):
        self.free(unit)
        Stage2.reduce(self, unit)


@answers.right
class AsLists(Reference):
    def gather(self, unit):
        unit.flat.untyped_storage().resize_(unit.flat.nbytes)
        with torch.no_grad():
            parts = list(unit.flat.chunk(self.group.size()))
            dist.all_gather(parts, unit.shard.detach(), group=self.group)
