"""Answers to `sequence_parallel_gpt`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab_staff.answers import Answers

answers = Answers("sequence_parallel_gpt")
Reference = answers.reference()
Row = answers.reference("row_parallel_linear")

FOR = "        for parameter in whole:\n"
REDUCE = "                dist.all_reduce(parameter.grad, group=self.group)\n"
IF = "            if parameter.grad is not None:\n"
POSITIONS = "self.positions.weight[:sequence].chunk(ranks)[self.group.rank()]"
NORMS = (
    "            if isinstance(module, nn.LayerNorm):\n"
    "                whole += module.parameters()\n            elif"
)
SIZES = "sequence, ranks = tokens_BS.shape[1], self.group.size()"

answers.edit("not_summed", "norms_forgotten", (NORMS, "            if"))
answers.edit("not_summed", "positions_forgotten", ("whole = [self.positions.weight]", "whole = []"))
answers.edit("shards_summed", "all_summed", (FOR, "        for parameter in self.parameters():\n"))
answers.edit(
    None, "averaged", (REDUCE, REDUCE + "                parameter.grad /= self.group.size()\n")
)
answers.edit(None, "first_positions", (POSITIONS, "self.positions.weight[: sequence // ranks]"))
answers.edit("untied", "untied", ("        self.unembed.weight = self.tokens.weight\n", ""))
answers.edit(
    "not_refused",
    "tokens_not_refused",
    (
        SIZES,
        "ranks = self.group.size()\n        sequence = tokens_BS.shape[1] // ranks * ranks\n"
        "        tokens_BS = tokens_BS[:, :sequence]",
    ),
)
answers.edit(
    None,
    "zeros_for_none",
    (
        IF,
        "            if parameter.grad is None:\n"
        "                parameter.grad = torch.zeros_like(parameter)\n            if True:\n",
    ),
    says="leave it None",
)
answers.edit("raises", "none_is_sent", (IF, "            if True:\n"), says="frozen in the second")
answers.edit(
    None,
    "tokens_of_rank_0",
    (SIZES, "dist.broadcast(tokens_BS, group_src=0, group=self.group)\n        " + SIZES),
    says="the forward pass sends broadcast",
)
answers.edit(
    "sends_more",
    "asks_the_others",
    (FOR, "        dist.all_reduce(torch.zeros(1), group=self.group)\n" + FOR),
)


def whole_parameters(model):
    """Parameters that are whole on every rank, and saw a part of the sequence."""
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            yield from module.parameters()
        elif isinstance(module, Row):
            yield module.bias
    yield model.positions.weight


class Gather(torch.autograd.Function):
    """All of the sequence; backward, this rank's part of the summed gradient."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx, gradient):
        parts = [part.contiguous() for part in gradient.chunk(ctx.group.size(), dim=1)]
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, parts, group=ctx.group)
        return own, None


@answers.wrong(None, says="a part of the sequence")
class NormOfAll(Reference):
    """The last norm works on the whole sequence, on every rank."""

    def __init__(self, model, group):
        super().__init__(model, group)
        self.norm.register_forward_pre_hook(lambda m, given: (Gather.apply(given[0], group),))
        self.unembed.forward = lambda x: x @ self.unembed.weight.T


@answers.wrong("keeps_whole")
class KeepsWhole(Reference):
    """Gathers, and then a product keeps its whole input."""

    def __init__(self, model, group):
        super().__init__(model, group)
        for module in self.modules():
            if type(module).__name__ == "SequenceColumnLinear":
                module.forward = lambda x, m=module: F.linear(
                    Gather.apply(x, group), m.weight, m.bias
                )


@answers.wrong("all_reduced")
class SummedByHooks(Reference):
    def __init__(self, model, group):
        super().__init__(model, group)
        for parameter in whole_parameters(self):
            parameter.register_post_accumulate_grad_hook(
                lambda p: dist.all_reduce(p.grad, group=group)
            )

    def finish(self):
        pass


@answers.right
class OneMessage(Reference):
    """The gradients travel as one; the tied weight is found under its other name first."""

    def __init__(self, model, group):
        super().__init__(model, group)
        tokens = self.tokens
        del self.tokens
        self.tokens = tokens

    def finish(self):
        gradients = [p.grad for p in whole_parameters(self) if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self.group)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


@answers.right
class Marked(Reference):
    """The parameters are marked when the model is made, as Megatron does."""

    def __init__(self, model, group):
        super().__init__(model, group)
        for parameter in whole_parameters(self):
            parameter.sequence_parallel = True

    def finish(self):
        marked = [p for p in self.parameters() if getattr(p, "sequence_parallel", False)]
        works = [
            dist.all_reduce(p.grad, group=self.group, async_op=True)
            for p in marked
            if p.grad is not None
        ]
        for work in works:
            work.wait()


@answers.right
class IndexedPositions(Reference):
    def forward(self, tokens_BS):
        n, r = self.group.size(), self.group.rank()
        part, left = divmod(tokens_BS.shape[1], n)
        if left:
            raise ValueError(f"{tokens_BS.shape[1]} tokens")
        x = self.tokens(tokens_BS) + self.positions(torch.arange(r * part, (r + 1) * part))
        for block in self.blocks:
            x = block(x)
        return self.unembed(self.norm(x))


@answers.right
class PositionsBeforeScatter(Reference):
    """Every rank adds an N-th of all positions to its part of the sum, before it is scattered."""

    def __init__(self, model, group):
        super().__init__(model, group)
        scatter = self.tokens.reduce
        self.tokens.reduce = lambda x: scatter(
            x + self.positions.weight[: x.shape[1]] / group.size()
        )

    def forward(self, tokens_BS):
        x = self.tokens(tokens_BS)
        for block in self.blocks:
            x = block(x)
        return self.unembed(self.norm(x))


@answers.right
class NewGradients(Reference):
    """finish() leaves new tensors in .grad, in another order, and sends nothing on one rank."""

    def finish(self):
        for p in reversed(list(whole_parameters(self))):
            if p.grad is not None and self.group.size() > 1:
                p.grad = p.grad.clone()
                dist.all_reduce(p.grad, group=self.group)
