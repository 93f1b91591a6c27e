"""Answers to `parallel_gpt`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab.answers import Answers

answers = Answers("parallel_gpt")
reference = answers.reference()
Column = answers.reference("column_parallel_linear")
Row = answers.reference("row_parallel_linear")
Embedding = answers.reference("vocabulary_embedding")
attention_of = answers.reference("parallel_attention")
mlp_of = answers.reference("parallel_mlp")
f_and_g = answers.reference("f_and_g")

TIED = "    model.unembed.weight = model.tokens.weight\n"
UNEMBED = "    model.unembed = ColumnParallelLinear(model.unembed, group)\n"
MLP = "    block.mlp = parallel_mlp(block.mlp, group, column, row)\n"

answers.edit("untied", "untied", (TIED, ""))
answers.edit("whole_weights", "mlp_forgotten", (MLP, ""))
answers.edit("raises", "no_return", ("    return model\n", ""), says="it returns None")
answers.edit(
    "whole_weights",
    "vocabulary_forgotten",
    (
        "    model.tokens = VocabularyEmbedding(model.tokens, group)\n",
        "",
    ),
)
answers.edit(
    "partial_gradient",
    "output_without_f",
    (
        UNEMBED,
        "    model.unembed = nn.Linear(1, 1, bias=False)\n",
    ),
)
answers.edit(
    "whole_weights",
    "first_block_only",
    (
        "for block in model.blocks:",
        "for block in model.blocks[:1]:",
    ),
)


answers.edit("block_not_returned", "block_without_return", ("    return block\n", ""))
answers.edit(
    "block_classes",
    "attention_without_classes",
    (
        "parallel_attention(block.attention, group, column, row)",
        "parallel_attention(block.attention, group)",
    ),
)
answers.edit(
    "too_many_messages",
    "asks_forward",
    (
        "    return model\n",
        "    model.register_forward_pre_hook(\n"
        "        lambda *_: dist.all_reduce(torch.zeros(1), group=group)\n"
        "    )\n"
        "    return model\n",
    ),
)
answers.edit(
    "too_many_messages",
    "asks_backward",
    (
        "    return model\n",
        "    model.norm.weight.register_hook(\n"
        "        lambda _: dist.all_reduce(torch.zeros(1), group=group)\n"
        "    )\n"
        "    return model\n",
    ),
)


class _WithoutF(Column):
    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


@answers.wrong("partial_gradient")
def without_f_in_the_mlp(model, group):
    for block in model.blocks:
        attention_of(block.attention, group)
        block.mlp = mlp_of(block.mlp, group, column=_WithoutF)
    model.tokens = Embedding(model.tokens, group)
    model.unembed = Column(model.unembed, group)
    model.unembed.weight = model.tokens.weight
    return model


class _GatherScores(Column):
    def forward(self, x):
        own = super().forward(x)
        parts = [torch.empty_like(own) for _ in range(self.group.size())]
        dist.all_gather(parts, own.detach().contiguous(), group=self.group)
        parts[self.group.rank()] = own
        return torch.cat(parts, dim=-1)


@answers.wrong("scores_gathered")
def scores_gathered(model, group):
    reference(model, group)
    unembed = _GatherScores(nn.Linear(1, group.size(), bias=False), group)
    unembed.weight = model.tokens.weight
    model.unembed = unembed
    return model


class _Again(Row):
    """The output, whole already, is averaged over the ranks."""

    def forward(self, x):
        _, g = f_and_g(self.group)
        return (
            g(super().forward(x)) / self.group.size()
            if self.group.size() > 1
            else super().forward(x)
        )


@answers.wrong(None)
def averaged_again(model, group):
    for block in model.blocks:
        attention_of(block.attention, group, row=_Again)
        block.mlp = mlp_of(block.mlp, group)
    model.tokens = Embedding(model.tokens, group)
    model.unembed = Column(model.unembed, group)
    model.unembed.weight = model.tokens.weight
    return model


class _Mean(torch.autograd.Function):
    """The mean of equal tensors, forward and backward: only traffic."""

    @staticmethod
    def forward(ctx, x, group):
        ctx.group = group
        total = x.clone()
        dist.all_reduce(total, group=group)
        return total / group.size()

    @staticmethod
    def backward(ctx, gradient):
        return _Mean.forward(ctx, gradient.contiguous(), ctx.group), None


@answers.wrong("too_many_messages")
def kept_equal(model, group):
    """Every norm's output is made equal on all ranks, which it is."""
    reference(model, group)
    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            module.register_forward_hook(lambda m, x, y: _Mean.apply(y, group))
    return model


@answers.wrong("reduced_again")
def norms_summed(model, group):
    """Gradients of the norms are added up, though they are whole."""
    reference(model, group)

    def summed(gradient):
        total = gradient.clone()
        dist.all_reduce(total, group=group)
        return total

    for module in model.modules():
        if isinstance(module, nn.LayerNorm):
            for parameter in module.parameters():
                parameter.register_hook(summed)
    return model


@answers.right
def from_the_end(model, group):
    model.unembed = Column(model.unembed, group)
    model.tokens = Embedding(model.tokens, group)
    model.unembed.weight = model.tokens.weight
    for block in reversed(model.blocks):
        block.mlp = mlp_of(block.mlp, group)
        attention_of(block.attention, group)
    return model


@answers.right
def tied_the_other_way(model, group):
    reference(model, group)
    shared = nn.Parameter(model.unembed.weight.detach().clone())
    model.tokens.weight = model.unembed.weight = shared
    return model


class _Unembed(nn.Module):
    """The output layer, with the embedding's weight and an f."""

    def __init__(self, tokens, group):
        super().__init__()
        self.weight, self.f = tokens.weight, f_and_g(group)[0]

    def forward(self, x):
        return self.f(x) @ self.weight.T


@answers.right
def own_output_layer(model, group):
    for block in model.blocks:
        block.attention = attention_of(block.attention, group)
        block.mlp = mlp_of(block.mlp, group)
    model.tokens = Embedding(model.tokens, group)
    model.unembed = _Unembed(model.tokens, group)
    return model


@answers.right
def by_names(model, group):
    for name, module in list(model.named_modules()):
        if name.endswith(".mlp"):
            model.set_submodule(name, mlp_of(module, group))
        elif name.endswith(".attention"):
            attention_of(module, group)
    model.tokens = Embedding(model.tokens, group)
    model.unembed = Column(model.unembed, group)
    model.unembed.register_parameter("weight", model.tokens.weight)
    return model


@answers.right
def f_before_the_norm(model, group):
    """The output layer's f is a hook on the last norm's output."""
    reference(model, group)
    f, _ = f_and_g(group)
    unembed = nn.Linear(1, 1, bias=False)
    unembed.weight = model.tokens.weight
    model.unembed = unembed
    model.norm.register_forward_hook(lambda module, given, output: f(output))
    return model
