"""Answers to `mailbox`."""

import torch
import torch.distributed as dist

from parlab_staff.answers import Answers

answers = Answers("mailbox")
Reference = answers.reference()

ISEND = "dist.isend(tensor, group=self.group, group_dst=to, tag=tag)"
SEND = f"self.sends.append({ISEND})"
TAGS = "tag=self.share.number(action))"
TAGGED = "tensor, tag = tensor.contiguous(), self.share.number(action)"
SOURCE = 'step = -1 if action.kind == "forward" else 1'
OWN = "        self.own = {}\n"
POP = "self.own.pop(action)"

answers.edit(
    "blocking_send", "waits", (SEND, "dist.send(tensor, group=self.group, group_dst=to, tag=tag)")
)
answers.edit(
    "keeps_graph", "not_detached", ("tensor, to = tensor.detach(), ", "tensor, to = tensor, ")
)
answers.edit(
    None,
    "sent_in_half_precision",
    ("tensor, to = tensor.detach(), ", "tensor, to = tensor.detach().half().to(tensor.dtype), "),
    says="receives at index",
)
answers.edit("no_wait", "never_waits", ("self.sends.pop().wait()", "self.sends.pop()"))
answers.edit("not_contiguous", "views_as_they_are", (TAGGED, "tag = self.share.number(action)"))
answers.edit(
    "kept",
    "handles_kept",
    (
        "        while self.sends:\n            self.sends.pop().wait()",
        "        for work in self.sends:\n            work.wait()",
    ),
)
answers.edit("kept", "own_kept", (POP, "self.own[action]"))
answers.edit(
    "does_not_end",
    "one_for_all",
    (OWN, ""),
    ("        self.sends = []\n", ""),
    ("    def __init__", "    own, sends = {}, []\n\n    def __init__"),
    says="another mailbox",
)
answers.edit(
    "does_not_end",
    "tag_of_the_next",
    (TAGS, "tag=self.share.number(action) + 1)"),
    says="with tag",
)
answers.edit(
    "mixed_up",
    "few_tags",
    (TAGGED, TAGGED + " % 16"),
    (TAGS, "tag=self.share.number(action) % 16)"),
)
answers.edit("mixed_up", "no_tags", (", tag=tag))", "))"), (f", {TAGS}", ")"))
answers.edit(
    "to_itself",
    "through_the_group",
    ("if to == self.group.rank():", "if False:"),
    ("if action in self.own:", "if False:"),
)
answers.edit(
    "to_itself",
    "numbers_of_the_job",
    ("group_dst=to", "dst=to"),
    ("group_src=source", "src=source"),
)
answers.edit(
    None,
    "a_leaf",
    ("        return room", "        return room.requires_grad_()"),
    says="requires a gradient",
)
answers.edit(
    "does_not_end",
    "nothing_received",
    ("        dist.recv(", "        return room\n        dist.recv("),
    says="is in `finish`",
)
answers.edit(
    "does_not_end", "from_the_stage_before", (SOURCE, "step = -1"), says="has sent to rank"
)


@answers.wrong(None, says="each tensor once")
class Twice(Reference):
    def send(self, action, tensor):
        super().send(action, tensor)
        super().send(action._replace(micro_batch=action.micro_batch + 100), tensor)

    def receive(self, action, samples):
        super().receive(action._replace(micro_batch=action.micro_batch + 100), samples)
        return super().receive(action, samples)


@answers.wrong("argument_changed")
class InPlace(Reference):
    def send(self, action, tensor):
        copy = tensor.detach().clone()
        tensor.detach().zero_()
        super().send(action, copy)


answers.right_edit("receives_ahead", ("dist.recv(", "dist.irecv("), (TAGS, f"{TAGS}.wait()"))


@answers.right
class DropsWhatHasLeft(Reference):
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
class OtherTags:
    """Written from nothing, with other tags."""

    def __init__(self, share, group):
        self.share, self.group, self.local, self.works = share, group, {}, []

    def _tag(self, action):
        return 7 + action.stage + 100 * (action.micro_batch + 1000 * (action.kind == "backward"))

    def send(self, action, tensor):
        with torch.no_grad():
            tensor = tensor.contiguous().detach()
        if action.stage in self.share.own:
            self.local[self._tag(action)] = tensor
            return
        to = dist.get_global_rank(self.group, action.stage % self.group.size())
        self.works += [dist.isend(tensor, to, group=self.group, tag=self._tag(action))]

    def receive(self, action, samples):
        from_stage = action.stage - 1 if action.kind == "forward" else action.stage + 1
        if from_stage in self.share.own:
            return self.local.pop(self._tag(action))
        room = self.share.room(action, samples)
        source = dist.get_global_rank(self.group, from_stage % self.group.size())
        dist.recv(room, source, group=self.group, tag=self._tag(action))
        return room

    def finish(self):
        for work in self.works:
            work.wait()
        self.works.clear()


answers.right_edit(
    "batched",
    (
        SEND,
        "self.sends += dist.batch_isend_irecv([dist.P2POp(dist.isend, tensor, group=self.group, "
        "group_peer=to, tag=tag)])",
    ),
)
