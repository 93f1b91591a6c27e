"""Answers to `sequence_parallel_gpt`."""

import torch
import torch.distributed as dist
from torch import nn

from parlab.answers import Answers

answers = Answers("sequence_parallel_gpt")
Reference = answers.reference()
f_and_g = answers.reference("f_and_g")

FOR = "        for parameter in whole:\n"
REDUCE = "                dist.all_reduce(parameter.grad, group=self.group)\n"
POSITIONS = ".chunk(ranks)[self.group.rank()]"
NORMS = (
    "            if isinstance(module, nn.LayerNorm):\n"
    "                whole += module.parameters()\n            elif"
)

answers.edit("partial_gradient", "nothing_summed", (FOR, "        for parameter in []:\n"))
answers.edit("partial_gradient", "norms_forgotten", (NORMS, "            if"))
answers.edit(
    "partial_gradient",
    "positions_forgotten",
    (
        "whole = [self.positions.weight]",
        "whole = []",
    ),
)
answers.edit(
    "shards_summed",
    "everything_summed",
    (
        FOR,
        "        for parameter in self.parameters():\n",
    ),
)
answers.edit(
    "averaged",
    "averaged",
    (
        REDUCE,
        REDUCE + "                parameter.grad /= self.group.size()\n",
    ),
)
answers.edit(
    "positions",
    "first_positions",
    (
        "self.positions.weight[:sequence]" + POSITIONS,
        "self.positions.weight[: sequence // ranks]",
    ),
)
answers.edit("untied", "untied", ("        self.unembed.weight = self.tokens.weight\n", ""))
answers.edit(
    "default_group", "default_group", ("parameter.grad, group=self.group)", "parameter.grad)")
)
answers.edit(
    "not_refused",
    "tokens_not_refused",
    (
        "sequence, ranks = tokens_BS.shape[1], self.group.size()",
        "ranks = self.group.size()\n"
        "        sequence = tokens_BS.shape[1] // ranks * ranks\n"
        "        tokens_BS = tokens_BS[:, :sequence]",
    ),
)


answers.edit(
    "none_filled",
    "zeros_for_none",
    (
        "            if parameter.grad is not None:\n",
        "            if parameter.grad is None:\n"
        "                parameter.grad = torch.zeros_like(parameter)\n"
        "            if True:\n",
    ),
)
answers.edit(
    "raises",
    "none_is_sent",
    ("            if parameter.grad is not None:\n", "            if True:\n"),
    says="frozen in the second",
)
answers.edit(
    "too_much_finished",
    "asks_the_others",
    (FOR, "        dist.all_reduce(torch.zeros(1), group=self.group)\n" + FOR),
)


class _Gather(torch.autograd.Function):
    """All of the sequence."""

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


@answers.wrong("whole_sequence")
class NormOfAll(Reference):
    """The last norm works on all of the sequence, on every rank."""

    def __init__(self, model, group):
        super().__init__(model, group)
        self.norm.register_forward_pre_hook(lambda m, given: (_Gather.apply(given[0], group),))
        self.unembed.forward = lambda x: x @ self.unembed.weight.T


@answers.wrong("all_reduced")
class SummedByHooks(Reference):
    """finish() finds nothing to do."""

    def __init__(self, model, group):
        super().__init__(model, group)
        whole = [self.positions.weight]
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                whole += module.parameters()
            elif isinstance(module, answers.reference("row_parallel_linear")):
                whole.append(module.bias)
        for parameter in whole:
            parameter.register_post_accumulate_grad_hook(
                lambda p: dist.all_reduce(p.grad, group=group)
            )

    def finish(self):
        pass


@answers.wrong(None, says="does not name the size")
class SizeNotNamed(Reference):
    def forward(self, tokens_BS):
        if tokens_BS.shape[1] % self.group.size():
            raise ValueError("the sequence does not divide")
        return super().forward(tokens_BS)


@answers.right
class OutputFirst(Reference):
    """The tied weight is found under the other of its names first; gradients travel as one."""

    def __init__(self, model, group):
        super().__init__(model, group)
        tokens = self.tokens
        del self.tokens
        self.tokens = tokens

    def finish(self):
        whole = [self.positions.weight]
        for module in self.modules():
            if isinstance(module, nn.LayerNorm):
                whole += module.parameters()
            elif isinstance(module, answers.reference("row_parallel_linear")):
                whole.append(module.bias)
        gradients = [p.grad for p in whole if p.grad is not None]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        dist.all_reduce(flat, group=self.group)
        parts = flat.split([gradient.numel() for gradient in gradients])
        for gradient, part in zip(gradients, parts, strict=True):
            gradient.copy_(part.view_as(gradient))


