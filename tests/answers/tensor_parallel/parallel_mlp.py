"""Answers to `parallel_mlp`."""

import copy

import torch
import torch.distributed as dist
from torch import nn

from parlab.answers import Answers

answers = Answers("parallel_mlp")
reference = answers.reference()
Column = answers.reference("column_parallel_linear")
Row = answers.reference("row_parallel_linear")
f_and_g = answers.reference("f_and_g")

RETURN = "return nn.Sequential(column(first, group), activation, row(second, group))"

answers.edit(
    "raises", "no_return", (RETURN, "nn.Sequential(column(first, group))"), says="it returns None"
)
answers.edit("whole_weights", "the_serial_one", (RETURN, "return mlp"))
answers.edit("raises", "both_by_columns", ("row(second, group)", "column(second, group)"))
answers.edit(None, "classes_ignored", ("activation, row(", "activation, RowParallelLinear("))
answers.edit(
    "kept_whole",
    "keeps_it",
    (
        RETURN,
        "new = nn.Sequential(column(first, group), activation, row(second, "
        "group))\n"
        "    new.old = [mlp]\n"
        "    return new",
    ),
)


answers.edit(
    "gathered_between",
    "asks_between",
    (RETURN, RETURN.replace("activation,", "_Asks(activation, group),")),
    (
        "def parallel_mlp(",
        "class _Asks(nn.Module):\n"
        "    def __init__(self, activation, group):\n"
        "        super().__init__()\n"
        "        self.activation, self.group = activation, group\n\n"
        "    def forward(self, x):\n"
        "        dist.all_reduce(x.detach().flatten()[:1].clone(), group=self.group)\n"
        "        return self.activation(x)\n\n\n"
        "def parallel_mlp(",
    ),
)


class _Cut(Row):
    """A layer by rows that takes its part of a whole input itself."""

    def forward(self, x):
        return super().forward(x.chunk(self.group.size(), dim=-1)[self.group.rank()])


@answers.wrong("rows_first")
def rows_then_columns(mlp, group, column=Column, row=Row):
    first, activation, second = mlp
    return nn.Sequential(_Cut(first, group), activation, _Gathered(second, group))


class _Gathered(Column):
    def forward(self, x):
        own = super().forward(x)
        parts = [torch.empty_like(own) for _ in range(self.group.size())]
        dist.all_gather(parts, own.detach().contiguous(), group=self.group)
        parts[self.group.rank()] = own
        return torch.cat(parts, dim=-1)


@answers.wrong("sends_more")
def asks_backward(mlp, group, column=Column, row=Row):
    first, activation, second = mlp
    new = nn.Sequential(column(first, group), activation, row(second, group))
    weight = new[0].weight
    if weight is not None:
        weight.register_hook(lambda _: dist.all_reduce(torch.ones(1), group=group))
    return new


class _All(nn.Module):
    """An activation of all hidden numbers, of which this rank's are kept."""

    def __init__(self, activation, group):
        super().__init__()
        self.activation, self.group = activation, group

    def forward(self, x):
        parts = [torch.empty_like(x) for _ in range(self.group.size())]
        dist.all_gather(parts, x.detach().contiguous(), group=self.group)
        parts[self.group.rank()] = x
        y = self.activation(torch.cat(parts, dim=-1))
        return y.chunk(self.group.size(), dim=-1)[self.group.rank()]


@answers.wrong("gathered_between")
def gathered(mlp, group, column=Column, row=Row):
    first, activation, second = mlp
    return nn.Sequential(column(first, group), _All(activation, group), row(second, group))


class _WithoutF(Column):
    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


@answers.wrong("no_reduce_backward")
def without_f(mlp, group, column=Column, row=Row):
    return reference(mlp, group, _WithoutF if column is Column else column, row)


class _WithoutG(Row):
    def forward(self, x):
        return nn.functional.linear(x, self.weight, self.bias)


@answers.wrong("not_summed")
def without_g(mlp, group, column=Column, row=Row):
    return reference(mlp, group, column, _WithoutG if row is Row else row)


@answers.wrong("not_refused")
def rounded_down(mlp, group, column=Column, row=Row):
    first, _, second = mlp = copy.deepcopy(mlp)
    fitting = first.out_features // group.size() * group.size()
    if fitting < first.out_features:
        first.weight.data, first.bias.data = first.weight[:fitting], first.bias[:fitting]
        second.weight.data = second.weight[:, :fitting]
        first.out_features = second.in_features = fitting
    return reference(mlp, group, column, row)


@answers.wrong(None, says="does not name the size")
def size_not_named(mlp, group, column=Column, row=Row):
    try:
        return reference(mlp, group, column, row)
    except ValueError:
        raise ValueError(f"the MLP does not divide over {group.size()} ranks") from None


@answers.right
def by_index(mlp, group, column=Column, row=Row):
    return nn.Sequential(column(mlp[0], group), mlp[1], row(mlp[2], group))


@answers.right
def in_a_copy(mlp, group, column=Column, row=Row):
    new = copy.copy(mlp)
    new._modules = dict(mlp._modules)
    new[0], new[2] = column(mlp[0], group), row(mlp[2], group)
    return new


@answers.right
def appended(mlp, group, column=Column, row=Row):
    shared = nn.Sequential()
    for number, layer in enumerate(mlp):
        make = {0: column, 2: row}.get(number)
        shared.append(make(layer, group) if make else layer)
    return shared


@answers.right
def in_place(mlp, group, column=Column, row=Row):
    mlp[0] = column(mlp[0], group)
    mlp[2] = row(mlp[2], group)
    return mlp


class _Checked(nn.Sequential):
    def __init__(self, mlp, group, column, row):
        super().__init__(
            column(mlp[0], group=group), copy.deepcopy(mlp[1]), row(mlp[2], group=group)
        )


@answers.right
def subclass(mlp, group, column=None, row=None):
    if isinstance(column, type) or column is None:
        return _Checked(mlp, group, column or Column, row or Row)
    return reference(mlp, group, column, row)
