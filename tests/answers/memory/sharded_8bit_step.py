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
SHARD = "self.shard = self.flat.chunk(group.size())[group.rank()]"
ZERO = "self.gradient.zero_()"
BACKWARD = "loss.backward()"
PART = "part = self.gradient.chunk(self.group.size())[self.group.rank()]"
REDUCE = "dist.reduce_scatter_single(part, self.gradient, group=self.group)"
ADAM = "adam_8bit_step(self.shard, part, self.state, self.lr, block_size=self.block_size)"
GATHER = "dist.all_gather_single(self.flat, self.shard, group=self.group)"
MEAN = "dist.all_reduce(self.flat, group=self.group); self.flat /= self.group.size()"
WHOLE = "adam_8bit_step(self.flat, self.gradient, self.state, self.lr, block_size=self.block_size)"
AFTER = "\n        "

for mistake, name, *edits in (
    ("not_checkpointed", "first_layer_only", ("for layer in layers:", "for layer in layers[:1]:")),
    (
        "not_checkpointed",
        "kept",
        (f"partial(\n                {CHECKPOINT}\n            )", "layer.forward"),
    ),
    ("blocks_cut", "padded_to_n", (BUFFERS, BUFFERS.replace(" * block_size", ""))),
    ("not_summed", "not_reduced", (REDUCE, "pass")),
    ("averaged_again", "averaged_again", (REDUCE, REDUCE + AFTER + "part /= self.group.size()")),
    ("gradient_kept", "gradient_kept", (ZERO, "pass")),
    ("not_gathered", "not_gathered", (GATHER, "pass")),
    ("not_gathered", "gathered_before", (GATHER, "pass"), (ADAM, GATHER + AFTER + ADAM)),
    (
        "states_of_everything",
        "every_rank_steps",
        (REDUCE, "dist.all_reduce(self.gradient, group=self.group)"),
        (ADAM, WHOLE),
        (GATHER, "pass"),
    ),
    (
        "reduced_twice",
        "all_reduce_too",
        (
            REDUCE,
            "dist.all_reduce(self.gradient, group=self.group)"
            + AFTER
            + "self.gradient /= self.group.size()"
            + AFTER
            + REDUCE,
        ),
    ),
    ("reduced_twice", "weights_averaged", (GATHER, MEAN)),
    (None, "not_broadcast", (BROADCAST, "pass")),
    (
        None,
        "one_block_more",
        (BUFFERS, BUFFERS.replace("* block_size", "* (len(parameters) + 50) * block_size")),
    ),
    (None, "default_blocks", (ADAM, ADAM.replace(", block_size=self.block_size", ""))),
    (None, "states_forgotten", (ADAM, ADAM.replace("self.state", "{}"))),
    ("default_group", "default_group", (REDUCE, REDUCE.replace(", group=self.group", ""))),
    (None, "copy_kept", (ADAM, ADAM + AFTER + "self.before = self.flat.clone()")),
    (None, "the_next_shard", (SHARD, SHARD.replace("group.rank()]", "group.rank() - 1]"))),
    (None, "shard_copied", (SHARD, SHARD + ".clone()"), (GATHER, "pass")),
    (
        None,
        "all_reduced",
        (REDUCE, "dist.all_reduce(self.gradient, group=self.group)"),
    ),
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


@answers.wrong("states_of_everything")
class StatesOfFloats(Reference):
    def step(self, loss):
        super().step(loss)
        self.state["last"] = self.gradient.clone()


@answers.wrong(None)
class Reentrant(Reference):
    """The older checkpoint gives no gradient to a layer whose input needs none."""

    def __init__(self, model, layers, lr, group, block_size=256):
        plain = [layer.forward for layer in layers]
        super().__init__(model, layers, lr, group, block_size)
        for layer, forward in zip(layers, plain, strict=True):
            layer.forward = partial(torch.utils.checkpoint.checkpoint, forward, use_reentrant=True)


@answers.wrong("gradient_kept")
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
        plain = [layer.forward for layer in layers]
        super().__init__(model, layers, lr, group, block_size)
        for layer, forward in zip(layers, plain, strict=True):
            layer.forward = partial(checkpoint, forward)


@answers.right
class AsLists(Reference):
    """The older calls, with lists of chunks, and a part with its own memory."""

    def step(self, loss):
        self.gradient.zero_()
        loss.backward()
        size = self.group.size()
        part = torch.empty_like(self.shard)
        dist.reduce_scatter(part, list(self.gradient.chunk(size)), group=self.group)
        adam_8bit_step(self.shard, part, self.state, self.lr, block_size=self.block_size)
        dist.all_gather(list(self.flat.chunk(size)), self.shard.clone(), group=self.group)


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
