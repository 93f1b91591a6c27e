"""Answers to `flat_step`."""

import torch.nn.functional as F
from mpi4py import MPI

from parlab_staff.answers import Answers

answers = Answers("flat_step")

ZERO = "flat.zero_()"
SHARE = " * (len(inputs) / total)"
REDUCE = "comm.Allreduce(MPI.IN_PLACE, flat)"
STEP = "optimizer.step()"
RETURN = "return weighted_loss"

answers.edit(None, "broadcast", (REDUCE, "comm.Bcast(flat, root=0)"), says="/ lr of")
answers.edit(
    "does_not_end", "empty_share_leaves", (ZERO, ZERO + "\n    if not len(inputs): return 0.0")
)
answers.edit("not_summed", "into_a_copy", (REDUCE, "comm.Allreduce(MPI.IN_PLACE, flat.clone())"))
answers.edit(
    "many_messages", "loss_pickled", (RETURN, "return comm.allreduce(weighted_loss) / comm.size")
)
answers.edit(
    None,
    "gathered",
    (
        REDUCE,
        "every = flat.new_empty(comm.size, len(flat))\n"
        "    comm.Allgather(flat, every)\n"
        "    flat.copy_(every.sum(0))",
    ),
    says="expected only all-reduces",
)
answers.edit("pickles", "pickled", (REDUCE, "flat.copy_(comm.allreduce(flat))"))
answers.edit("not_zeroed", "not_zeroed", (ZERO, "pass"))
answers.edit(
    "step_before_sum",
    "step_before_sum",
    (REDUCE, STEP),
    ("    optimizer.step()\n    return", "    comm.Allreduce(MPI.IN_PLACE, flat)\n    return"),
)
answers.edit("sum_for_mean", "no_weight", (SHARE, ""))
answers.edit("equal_weights", "every_rank_alike", (SHARE, " / comm.size"))
answers.edit("left_the_buffer", "zero_grad", (ZERO, "optimizer.zero_grad()"))
answers.edit("divided_again", "divided_again", (REDUCE, REDUCE + "\n    flat /= comm.size"))
answers.edit(None, "no_step", (STEP, "pass"), says="is called 0 times")
answers.edit(None, "two_steps", (STEP, f"{STEP}\n    {STEP}"), says="is called 2 times")
answers.edit("nothing_sent", "no_all_reduce", (REDUCE, "pass"))
answers.edit("returns_none", "no_return", (RETURN, "pass"))
answers.edit("wrong_type", "a_tensor", (RETURN, "return torch.tensor(weighted_loss)"))
answers.edit(
    None,
    "own_mean",
    ("weighted_loss = loss.item()", "weighted_loss = loss.item() * total / len(inputs)"),
    says="add up to",
)
answers.edit("lab_communicator", "world", ("comm.Allreduce", "MPI.COMM_WORLD.Allreduce"))


@answers.right
def buffer_scaled(model, flat, optimizer, inputs, targets, total, comm):
    flat.fill_(0)
    part = 0
    if inputs.shape[0] > 0:
        loss = F.cross_entropy(model(inputs), targets)
        loss.backward()
        flat.mul_(len(inputs) / total)
        part = loss.item() * len(inputs) / total
    comm.Allreduce(MPI.IN_PLACE, flat)
    optimizer.step()
    return part


@answers.right
def sum_of_losses(model, flat, optimizer, inputs, targets, total, comm):
    optimizer.zero_grad(set_to_none=False)
    loss = F.cross_entropy(model(inputs), targets, reduction="sum") / total
    loss.backward()
    comm.Allreduce(MPI.IN_PLACE, flat)
    optimizer.step()
    return float(loss)


@answers.right
def not_in_place_of_mpi(model, flat, optimizer, inputs, targets, total, comm):
    flat[:] = 0
    part = 0.0
    if len(inputs):
        loss = len(inputs) / total * F.cross_entropy(model(inputs), targets)
        loss.backward()
        part = loss.item()
    comm.Allreduce(flat.clone(), flat)
    optimizer.step()
    return part


@answers.right
def started_then_awaited(model, flat, optimizer, inputs, targets, total, comm):
    model.zero_grad(set_to_none=False)
    losses = [
        F.cross_entropy(model(x[None]), y[None]) / total
        for x, y in zip(inputs, targets, strict=True)
    ]
    for loss in losses:
        loss.backward()
    request = comm.Iallreduce(MPI.IN_PLACE, flat)
    part = sum(loss.item() for loss in losses)
    request.Wait()
    optimizer.step()
    return part


@answers.right
def zeroed_afterwards_too(model, flat, optimizer, inputs, targets, total, comm):
    part = answers.reference()(model, flat, optimizer, inputs, targets, total, comm)
    flat.zero_()
    return part
