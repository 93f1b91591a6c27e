"""Answers to `sum_tied`."""

import torch
import torch.distributed as dist

from parlab_staff.answers import Answers

answers = Answers("sum_tied")
reference = answers.reference()

ISEND = "    work = dist.isend(weight.grad, group=group, group_dst=other)\n"
WAIT = "    work.wait()\n"
RECEIVE = "dist.recv(theirs, group=group, group_src=other)"
ADD = "    weight.grad += theirs"

answers.edit("not_summed", "not_added", (ADD, "    pass"))
answers.edit("averaged", "mean", (ADD, "    weight.grad = (weight.grad + theirs) / 2"))
answers.edit(
    "not_summed",
    "last_only",
    (ADD, "    if group.rank() == last:\n        weight.grad += theirs"),
)
answers.edit(
    "both_send_first",
    "blocking",
    (ISEND, "    dist.send(weight.grad, group=group, group_dst=other)\n"),
    (WAIT, ""),
)
answers.edit(None, "weights", (ADD, ADD + "\n    weight.data += theirs"), says="weight itself")
answers.edit("changed_before_wait", "added_under_way", (WAIT, ""), (ADD, f"{ADD}\n{WAIT}"))
answers.edit("no_wait", "never_waits", (WAIT, ""))
answers.edit(
    "raises", "no_zeros", ("        weight.grad = torch.zeros_like(weight)\n", "        pass\n")
)
answers.edit(
    "wrong_type",
    "zeros_only_sent",
    ("    if weight.grad is None:\n", "    had = weight.grad is not None\n    if not had:\n"),
    (ADD, "    weight.grad = weight.grad + theirs if had else None"),
    says="`weight.grad` is None",
)
answers.edit("next_call", "from_anybody", (RECEIVE, "dist.recv(theirs, group=group)"))
answers.edit(
    "to_itself",
    "numbers_of_the_job",
    ("group_dst=other", "dst=other"),
    ("group_src=other", "src=other"),
)
answers.edit(
    None,
    "zeros_for_one_copy",
    (
        "    if first == last or",
        "    if weight is not None and weight.grad is None:\n"
        "        weight.grad = torch.zeros_like(weight)\n"
        "    if first == last or",
    ),
    says="nothing to do",
)


@answers.wrong("none_left_out")
def nothing_to_send(weight, first, last, group):
    if weight is not None and weight.grad is not None:
        reference(weight, first, last, group)


@answers.wrong("whole_group")
def all_reduced_by_two(weight, first, last, group):
    if weight is not None and first != last:
        dist.all_reduce(weight.grad, group=group)


@answers.wrong(None, says="has no copy, but it calls all_reduce")
def all_reduced(weight, first, last, group):
    if first != last:
        dist.all_reduce(torch.zeros(1), group=group)
        reference(weight, first, last, group)


@answers.wrong(None, says="one copy")
def one_copy_too(weight, first, last, group):
    if first == last:
        dist.barrier(group=group)
    reference(weight, first, last, group)


@answers.wrong(None, says="one message with the gradient")
def weights_as_well(weight, first, last, group):
    reference(weight, first, last, group)
    if first != last and weight is not None:
        other = first + last - group.rank()
        work = dist.isend(weight.detach(), group=group, group_dst=other)
        dist.recv(torch.empty_like(weight), group=group, group_src=other)
        work.wait()


@answers.right
def first_sends_first(weight, first, last, group):
    """Use blocking messages."""
    if weight is None or first == last:
        return
    own = torch.zeros_like(weight) if weight.grad is None else weight.grad
    theirs, other = torch.empty_like(own), first + last - group.rank()
    if group.rank() == first:
        dist.send(own, group=group, group_dst=other)
        dist.recv(theirs, group=group, group_src=other)
    else:
        dist.recv(theirs, group=group, group_src=other)
        dist.send(own, group=group, group_dst=other)
    weight.grad = own + theirs


@answers.right
def sum_sent_back(weight, first, last, group):
    """The last rank adds, and sends the sum back."""
    if weight is None or first == last:
        return
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    if group.rank() == first:
        dist.send(weight.grad, group=group, group_dst=last)
        dist.recv(weight.grad, group=group, group_src=last)
    else:
        theirs = torch.empty_like(weight.grad)
        dist.recv(theirs, group=group, group_src=first)
        weight.grad.add_(theirs)
        dist.send(weight.grad, group=group, group_dst=first)


@answers.right
def a_batch(weight, first, last, group):
    if first == last or group.rank() not in (first, last):
        return
    other = last if group.rank() == first else first
    own = weight.grad.clone() if weight.grad is not None else torch.zeros_like(weight)
    theirs = torch.empty_like(own)
    operations = [
        dist.P2POp(dist.isend, own, group=group, group_peer=other),
        dist.P2POp(dist.irecv, theirs, group=group, group_peer=other),
    ]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    weight.grad = own.add(theirs)


@answers.right
def receives_from_any_rank_with_its_tag(weight, first, last, group):
    """The tag is the sender's number, so no other message can arrive."""
    if first == last or weight is None:
        return
    if weight.grad is None:
        weight.grad = weight.new_zeros(weight.shape)
    other, theirs = first + last - group.rank(), torch.empty_like(weight.grad)
    coming = dist.irecv(theirs, group=group, tag=other)
    going = dist.isend(weight.grad.clone(), group=group, group_dst=other, tag=group.rank())
    coming.wait()
    weight.grad.add_(theirs)
    going.wait()


@answers.right
def global_numbers(weight, first, last, group):
    """Peers by their numbers in the whole job."""
    own_number = group.rank()
    if first == last or own_number not in (first, last):
        return
    peer = dist.get_global_rank(group, last if own_number == first else first)
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    theirs = torch.zeros_like(weight.grad)
    work = dist.isend(weight.grad, peer, group=group)
    dist.recv(theirs, peer, group=group)
    work.wait()
    weight.grad = theirs + weight.grad
