"""Answers to `column_parallel_linear`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from parlab_staff.answers import Answers

answers = Answers("column_parallel_linear")
Reference = answers.reference()
f_and_g = answers.reference("f_and_g")

PART = "torch.cat([p.chunk(group.size())[group.rank()] for p in parts])"
SPLIT = "parts = tensor.detach().split(sections)"
REFUSE = "if any(outputs % group.size() for outputs in sections):"
LINEAR = "return F.linear(f(x), self.weight, self.bias)"
WEIGHT = "        self.weight = own(linear.weight)\n"
BIAS = "        self.bias = None if linear.bias is None else own(linear.bias)\n"

answers.edit("fused_as_one", "sections_ignored", (SPLIT, "parts = [tensor.detach()]"))
answers.edit("not_summed", "without_f", (LINEAR, LINEAR.replace("f(x)", "x")), says="begins")
answers.edit("reduced_again", "twice_f", (LINEAR, LINEAR.replace("f(x)", "f(f(x))")))
answers.edit("not_refused", "not_refused", (REFUSE, "if False:"))
answers.edit(None, "wrong_error", ("raise ValueError(", "raise RuntimeError("))
answers.edit(
    None,
    "size_not_named",
    ("divide {sections} outputs", "divide the outputs"),
    says="does not name the size",
)
answers.edit(
    None,
    "asks_before_refusing",
    (
        "        sections = sections or",
        "        dist.barrier(group=group)\n        sections = sections or",
    ),
)
answers.edit(
    "kept_whole",
    "a_view",
    (PART, f"{PART} if len(parts) > 1 else parts[0].chunk(group.size())[group.rank()]"),
    says="is a view",
)
answers.edit(
    "kept_whole",
    "alone_the_layer_itself",
    (WEIGHT, WEIGHT + "        if group.size() == 1:\n            self.weight = linear.weight\n"),
    says="is a view",
)
answers.edit(
    "kept_whole",
    "keeps_the_layer",
    (WEIGHT, WEIGHT + "        self.old = [linear]\n"),
    says="something refers",
)
answers.edit(
    "raises",
    "bias_forgotten",
    ("None if linear.bias is None else own(linear.bias)", "own(linear.bias)"),
)
answers.edit(
    None, "every_nth", (PART, "torch.cat([p[group.rank() :: group.size()] for p in parts])")
)
answers.edit(
    "argument_changed",
    "linear_frozen",
    (WEIGHT, WEIGHT + "        linear.weight.requires_grad_(False)\n"),
)
answers.edit(
    "argument_changed",
    "fewer_outputs",
    (WEIGHT, WEIGHT + "        linear.out_features //= group.size()\n"),
)
answers.edit(
    "argument_changed",
    "sections_divided",
    (BIAS, BIAS + "        sections[:] = [size // group.size() for size in sections]\n"),
)
answers.edit(
    "argument_changed",
    "overwrites_x",
    (LINEAR, LINEAR.replace("return", "y =") + "\n        x.detach().zero_()\n        return y"),
)


answers.edit(
    "sends_more",
    "asks_the_others",
    (LINEAR, "dist.all_reduce(torch.ones(1), group=self.group)\n        " + LINEAR),
)


@answers.wrong("wrong_shape")
class InputsCut(Reference):
    def __init__(self, linear, group, sections=None):
        super().__init__(linear, group, sections)
        own = linear.weight.detach().chunk(group.size(), dim=1)[group.rank()]
        self.weight = nn.Parameter(own.clone())


@answers.right
class ByRows(Reference):
    """Picks rows by their numbers."""

    def __init__(self, linear, group, sections=None):
        nn.Module.__init__(self)
        self.group, rows, start = group, [], 0
        for outputs in sections or [linear.out_features]:
            width, left = divmod(outputs, group.size())
            if left:
                raise ValueError(f"{outputs} by {group.size()}")
            rows += range(start + group.rank() * width, start + (group.rank() + 1) * width)
            start += outputs
        self.weight = nn.Parameter(linear.weight.detach()[torch.tensor(rows)])
        self.register_parameter("bias", None)
        if linear.bias is not None:
            self.bias = nn.Parameter(linear.bias.detach()[torch.tensor(rows)])


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
            for own, whole in zip(self.parameters(), linear.parameters(), strict=True):
                own.copy_(torch.cat([p.chunk(n)[group.rank()] for p in whole.split(sizes)]))

    def forward(self, x):
        return super().forward(f_and_g(self.group)[0](x))


@answers.right
class Matmul(Reference):
    def forward(self, x):
        y = f_and_g(self.group)[0](x) @ self.weight.T
        return y if self.bias is None else y + self.bias


@answers.right
class SectionBySection(Reference):
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
    """A hook adds up x's gradients."""

    def forward(self, x):
        x = x.view_as(x)
        if x.requires_grad:
            x.register_hook(self.summed)
        return F.linear(x, self.weight, self.bias)

    def summed(self, gradient):
        total = gradient.contiguous().clone()
        dist.all_reduce(total, group=self.group)
        return total
