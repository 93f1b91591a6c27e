"""Answers to `pipeline`."""

import copy
import functools

import torch
import torch.distributed as dist

from parlab.answers import Answers
from parlab.pipeline import backward, forward, simulate, sizes

answers = Answers("pipeline")
Reference = answers.reference()
Mailbox = answers.reference("mailbox")

WEIGHT = " * (len(ts[i]) / len(targets))"
POP = "x, y = held.pop((stage, i))"
BACKWARD = "y.backward(gradient)"
FORWARD = "y = self.share.own[stage](x)"
CUT = """        used = len(inputs) // self.micro_batches * self.micro_batches
        xs, ts = (x[:used].tensor_split(self.micro_batches) for x in (inputs, targets))
"""

answers.edit("loss_not_divided", "not_divided", (WEIGHT, ""))
answers.edit(
    "loss_arguments",
    "targets_first",
    ("self.loss_of(y, ts[i])", "self.loss_of(ts[i], y)"),
)
answers.edit("remainder_unweighted", "divided_by_m", (WEIGHT, " / self.micro_batches"))
answers.edit(
    "never_freed",
    "kept",
    (POP, "x, y = held[stage, i]"),
)
answers.edit(
    "graph_kept",
    "graph_retained",
    (BACKWARD, BACKWARD[:-1] + ", retain_graph=True)"),
    (POP, "x, y = held[stage, i]"),
)
answers.edit("no_input_gradient", "no_gradient_asked", (".requires_grad_()", ""))
answers.edit("deadlock_accepted", "not_simulated", ("        simulate(schedule)\n", ""))
answers.edit(
    "not_refused",
    "any_size",
    ("if ranks != group.size() or ranks * chunks != share.count:", "if False:"),
    ("self.actions = schedule[group.rank()]", "self.actions = schedule[group.rank() % ranks]"),
)
answers.edit(
    "not_refused",
    "stages_alone_compared",
    (
        "if ranks != group.size() or ranks * chunks != share.count:",
        "if ranks * chunks != share.count:",
    ),
)
answers.edit(
    "never_freed",
    "inputs_kept",
    ("held, losses = {}, []", "held, losses, came = {}, [], []"),
    (POP, POP + "\n                came.append(x)"),
)
answers.edit("not_refused", "few_samples", ("if len(inputs) < self.micro_batches:", "if False:"))
answers.edit(
    "frozen_raises",
    "first_stage_asked",
    ("                if y.requires_grad:\n", "                if True:\n"),
)
answers.edit(
    "frozen_not_passed",
    "frozen_sends_nothing",
    (
        "if stage > 0:\n                    mailbox.send",
        "if stage > 0 and any(p.requires_grad for p in self.share.parameters()):\n"
        "                    mailbox.send",
    ),
)
answers.edit("unfrozen", "all_trained", (FORWARD, "y = self.share.own[stage].requires_grad_()(x)"))
answers.edit("mode_changed", "evaluates", (FORWARD, "y = self.share.own[stage].eval()(x)"))
answers.edit("mode_changed", "trains", (FORWARD, "y = self.share.own[stage].train()(x)"))
answers.edit(
    "tokens_require_grad",
    "gradient_of_tokens",
    ("                x = xs[i]\n", "                x = xs[i].clone().requires_grad_()\n"),
)
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
    (
        POP,
        POP
        + "\n                if stage < last:\n                    y = self.share.own[stage](x)",
    ),
)
# Dropout would draw once more, and BatchNorm's running means move once more.
answers.edit(
    None,
    "a_pass_to_warm_up",
    (
        "y = self.share.own[stage](x)",
        "self.share.own[stage](torch.zeros_like(x))\n                y = self.share.own[stage](x)",
    ),
)
answers.edit(
    "loss_everywhere",
    "zero_elsewhere",
    ("sum(losses).item() if losses else None", "float(sum(losses))"),
)
answers.edit(
    "not_accumulated",
    "zeroed_between",
    (
        POP,
        POP + "\n                nn.ModuleList(self.share.own.values()).zero_grad()",
    ),
)
answers.edit(
    "raises",
    "steps_between",
    (
        BACKWARD,
        BACKWARD + "\n                    torch.optim.SGD(self.share.parameters(), lr=0.1).step()",
    ),
)
answers.edit(
    "remainder_dropped",
    "remainder_dropped",
    ("        mailbox = Mailbox(", CUT + "        mailbox = Mailbox("),
    (WEIGHT, " / self.micro_batches"),
)


answers.edit(
    "activations_not_sent",
    "sent_to_its_maker",
    ("mailbox.send(forward(stage + 1, i), y)", "mailbox.send(action, y)"),
)
answers.edit("no_backward_pass", "outputs_detached", (FORWARD, f"{FORWARD}.detach()"))
answers.edit(
    "no_backward_pass",
    "detached_where_kept",
    ("held[stage, i] = x, y", "held[stage, i] = x, y.detach()"),
    ("                if y.requires_grad:", "                if True:"),
)
answers.edit(
    "gradients_not_sent",
    "gradients_not_sent",
    (
        "                    mailbox.send(backward(stage - 1, i), x.grad)",
        "                    pass",
    ),
)


