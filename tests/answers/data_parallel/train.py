"""Answers to `train`."""

import torch
import torch.nn.functional as F
from mpi4py import MPI

from parlab_staff.answers import Answers

answers = Answers("train")
broadcast_state = answers.reference("broadcast_state")
all_reduce_gradients = answers.reference("all_reduce_gradients")
sharded_sampler = answers.reference("sharded_sampler")

BROADCAST = "    broadcast_state(model, comm)\n"
SHARE = "share = len(indices) / total"
REDUCE = "            all_reduce_gradients(model, share, comm)\n"
ZERO = "            optimizer.zero_grad()\n"
STEP = "            optimizer.step()\n"
LOSS = "losses.append(comm.allreduce(weighted_loss))"
PLACE = "epoch, comm.rank, comm.size"

answers.edit("no_broadcast", "no_broadcast", (BROADCAST, ""))
answers.edit(
    "no_broadcast",
    "parameters_only",
    (BROADCAST, "    for p in model.parameters():\n        comm.Bcast(p.detach(), root=0)\n"),
)
answers.edit(
    None,
    "broadcast_in_every_epoch",
    (BROADCAST, ""),
    ("range(epochs):\n", "range(epochs):\n        broadcast_state(model, comm)\n"),
    says="are broadcast",
)
answers.edit("not_summed", "no_all_reduce", (REDUCE, ""))
answers.edit(None, "no_zero_grad", (ZERO, ""), says="after training")
answers.edit(
    "global_generator", "seeds_globally", (BROADCAST, "    torch.manual_seed(0)\n" + BROADCAST)
)
answers.edit(None, "share_of_rank_0", (PLACE, "epoch, 0, comm.size"), says="in step 0")
answers.edit("equal_weights", "uneven_tail", (SHARE, "share = 1 / comm.size"))
answers.edit(
    "share_of_batch_size", "as_if_all_were_full", (SHARE, "share = len(indices) / batch_size")
)
answers.edit("sum_for_mean", "no_weights", ("(model, share, comm)", "(model, 1.0, comm)"))
answers.edit("own_part", "part_not_summed", (LOSS, "losses.append(weighted_loss)"))
answers.edit(
    None, "loss_of_rank_0", (LOSS, "losses.append(comm.bcast(weighted_loss))"), says="at index 0"
)
answers.edit(
    None,
    "gradient_of_rank_0",
    ("(model, share, comm)", "(model, float(comm.rank == 0), comm)"),
    says="after training",
)
answers.edit(None, "epoch_forgotten", (PLACE, "0, comm.rank, comm.size"), says="same batches")
answers.edit(
    "other_batches", "shuffle_by_ranks", (PLACE, "epoch + 100 * comm.size, comm.rank, comm.size")
)
answers.edit(
    "steps",
    "batch_of_each_rank",
    ("len(inputs), batch_size,", "len(inputs), batch_size * comm.size,"),
)
answers.edit(
    "steps", "empty_share_takes_no_step", (STEP, "            if len(indices): optimizer.step()\n")
)
answers.edit("steps", "no_step", (STEP, ""))
answers.edit(
    "wrong_type", "tensors", (LOSS, "losses.append(torch.tensor(comm.allreduce(weighted_loss)))")
)
answers.edit("returns_none", "no_return", ("    return losses", "    pass"))
answers.edit("wrong_shape", "one_loss_more", ("return losses", "return [*losses, 0.0]"))
answers.edit(
    "does_not_end",
    "empty_share_goes_on",
    ("            total = ", "            if not len(indices): continue\n            total = "),
)
answers.edit(
    "lab_communicator", "total_on_the_labs_own", ("total = comm.", "total = MPI.COMM_WORLD.")
)


@answers.wrong("argument_changed")
def shuffles_the_callers_data(model, optimizer, inputs, targets, batch_size, epochs, comm):
    losses = answers.reference()(model, optimizer, inputs, targets, batch_size, epochs, comm)
    inputs.copy_(inputs.flip(0))
    return losses


@answers.wrong("raises")
def notebooks_rank(model, optimizer, inputs, targets, batch_size, epochs, comm):
    return [len(sharded_sampler(len(inputs), batch_size, 0, rank, world_size))]  # noqa: F821


