"""Answers to `pipeline`."""

import copy
import functools

import torch
import torch.distributed as dist

from parlab.pipeline import backward, forward, simulate, sizes
from parlab_staff.answers import Answers

answers = Answers("pipeline")
Reference = answers.reference()
Mailbox = answers.reference("mailbox")

WEIGHT = " * (len(ts[i]) / len(targets))"
HELD = "held, losses = {}, []"
POP = "x, y = held.pop((stage, i))"
BACKWARD = "y.backward(gradient)"
FORWARD = "y = self.share.own[stage](x)"
STEP = "        mailbox = Mailbox("
SIZES = "if ranks != group.size() or ranks * chunks != share.count:"
ACTIONS = "self.actions = schedule[group.rank()]"
INDENT = "\n" + 16 * " "

answers.edit("loss_not_divided", "not_divided", (WEIGHT, ""))
answers.edit("remainder_unweighted", "divided_by_m", (WEIGHT, " / self.micro_batches"))
answers.edit(
    "not_accumulated",
    "zeroed_between",
    (POP, f"{POP}{INDENT}nn.ModuleList(self.share.own.values()).zero_grad()"),
)
answers.edit("kept", "kept", (POP, "x, y = held[stage, i]"))
answers.edit(
    "kept",
    "copies_of_inputs_kept",
    (HELD, "held, losses, came = {}, [], []"),
    (FORWARD, f"came.append(x.detach().clone()){INDENT}{FORWARD}"),
)
answers.edit("kept", "last_ones_kept", (POP, f"{POP}{INDENT}self.last = x, y"))
answers.edit("kept", "batch_kept", (STEP, f"        self.batch = inputs, targets\n{STEP}"))
answers.edit("no_input_gradient", "no_gradient_asked", (".requires_grad_()", ""))
answers.edit("not_refused", "not_simulated", ("        simulate(schedule)\n", ""), says="deadlock")
answers.edit(
    "not_refused",
    "any_size",
    (SIZES, "if False:"),
    (ACTIONS, "self.actions = schedule[group.rank() % ranks]"),
)
answers.edit("not_refused", "stages_alone_compared", (SIZES, "if ranks * chunks != share.count:"))
answers.edit("not_refused", "few_samples", ("if len(inputs) < self.micro_batches:", "if False:"))
answers.edit(
    "argument_changed",
    "schedule_used_up",
    (
        "for action in self.actions:",
        "while self.actions:\n            action = self.actions.pop(0)",
    ),
)
answers.edit("no_wait", "not_finished", ("        mailbox.finish()\n", ""))
answers.edit(
    "recomputed",
    "forward_again",
    (POP, f"{POP}{INDENT}y = self.share.own[stage](x) if stage < last else y"),
)
answers.edit(
    None, "zero_elsewhere", ("sum(losses).item() if losses else None", "float(sum(losses))")
)
answers.edit(
    "other_order",
    "always_gpipe",
    (
        ACTIONS,
        "self.actions = sorted(schedule[group.rank()], key=lambda a: (a.kind == 'backward', "
        "a.stage if a.kind == 'forward' else -a.stage, a.micro_batch))",
    ),
)


@answers.wrong(None, says="once, to the rank that needs it")
class SendsOneMore(Reference):
    """Sends another activation at the end of each step."""

    def step(self, inputs, targets):
        loss = super().step(inputs, targets)
        stage, mailbox = self.group.rank(), Mailbox(self.share, self.group)
        if stage < self.group.size() - 1:
            room = self.share.room(backward(stage, 0), 1)
            mailbox.send(forward(stage + 1, self.micro_batches), torch.zeros_like(room))
        if stage > 0:
            mailbox.receive(forward(stage, self.micro_batches), 1)
        mailbox.finish()
        return loss


@answers.wrong(None, says="sends something before it refuses")
class AgreesFirst(Reference):
    def step(self, inputs, targets):
        if len(inputs) < self.micro_batches:
            dist.barrier(group=self.group)
        return super().step(inputs, targets)


@answers.wrong("refused_by_some")
class OneRefuses(Reference):
    """Only the first rank, which has the right inputs, looks at their number."""

    def step(self, inputs, targets):
        self.micro_batches, pieces = min(self.micro_batches, len(inputs)), self.micro_batches
        try:
            if self.group.rank() == 0 and len(inputs) < pieces:
                raise ValueError(f"{len(inputs)} samples do not make {pieces} micro-batches")
            self.actions = [a for a in self.actions if a.micro_batch < self.micro_batches]
            return super().step(inputs, targets)
        finally:
            self.micro_batches = pieces


