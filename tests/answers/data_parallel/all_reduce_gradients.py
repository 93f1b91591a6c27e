"""Answers to `all_reduce_gradients`."""

import torch
from mpi4py import MPI

from parlab_staff.answers import Answers

answers = Answers("all_reduce_gradients")

WEIGHT = "parameter.grad *= share"
REDUCE = "comm.Allreduce(MPI.IN_PLACE, parameter.grad)"
ZEROS = "parameter.grad = torch.zeros_like(parameter)"
IF_FROZEN = "if not parameter.requires_grad:"

answers.edit(None, "broadcast", (REDUCE, "comm.Bcast(parameter.grad, root=0)"), says="calls send")
answers.edit(
    None, "nan_to_num", (WEIGHT, "torch.nan_to_num_(parameter.grad.mul_(share))"), says="NaN"
)
answers.edit(
    None,
    "gathered",
    (
        REDUCE,
        "every = torch.empty(comm.size, *parameter.shape, dtype=parameter.dtype)\n"
        "        comm.Allgather(parameter.grad.contiguous(), every)\n"
        "        parameter.grad.copy_(every.sum(0))",
    ),
    says="expected only all-reduces",
)
answers.edit(None, "frozen_too", (IF_FROZEN, "if False:"), says="calls send")
answers.edit(
    None,
    "frozen_gradient",
    (IF_FROZEN, IF_FROZEN + "\n            parameter.grad = torch.zeros_like(parameter)"),
    says="frozen.weight has a .grad",
)
answers.edit(
    "not_summed",
    "into_nothing",
    (WEIGHT, "pass"),
    (REDUCE, "comm.Allreduce(MPI.IN_PLACE, parameter.grad * share)"),
)
answers.edit(
    "not_summed",
    "into_a_clone",
    (REDUCE, "comm.Allreduce(MPI.IN_PLACE, parameter.grad.clone())"),
)
answers.edit("nothing_sent", "no_all_reduce", (REDUCE, "pass"))
answers.edit("pickles", "pickled", (REDUCE, "parameter.grad.copy_(comm.allreduce(parameter.grad))"))
answers.edit("skipped", "skips_none", (ZEROS, "continue"))
answers.edit("sum_for_mean", "no_weights", (WEIGHT, "pass"))
answers.edit("equal_weights", "plain_mean", (WEIGHT, "parameter.grad /= comm.size"))
answers.edit(
    None,
    "weighted_after",
    (WEIGHT, "pass"),
    (REDUCE, REDUCE + "; parameter.grad *= share"),
)
answers.edit("divided_again", "divided_again", (REDUCE, REDUCE + "; parameter.grad /= comm.size"))
answers.edit(
    None, "largest", ("parameter.grad)\n", "parameter.grad, op=MPI.MAX)\n"), says="expected"
)
answers.edit("not_in_place", "new_gradient", (WEIGHT, "parameter.grad = parameter.grad * share"))
answers.edit(
    "copy_not_written_back",
    "reshaped",
    (REDUCE, "comm.Allreduce(MPI.IN_PLACE, parameter.grad.reshape(-1))"),
)
answers.edit(
    None,
    "reduced_and_broadcast",
    (
        REDUCE,
        "total = parameter.grad.clone(); comm.Reduce(parameter.grad, total, root=0); "
        "comm.Bcast(total, root=0); parameter.grad.copy_(total)",
    ),
    says="each trainable tensor once, in its dtype",
)
answers.edit("lab_communicator", "world", ("comm.Allreduce", "MPI.COMM_WORLD.Allreduce"))
answers.edit("raises", "parameter_itself", (REDUCE, "comm.Allreduce(MPI.IN_PLACE, parameter)"))


@answers.wrong("tied_twice")
def tied_twice(model, share, comm):
    for parameter in trainable_of(model):
        parameter.grad *= share
    for _, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            comm.Allreduce(MPI.IN_PLACE, parameter.grad)


@answers.wrong("wrong_type", says="is None")
def none_stays_none(model, share, comm):
    for parameter in model.parameters():
        if parameter.requires_grad:
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            grad *= share
            comm.Allreduce(MPI.IN_PLACE, grad)


@answers.wrong(None, says="expected")
def the_weights_instead(model, share, comm):
    answers.reference()(model, share, comm)
    for parameter in model.parameters():
        parameter.data *= share


@answers.wrong("returns_something")
def returned(model, share, comm):
    answers.reference()(model, share, comm)
    return [p.grad for p in model.parameters()]


def trainable_of(model):
    """Return the trainable parameters, with zeros for gradients that are missing."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    for parameter in trainable:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    return trainable


@answers.right
def not_in_place_of_mpi(model, share, comm):
    for parameter in trainable_of(model):
        total = torch.empty_like(parameter)
        comm.Allreduce(parameter.grad * share, total)
        parameter.grad.copy_(total)


@answers.right
def in_one_message(model, share, comm):
    trainable = trainable_of(model)
    flat = torch.cat([p.grad.flatten() for p in trainable]) * share
    comm.Allreduce(MPI.IN_PLACE, flat)
    for parameter, part in zip(trainable, flat.split([p.numel() for p in trainable]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))


@answers.right
def without_waiting(model, share, comm):
    requests = []
    for parameter in reversed(trainable_of(model)):
        parameter.grad.mul_(share)
        requests.append(comm.Iallreduce(MPI.IN_PLACE, parameter.grad))
    MPI.Request.Waitall(requests)


@answers.right
def as_numpy(model, share, comm):
    for parameter in trainable_of(model):
        parameter.grad.data.mul_(share)
        comm.Allreduce(MPI.IN_PLACE, parameter.grad.numpy(), op=MPI.SUM)


@answers.right
def nothing_on_one_rank(model, share, comm):
    for parameter in trainable_of(model) if comm.size > 1 else ():
        parameter.grad *= share
        comm.Allreduce(MPI.IN_PLACE, parameter.grad)
