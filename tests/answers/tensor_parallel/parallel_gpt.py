"""Answers to `parallel_gpt`."""

import copy

import torch.nn.functional as F
from torch import nn

from parlab_staff.answers import Answers

answers = Answers("parallel_gpt")
reference = answers.reference()
Column = answers.reference("column_parallel_linear")
Row = answers.reference("row_parallel_linear")
Embedding = answers.reference("vocabulary_embedding")
attention_of = answers.reference("parallel_attention")
mlp_of = answers.reference("parallel_mlp")
f_and_g = answers.reference("f_and_g")

TIED = "    model.unembed.weight = model.tokens.weight\n"
UNEMBED = "ColumnParallelLinear(model.unembed, group)"
TOKENS = "    model.tokens = VocabularyEmbedding(model.tokens, group)\n"
MLP = "    block.mlp = parallel_mlp(block.mlp, group, column, row)\n"
RETURN = "    return model\n"
ASK = "dist.all_reduce(torch.zeros(1), group=group)"

answers.edit("untied", "untied", (TIED, ""))
answers.edit("wrong_shape", "mlp_forgotten", (MLP, ""))
answers.edit("wrong_shape", "vocabulary_forgotten", (TOKENS, ""))
answers.edit("not_summed", "output_without_f", (UNEMBED, "nn.Linear(1, 1, bias=False)"))
answers.edit(None, "block_without_return", ("    return block\n", ""), says="does not return")
answers.edit(
    None,
    "attention_without_classes",
    (
        "parallel_attention(block.attention, group, column, row)",
        "parallel_attention(block.attention, group)",
    ),
    says="two other classes",
)
answers.edit(
    "sends_more",
    "asks_backward",
    (RETURN, f"    model.norm.weight.register_hook(lambda _: {ASK})\n{RETURN}"),
)


def cut(model, group, *, column=Column, row=Row, rest=True):
    for block in model.blocks:
        block.attention = attention_of(block.attention, group, row=row)
        block.mlp = mlp_of(block.mlp, group, column=column)
    model.tokens = Embedding(model.tokens, group)
    if rest:
        model.unembed = Column(model.unembed, group)
        model.unembed.weight = model.tokens.weight
    return model


@answers.wrong(None, says="block 0 is another object")
def copied_blocks(model, group):
    model.blocks = nn.ModuleList(copy.deepcopy(block) for block in model.blocks)
    return cut(model, group)


@answers.wrong(None, says="norm_1.weight is another object")
def new_parameters(model, group):
    for block in model.blocks:
        block.norm_1.weight = nn.Parameter(block.norm_1.weight.detach().clone())
    return cut(model, group)


class WithoutF(Column):
    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


@answers.wrong("not_summed")
def without_f_in_the_mlp(model, group):
    return cut(model, group, column=WithoutF)


class Averaged(Row):
    """The output is complete, and the mean over the ranks is taken."""

    def forward(self, x):
        return f_and_g(self.group)[1](super().forward(x)) / self.group.size()


@answers.wrong(None)
def averaged_again(model, group):
    return cut(model, group, row=Averaged)


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


class Unembed(nn.Module):
    """The output layer, with the embedding's weight and an f."""

    def __init__(self, tokens, group):
        super().__init__()
        self.weight, self.f = tokens.weight, f_and_g(group)[0]

    def forward(self, x):
        return self.f(x) @ self.weight.T


@answers.right
def own_output_layer(model, group):
    cut(model, group, rest=False)
    model.unembed = Unembed(model.tokens, group)
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
    """The output layer's f is a hook on the last norm's output, and the list of blocks is new."""
    cut(model, group, rest=False)
    model.blocks = nn.ModuleList(model.blocks)
    model.unembed = nn.Linear(1, 1, bias=False)
    model.unembed.weight = model.tokens.weight
    model.norm.register_forward_hook(lambda module, given, output: f_and_g(group)[0](output))
    return model


answers.edit(
    None,
    "embedding_comes_last",
    (
        "model.tokens = VocabularyEmbedding(model.tokens, group)",
        "tokens = VocabularyEmbedding(model.tokens, group)\n    del model.tokens\n"
        "    model.tokens = tokens",
    ),
    says="expected `tokens.weight`",
)
