"""Answers to `row_parallel_linear`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab.answers import Answers

answers = Answers("row_parallel_linear")
Reference = answers.reference()
f_and_g = answers.reference("f_and_g")

PRODUCT = (
    "y = g(F.linear(x, self.weight))\n        return y if self.bias is None else y + self.bias"
)
OWN = "linear.weight.detach().chunk(group.size(), dim=1)[group.rank()]"

answers.edit(
    "bias_on_every_rank", "bias_inside", (PRODUCT, "return g(F.linear(x, self.weight, self.bias))")
)
answers.edit(
    "not_summed", "without_g", ("y = g(F.linear(x, self.weight))", "y = F.linear(x, self.weight)")
)
answers.edit("not_own_memory", "a_view", ("own.clone()", "own"))
answers.edit("not_refused", "not_refused", ("if linear.in_features % group.size():", "if False:"))
answers.edit(
    None,
    "size_not_named",
    ("{linear.in_features} inputs do not divide", "inputs do not divide"),
    says="does not name the size",
)
answers.edit("no_bias", "no_bias", (PRODUCT, "return g(F.linear(x, self.weight))"))
answers.edit(
    "bias_gradient",
    "bias_on_rank_0",
    (PRODUCT, "return g(F.linear(x, self.weight, self.bias if self.group.rank() == 0 else None))"),
)
answers.edit(
    "bias_gradient",
    "bias_divided",
    (
        PRODUCT,
        "bias = None if self.bias is None else self.bias / self.group.size()\n"
        "        return g(F.linear(x, self.weight, bias))",
    ),
)
answers.edit("not_summed", "f_for_g", ("_, g = f_and_g", "g, _ = f_and_g"))
answers.edit(
    "strided",
    "every_nth",
    (OWN, "linear.weight.detach()[:, group.rank() :: group.size()]"),
)
answers.edit(
    "memory_of_serial",
    "bias_of_the_layer",
    ("nn.Parameter(linear.bias.detach().clone())", "linear.bias"),
)
answers.edit("memory_of_serial", "contiguous_on_one_rank", ("own.clone()", "own.contiguous()"))
answers.edit(
    "averaged",
    "mean_of_parts",
    ("y = g(F.linear(x, self.weight))", "y = g(F.linear(x, self.weight)) / self.group.size()"),
)
answers.edit(
    "sends_more",
    "summed_twice",
    (
        "y = g(F.linear(x, self.weight))",
        "y = g(F.linear(x, self.weight))\n"
        "        y = y / 2 + g(y.detach()) / self.group.size() / 2",
    ),
)
answers.edit(
    "sends_more",
    "asks_the_others",
    ("_, g = f_and_g", "dist.all_reduce(torch.ones(1), group=self.group)\n        _, g = f_and_g"),
)


@answers.wrong("columns_split")
class OutputsCut(Reference):
    def __init__(self, linear, group):
        super().__init__(linear, group)
        padded = F.pad(linear.weight.detach(), (0, 0, 0, -linear.out_features % group.size()))
        own = padded[: linear.out_features // group.size() * group.size()]
        self.weight = nn.Parameter(own.chunk(group.size())[group.rank()].clone())

    def forward(self, x):
        whole = x.repeat_interleave(self.group.size(), dim=-1)
        y = F.linear(whole, self.weight)
        return F.pad(y, (0, len(self.bias) - y.shape[-1])) if self.bias is not None else y


@answers.wrong("whole_weights")
class GathersX(Reference):
    """Gathers the input, and computes all of it on every rank."""

    def __init__(self, linear, group):
        super().__init__(linear, group)
        self.weight = nn.Parameter(linear.weight.detach().clone())

    def forward(self, x):
        parts = [torch.empty_like(x) for _ in range(self.group.size())]
        dist.all_gather(parts, x.detach().contiguous(), group=self.group)
        parts[self.group.rank()] = x
        return F.linear(torch.cat(parts, dim=-1), self.weight, self.bias)


@answers.wrong("reduced_again")
class AutogradSees(Reference):
    """g's backward adds up as well: x's gradient is N times as large."""

    def forward(self, x):
        f, g = f_and_g(self.group)
        y = g(f(F.linear(x, self.weight)))
        return y if self.bias is None else y + self.bias


@answers.wrong("kept_whole")
class KeepsTheLayer(Reference):
    def __init__(self, linear, group):
        super().__init__(linear, group)
        self.serial = (linear,)


@answers.wrong("argument_changed")
class DividesTheBias(Reference):
    def __init__(self, linear, group):
        super().__init__(linear, group)
        if linear.bias is not None:
            linear.bias.detach().div_(group.size() + 1)


@answers.right
class BiasThroughG(Reference):
    """Rank 0 adds it before the sum, and a second way gives all ranks its gradient."""

    def forward(self, x):
        _, g = f_and_g(self.group)
        y = g(x @ self.weight.T)
        return y + (self.bias if self.bias is not None else 0)


@answers.right
class Sliced(Reference):
    def __init__(self, linear, group):
        nn.Module.__init__(self)
        self.group = group
        width, left = divmod(linear.in_features, group.size())
        if left:
            raise ValueError(f"{linear.in_features} inputs, {group.size()} ranks")
        start = group.rank() * width
        self.weight = nn.Parameter(
            linear.weight.detach()[:, start : start + width].contiguous().clone()
        )
        self.register_parameter("bias", None)
        if linear.bias is not None:
            self.bias = nn.Parameter(linear.bias.detach().clone())


@answers.right
class ReduceScatterAndGather(Reference):
    """An all-reduce in its two halves."""

    def forward(self, x):
        y = _Halves.apply(F.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


class _Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, group):
        flat = F.pad(x.flatten(), (0, -x.numel() % group.size()))
        own = flat.new_empty(flat.numel() // group.size())
        dist.reduce_scatter_single(own, flat, group=group)
        whole = torch.empty_like(flat)
        dist.all_gather_single(whole, own, group=group)
        return whole[: x.numel()].view(x.shape).clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


@answers.right
class IsALinear(nn.Linear):
    def __init__(self, linear, group):
        n = group.size()
        if linear.in_features % n:
            raise ValueError(f"{linear.in_features} inputs over {n} ranks: use another size")
        super().__init__(
            linear.in_features // n, linear.out_features, linear.bias is not None,
            dtype=linear.weight.dtype,
        )  # fmt: skip
        self.group = group
        self.load_state_dict(
            linear.state_dict() | {"weight": linear.weight.chunk(n, dim=1)[group.rank()]}
        )

    def forward(self, x):
        y = f_and_g(self.group)[1](F.linear(x, self.weight))
        return y if self.bias is None else self.bias + y


@answers.right
class TransposedInside(Reference):
    """The weight's memory is in the other order."""

    def __init__(self, linear, group):
        super().__init__(linear, group)
        self.weight = nn.Parameter(self.weight.detach().t().contiguous().t())
