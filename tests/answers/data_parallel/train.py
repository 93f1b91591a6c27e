"""Answers to `train`."""

import torch
import torch.nn.functional as F
from mpi4py import MPI

from parlab.answers import Answers

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
    "no_broadcast",
    "after_training",
    (BROADCAST, ""),
    ("    return losses", "    broadcast_state(model, comm)\n    return losses"),
)
answers.edit(
    "broadcast_again",
    "in_every_epoch",
    (BROADCAST, ""),
    ("range(epochs):\n", "range(epochs):\n        broadcast_state(model, comm)\n"),
)
answers.edit(
    "broadcast_again", "in_every_step", (STEP, STEP + "            broadcast_state(model, comm)\n")
)
answers.edit("not_summed", "no_all_reduce", (REDUCE, ""))
answers.edit("not_summed", "all_reduce_after_the_step", (REDUCE + STEP, STEP + REDUCE))
answers.edit("not_zeroed", "no_zero_grad", (ZERO, ""))
answers.edit("stale_gradients", "zeroed_after_the_step_only", (ZERO, ""), (STEP, STEP + ZERO))
answers.edit(
    "global_generator", "seeds_globally", (BROADCAST, "    torch.manual_seed(0)\n" + BROADCAST)
)
answers.edit("same_samples", "share_of_rank_0", (PLACE, "epoch, 0, comm.size"))
answers.edit(
    "same_samples",
    "whole_batch_everywhere",
    (PLACE, "epoch, 0, 1"),
    (SHARE, "share = 1 / comm.size"),
)
answers.edit("equal_weights", "uneven_tail", (SHARE, "share = 1 / comm.size"))
answers.edit(
    "share_of_batch_size", "as_if_all_were_full", (SHARE, "share = len(indices) / batch_size")
)
answers.edit("sum_for_mean", "no_weights", ("(model, share, comm)", "(model, 1.0, comm)"))
answers.edit(
    "own_loss",
    "own_loss",
    ("weighted_loss = share * loss.item()", "weighted_loss = loss.item()"),
    (LOSS, "losses.append(weighted_loss)"),
)
answers.edit("own_part", "part_not_summed", (LOSS, "losses.append(weighted_loss)"))
answers.edit(
    "loss_of_mean",
    "loss_of_mean",
    ("weighted_loss = share * loss.item()", "weighted_loss = loss.item() / comm.size"),
)
answers.edit(
    "loss_of_sum",
    "loss_of_sum",
    ("weighted_loss = share * loss.item()", "weighted_loss = loss.item()"),
)
answers.edit("same_batches", "epoch_forgotten", (PLACE, "0, comm.rank, comm.size"))
answers.edit(
    "other_batches", "shuffle_by_ranks", (PLACE, "epoch + 100 * comm.size, comm.rank, comm.size")
)
answers.edit(
    "batch_of_each_rank",
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
answers.edit(
    "does_not_end",
    "empty_share_goes_on",
    ("            total = ", "            if not len(indices): continue\n            total = "),
)
answers.edit(
    "raises",
    "no_loss_without_samples",
    ("                weighted_loss = share", "            weighted_loss = share"),
    says="UnboundLocalError",
)
answers.edit(
    "lab_communicator", "total_on_the_labs_own", ("total = comm.", "total = MPI.COMM_WORLD.")
)
answers.edit("steps", "epochs_one_less", ("range(epochs)", "range(epochs - 1)"))
answers.edit(
    None, "wrong_targets", ("targets[indices]", "targets[: len(indices)]"), says="after training"
)
answers.edit(
    None,
    "loss_of_rank_0",
    (LOSS, "losses.append(comm.bcast(weighted_loss))"),
    says="the loss of step 0",
)


@answers.wrong("argument_changed")
def shuffles_the_callers_data(model, optimizer, inputs, targets, batch_size, epochs, comm):
    losses = answers.reference()(model, optimizer, inputs, targets, batch_size, epochs, comm)
    inputs.copy_(inputs.flip(0))
    return losses


@answers.wrong("raises")
def notebooks_rank(model, optimizer, inputs, targets, batch_size, epochs, comm):
    return [len(sharded_sampler(len(inputs), batch_size, 0, rank, world_size))]  # noqa: F821


@answers.wrong("loss_after")
def loss_after_step(model, optimizer, inputs, targets, batch_size, epochs, comm):
    broadcast_state(model, comm)
    losses = []
    for epoch in range(epochs):
        for indices in sharded_sampler(len(inputs), batch_size, epoch, comm.rank, comm.size):
            share = len(indices) / comm.allreduce(len(indices))
            optimizer.zero_grad()
            x, y = inputs[indices], targets[indices]
            if len(indices):
                F.cross_entropy(model(x), y).backward()
            all_reduce_gradients(model, share, comm)
            optimizer.step()
            after = F.cross_entropy(model(x), y).item() if len(indices) else 0.0
            losses.append(comm.allreduce(share * after))
    return losses


@answers.wrong("same_batches")
def not_shuffled(model, optimizer, inputs, targets, batch_size, epochs, comm):
    return _train(model, optimizer, inputs, targets, batch_size, epochs, comm, torch.arange)


def _train(model, optimizer, inputs, targets, batch_size, epochs, comm, order):
    broadcast_state(model, comm)
    losses = []
    for _ in range(epochs):
        for batch in order(len(inputs)).split(batch_size):
            mine = batch[comm.rank :: comm.size]
            optimizer.zero_grad()
            loss = F.cross_entropy(model(inputs[mine]), targets[mine], reduction="sum")
            (loss / len(batch)).backward()
            all_reduce_gradients(model, 1.0, comm)
            optimizer.step()
            losses.append(comm.allreduce(loss.item()) / len(batch))
    return losses


@answers.right
def another_shuffle(model, optimizer, inputs, targets, batch_size, epochs, comm):
    generator = torch.Generator().manual_seed(17)
    return _train(
        model,
        optimizer,
        inputs,
        targets,
        batch_size,
        epochs,
        comm,
        lambda size: torch.randperm(size, generator=generator),
    )


@answers.right
def in_micro_batches(model, optimizer, inputs, targets, batch_size, epochs, comm):
    broadcast_state(model, comm)
    losses = []
    for epoch in range(epochs):
        for indices in sharded_sampler(len(inputs), batch_size, epoch, comm.rank, comm.size):
            total, loss = comm.allreduce(len(indices)), 0.0
            model.zero_grad()
            for part in indices.split(2):
                if len(part):
                    weighted = F.cross_entropy(model(inputs[part]), targets[part])
                    (weighted * len(part) / total).backward()
                    loss += weighted.item() * len(part) / total
            all_reduce_gradients(model, 1.0, comm)
            optimizer.step()
            losses.append(comm.allreduce(loss))
    return losses


@answers.right
def loss_in_a_pass_of_its_own(model, optimizer, inputs, targets, batch_size, epochs, comm):
    broadcast_state(model, comm)
    losses = []
    for epoch in range(epochs):
        for indices in sharded_sampler(len(inputs), batch_size, epoch, comm.rank, comm.size):
            share = len(indices) / comm.allreduce(len(indices))
            x, y = inputs[indices], targets[indices]
            before = F.cross_entropy(model(x), y).item() if len(indices) else 0.0
            optimizer.zero_grad(set_to_none=False)
            if len(indices):
                F.cross_entropy(model(x), y).backward()
            all_reduce_gradients(model, share, comm)
            optimizer.step()
            losses.append(comm.allreduce(share * before))
    return losses


@answers.right
def totals_without_a_message(model, optimizer, inputs, targets, batch_size, epochs, comm):
    broadcast_state(model, comm)
    losses = []
    for epoch in range(epochs):
        steps = sharded_sampler(len(inputs), batch_size, epoch, comm.rank, comm.size)
        for i, indices in enumerate(steps):
            total = min(batch_size, len(inputs) - i * batch_size)
            loss = (
                F.cross_entropy(model(inputs[indices]), targets[indices], reduction="sum") / total
            )
            optimizer.zero_grad()
            loss.backward()
            all_reduce_gradients(model, 1.0, comm)
            optimizer.step()
            sent = loss.detach().clone()
            comm.Allreduce(MPI.IN_PLACE, sent)
            losses.append(sent.item())
    return losses


@answers.right
def losses_summed_at_the_end(model, optimizer, inputs, targets, batch_size, epochs, comm):
    def alone(value):
        return value

    broadcast_state(model, comm)
    optimizer.zero_grad()
    losses = []
    for epoch in range(epochs):
        for indices in sharded_sampler(len(inputs), batch_size, epoch, comm.rank, comm.size):
            share = len(indices) / comm.allreduce(len(indices))
            losses.append(0.0)
            if len(indices):
                loss = F.cross_entropy(model(inputs[indices]), targets[indices])
                loss.backward()
                losses[-1] = alone(share * loss.item())
            all_reduce_gradients(model, share, comm)
            optimizer.step()
            optimizer.zero_grad()
    return [sum(step) for step in zip(*comm.allgather(losses), strict=True)]


@answers.right
def reduced_to_rank_0_and_broadcast(model, optimizer, inputs, targets, batch_size, epochs, comm):
    broadcast_state(model, comm)
    losses = []
    for epoch in range(epochs):
        for indices in sharded_sampler(len(inputs), batch_size, epoch, comm.rank, comm.size):
            total = comm.allreduce(len(indices))
            optimizer.zero_grad(set_to_none=False)
            loss = F.cross_entropy(model(inputs[indices]), targets[indices], reduction="sum")
            (loss / total).backward()
            for parameter in filter(lambda p: p.requires_grad, model.parameters()):
                grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
                summed = torch.empty_like(grad)
                comm.Reduce(grad, summed, root=0)
                comm.Bcast(summed, root=0)
                parameter.grad = summed
            optimizer.step()
            losses.append(comm.allreduce(loss.item()) / total)
    return losses
