"""Answers to `mailbox`."""

import torch
import torch.distributed as dist

from parlab.answers import Answers

answers = Answers("mailbox")
Reference = answers.reference()

SEND = "self.sends.append(dist.isend(tensor, group=self.group, group_dst=to, tag=tag))"

TAGS = "tag=self.share.number(action))"
TAGGED = "tensor, tag = tensor.contiguous(), self.share.number(action)"

answers.edit(
    "blocking_send", "waits", (SEND, "dist.send(tensor, group=self.group, group_dst=to, tag=tag)")
)
answers.edit("blocking_send", "waits_at_once", (SEND, SEND + "\n            self.sends[-1].wait()"))
answers.edit(
    "keeps_graph", "not_detached", ("tensor, to = tensor.detach(), ", "tensor, to = tensor, ")
)
answers.edit(
    "no_wait",
    "never_waits",
    ("            self.sends.pop().wait()", "            self.sends.pop()"),
)
answers.edit(
    "default_group",
    "no_group",
    (
        "dist.isend(tensor, group=self.group, group_dst=to, tag=tag)",
        "dist.isend(tensor, to, tag=tag)",
    ),
)
answers.edit("not_contiguous", "views_as_they_are", (TAGGED, "tag = self.share.number(action)"))
answers.edit(
    "kept",
    "handles_kept",
    (
        "        while self.sends:\n            self.sends.pop().wait()",
        "        for work in self.sends:\n            work.wait()",
    ),
)
answers.edit("kept", "own_kept", ("self.own.pop(action)", "self.own[action]"))
answers.edit(
    "shared_state",
    "one_for_all",
    ("        self.own = {}\n", ""),
    ("        self.sends = []\n", ""),
    ("    def __init__", "    own, sends = {}, []\n\n    def __init__"),
)
answers.edit("tags_differ", "tag_of_the_next", (TAGS, "tag=self.share.number(action) + 1)"))
answers.edit(
    "not_sent",
    "activations_alone",
    ("        else:\n", '        elif action.kind == "forward":\n'),
)
answers.edit(
    "mixed_up",
    "few_tags",
    (TAGGED, TAGGED + " % 16"),
    (TAGS, "tag=self.share.number(action) % 16)"),
)
answers.edit(
    "local_through_group",
    "through_the_group",
    ("if to == self.group.rank():", "if False:"),
    ("if action in self.own:", "if False:"),
)
answers.edit(
    "raises",
    "own_without_kind",
    ("self.own[action] = tensor", "self.own[action[1:]] = tensor"),
    ("        if action in self.own:\n", "        if self.group.size() == 1:\n"),
    ("self.own.pop(action)", "self.own.pop(action[1:])"),
)
answers.edit(
    "mixed_up",
    "own_in_a_row",
    ("        self.own = {}\n", "        self.own = []\n"),
    ("self.own[action] = tensor", "self.own.append(tensor)"),
    ("        if action in self.own:\n", "        if self.group.size() == 1:\n"),
    ("self.own.pop(action)", "self.own.pop(0)"),
)
answers.edit(
    "to_itself",
    "numbers_of_the_job",
    ("group_dst=to", "dst=to"),
    ("group_src=source", "src=source"),
)
answers.edit(
    "requires_grad", "a_leaf", ("        return room", "        return room.requires_grad_()")
)
answers.edit(
    "not_received",
    "nothing_received",
    ("        dist.recv(", "        return room\n        dist.recv("),
)


@answers.wrong("mixed_up")
class NoTags(Reference):
    def send(self, action, tensor):
        tensor, to = tensor.detach(), action.stage % self.group.size()
        if to == self.group.rank():
            self.own[action] = tensor
        else:
            self.sends.append(dist.isend(tensor.contiguous(), group=self.group, group_dst=to))

    def receive(self, action, samples):
        if action in self.own:
            return self.own.pop(action)
        step = -1 if action.kind == "forward" else 1
        room = self.share.room(action, samples)
        dist.recv(room, group=self.group, group_src=(action.stage + step) % self.group.size())
        return room