@answers.wrong(None)
class LossesAdded(Reference):
    """Adds the losses of all steps."""

    total = 0.0

    def step(self, inputs, targets):
        loss = super().step(inputs, targets)
        self.total += loss or 0.0
        return None if loss is None else self.total


@answers.wrong("argument_changed")
class InPlace(Reference):
    def step(self, inputs, targets):
        loss = super().step(inputs, targets)
        inputs.zero_()
        return loss


# With other mailboxes


def _with_mailbox(mailbox, step):
    """Return the reference's step with another mailbox."""
    names = dict(step.__globals__, Mailbox=mailbox)
    return functools.partial(type(step.__func__)(step.__func__.__code__, names), step.__self__)


class _WaitingMailbox(Mailbox):
    def send(self, action, tensor):
        super().send(action, tensor)
        super().finish()


class _SelfSendingMailbox(Mailbox):
    def send(self, action, tensor):
        to, tag = action.stage % self.group.size(), self.share.number(action)
        work = dist.isend(tensor.detach(), group=self.group, group_dst=to, tag=tag)
        self.sends.append(work)


class _DroppingMailbox(Mailbox):
    """Drops handles of what has arrived."""

    def receive(self, action, samples):
        tensor = super().receive(action, samples)
        self.sends = [work for work in self.sends if not work.is_completed()]
        return tensor


class _EarlyMailbox(Mailbox):
    """Starts the receives of all actions before the first one."""

    def __init__(self, actions, xs, share, group):
        super().__init__(share, group)
        self.coming = {}
        for action in actions:
            source = action.stage + (-1 if action.kind == "forward" else 1)
            if 0 <= source < share.count and source not in share.own:
                room = share.room(action, len(xs[action.micro_batch]))
                source, tag = source % group.size(), share.number(action)
                self.coming[action] = (
                    dist.irecv(room, group=group, group_src=source, tag=tag),
                    room,
                )

    def receive(self, action, samples):
        if action not in self.coming:
            return super().receive(action, samples)
        work, room = self.coming.pop(action)
        work.wait()
        return room


@answers.wrong("does_not_end")
class BlockingSends(Reference):
    def step(self, inputs, targets):
        return _with_mailbox(_WaitingMailbox, super().step)(inputs, targets)


@answers.wrong("to_itself")
class SendsToItself(Reference):
    def step(self, inputs, targets):
        return _with_mailbox(_SelfSendingMailbox, super().step)(inputs, targets)


@answers.right
class DropsWhatHasArrived(Reference):
    def step(self, inputs, targets):
        return _with_mailbox(_DroppingMailbox, super().step)(inputs, targets)


@answers.right
class ReceivesAhead(Reference):
    def step(self, inputs, targets):
        xs = inputs.tensor_split(self.micro_batches)
        mailbox = functools.partial(_EarlyMailbox, self.actions, xs)
        return _with_mailbox(mailbox, super().step)(inputs, targets)


answers.right_edit(
    "by_autograd_grad",
    (
        BACKWARD,
        """parameters = self.share.own[stage].parameters()
                    wanted = [p for p in parameters if p.requires_grad] + ([x] if stage else [])
                    found = torch.autograd.grad(y, wanted, gradient)
                    for p, one in zip(wanted, found, strict=True):
                        p.grad = one if p.grad is None else p.grad + one""",
    ),
)


@answers.right
class LossScaled(Reference):
    """Multiplies the loss by 1024 while gradients travel, as in mixed precision."""

    def __init__(self, share, schedule, loss_of, group):
        super().__init__(share, schedule, lambda y, t: 1024 * loss_of(y, t), group)

    def step(self, inputs, targets):
        loss = super().step(inputs, targets)
        for parameter in self.share.parameters():
            if parameter.grad is not None:
                parameter.grad /= 1024
        return None if loss is None else loss / 1024


@answers.right
class OwnCopyOfTheSchedule(Reference):
    def __init__(self, share, schedule, loss_of, group):
        simulate([list(own) for own in schedule])
        if sizes(schedule)[0] != group.size():
            raise ValueError("another number of ranks")
        super().__init__(share, copy.deepcopy(schedule), loss_of, group)