def steps(size, batch_size, epochs, comm):
    """Yield this rank's indices in each step, and the size of the global batch."""
    for epoch in range(epochs):
        for indices in sharded_sampler(size, batch_size, epoch, comm.rank, comm.size):
            yield indices, comm.allreduce(len(indices))


@answers.right
def another_shuffle(model, optimizer, inputs, targets, batch_size, epochs, comm):
    broadcast_state(model, comm)
    losses, generator = [], torch.Generator().manual_seed(17)
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs), generator=generator).split(batch_size):
            indices = batch[comm.rank :: comm.size]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[indices]), targets[indices], reduction="sum")
            (loss / len(batch)).backward()
            all_reduce_gradients(model, 1.0, comm)
            optimizer.step()
            losses.append(comm.allreduce(loss.item()) / len(batch))
    return losses


@answers.right
def shares_take_turns(model, optimizer, inputs, targets, batch_size, epochs, comm):
    broadcast_state(model, comm)  # with few samples, a rank's first forward pass is in step 1
    losses, generator = [], torch.Generator().manual_seed(5)
    for _ in range(epochs):
        batches = torch.randperm(len(inputs), generator=generator).split(batch_size)
        for i, batch in enumerate(batches):
            optimizer.zero_grad()
            part = 0.0
            if len(indices := batch[(comm.rank + i) % comm.size :: comm.size]):
                loss = F.cross_entropy(model(inputs[indices]), targets[indices], reduction="sum")
                (loss / len(batch)).backward()
                part = loss.item() / len(batch)
            all_reduce_gradients(model, 1.0, comm)
            optimizer.step()
            losses.append(comm.allreduce(part))
    return losses


@answers.right
def in_micro_batches(model, optimizer, inputs, targets, batch_size, epochs, comm):
    broadcast_state(model, comm)
    losses = []
    for indices, total in steps(len(inputs), batch_size, epochs, comm):
        model.zero_grad()
        losses.append(0.0)
        for part in indices.split(2) if len(indices) else ():
            weighted = F.cross_entropy(model(inputs[part]), targets[part]) * len(part) / total
            weighted.backward()
            losses[-1] += weighted.item()
        all_reduce_gradients(model, 1.0, comm)
        optimizer.step()
    return [sum(step) for step in zip(*comm.allgather(losses), strict=True)]


@answers.right
def zeroed_in_place_and_after_the_step(model, optimizer, inputs, targets, batch_size, epochs, comm):
    broadcast_state(model, comm)
    optimizer.zero_grad(set_to_none=False)
    losses = []
    for indices, total in steps(len(inputs), batch_size, epochs, comm):
        loss = F.cross_entropy(model(inputs[indices]), targets[indices], reduction="sum") / total
        loss.backward()
        all_reduce_gradients(model, 1.0, comm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=False)
        sent = loss.detach().clone()
        comm.Allreduce(MPI.IN_PLACE, sent)
        losses.append(sent.item())
    return losses


@answers.right
def loss_in_a_pass_of_its_own(model, optimizer, inputs, targets, batch_size, epochs, comm):
    broadcast_state(model, comm)
    losses = []
    for indices, total in steps(len(inputs), batch_size, epochs, comm):
        x, y, share = inputs[indices], targets[indices], len(indices) / total
        before = F.cross_entropy(model(x), y).item() if len(indices) else 0.0
        optimizer.zero_grad()
        if len(indices):
            F.cross_entropy(model(x), y).backward()
        all_reduce_gradients(model, share, comm)
        optimizer.step()
        losses.append(comm.allreduce(share * before))
    return losses


@answers.right
def reduced_to_rank_0_and_broadcast(model, optimizer, inputs, targets, batch_size, epochs, comm):
    broadcast_state(model, comm)
    losses = []
    for indices, total in steps(len(inputs), batch_size, epochs, comm):
        optimizer.zero_grad(set_to_none=False)
        loss = F.cross_entropy(model(inputs[indices]), targets[indices], reduction="sum")
        (loss / total).backward()
        for parameter in filter(lambda p: p.requires_grad, model.parameters()):
            summed = torch.empty_like(parameter)
            comm.Reduce(parameter.grad, summed, root=0)
            comm.Bcast(summed, root=0)
            parameter.grad = summed
        optimizer.step()
        losses.append(comm.allreduce(loss.item()) / total)
    return losses