@answers.wrong("too_much_finished")
class SummedTwice(Reference):
    """Each gradient travels twice, and is halved."""

    def finish(self):
        super().finish()
        for name, parameter in self.named_parameters():
            if "norm" in name:
                again = parameter.grad.clone()
                dist.all_reduce(again, group=self.group)
                parameter.grad.copy_(again / self.group.size())


class _Gather(torch.autograd.Function):
    """All ranks' parts of the sequence; back, this rank's part of the summed gradient."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        parts = [torch.empty_like(x) for _ in range(group.size())]
        dist.all_gather(parts, x.contiguous(), group=group)
        return torch.cat(parts, dim=1)

    @staticmethod
    def backward(ctx, gradient):
        own = [p.contiguous() for p in gradient.chunk(ctx.group.size(), dim=1)]
        part = torch.empty_like(own[0])
        dist.reduce_scatter(part, own, group=ctx.group)
        return part, None


@answers.wrong("keeps_whole")
class KeepsWhole(Reference):
    """Gathers, and then a product that keeps its whole input."""

    def __init__(self, model, group):
        super().__init__(model, group)
        for module in self.modules():
            if type(module).__name__ == "SequenceColumnLinear":
                module.forward = lambda x, m=module: nn.functional.linear(
                    _Gather.apply(x, group), m.weight, m.bias
                )


@answers.wrong("all_reduced")
class AllReducedEmbedding(Reference):
    """The embedding is summed whole, and then cut."""

    def __init__(self, model, group):
        super().__init__(model, group)
        self.tokens.reduce = lambda x: _Cut.apply(f_and_g(group)[1](x), group)


class _Cut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        if x.shape[1] % group.size():
            raise ValueError(f"sequence={x.shape[1]}")
        ctx.group = group
        return x.chunk(group.size(), dim=1)[group.rank()].clone()

    @staticmethod
    def backward(ctx, gradient):
        parts = [torch.empty_like(gradient) for _ in range(ctx.group.size())]
        dist.all_gather(parts, gradient.contiguous(), group=ctx.group)
        return torch.cat(parts, dim=1), None


@answers.right
class OneMessage(Reference):
    """All whole gradients in one buffer."""

    def finish(self):
        found = [
            p
            for name, p in self.named_parameters()
            if p.grad is not None
            and ("norm" in name or "positions" in name or name.endswith(("out.bias", "2.bias")))
        ]
        flat = torch.cat([p.grad.flatten() for p in found])
        dist.all_reduce(flat, group=self.group)
        for p, part in zip(found, flat.split([p.numel() for p in found]), strict=True):
            p.grad.copy_(part.view_as(p))


@answers.right
class Marked(Reference):
    """The parameters are marked when the model is made, as Megatron does."""

    def __init__(self, model, group):
        super().__init__(model, group)
        for module in self.modules():
            if isinstance(module, nn.LayerNorm | nn.Embedding):
                for parameter in module.parameters():
                    parameter.sequence_parallel = True
        for block in self.blocks:
            for layer in (block.attention.out, block.mlp[2]):
                layer.bias.sequence_parallel = True

    def finish(self):
        works = [
            dist.all_reduce(p.grad, group=self.group, async_op=True)
            for p in self.parameters()
            if getattr(p, "sequence_parallel", False) and p.grad is not None
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
class NewGradients(Reference):
    """finish() leaves new tensors in .grad."""

    def finish(self):
        before = {p: p.grad for p in self.parameters()}
        for p in self.parameters():
            p.grad = None if p.grad is None else p.grad.clone()
        super().finish()
        assert len(before) == len(list(self.parameters()))


@answers.right
class FromTheEnd(Reference):
    """Sums in the reverse order, and nothing where a rank is alone."""

    def finish(self):
        if self.group.size() == 1:
            return
        shared = ("positions.weight", "norm.weight", "norm.bias")
        inner = ("norm_1.weight", "norm_1.bias", "norm_2.weight", "norm_2.bias")
        for name, p in reversed(list(self.named_parameters())):
            mine = name.endswith((*inner, "attention.out.bias", "mlp.2.bias"))
            if (name in shared or mine) and p.grad is not None:
                dist.all_reduce(p.grad, group=self.group)
