"""Answers to `parallel_attention`."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from parlab_staff.answers import Answers

answers = Answers("parallel_attention")
reference = answers.reference()
Column = answers.reference("column_parallel_linear")
Row = answers.reference("row_parallel_linear")
f_and_g = answers.reference("f_and_g")

QKV = "column(attention.qkv, group, attention.sections)"
OUT = "    attention.out = row(attention.out, group)\n"
TEST = "if attention.heads % group.size() or attention.key_value_heads % group.size():"
HEADS = "    attention.heads //= group.size()\n"
KEYS = "    attention.key_value_heads //= group.size()\n"
RETURN = "    return attention\n"
TOLERANT = """\
def tolerant(column, linear, group, sections):
    try:
        return column(linear, group, sections)
    except ValueError:
        return linear


def parallel_attention("""

answers.edit("fused_as_one", "fused_as_one", (QKV, "column(attention.qkv, group)"))
answers.edit(
    "not_refused",
    "nothing_refused",
    (TEST, "if False:"),
    (QKV, QKV.replace("column(", "tolerant(column, ")),
    ("def parallel_attention(", TOLERANT),
)
answers.edit(
    "not_refused",
    "fewer_keys_than_ranks",
    (TEST, TEST.replace("key_value_heads % group.size()", "key_value_heads < group.size()")),
    (QKV, QKV.replace("column(", "tolerant(column, ")),
    ("def parallel_attention(", TOLERANT),
)
answers.edit(
    None,
    "columns_refuse",
    (OUT, ""),
    (TEST, f"{OUT.strip()}\n    {TEST}"),
    says="before it refuses",
)
answers.edit(None, "heads_not_changed", (HEADS, ""), says="expected")
answers.edit(
    None,
    "head_size_divided",
    (KEYS, KEYS + KEYS.replace("key_value_heads", "head_size")),
    says="expected",
)
answers.edit(
    "sends_more",
    "asks_the_others",
    (
        RETURN,
        "    attention.register_forward_pre_hook(\n"
        "        lambda *_: dist.all_reduce(torch.ones(1), group=group)\n"
        f"    )\n{RETURN}",
    ),
)
answers.edit(
    "raises",
    "size_of_the_lab",
    (TEST, TEST.replace("group.size()", "world_size")),
    says="use group.size()",
)
answers.edit(
    None,
    "a_copy",
    (RETURN, "    import copy\n    return copy.copy(attention)\n"),
    says="returns another object",
)


@answers.wrong("not_refused")
def only_heads_refused(attention, group, column=Column, row=Row):
    if attention.heads % group.size():
        raise ValueError(f"{attention.heads} heads")
    if attention.key_value_heads % group.size():
        return attention
    return reference(attention, group, column, row)


class WithoutF(Column):
    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


@answers.wrong("not_summed")
def without_f(attention, group, column=WithoutF, row=Row):
    return reference(attention, group, column, row)


@answers.wrong(None)
def classes_ignored(attention, group, column=Column, row=Row):
    return reference(attention, group)


@answers.right
def out_first(attention, group, column=Column, row=Row):
    heads, keys, n = attention.heads, attention.key_value_heads, group.size()
    if heads % n + keys % n:
        raise ValueError(f"{heads} and {keys} heads on {n} ranks")
    sections = attention.sections
    attention.heads, attention.key_value_heads = heads // n, keys // n
    attention.out = row(attention.out, group)
    attention.qkv = column(attention.qkv, group, sections)
    return attention


@answers.right
def sections_by_hand(attention, group, column=Column, row=Row):
    n, size = group.size(), attention.head_size
    sections = [attention.heads * size] + 2 * [attention.key_value_heads * size]
    if any(heads % n for heads in (attention.heads, attention.key_value_heads)):
        raise ValueError(f"{attention.heads}, {attention.key_value_heads}: heads do not divide")
    attention.qkv = column(attention.qkv, group, sections=sections)
    attention.out = row(attention.out, group=group)
    attention.heads //= n
    attention.key_value_heads //= n
    return attention


class Three(nn.Module):
    """Q, K, and V as three products, under the names of one."""

    def __init__(self, linear, group, sections):
        super().__init__()
        inner = Column(linear, group, sections)
        self.weight, self.bias, self.f = inner.weight, inner.bias, f_and_g(group)[0]
        self.widths = [s // group.size() for s in sections]

    def forward(self, x):
        x = self.f(x)
        parts = zip(self.weight.split(self.widths), self.bias.split(self.widths), strict=True)
        return torch.cat([F.linear(x, w, b) for w, b in parts], dim=-1)


@answers.right
def three_products(attention, group, column=Three, row=Row):
    return reference(attention, group, column, row)


@answers.right
def from_a_copy(attention, group, column=Column, row=Row):
    """Cuts a copy, and then takes over what is in it."""
    cut = copy.copy(attention)
    cut._modules = dict(attention._modules)
    reference(cut, group, column, row)
    attention.__dict__.update(cut.__dict__)
    return attention


@answers.right
def tuple_of_sections(attention, group, column=Column, row=Row):
    if attention.key_value_heads % group.size():  # then heads, a multiple, divide too
        raise ValueError(f"key-value heads: {attention.key_value_heads}")
    attention.qkv = column(attention.qkv, group, tuple(attention.sections))
    attention.out = row(attention.out, group)
    attention.heads //= group.size()
    attention.key_value_heads //= group.size()
    return attention
