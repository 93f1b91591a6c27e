"""Answers to `pipeline_pass`."""

import torch
import torch.distributed as dist

from parlab import training
from parlab_staff.answers import Answers

answers = Answers("pipeline_pass")

LOSS = "training.token_loss(y, targets) / len(tokens_MbS)"
LOOP = "    for x, y in kept:\n"
RETURN = "    return mean\n"

answers.edit("sum_of_losses", "sum", (LOSS, LOSS.replace(" / len(tokens_MbS)", "")),
             ("mean += y.detach()", "mean += y.detach() / len(tokens_MbS)"))  # fmt: skip
answers.edit(None, "sum_returned", (RETURN, "    return mean * len(tokens_MbS)\n"))
answers.edit(None, "last_loss", (
    "mean += y.detach()", "mean = y.detach() * len(tokens_MbS)"
))  # fmt: skip
answers.edit("keeps_graph", "keeps_graph", ("mean += y.detach()", "mean = mean + y"))
answers.edit("wrong_type", "a_number", (RETURN, "    return mean.item()\n"))
answers.edit("gradient_replaced", "zero_grad", (LOOP, "    stage.zero_grad()\n" + LOOP))
answers.edit("overwrites", "zeroed_first", (
    LOOP, "    for p in stage.parameters():\n        p.grad.zero_()\n" + LOOP
))  # fmt: skip
answers.edit(
    "no_wait", "no_wait", ("            dist.send(x.grad,", "            dist.isend(x.grad,")
)
answers.edit("default_group", "default_group", (
    "dist.recv(x, group=pp_group, group_src=place - 1)", "dist.recv(x, src=place - 1)"
))  # fmt: skip
answers.edit("raises", "no_leaf", ("            x.requires_grad_()\n", ""))


@answers.wrong("one_at_a_time")
def one_at_a_time(stage, tokens_MbS, targets_MbS, pp_group):
    """Each micro-batch returns before the next one starts."""
    place, mean = pp_group.rank(), torch.zeros(())
    for tokens, targets in zip(tokens_MbS, targets_MbS, strict=True):
        x, gradient = tokens, None
        if not stage.first:
            x = torch.empty(stage.activation_shape(len(tokens)))
            dist.recv(x, group=pp_group, group_src=place - 1)
            x.requires_grad_()
        y = stage(x)
        if stage.last:
            y = training.token_loss(y, targets) / len(tokens_MbS)
            mean += y.detach()
        else:
            dist.send(y.detach(), group=pp_group, group_dst=place + 1)
            gradient = torch.empty_like(y)
            dist.recv(gradient, group=pp_group, group_src=place + 1)
        y.backward(gradient)
        if not stage.first:
            dist.send(x.grad, group=pp_group, group_dst=place - 1)
    return mean


@answers.wrong(None)
def whole_batch(stage, tokens_MbS, targets_MbS, pp_group):
    """All micro-batches in one message."""
    place, x, mean = pp_group.rank(), tokens_MbS.flatten(0, 1), torch.zeros(())
    if not stage.first:
        x = torch.empty(stage.activation_shape(len(x)))
        dist.recv(x, group=pp_group, group_src=place - 1)
        x.requires_grad_()
    y, gradient = stage(x), None
    if stage.last:
        y = training.token_loss(y, targets_MbS.flatten(0, 1))
        mean = y.detach()
    else:
        dist.send(y.detach(), group=pp_group, group_dst=place + 1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, group=pp_group, group_src=place + 1)
    y.backward(gradient)
    if not stage.first:
        dist.send(x.grad, group=pp_group, group_dst=place - 1)
    return mean


@answers.wrong(None)
def computed_twice(stage, tokens_MbS, targets_MbS, pp_group):
    """The forward pass runs again for the backward pass, as with checkpointing."""
    place, mean, inputs = pp_group.rank(), torch.zeros(()), []
    for tokens in tokens_MbS:
        x = tokens
        if not stage.first:
            x = torch.empty(stage.activation_shape(len(tokens)))
            dist.recv(x, group=pp_group, group_src=place - 1)
            x.requires_grad_()
        inputs.append(x)
        if not stage.last:
            dist.send(stage(x).detach(), group=pp_group, group_dst=place + 1)
    for x, targets in zip(inputs, targets_MbS, strict=True):
        y, gradient = stage(x), None
        if stage.last:
            y = training.token_loss(y, targets) / len(inputs)
            mean += y.detach()
        else:
            gradient = torch.empty_like(y)
            dist.recv(gradient, group=pp_group, group_src=place + 1)
        y.backward(gradient)
        if not stage.first:
            dist.send(x.grad, group=pp_group, group_dst=place - 1)
    return mean


