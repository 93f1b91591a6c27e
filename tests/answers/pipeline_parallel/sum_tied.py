"""Answers to `sum_tied`."""

import torch
import torch.distributed as dist

from parlab.answers import Answers

answers = Answers("sum_tied")
reference = answers.reference()

ISEND = "    work = dist.isend(weight.grad, group=group, group_dst=other)\n"
ADD = "    weight.grad += theirs"

answers.edit("replaced", "theirs", (ADD, "    weight.grad = theirs"))
answers.edit("not_summed", "not_added", (ADD, "    pass"))
answers.edit("doubled", "own_twice", (ADD, "    weight.grad += weight.grad"))
answers.edit("averaged", "mean", (ADD, "    weight.grad = (weight.grad + theirs) / 2"))
answers.edit(
    "one_end_only",
    "last_only",
    (ADD, "    if group.rank() == last:\n        weight.grad += theirs"),
)
answers.edit(
    "both_send_first",
    "blocking",
    (ISEND, "    dist.send(weight.grad, group=group, group_dst=other)\n"),
    ("    work.wait()\n", ""),
)
answers.edit(
    "both_send_first",
    "waits_at_once",
    (ISEND, ISEND + "    work.wait()\n"),
    ("    work.wait()\n    weight", "    weight"),
)
answers.edit("weights_changed", "weights", (ADD, ADD + "\n    weight.data += theirs"))
answers.edit(
    "changed_before_wait",
    "added_under_way",
    ("    work.wait()\n", ""),
    (ADD, ADD + "\n    work.wait()"),
)
answers.edit("no_wait", "never_waits", ("    work.wait()\n", ""))
answers.edit(
    "raises", "no_zeros", ("        weight.grad = torch.zeros_like(weight)\n", "        pass\n")
)
answers.edit(
    "next_call",
    "from_anybody",
    ("dist.recv(theirs, group=group, group_src=other)", "dist.recv(theirs, group=group)"),
)
answers.edit(
    "to_itself",
    "numbers_of_the_job",
    ("group_dst=other", "dst=other"),
    ("group_src=other", "src=other"),
)
answers.edit("does_not_end", "source_of_the_job", ("group_src=other", "src=other"))
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
    """A rank without a gradient has nothing to say."""
    if weight is not None and weight.grad is not None:
        reference(weight, first, last, group)


@answers.wrong("whole_group")
def all_reduced_by_two(weight, first, last, group):
    """All-reduce as between two ranks, over a group of more."""
    if weight is not None and first != last:
        dist.all_reduce(weight.grad, group=group)


@answers.wrong("others_take_part")
def all_reduced(weight, first, last, group):
    if first == last:
        return
    total = torch.zeros(1)
    dist.all_reduce(total, group=group)
    reference(weight, first, last, group)


@answers.wrong(None, says="one copy")
def one_copy_too(weight, first, last, group):
    if first == last:
        dist.barrier(group=group)
    reference(weight, first, last, group)


@answers.wrong("sent_more")
def weights_as_well(weight, first, last, group):
    reference(weight, first, last, group)
    if first != last and weight is not None:
        other = first + last - group.rank()
        work = dist.isend(weight.detach(), group=group, group_dst=other)
        dist.recv(torch.empty_like(weight), group=group, group_src=other)
        work.wait()


@answers.right
def in_turn(weight, first, last, group):
    """One sends first, the other receives first."""
    if weight is None or first == last:
        return
    mine = torch.zeros_like(weight) if weight.grad is None else weight.grad
    theirs = torch.empty_like(mine)
    if group.rank() == first:
        dist.send(mine, group=group, group_dst=last)
        dist.recv(theirs, group=group, group_src=last)
    else:
        dist.recv(theirs, group=group, group_src=first)
        dist.send(mine, group=group, group_dst=first)
    weight.grad = mine + theirs


@answers.right
def sum_sent_back(weight, first, last, group):
    """The last adds up, and sends the sum back."""
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
    mine = weight.grad.clone() if weight.grad is not None else torch.zeros_like(weight)
    theirs = torch.empty_like(mine)
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.isend, mine, group=group, group_peer=other),
            dist.P2POp(dist.irecv, theirs, group=group, group_peer=other),
        ]
    )
    for work in works:
        work.wait()
    weight.grad = mine.add(theirs)


@answers.right
def receive_posted_first(weight, first, last, group):
    if first == last or weight is None:
        return
    if weight.grad is None:
        weight.grad = weight.new_zeros(weight.shape)
    other, theirs = first + last - group.rank(), torch.empty_like(weight.grad)
    coming = dist.irecv(theirs, group=group, group_src=other, tag=3)
    going = dist.isend(weight.grad.clone(), group=group, group_dst=other, tag=3)
    coming.wait()
    weight.grad.add_(theirs)
    going.wait()


@answers.right
def global_numbers(weight, first, last, group):
    """Peers by their numbers in the whole job."""
    me = group.rank()
    if first == last or me not in (first, last):
        return
    peer = dist.get_global_rank(group, last if me == first else first)
    if weight.grad is None:
        weight.grad = torch.zeros_like(weight)
    theirs = torch.zeros_like(weight.grad)
    work = dist.isend(weight.grad, peer, group=group)
    dist.recv(theirs, peer, group=group)
    work.wait()
    weight.grad = theirs + weight.grad
