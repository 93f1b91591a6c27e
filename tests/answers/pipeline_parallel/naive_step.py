"""Answers to `naive_step`."""

import torch
import torch.distributed as dist

from parlab.answers import Answers
from parlab.pipeline import backward, forward

answers = Answers("naive_step")
reference = answers.reference()
Mailbox = answers.reference("mailbox")

RECEIVED = "mailbox.receive(forward(stage, 0), len(inputs)).requires_grad_()"
BACKWARD = "y.backward(gradient)"
FORWARD = "y = share.own[stage](x)"

answers.edit(
    "no_input_gradient", "no_gradient_asked", (RECEIVED, RECEIVED.replace(".requires_grad_()", ""))
)
answers.edit(
    "gradients_not_sent",
    "gradients_not_sent",
    ("        mailbox.send(backward(stage - 1, 0), x.grad)", "        pass"),
)
answers.edit(
    "activations_not_sent",
    "sent_to_its_maker",
    ("mailbox.send(forward(stage + 1, 0), y)", "mailbox.send(forward(stage, 0), y)"),
)
answers.edit("no_backward_pass", "output_detached", (FORWARD, f"{FORWARD}.detach()"))
answers.edit(
    "no_backward_pass",
    "asks_a_detached_output",
    (FORWARD, f"{FORWARD}.detach()"),
    ("    if y.requires_grad:", "    if True:"),
)
answers.edit(
    "wrong_start",
    "ones",
    (BACKWARD, "y.sum().backward()"),
)
answers.edit(
    "recomputed",
    "again",
    (
        "    if y.requires_grad:",
        "    if stage < last:\n        y = share.own[stage](x)\n    if y.requires_grad:",
    ),
)
# Dropout would draw once more, and BatchNorm's running means move once more.
answers.edit(
    None,
    "a_pass_to_warm_up",
    (
        "y = share.own[stage](x)",
        "share.own[stage](torch.zeros_like(x))\n    y = share.own[stage](x)",
    ),
)
answers.edit("loss_arguments", "targets_first", ("loss_of(y, targets)", "loss_of(targets, y)"))
answers.edit(
    "loss_everywhere",
    "all_return",
    ("return y.item() if stage == last else None", "return y.sum().item()"),
)
answers.edit(
    None,
    "gradient_of_the_batch",
    ("    x = inputs\n", "    x = inputs.requires_grad_()\n"),
    says="belongs to the caller",
)
answers.edit("frozen_raises", "first_stage_asked", ("    if y.requires_grad:", "    if True:"))
answers.edit(
    "frozen_not_passed",
    "frozen_sends_nothing",
    (
        "    if stage > 0:\n        mailbox.send",
        "    if stage > 0 and any(p.requires_grad for p in share.parameters()):\n"
        "        mailbox.send",
    ),
)
answers.edit("unfrozen", "all_trained", (FORWARD, "y = share.own[stage].requires_grad_()(x)"))
answers.edit("mode_changed", "evaluates", (FORWARD, "y = share.own[stage].eval()(x)"))
answers.edit("mode_changed", "trains", (FORWARD, "y = share.own[stage].train()(x)"))
answers.edit(
    "mode_changed",
    "evaluates_afterwards",
    ("    mailbox.finish()\n", "    mailbox.finish()\n    share.own[stage].eval()\n"),
)
answers.edit(
    "tokens_require_grad",
    "gradient_of_a_copy",
    ("    x = inputs\n", "    x = inputs.clone().requires_grad_()\n"),
)
answers.edit("no_wait", "not_finished", ("    mailbox.finish()\n", ""))
answers.edit("wrong_type", "a_tensor", ("return y.item()", "return y.detach()"))
answers.edit(
    None,
    "output_for_input",
    ("backward(stage - 1, 0), x.grad", "backward(stage - 1, 0), x.detach()"),
)


@answers.wrong("no_boundary_gradient")
def last_stage_alone(share, inputs, targets, loss_of, group):
    """Only the last stage learns."""
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


@answers.wrong("weights_updated")
def steps(share, inputs, targets, loss_of, group):
    loss = reference(share, inputs, targets, loss_of, group)
    torch.optim.SGD(share.parameters(), lr=0.1).step()
    return loss


@answers.wrong("sent_more")
def twice_over(share, inputs, targets, loss_of, group):
    """The whole step again, for good measure."""
    loss = reference(share, inputs, targets, loss_of, group)
    stage, mailbox = group.rank(), Mailbox(share, group)
    if stage < share.count - 1:
        mailbox.send(forward(stage + 1, 1), torch.zeros_like(share.room(backward(stage, 0), 1)))
    if stage > 0:
        mailbox.receive(forward(stage, 1), 1)
    mailbox.finish()
    return loss


@answers.wrong(None)
def loss_told_to_all(share, inputs, targets, loss_of, group):
    loss = reference(share, inputs, targets, loss_of, group)
    told = torch.tensor([loss or 0.0])
    dist.all_reduce(told, group=group)
    return loss


@answers.wrong(None)
def gradients_shared(share, inputs, targets, loss_of, group):
    """As in data parallelism: other ranks have other parameters."""
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
    """Blocking messages are no danger where one rank works at a time."""
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


@answers.right
def one_line_of_backward(share, inputs, targets, loss_of, group):
    """The loss of an inner stage is its output times the gradient."""
    stage, mailbox = group.rank(), Mailbox(share, group)
    x = inputs.clone()
    if stage:
        x = mailbox.receive(forward(stage, 0), len(inputs)).clone().requires_grad_()
    y = share.own[stage](x)
    if stage + 1 < share.count:
        mailbox.send(forward(stage + 1, 0), y.detach())
        loss = (y * mailbox.receive(backward(stage, 0), len(inputs))).sum()
    else:
        loss = loss_of(y, targets)
    if any(t.requires_grad for t in (x, *share.parameters())):
        loss.backward()
    if stage:
        mailbox.send(backward(stage - 1, 0), x.grad)
    mailbox.finish()
    return loss.item() if stage + 1 == share.count else None


@answers.right
def hook_sends(share, inputs, targets, loss_of, group):
    """The gradient goes out from a hook."""
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
