"""Answers to `naive_step`."""

import torch
import torch.distributed as dist

from parlab.pipeline import backward, forward
from parlab_staff.answers import Answers

answers = Answers("naive_step")
reference = answers.reference()
Mailbox = answers.reference("mailbox")

RECEIVED = "mailbox.receive(forward(stage, 0), len(inputs)).requires_grad_()"
BACKWARD = "y.backward(gradient)"
FORWARD = "y = share.own[stage](x)"
SEND = "mailbox.send(backward(stage - 1, 0), x.grad)"
TEST = "    if y.requires_grad:"
RETURN = "return y.item() if stage == last else None"

answers.edit(
    "no_input_gradient", "no_gradient_asked", (RECEIVED, RECEIVED.replace(".requires_grad_()", ""))
)
answers.edit("does_not_end", "gradients_not_sent", (SEND, "pass"), says="has begun F0 B0")
answers.edit(
    None,
    "computes_on_inputs",
    (FORWARD, "y = share.own[stage](inputs)"),
    says="stage 1 is called on a tensor that is not the output of stage 0",
)
answers.edit("recomputed", "again", (TEST, f"    if stage < last:\n        {FORWARD}\n{TEST}"))
# Dropout would draw once more, and BatchNorm's running means move once more.
answers.edit(
    None,
    "a_pass_to_warm_up",
    (FORWARD, f"share.own[stage](torch.zeros_like(x))\n    {FORWARD}"),
)
answers.edit(
    None, "all_return", (RETURN, "return y.sum().item()"), says="only the rank of the last"
)
answers.edit(
    None,
    "gradient_of_the_batch",
    ("    x = inputs\n", "    x = inputs.requires_grad_()\n"),
    says="belongs to the caller",
)
answers.edit("raises", "first_stage_asked", (TEST, "    if True:"))
answers.edit(
    "does_not_end",
    "frozen_sends_nothing",
    (
        f"    if stage > 0:\n        {SEND}",
        f"    if stage > 0 and any(p.requires_grad for p in share.parameters()):\n        {SEND}",
    ),
)
answers.edit(
    None,
    "all_trained",
    (FORWARD, "y = share.own[stage].requires_grad_()(x)"),
    says="Leave `requires_grad`",
)
answers.edit(None, "trains", (FORWARD, "y = share.own[stage].train()(x)"), says="another mode")
answers.edit("no_wait", "not_finished", ("    mailbox.finish()\n", ""))
answers.edit("wrong_type", "a_tensor", ("return y.item()", "return y.detach()"))


@answers.wrong(None, says="parameter 0 of this rank has no gradient")
def last_stage_alone(share, inputs, targets, loss_of, group):
    stage, last, mailbox = group.rank(), share.count - 1, Mailbox(share, group)
    x = inputs if stage == 0 else mailbox.receive(forward(stage, 0), len(inputs))
    y = share.own[stage](x)
    if stage < last:
        mailbox.send(forward(stage + 1, 0), y)
        mailbox.finish()
        return None
    loss = loss_of(y, targets)
    loss.backward()
    return loss.item()


@answers.wrong(None, says="has changed")
def steps(share, inputs, targets, loss_of, group):
    loss = reference(share, inputs, targets, loss_of, group)
    torch.optim.SGD(share.parameters(), lr=0.1).step()
    return loss


@answers.wrong(None, says="expected 1 with")
def one_message_more(share, inputs, targets, loss_of, group):
    loss = reference(share, inputs, targets, loss_of, group)
    stage, mailbox = group.rank(), Mailbox(share, group)
    if stage < share.count - 1:
        mailbox.send(forward(stage + 1, 1), torch.zeros_like(share.room(backward(stage, 0), 1)))
    if stage > 0:
        mailbox.receive(forward(stage, 1), 1)
    mailbox.finish()
    return loss


@answers.wrong("to_itself")
def to_its_own_rank(share, inputs, targets, loss_of, group):
    if group.rank() < share.count - 1:
        dist.send(inputs, group=group, group_dst=group.rank())
    return reference(share, inputs, targets, loss_of, group)