answers.edit(
    "wrong_start",
    "starts_from_ones",
    (BACKWARD, "y.sum().backward()"),
)
answers.edit(
    "no_boundary_gradient",
    "last_stage_alone",
    (
        "None if stage == last else mailbox.receive(action, len(xs[i]))",
        "None",
    ),
    ("                if y.requires_grad:\n", "                if stage == last:\n"),
    (
        "                    mailbox.send(backward(stage - 1, i), x.grad)",
        "                    pass",
    ),
)


@answers.wrong("sent_more")
class SendsOneMore(Reference):
    """An activation that nobody asked for, at the end of each step."""

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


@answers.wrong("sent_before_refusing")
class AgreesFirst(Reference):
    """The ranks meet before any of them refuses."""

    def step(self, inputs, targets):
        if len(inputs) < self.micro_batches:
            dist.barrier(group=self.group)
        return super().step(inputs, targets)


@answers.wrong("weights_updated")
class UpdatesAtOnce(Reference):
    """Each gradient is taken into the weights as it comes, behind autograd's back."""

    def __init__(self, share, schedule, loss_of, group):
        super().__init__(share, schedule, loss_of, group)
        for parameter in share.parameters():
            if not parameter.requires_grad:
                continue
            parameter.register_post_accumulate_grad_hook(self.update)

    @staticmethod
    def update(parameter):
        parameter.data -= 0.1 * parameter.grad


@answers.wrong("other_order")
class AlwaysGPipe(Reference):
    """GPipe, whatever the schedule says."""

    def __init__(self, share, schedule, loss_of, group):
        super().__init__(share, schedule, loss_of, group)
        self.actions = sorted(
            self.actions,
            key=lambda a: (
                a.kind == "backward",
                a.stage if a.kind == "forward" else -a.stage,
                a.micro_batch,
            ),
        )


class _WaitingMailbox(Mailbox):
    def send(self, action, tensor):
        super().send(action, tensor)
        super().finish()


def _with_mailbox(mailbox, step):
    """The reference's step, with another mailbox."""
    names = dict(step.__globals__, Mailbox=mailbox)
    return functools.partial(type(step.__func__)(step.__func__.__code__, names), step.__self__)


class _SelfSendingMailbox(Mailbox):
    """All goes through the group."""

    def send(self, action, tensor):
        to, tag = action.stage % self.group.size(), self.share.number(action)
        work = dist.isend(tensor.detach(), group=self.group, group_dst=to, tag=tag)
        self.sends.append(work)


@answers.wrong("local_through_group")
class SendsToItself(Reference):
    def step(self, inputs, targets):
        return _with_mailbox(_SelfSendingMailbox, super().step)(inputs, targets)


class _BlocksMailbox(Mailbox):
    """Stages that follow each other are taken to be on one rank."""

    def send(self, action, tensor):
        if action.stage in self.share.own:
            super().send(action, tensor)
        else:
            to, tag = action.stage // len(self.share.own), self.share.number(action)
            tensor = tensor.detach().contiguous()
            self.sends.append(dist.isend(tensor, group=self.group, group_dst=to, tag=tag))


@answers.wrong("to_itself")
class StagesInBlocks(Reference):
    def step(self, inputs, targets):
        return _with_mailbox(_BlocksMailbox, super().step)(inputs, targets)


@answers.wrong("refused_by_some")
class OneRefuses(Reference):
    """The first rank alone looks at the sizes, as its inputs are those that count."""

    def step(self, inputs, targets):
        self.micro_batches, pieces = min(self.micro_batches, len(inputs)), self.micro_batches
        try:
            if self.group.rank() == 0 and len(inputs) < pieces:
                raise ValueError(f"{len(inputs)} samples do not make {pieces} micro-batches")
            self.actions = [a for a in self.actions if a.micro_batch < self.micro_batches]
            return super().step(inputs, targets)
        finally:
            self.micro_batches = pieces


@answers.wrong("blocking_send")
class BlockingSends(Reference):
    """Each send waits for its receiver."""

    def step(self, inputs, targets):
        return _with_mailbox(_WaitingMailbox, super().step)(inputs, targets)


@answers.wrong(None)
class LossesKept(Reference):
    """Adds this step's loss to those before."""

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.total = 0.0

    def step(self, inputs, targets):
        loss = super().step(inputs, targets)
        if loss is None:
            return None
        self.total += loss
        return self.total


@answers.wrong(None)
class TellsAll(Reference):
    def step(self, inputs, targets):
        loss = super().step(inputs, targets)
        dist.barrier(group=self.group)
        return loss


