"""Answers to `row_parallel_linear`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab_staff.answers import Answers

answers = Answers("row_parallel_linear")
Reference = answers.reference()
f_and_g = answers.reference("f_and_g")

SUM = "y = g(F.linear(x, self.weight))"
PRODUCT = f"{SUM}\n        return y if self.bias is None else y + self.bias"
OWN = "linear.weight.detach().chunk(group.size(), dim=1)[group.rank()]"
LAST = "nn.Parameter(linear.bias.detach().clone())"

answers.edit(
    "bias_on_every_rank", "bias_inside", (PRODUCT, "return g(F.linear(x, self.weight, self.bias))")
)
answers.edit(None, "no_bias", (PRODUCT, "return g(F.linear(x, self.weight))"))
answers.edit(
    None,
    "bias_divided",
    (
        PRODUCT,
        "bias = None if self.bias is None else self.bias / self.group.size()\n"
        "        return g(F.linear(x, self.weight, bias))",
    ),
)
answers.edit("not_summed", "without_g", (SUM, "y = F.linear(x, self.weight)"))
answers.edit("kept_whole", "bias_of_the_layer", (LAST, "linear.bias"))
answers.edit("kept_whole", "keeps_the_layer", (LAST, LAST + "\n        self.old = (linear,)"))
answers.edit("not_refused", "not_refused", ("if linear.in_features % group.size():", "if False:"))
answers.edit(None, "every_nth", (OWN, "linear.weight.detach()[:, group.rank() :: group.size()]"))
answers.edit(None, "mean_of_parts", (SUM, SUM + " / self.group.size()"))
answers.edit(
    "sends_more",
    "asks_the_others",
    (SUM, "dist.all_reduce(torch.ones(1), group=self.group)\n        " + SUM),
)
answers.edit(
    "reduced_again",
    "f_inside",
    ("_, g = f_and_g", "f, g = f_and_g"),
    (SUM, "y = g(f(F.linear(x, self.weight)))"),
)


@answers.wrong("wrong_shape")
class OutputsCut(Reference):
    def __init__(self, linear, group):
        super().__init__(linear, group)
        self.weight = nn.Parameter(linear.weight.detach().chunk(group.size())[group.rank()].clone())


@answers.right
class Matmul(Reference):
    def forward(self, x):
        _, g = f_and_g(self.group)
        return g(x @ self.weight.T) + (self.bias if self.bias is not None else 0)


@answers.right
class Sliced(Reference):
    def __init__(self, linear, group):
        nn.Module.__init__(self)
        self.group = group
        width, left = divmod(linear.in_features, group.size())
        if left:
            raise ValueError(f"{linear.in_features} inputs, {group.size()} ranks")
        start = group.rank() * width
        self.weight = nn.Parameter(linear.weight.detach()[:, start : start + width].clone())
        self.register_parameter("bias", None)
        if linear.bias is not None:
            self.bias = nn.Parameter(linear.bias.detach().clone())


class Halves(torch.autograd.Function):
    """An all-reduce in its two halves."""

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
class ReduceScatterAndGather(Reference):
    def forward(self, x):
        y = Halves.apply(F.linear(x, self.weight), self.group)
        return y if self.bias is None else y + self.bias


@answers.right
class IsALinear(nn.Linear):
    def __init__(self, linear, group):
        n, dtype = group.size(), linear.weight.dtype
        if linear.in_features % n:
            raise ValueError(f"{linear.in_features} inputs over {n} ranks: use another size")
        super().__init__(
            linear.in_features // n, linear.out_features, linear.bias is not None, dtype=dtype
        )
        self.group = group
        own = {"weight": linear.weight.chunk(n, dim=1)[group.rank()]}
        self.load_state_dict(linear.state_dict() | own)

    def forward(self, x):
        y = f_and_g(self.group)[1](F.linear(x, self.weight))
        return y if self.bias is None else self.bias + y


@answers.right
class TransposedInside(Reference):
    """The weight's memory is in the other order."""

    def __init__(self, linear, group):
        super().__init__(linear, group)
        self.weight = nn.Parameter(self.weight.detach().t().contiguous().t())
