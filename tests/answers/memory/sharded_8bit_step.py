"""Answers to `sharded_8bit_step`."""

from functools import partial

import torch
import torch.distributed as dist
import torch.utils.checkpoint

from parlab_staff.answers import Answers

answers = Answers("sharded_8bit_step")
Reference = answers.reference()
adam_8bit_step = answers.reference("adam_8bit_step")
checkpoint = answers.reference("checkpoint")

CHECKPOINT = "torch.utils.checkpoint.checkpoint, layer.forward, use_reentrant=False"
BUFFERS = "self.flat, self.gradient = flat_buffers(parameters, group.size() * block_size)"
BROADCAST = "dist.broadcast(self.flat, group_src=0, group=group)"
ZERO = "self.gradient.zero_()"
REDUCE = "dist.reduce_scatter_single(part, self.gradient, group=self.group)"
ADAM = "adam_8bit_step(self.shard, part, self.state, self.lr, block_size=self.block_size)"
GATHER = "dist.all_gather_single(self.flat, self.shard, group=self.group)"
WHOLE = "adam_8bit_step(self.flat, self.gradient, self.state, self.lr, block_size=self.block_size)"
AFTER = "\n        "

for mistake, name, *edits in (
    (
        "not_checkpointed",
        "kept",
        (f"partial(\n                {CHECKPOINT}\n            )", "layer.forward"),
    ),
    (
        "not_checkpointed",
        "layers_counted_first",
        ("for layer in layers:", "self.count = len(list(layers))\n        for layer in layers:"),
    ),
    (None, "padded_to_n", (BUFFERS, BUFFERS.replace(" * block_size", ""))),
    ("not_summed", "not_reduced", (REDUCE, "pass")),
    ("averaged_again", "averaged_again", (REDUCE, REDUCE + AFTER + "part /= self.group.size()")),
    (None, "gradient_kept", (ZERO, "pass")),
    ("not_gathered", "not_gathered", (GATHER, "pass")),
    (
        "states_of_everything",
        "every_rank_steps",
        (REDUCE, "dist.all_reduce(self.gradient, group=self.group)"),
        (ADAM, WHOLE),
        (GATHER, "pass"),
    ),
    (None, "not_broadcast", (BROADCAST, "pass")),
    (None, "default_blocks", (ADAM, ADAM.replace(", block_size=self.block_size", ""))),
    (None, "states_forgotten", (ADAM, ADAM.replace("self.state", "{}"))),
    ("default_group", "default_group", (REDUCE, REDUCE.replace(", group=self.group", ""))),
    (None, "copy_kept", (ADAM, ADAM + AFTER + "self.before = self.flat.clone()")),
    (None, "gathered_twice", (GATHER, GATHER + AFTER + GATHER)),
):
    answers.edit(mistake, name, *edits)


WRAPPED = (
    "(lambda run: lambda *x: torch.utils.checkpoint.checkpoint(run, *x, use_reentrant=False))"
    "(layer.forward)"
)
answers.right_edit(
    "in_a_function", (f"partial(\n                {CHECKPOINT}\n            )", WRAPPED)
)


@answers.wrong("reduced_twice")
class HooksInTheForwardPass(Reference):
    """Each inner module's forward pass registers hooks that reduce its gradients."""

    def __init__(self, model, layers, lr, group, block_size=256):
        layers = list(layers)
        super().__init__(model, layers, lr, group, block_size)
        for layer in layers:
            for inner in layer.children():
                inner.register_forward_pre_hook(self.add_hooks)
        self.hooks = []

    def add_hooks(self, module, inputs):
        self.hooks += [p.register_hook(self.reduced) for p in module.parameters(recurse=False)]

    def reduced(self, gradient):
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=self.group)
        return total

    def step(self, loss):
        self.gradient.zero_()
        loss.backward()
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        part = self.gradient.chunk(self.group.size())[self.group.rank()]
        adam_8bit_step(self.shard, part, self.state, self.lr, block_size=self.block_size)
        dist.all_gather_single(self.flat, self.shard, group=self.group)


@answers.wrong(None)
class Reentrant(Reference):
    """The older checkpoint gives no gradient to a layer whose input needs none."""

    def __init__(self, model, layers, lr, group, block_size=256):
        layers = list(layers)
        plain = [layer.forward for layer in layers]
        super().__init__(model, layers, lr, group, block_size)
        for layer, forward in zip(layers, plain, strict=True):
            layer.forward = partial(torch.utils.checkpoint.checkpoint, forward, use_reentrant=True)


@answers.wrong(None)
class ZerosAtTheEnd(Reference):
    """A gradient that another backward pass has left is in the first step after it."""

    def step(self, loss):
        loss.backward()
        part = self.gradient.chunk(self.group.size())[self.group.rank()]
        dist.reduce_scatter_single(part, self.gradient, group=self.group)
        adam_8bit_step(self.shard, part, self.state, self.lr, block_size=self.block_size)
        dist.all_gather_single(self.flat, self.shard, group=self.group)
        self.gradient.zero_()


@answers.right
class Checkpoint(Reference):
    """With the lab's own `checkpoint`, an autograd.Function."""

    def __init__(self, model, layers, lr, group, block_size=256):
        layers = list(layers)
        plain = [layer.forward for layer in layers]
        super().__init__(model, layers, lr, group, block_size)
        for layer, forward in zip(layers, plain, strict=True):
            layer.forward = partial(checkpoint, forward)


@answers.right
class ExchangedAndAdded(Reference):
    """Exchanges parts and adds them up; gathers by another exchange."""

    def step(self, loss):
        self.gradient.zero_()
        loss.backward()
        parts = torch.empty_like(self.gradient)
        dist.all_to_all_single(parts, self.gradient, group=self.group)
        part = parts.view(self.group.size(), -1).sum(0)
        adam_8bit_step(self.shard, part, self.state, self.lr, block_size=self.block_size)
        every = self.shard.repeat(self.group.size())
        dist.all_to_all_single(self.flat, every, group=self.group)


@answers.right
class HandlesAndSlices(Reference):
    """Slices by hand, and handles that are waited for."""

    def __init__(self, model, layers, lr, group, block_size=256):
        super().__init__(model, layers, lr, group, block_size)
        width = len(self.flat) // group.size()
        self.shard = self.flat[group.rank() * width :][:width]

    def step(self, loss):
        self.gradient.zero_()
        loss.backward()
        width = len(self.shard)
        part = self.gradient[self.group.rank() * width :][:width].clone()
        work = dist.reduce_scatter_single(part, self.gradient, group=self.group, async_op=True)
        work.wait()
        adam_8bit_step(self.shard, part, self.state, self.lr, block_size=self.block_size)
        work = dist.all_gather_single(self.flat, self.shard, group=self.group, async_op=True)
        work.wait()