@answers.wrong("argument_changed")
class InPlace(Reference):
    def step(self, inputs, targets):
        loss = super().step(inputs, targets)
        inputs.zero_()
        return loss


@answers.right
class ByAutogradGrad(Reference):
    """Gradients by `torch.autograd.grad`, added up by hand."""

    def step(self, inputs, targets):
        m, share, group = self.micro_batches, self.share, self.group
        if len(inputs) < m:
            raise ValueError("fewer samples than micro-batches")
        parts = list(zip(inputs.tensor_split(m), targets.tensor_split(m), strict=True))
        mailbox, kept, total = Mailbox(share, group), {}, None
        for action in self.actions:
            _, stage, i = action
            x, t = parts[i]
            module = share.own[stage]
            if action.kind == "forward":
                if stage:
                    x = mailbox.receive(action, len(x)).requires_grad_()
                y = module(x)
                if stage + 1 < share.count:
                    mailbox.send(forward(stage + 1, i), y)
                else:
                    y = self.loss_of(y, t) * len(t)
                    total = (total or 0.0) + y.item()
                kept[action] = (x, y)
                continue
            x, y = kept.pop(forward(stage, i))
            start = torch.full_like(y, 1 / len(inputs)) if stage + 1 == share.count else None
            if start is None:
                start = mailbox.receive(action, len(parts[i][0]))
            parameters = [p for p in module.parameters() if p.requires_grad]
            if not y.requires_grad:
                continue
            found = torch.autograd.grad(y, parameters + ([x] if stage else []), start)
            for parameter, one in zip(parameters, found, strict=False):
                parameter.grad = one if parameter.grad is None else parameter.grad + one
            if stage:
                mailbox.send(backward(stage - 1, i), found[-1])
        mailbox.finish()
        return None if total is None else total / len(inputs)


@answers.right
class LossScaled(Reference):
    """The loss times 1024 while gradients travel, as mixed precision does it."""

    def __init__(self, share, schedule, loss_of, group):
        super().__init__(share, schedule, lambda y, t: 1024 * loss_of(y, t), group)

    def step(self, inputs, targets):
        loss = super().step(inputs, targets)
        for parameter in self.share.parameters():
            if parameter.grad is not None:
                parameter.grad /= 1024
        return None if loss is None else loss / 1024


class _ReleasingMailbox(Mailbox):
    """Lets go of what has arrived, whenever something comes back."""

    def receive(self, action, samples):
        tensor = super().receive(action, samples)
        self.sends = [work for work in self.sends if not work.is_completed()]
        return tensor


@answers.right
class LetsGo(Reference):
    def step(self, inputs, targets):
        return _with_mailbox(_ReleasingMailbox, super().step)(inputs, targets)


@answers.right
class OwnCopyOfTheSchedule(Reference):
    def __init__(self, share, schedule, loss_of, group):
        simulate([list(own) for own in schedule])
        if sizes(schedule)[0] != group.size():
            raise ValueError("another number of ranks")
        super().__init__(share, copy.deepcopy(schedule), loss_of, group)


@answers.right
class ReceivesAhead(Reference):
    """Posts the receives of all actions before the first, in buffers of their own."""

    def step(self, inputs, targets):
        m, share, group = self.micro_batches, self.share, self.group
        if len(inputs) < m:
            raise ValueError("fewer samples than micro-batches")
        xs, ts = inputs.tensor_split(m), targets.tensor_split(m)
        coming, mailbox = {}, Mailbox(share, group)
        for action in self.actions:
            source = action.stage + (-1 if action.kind == "forward" else 1)
            if 0 <= source < share.count and source not in share.own:
                room = share.room(action, len(xs[action.micro_batch]))
                tag = share.number(action)
                work = dist.irecv(room, group=group, group_src=source % group.size(), tag=tag)
                coming[action] = work, room

        def receive(action):
            if action not in coming:
                return mailbox.receive(action, len(xs[action.micro_batch]))
            work, room = coming.pop(action)
            work.wait()
            return room

        held, total, last = {}, 0.0, share.count - 1
        for action in self.actions:
            kind, stage, i = action
            if kind == "forward":
                x = xs[i] if stage == 0 else receive(action).requires_grad_()
                y = share.own[stage](x)
                if stage < last:
                    mailbox.send(forward(stage + 1, i), y)
                else:
                    y = self.loss_of(y, ts[i]) * len(ts[i]) / len(targets)
                    total += y.item()
                held[stage, i] = x, y
            else:
                x, y = held.pop((stage, i))
                gradient = receive(action) if stage < last else None
                if y.requires_grad:
                    y.backward(gradient)
                if stage:
                    mailbox.send(backward(stage - 1, i), x.grad)
        mailbox.finish()
        return total if last in share.own else None