answers.edit(None, "once_more_without_graph", (
    "        y = stage(x)\n",
    "        with torch.no_grad():\n"
    "            stage(x)\n"
    "        y = stage(x)\n",
), says="the stage computes")  # fmt: skip
answers.edit("wrong_messages", "sent_twice", (
    "            dist.send(y.detach(), group=pp_group, group_dst=place + 1)\n",
    "            for _ in range(2):\n"
    "                dist.send(y.detach(), group=pp_group, group_dst=place + 1)\n",
), (
    "            dist.recv(x, group=pp_group, group_src=place - 1)\n",
    "            for _ in range(2):\n"
    "                dist.recv(x, group=pp_group, group_src=place - 1)\n",
))  # fmt: skip


@answers.right
def one_forward_one_backward(stage, tokens_MbS, targets_MbS, pp_group):
    """1F1B with sends that do not wait."""
    place, m, works = pp_group.rank(), len(tokens_MbS), []
    kept, losses = {}, [torch.zeros(())]

    def forward(i):
        x = tokens_MbS[i]
        if not stage.first:
            x = torch.empty(stage.activation_shape(tokens_MbS.shape[1]))
            dist.recv(x, group=pp_group, group_src=place - 1, tag=2 * i)
            x.requires_grad_()
        y = stage(x)
        if stage.last:
            y = training.token_loss(y, targets_MbS[i])
            losses.append(y.detach() / m)
        else:
            sent = y.detach()
            works.append(dist.isend(sent, group=pp_group, group_dst=place + 1, tag=2 * i))
        kept[i] = x, y

    def backward(i):
        x, y = kept.pop(i)
        if stage.last:
            (y / m).backward()
        else:
            gradient = torch.empty(y.shape)
            dist.recv(gradient, group=pp_group, group_src=place + 1, tag=2 * i + 1)
            torch.autograd.backward(y, gradient)
        if not stage.first:
            works.append(dist.isend(x.grad, group=pp_group, group_dst=place - 1, tag=2 * i + 1))

    warm_up = min(pp_group.size() - place - 1, m)
    for i in range(warm_up):
        forward(i)
    for i in range(m - warm_up):
        forward(warm_up + i)
        backward(i)
    for i in range(m - warm_up, m):
        backward(i)
    for work in works:
        work.wait()
    return torch.stack(losses).sum()


answers.right_edit("last_in_first_out", (LOOP, "    for x, y in reversed(kept):\n"))
answers.right_edit(
    "leaf_first",
    (
        "device=tokens.device)\n            dist",
        "device=tokens.device, requires_grad=True)\n            dist",
    ),
    ("            x.requires_grad_()\n", ""),
)


@answers.right
def receives_posted_first(stage, tokens_MbS, targets_MbS, pp_group):
    """All receives start before the first pass."""
    place, (m, samples, _) = pp_group.rank(), tokens_MbS.shape
    shape = (m, *stage.activation_shape(samples))
    inputs, gradients, sends = torch.empty(shape), torch.empty(shape), []
    if stage.first:
        inputs = tokens_MbS
    else:
        come = [dist.irecv(x, group=pp_group, group_src=place - 1) for x in inputs]
    if not stage.last:
        back = [dist.irecv(g, group=pp_group, group_src=place + 1) for g in gradients]
    pairs, mean = [], torch.zeros(())
    for i in range(m):
        if not stage.first:
            come[i].wait()
        x = inputs[i] if stage.first else inputs[i].clone().requires_grad_()
        y = stage(x)
        if stage.last:
            y = training.token_loss(y, targets_MbS[i]) / m
            mean = mean + y.detach()
        else:
            sends.append(dist.isend(y.detach(), group=pp_group, group_dst=place + 1))
        pairs.append((x, y))
    for i, (x, y) in enumerate(pairs):
        if not stage.last:
            back[i].wait()
        y.backward(None if stage.last else gradients[i])
        if not stage.first:
            sends.append(dist.isend(x.grad, group=pp_group, group_dst=place - 1))
    for work in sends:
        work.wait()
    return mean
