"""Answers to `parallel_attention`."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

from parlab.answers import Answers

answers = Answers("parallel_attention")
reference = answers.reference()
Column = answers.reference("column_parallel_linear")
Row = answers.reference("row_parallel_linear")

QKV = "column(attention.qkv, group, attention.sections)"
TEST = "if attention.heads % group.size() or attention.key_value_heads % group.size():"
KEYS = "    attention.key_value_heads //= group.size()\n"
HEADS = "    attention.heads //= group.size()\n"

answers.edit("fused_as_one", "fused_as_one", (QKV, "column(attention.qkv, group)"))
answers.edit(
    "not_refused",
    "nothing_refused",
    (
        TEST,
        "if False:",
    ),
    (
        QKV,
        "_tolerant(column, attention.qkv, group, attention.sections)",
    ),
    (
        "def parallel_attention(",
        "def _tolerant(column, linear, group, sections):\n"
        "    try:\n"
        "        return column(linear, group, sections)\n"
        "    except ValueError:\n"
        "        return linear\n"
        "\n"
        "\n"
        "def parallel_attention(",
    ),
)
answers.edit(
    "changed_before_refusing",
    "columns_refuse",
    (
        TEST,
        "attention.out = row(attention.out, group)\n"
        "    if attention.heads % group.size() or attention.key_value_heads % "
        "group.size():",
    ),
    (
        "    attention.out = row(attention.out, group)\n    attention.heads //=",
        "    attention.heads //=",
    ),
)
answers.edit("wrong_count", "heads_not_changed", (HEADS, ""))
answers.edit(
    "wrong_count", "head_size_divided", (KEYS, KEYS + KEYS.replace("key_value_heads", "head_size"))
)
answers.edit(
    "sends_more",
    "asks_the_others",
    (
        HEADS,
        HEADS + "    attention.register_forward_pre_hook(\n"
        "        lambda *_: dist.all_reduce(torch.ones(1), group=group)\n"
        "    )\n",
    ),
)
answers.edit(
    "raises",
    "size_of_the_lab",
    (TEST, TEST.replace("group.size()", "world_size")),
    says="use group.size()",
)
answers.edit("raises", "no_return", ("    return attention\n", ""), says="it returns None")
answers.edit(
    "raises",
    "another",
    (
        "    return attention\n",
        "    import copy\n    return copy.copy(attention)\n",
    ),
    says="in place",
)


@answers.wrong("not_refused")
def only_heads_refused(attention, group, column=Column, row=Row):
    """Heads of keys are cut wherever the numbers divide."""
    if attention.heads % group.size():
        raise ValueError(f"{attention.heads} heads")
    if attention.key_value_heads % group.size():
        return attention
    return reference(attention, group, column, row)


class _WithoutF(Column):
    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


@answers.wrong("no_reduce_backward")
def without_f(attention, group, column=_WithoutF, row=Row):
    return reference(attention, group, column, row)


class _WithoutG(Row):
    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


@answers.wrong("not_summed")
def without_g(attention, group, column=Column, row=_WithoutG):
    return reference(attention, group, column, row)


@answers.wrong(None)
def classes_ignored(attention, group, column=Column, row=Row):
    return reference(attention, group)


@answers.wrong(None)
def other_scale(attention, group, column=Column, row=Row):
    """The size of a head is changed along: scores and shapes are others."""
    reference(attention, group, column, row)
    attention.qkv.weight.data *= 1.5
    return attention


@answers.wrong(None, says="does not name the size")
def size_not_named(attention, group, column=Column, row=Row):
    """It says how many ranks there are, and not how many heads."""
    if attention.heads % group.size() or attention.key_value_heads % group.size():
        raise ValueError(f"heads do not divide over {group.size()} ranks")
    return reference(attention, group, column, row)


@answers.wrong("whole_weights")
def mask_of_heads(attention, group, column=Column, row=Row):
    """Computes everything; only counts the heads."""
    if attention.heads % group.size() or attention.key_value_heads % group.size():
        raise ValueError(f"{attention.heads} and {attention.key_value_heads} heads")
    return attention


@answers.wrong("reduced_again")
def twice_f(attention, group, column=None, row=Row):
    f, _ = answers.reference("f_and_g")(group)

    class Twice(Column):
        def forward(self, x):
            return super().forward(f(x))

    return reference(attention, group, Twice, row)


@answers.right
def out_first(attention, group, column=Column, row=Row):
    heads, keys = attention.heads, attention.key_value_heads
    n = group.size()
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
    attention.heads = attention.heads // n
    attention.key_value_heads = attention.key_value_heads // n
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


class _Three(nn.Module):
    """Q, K and V as three products, under the names of one."""

    def __init__(self, linear, group, sections):
        super().__init__()
        self.inner = [Column(linear, group, sections)]
        self.weight, self.bias = self.inner[0].weight, self.inner[0].bias
        self.widths = [s // group.size() for s in sections]
        self.f = answers.reference("f_and_g")(group)[0]

    def forward(self, x):
        x = self.f(x)
        parts = zip(self.weight.split(self.widths), self.bias.split(self.widths), strict=True)
        return torch.cat([F.linear(x, w, b) for w, b in parts], dim=-1)


@answers.right
def three_products(attention, group, column=Column, row=Row):
    return reference(attention, group, _Three if column is Column else column, row)


@answers.right
def from_a_copy(attention, group, column=Column, row=Row):
    """Prepares a copy, and then takes over what is in it."""
    shared = reference(copy.copy(attention), group, column, row) if False else None
    n = group.size()
    if attention.heads % n or attention.key_value_heads % n:
        raise ValueError(f"heads ({attention.heads}/{attention.key_value_heads})")
    qkv = column(attention.qkv, group, attention.sections)
    out = row(attention.out, group)
    assert shared is None
    attention.__dict__.update(
        heads=attention.heads // n, key_value_heads=attention.key_value_heads // n
    )
    attention._modules.update(qkv=qkv, out=out)
    return attention