@answers.wrong("to_itself")
def to_its_own_rank_without_blocking(share, inputs, targets, loss_of, group):
    work = dist.isend(inputs, group=group, group_dst=group.rank())
    dist.irecv(torch.empty_like(inputs), group=group, group_src=group.rank()).wait()
    work.wait()
    return reference(share, inputs, targets, loss_of, group)


@answers.wrong(None, says="Use only messages between two ranks")
def loss_for_all(share, inputs, targets, loss_of, group):
    loss = reference(share, inputs, targets, loss_of, group)
    dist.all_reduce(torch.tensor([loss or 0.0]), group=group)
    return loss


@answers.wrong(None)
def gradients_averaged(share, inputs, targets, loss_of, group):
    """As in data parallelism, although other ranks have other parameters."""
    loss = reference(share, inputs, targets, loss_of, group)
    for parameter in share.parameters():
        parameter.grad /= group.size()
    return loss


@answers.right
def by_autograd_grad(share, inputs, targets, loss_of, group):
    stage, mailbox = group.rank(), Mailbox(share, group)
    first, last = stage == 0, stage == share.count - 1
    parameters = [p for p in share.parameters() if p.requires_grad]
    x = inputs if first else mailbox.receive(forward(stage, 0), len(inputs)).requires_grad_()
    y = share.own[stage](x)
    gradient = None
    if last:
        y = loss_of(y, targets)
    else:
        mailbox.send(forward(stage + 1, 0), y)
        gradient = mailbox.receive(backward(stage, 0), len(inputs))
    wanted = parameters if first else [*parameters, x]
    found = torch.autograd.grad(y, wanted, gradient) if y.requires_grad else []
    for parameter, one in zip(parameters, found, strict=False):
        parameter.grad = one
    if not first:
        mailbox.send(backward(stage - 1, 0), found[-1])
    mailbox.finish()
    return float(y) if last else None


@answers.right
def without_a_mailbox(share, inputs, targets, loss_of, group):
    """Blocking messages cannot deadlock if one rank works at a time."""
    stage, last = group.rank(), share.count - 1
    x = inputs
    if stage:
        x = share.room(forward(stage, 0), len(inputs))
        dist.recv(x, group=group, group_src=stage - 1)
        x.requires_grad_(True)
    y = share.own[stage](x)
    loss = None
    if stage < last:
        dist.send(y.detach(), group=group, group_dst=stage + 1)
        gradient = torch.empty_like(y)
        dist.recv(gradient, group=group, group_src=stage + 1)
        if y.requires_grad:
            torch.autograd.backward([y], [gradient])
    else:
        loss = loss_of(y, targets)
        loss.backward()
        loss = loss.item()
    if stage:
        dist.send(x.grad, group=group, group_dst=stage - 1)
    return loss


answers.right_edit(
    "output_times_gradient",
    (BACKWARD, "(y if gradient is None else (y * gradient).sum()).backward()"),
)


@answers.right
def hook_sends(share, inputs, targets, loss_of, group):
    stage, mailbox = group.rank(), Mailbox(share, group)
    x = inputs
    if stage:
        x = mailbox.receive(forward(stage, 0), len(inputs)).requires_grad_()
        x.register_hook(lambda g: mailbox.send(backward(stage - 1, 0), g))
    y = share.own[stage](x)
    if stage == share.count - 1:
        y = loss_of(y, targets)
        y.backward()
    else:
        mailbox.send(forward(stage + 1, 0), y)
        gradient = mailbox.receive(backward(stage, 0), len(inputs))
        if y.grad_fn is not None:
            y.backward(gradient)
    mailbox.finish()
    return y.item() if stage == share.count - 1 else None


@answers.right
def as_a_pipeline(share, inputs, targets, loss_of, group):
    schedule = [[forward(r, 0), backward(r, 0)] for r in range(group.size())]
    return answers.reference("pipeline")(share, schedule, loss_of, group).step(inputs, targets)
