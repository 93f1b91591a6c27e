"""Answers to `parallel_mlp`."""

import copy

import torch.nn.functional as F
from torch import nn

from parlab_staff.answers import Answers

answers = Answers("parallel_mlp")
reference = answers.reference()
Column = answers.reference("column_parallel_linear")
Row = answers.reference("row_parallel_linear")

RETURN = "return nn.Sequential(column(first, group), activation, row(second, group))"
NEW = RETURN.replace("return", "new =")
BETWEEN = """\
class Between(nn.Module):
    def __init__(self, activation, group):
        super().__init__()
        self.activation, self.group = activation, group

    def forward(self, x):
        dist.all_reduce(x.detach().clone(), group=self.group)
        return self.activation(x)


def parallel_mlp("""

answers.edit("returns_none", "no_return", (RETURN, NEW))
answers.edit("wrong_shape", "the_serial_one", (RETURN, "return mlp"))
answers.edit("wrong_shape", "both_by_columns", ("row(second, group)", "column(second, group)"))
answers.edit(None, "classes_ignored", ("activation, row(", "activation, RowParallelLinear("))
answers.edit("kept_whole", "keeps_it", (RETURN, NEW + "\n    new.old = [mlp]\n    return new"))
answers.edit(
    "sends_more",
    "asks_between",
    (RETURN, RETURN.replace("activation,", "Between(activation, group),")),
    ("def parallel_mlp(", BETWEEN),
)
answers.edit(
    None,
    "four_layers",
    (RETURN, RETURN.replace("row(second, group)", "row(second, group), nn.Identity()")),
)


class SameNames(nn.Module):
    """The forward pass and the parameters' names of an nn.Sequential."""

    def __init__(self, *layers):
        super().__init__()
        for i, layer in enumerate(layers):
            self.add_module(str(i), layer)

    def forward(self, x):
        for layer in self.children():
            x = layer(x)
        return x


@answers.wrong(None, says="nn.Sequential of three")
def own_module(mlp, group, column=Column, row=Row):
    return SameNames(*reference(mlp, group, column, row))


class WithoutF(Column):
    def forward(self, x):
        return F.linear(x, self.weight, self.bias)


@answers.wrong("not_summed")
def without_f(mlp, group, column=Column, row=Row):
    return reference(mlp, group, WithoutF if column is Column else column, row)


@answers.wrong("not_refused")
def rounded_down(mlp, group, column=Column, row=Row):
    first, _, second = mlp = copy.deepcopy(mlp)
    fitting = first.out_features // group.size() * group.size()
    if fitting < first.out_features:
        first.weight.data, first.bias.data = first.weight[:fitting], first.bias[:fitting]
        second.weight.data = second.weight[:, :fitting]
        first.out_features = second.in_features = fitting
    return reference(mlp, group, column, row)


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
    mlp[0], mlp[2] = column(mlp[0], group), row(mlp[2], group)
    return mlp


@answers.right
def from_the_changed_argument(mlp, group, column=Column, row=Row):
    """The exercise says that `mlp` is not used afterward."""
    mlp[0], mlp[2] = column(mlp[0], group), row(mlp[2], group)
    return nn.Sequential(*mlp)


class OwnSequential(nn.Sequential):
    def __init__(self, mlp, group, column, row):
        activation = copy.deepcopy(mlp[1])
        super().__init__(column(mlp[0], group=group), activation, row(mlp[2], group=group))


@answers.right
def subclass(mlp, group, column=Column, row=Row):
    return OwnSequential(mlp, group, column, row)


answers.edit(
    None,
    "a_new_activation",
    (RETURN, RETURN.replace("activation,", "type(activation)(),")),
    says="output",
)
