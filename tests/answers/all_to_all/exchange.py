"""Answers to `exchange`."""

import torch
import torch.distributed as dist

from parlab_staff.answers import Answers

answers = Answers("exchange")

OUTPUT = "        output = torch.empty_like(x, memory_format=torch.contiguous_format)\n"
OF_ANY_ORDER = "        output = torch.empty_like(x)\n"
SEND = "        dist.all_to_all_single(output, x.contiguous(), group=group)\n"
COPY = "        output.copy_(x)\n"
BACK = "        return Exchange.apply(gradient, ctx.group), None\n"
REFUSE = "    if len(x) != group.size():\n"
ALONE = "    if group.size() == 1 == len(x):\n        return x.clone()\n"
INSIDE = """\
    output = torch.empty_like(x, memory_format=torch.contiguous_format)
    dist.all_to_all_single(output, x.detach().contiguous(), group=group)
    return output
"""

answers.edit("no_backward", "library_only", ("    return Exchange.apply(x, group)\n", INSIDE))
answers.edit("gradient_not_sent", "gradient_as_it_is", (BACK, "        return gradient, None\n"))
answers.edit(None, "only_a_barrier", (SEND, COPY + "        dist.barrier(group=group)\n"))
answers.edit(
    "raises",
    "a_view_of_each_row",
    (SEND, "        x = x.view(len(x), -1)\n" + SEND.replace("(output,", "(output.view(x.shape),")),
    says="not contiguous",
)
answers.edit("default_group", "default_group", (SEND, SEND.replace(", group=group", "")))
answers.edit("not_refused", "not_refused", (REFUSE, "    if len(x) % group.size():\n"))
answers.edit(
    "not_contiguous",
    "as_it_lies",
    (OUTPUT, OF_ANY_ORDER),
    (SEND, SEND.replace(".contiguous()", "")),
)
answers.edit(
    None,
    "one_group_for_all",
    ("ctx.group = group", "Exchange.group = group"),
    ("gradient, ctx.group", "gradient, Exchange.group"),
    says="another group",
)
answers.edit(
    "sends_more",
    "counts_first",
    (SEND, SEND + "        dist.all_reduce(torch.ones(1), group=group)\n"),
)
answers.edit("argument_changed", "in_place", (SEND, SEND + "        x.detach().copy_(output)\n"))
answers.edit("nothing_sent", "nothing_sent", (SEND, COPY))


class Mirror(torch.autograd.Function):
    """An all-to-all by any function, in both passes."""

    @staticmethod
    def forward(ctx, x, send):
        ctx.send = send
        return send(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.send(gradient), None


def refuse(x, group):
    if x.shape[0] != group.size():
        raise ValueError(f"expected {group.size()} rows, got {x.shape[0]}")


@answers.wrong("sends_more")
def gathered(x, group):
    refuse(x, group)

    def send(x):
        whole = x.new_empty(group.size(), *x.shape)
        dist.all_gather_single(whole.view(-1), x.contiguous().view(-1), group=group)
        return whole[:, group.rank()].contiguous()

    return Mirror.apply(x, send)


@answers.right
def lists(x, group):
    refuse(x, group)

    def send(x):
        output = [torch.empty(row.shape, dtype=row.dtype) for row in x]
        dist.all_to_all(output, [row.contiguous() for row in x], group=group)
        return torch.stack(output)

    return Mirror.apply(x, send)


@answers.right
def with_splits(x, group):
    refuse(x, group)

    def send(x):
        flat = x.reshape(-1).clone()
        sizes = [flat.numel() // group.size()] * group.size()
        output = torch.zeros_like(flat)
        dist.all_to_all_single(output, flat, sizes, sizes, group)
        return output.view(x.shape)

    return Mirror.apply(x, send)


answers.right_edit("alone_without_a_call", (REFUSE, ALONE + REFUSE))


class NewStyle(torch.autograd.Function):
    """The function sets up its context apart from the forward pass."""

    @staticmethod
    def forward(x, group):
        output = x.new_empty(x.shape)
        dist.all_to_all_single(output, x.contiguous(), group=group)
        return output

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, ctx.group = inputs

    @staticmethod
    def backward(ctx, gradient):
        return NewStyle.forward(gradient, ctx.group), None


@answers.right
def new_style(x, group):
    refuse(x, group)
    return NewStyle.apply(x, group)


answers.edit(
    None,
    "itself_on_one_rank",
    (
        "    return Exchange.apply(x, group)\n",
        "    return Exchange.apply(x, group) if len(x) > 1 else x\n",
    ),
)
