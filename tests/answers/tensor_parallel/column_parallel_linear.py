"""Answers to `column_parallel_linear`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab.answers import Answers

answers = Answers("column_parallel_linear")
Reference = answers.reference()
f_and_g = answers.reference("f_and_g")

PART = "torch.cat([p.chunk(group.size())[group.rank()] for p in parts])"
SPLIT = "parts = tensor.detach().split(sections)"
REFUSE = "if any(outputs % group.size() for outputs in sections):"
LINEAR = "return F.linear(f(x), self.weight, self.bias)"

answers.edit("fused_as_one", "sections_ignored", (SPLIT, "parts = [tensor.detach()]"))
answers.edit(
    "no_reduce_backward", "without_f", (LINEAR, "return F.linear(x, self.weight, self.bias)")
)
answers.edit("not_refused", "not_refused", (REFUSE, "if False:"))
answers.edit(
    None,
    "size_not_named",
    ("{sections} outputs do not divide", "outputs do not divide"),
    says="does not name the size",
)
answers.edit("not_refused", "one_section_divides", (REFUSE, REFUSE.replace("any", "all")))
answers.edit(
    "not_own_memory",
    "a_view",
    (
        PART,
        "torch.cat(parts)[:0] if len(parts) > 1 else parts[0].chunk(group.size())[group.rank()]",
    ),
    (
        SPLIT,
        "parts = tensor.detach().split(sections)\n"
        "            if len(parts) > 1:\n"
        "                return "
        "nn.Parameter(torch.cat([p.chunk(group.size())[group.rank()] for p in "
        "parts]))",
    ),
)
answers.edit(
    "raises",
    "bias_forgotten",
    ("None if linear.bias is None else own(linear.bias)", "own(linear.bias)"),
)
answers.edit("sends_more", "own_part_backward", ("f, _ = f_and_g", "_, f = f_and_g"))
answers.edit(
    "strided",
    "every_nth",
    (PART, "torch.cat([p[group.rank() :: group.size()] for p in parts])"),
)
answers.edit(
    "fused_as_one",
    "bias_as_one",
    (
        "else own(linear.bias)",
        "else nn.Parameter(linear.bias.detach().chunk(group.size())[group.rank()].clone())",
    ),
)
answers.edit(
    "memory_of_serial",
    "alone_the_layer_itself",
    (
        "self.weight = own(linear.weight)",
        "self.weight = own(linear.weight)\n"
        "        if group.size() == 1:\n            self.weight = linear.weight",
    ),
)
answers.edit(
    "argument_changed",
    "linear_frozen",
    (
        "self.weight = own(linear.weight)",
        "self.weight = own(linear.weight)\n        linear.weight.requires_grad_(False)",
    ),
)
answers.edit(
    "argument_changed",
    "sections_divided",
    (
        "        self.weight = own(linear.weight)\n"
        "        self.bias = None if linear.bias is None else own(linear.bias)\n",
        "        self.weight = own(linear.weight)\n"
        "        self.bias = None if linear.bias is None else own(linear.bias)\n"
        "        for i in range(len(sections)):\n"
        "            sections[i] //= group.size()\n",
    ),
)
answers.edit(
    "sends_more",
    "asks_the_others",
    (LINEAR, "dist.all_reduce(torch.ones(1), group=self.group)\n        " + LINEAR),
)
answers.edit(None, "wrong_error", ("raise ValueError(", "raise RuntimeError("))


@answers.wrong("rows_split")
class InputsCut(Reference):
    def __init__(self, linear, group, sections=None):
        super().__init__(linear, group, sections)
        own = linear.weight.detach().chunk(group.size(), dim=1)[group.rank()]
        self.weight = nn.Parameter(own.clone())

    def forward(self, x):
        _, g = f_and_g(self.group)
        own = x.chunk(self.group.size(), dim=-1)[self.group.rank()]
        return g(F.linear(own, self.weight))


InputsCut.__doc__ = "Splits along the second dimension; needs inputs that divide."


@answers.wrong("whole_weights")
class CutsTheOutput(nn.Module):
    """Everything serially, and then a part of the result."""

    def __init__(self, linear, group, sections=None):
        super().__init__()
        self.weight, self.bias = nn.Parameter(linear.weight.detach().clone()), None
        if linear.bias is not None:
            self.bias = nn.Parameter(linear.bias.detach().clone())
        self.sections = sections or [linear.out_features]
        self.group = group

    def forward(self, x):
        parts = F.linear(x, self.weight, self.bias).split(self.sections, dim=-1)
        n, r = self.group.size(), self.group.rank()
        return torch.cat([p.chunk(n, dim=-1)[r] for p in parts], dim=-1)


class _Gather(torch.autograd.Function):
    """All ranks' rows; back, this rank's part of the summed gradient."""

    @staticmethod
    def forward(ctx, own, group):
        ctx.group = group
        whole = own.new_empty(group.size() * len(own), *own.shape[1:])
        dist.all_gather_single(whole, own.contiguous(), group=group)
        return whole

    @staticmethod
    def backward(ctx, gradient):
        return gradient.chunk(ctx.group.size())[ctx.group.rank()], None


@answers.wrong("weights_gathered")
class WeightsGathered(Reference):
    """Every rank gathers the weights, computes everything, and keeps its part."""

    def __init__(self, linear, group, sections=None):
        super().__init__(linear, group, sections)
        self.sections = sections or [linear.out_features]

    def forward(self, x):
        f, _ = f_and_g(self.group)
        weight = _Gather.apply(self.weight, self.group)
        y = F.linear(f(x), weight).chunk(self.group.size(), dim=-1)[self.group.rank()]
        return y if self.bias is None else y + self.bias


@answers.wrong("output_gathered")
class OutputGathered(Reference):
    def __init__(self, linear, group, sections=None):
        super().__init__(linear, group, sections)
        self.whole = linear.out_features

    def forward(self, x):
        y = super().forward(x)
        return F.pad(y, (0, self.whole - y.shape[-1]))


@answers.wrong("kept_whole")
class KeepsTheLayer(Reference):
    def __init__(self, linear, group, sections=None):
        super().__init__(linear, group, sections)
        self.serial = [linear]


@answers.wrong("reduced_again")
class TwiceF(Reference):
    def forward(self, x):
        f, _ = f_and_g(self.group)
        return super().forward(f(x))


@answers.wrong("argument_changed")
class OverwritesX(Reference):
    def forward(self, x):
        y = super().forward(x * 1)
        x.detach().zero_()
        return y


@answers.wrong("sent_before_refusing")
class AsksTheOthers(Reference):
    def __init__(self, linear, group, sections=None):
        dist.barrier(group=group)
        super().__init__(linear, group, sections)


@answers.wrong("argument_changed")
class CutsTheLinear(Reference):
    """Leaves the serial layer's parameters behind as this rank's share."""

    def __init__(self, linear, group, sections=None):
        super().__init__(linear, group, sections)
        linear.weight.data = torch.zeros_like(linear.weight)


@answers.right
class ByRows(Reference):
    """Which rows, by their numbers."""

    def __init__(self, linear, group, sections=None):
        nn.Module.__init__(self)
        self.group = group
        rows, start = [], 0
        for outputs in sections or [linear.out_features]:
            width, left = divmod(outputs, group.size())
            if left:
                raise ValueError(f"{outputs} by {group.size()}")
            rows += range(start + group.rank() * width, start + (group.rank() + 1) * width)
            start += outputs
        index = torch.tensor(rows)
        self.weight = nn.Parameter(linear.weight.detach()[index])
        self.register_parameter("bias", None)
        if linear.bias is not None:
            self.bias = nn.Parameter(linear.bias.detach()[index])


@answers.right
class IsALinear(nn.Linear):
    def __init__(self, linear, group, sections=None):
        n, has_bias = group.size(), linear.bias is not None
        sizes = list(sections) if sections else [linear.out_features]
        if [size for size in sizes if size % n]:
            raise ValueError(f"of {sizes}, some do not divide")
        super().__init__(
            linear.in_features, linear.out_features // n, has_bias, dtype=linear.weight.dtype
        )
        self.group = group
        with torch.no_grad():
            for mine, whole in zip(self.parameters(), linear.parameters(), strict=True):
                mine.copy_(torch.cat([p.chunk(n)[group.rank()] for p in whole.split(sizes)]))

    def forward(self, x):
        return super().forward(f_and_g(self.group)[0](x))


@answers.right
class Matmul(Reference):
    def forward(self, x):
        y = f_and_g(self.group)[0](x) @ self.weight.T
        return y if self.bias is None else y + self.bias


@answers.right
class SectionBySection(Reference):
    """A product for each section."""

    def __init__(self, linear, group, sections=None):
        super().__init__(linear, group, sections)
        self.widths = [s // group.size() for s in sections or [linear.out_features]]

    def forward(self, x):
        x = f_and_g(self.group)[0](x)
        biases = [None] * len(self.widths) if self.bias is None else self.bias.split(self.widths)
        weights = self.weight.split(self.widths)
        return torch.cat([F.linear(x, w, b) for w, b in zip(weights, biases, strict=True)], dim=-1)


@answers.right
class HookOnX(Reference):
    """No f: a hook adds up x's gradients."""

    def forward(self, x):
        x = x.view_as(x)
        if x.requires_grad:
            x.register_hook(self.summed)
        return F.linear(x, self.weight, self.bias)

    def summed(self, gradient):
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=self.group)
        return total