@answers.wrong("mixed_up")
class TagOfTheMicroBatch(Reference):
    """Activations and gradients, and the stages, are not told apart."""

    def send(self, action, tensor):
        tensor, to = tensor.detach(), action.stage % self.group.size()
        if to == self.group.rank():
            self.own[action] = tensor
        else:
            work = dist.isend(
                tensor.contiguous(), group=self.group, group_dst=to, tag=action.micro_batch
            )
            self.sends.append(work)

    def receive(self, action, samples):
        if action in self.own:
            return self.own.pop(action)
        source = (action.stage + (-1 if action.kind == "forward" else 1)) % self.group.size()
        room = self.share.room(action, samples)
        dist.recv(room, group=self.group, group_src=source, tag=action.micro_batch)
        return room


@answers.wrong("sent_more")
class Twice(Reference):
    """Everything again, to be sure."""

    def send(self, action, tensor):
        super().send(action, tensor)
        super().send(action._replace(micro_batch=action.micro_batch + 100), tensor)

    def receive(self, action, samples):
        super().receive(action._replace(micro_batch=action.micro_batch + 100), samples)
        return super().receive(action, samples)


@answers.wrong("sent_more")
class TwiceUnasked(Reference):
    """The second is never received."""

    def send(self, action, tensor):
        super().send(action, tensor)
        super().send(action, tensor)


@answers.wrong(None, says="calls barrier")
class Barriers(Reference):
    """A barrier after each send: ranks send different numbers of tensors."""

    def send(self, action, tensor):
        super().send(action, tensor)
        dist.barrier(group=self.group)


@answers.wrong("wrong_source")
class FromTheWrongSide(Reference):
    """Everything comes from the rank before."""

    def receive(self, action, samples):
        if action in self.own:
            return self.own.pop(action)
        room = self.share.room(action, samples)
        source = (action.stage - 1) % self.group.size()
        dist.recv(room, group=self.group, group_src=source, tag=self.share.number(action))
        return room


@answers.wrong("argument_changed")
class InPlace(Reference):
    def send(self, action, tensor):
        copy = tensor.detach().clone()
        tensor.detach().zero_()
        super().send(action, copy)


@answers.right
class ReceivesAhead(Reference):
    """A handle for the receive as well."""

    def receive(self, action, samples):
        if action in self.own:
            return self.own.pop(action)
        step = -1 if action.kind == "forward" else 1
        source = (action.stage + step) % self.group.size()
        room = self.share.room(action, samples)
        tag = self.share.number(action)
        dist.irecv(room, group=self.group, group_src=source, tag=tag).wait()
        return room


@answers.right
class LetsGo(Reference):
    """Drops what has left, at each send."""

    def send(self, action, tensor):
        self.sends = [work for work in self.sends if not work.is_completed()]
        super().send(action, tensor)


@answers.right
class Copies(Reference):
    def send(self, action, tensor):
        super().send(action, tensor.detach().clone())

    def receive(self, action, samples):
        return super().receive(action, samples).clone()


@answers.right
class OwnTags:
    """Written from nothing, with tags of its own."""

    def __init__(self, share, group):
        self.share, self.group, self.here, self.works = share, group, {}, []

    def _tag(self, action):
        return 7 + action.stage + 100 * (action.micro_batch + 1000 * (action.kind == "backward"))

    def send(self, action, tensor):
        with torch.no_grad():
            tensor = tensor.contiguous().detach()
        if action.stage in self.share.own:
            self.here[self._tag(action)] = tensor
            return
        to = dist.get_global_rank(self.group, action.stage % self.group.size())
        self.works += [dist.isend(tensor, to, group=self.group, tag=self._tag(action))]

    def receive(self, action, samples):
        from_stage = action.stage - 1 if action.kind == "forward" else action.stage + 1
        if from_stage in self.share.own:
            return self.here.pop(self._tag(action))
        room = self.share.room(action, samples)
        source = dist.get_global_rank(self.group, from_stage % self.group.size())
        dist.recv(room, source, group=self.group, tag=self._tag(action))
        return room

    def finish(self):
        for work in self.works:
            work.wait()
        self.works.clear()


@answers.right
class Batched(Reference):
    """A send as a batch of one."""

    def send(self, action, tensor):
        to = action.stage % self.group.size()
        if to == self.group.rank():
            return super().send(action, tensor)
        operation = dist.P2POp(
            dist.isend,
            tensor.detach().contiguous(),
            group=self.group,
            group_peer=to,
            tag=self.share.number(action),
        )
        self.sends += dist.batch_isend_irecv([operation])
        return None
