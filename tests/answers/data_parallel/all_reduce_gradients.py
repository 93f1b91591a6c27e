"""Answers to `all_reduce_gradients`."""

import torch
from mpi4py import MPI

from parlab.answers import Answers

answers = Answers("all_reduce_gradients")

WEIGHT = "parameter.grad *= share"
REDUCE = "comm.Allreduce(MPI.IN_PLACE, parameter.grad)"
ZEROS = "parameter.grad = torch.zeros_like(parameter)"
ALL = "model.parameters()"
IF_FROZEN = "if not parameter.requires_grad:"

answers.edit(
    "one_ranks", "broadcast", (WEIGHT, "pass"), (REDUCE, "comm.Bcast(parameter.grad, root=0)")
)
answers.edit(
    "one_ranks",
    "broadcast_of_the_last",
    (WEIGHT, "pass"),
    (REDUCE, "comm.Bcast(parameter.grad, root=comm.size - 1)"),
)
answers.edit("one_ranks", "weighted_broadcast", (REDUCE, "comm.Bcast(parameter.grad, root=0)"))
answers.edit("hides_nan", "nan_to_num", (WEIGHT, "torch.nan_to_num_(parameter.grad.mul_(share))"))
answers.edit("frozen_gradient", "frozen_too", (IF_FROZEN, "if False:"))
answers.edit(
    "not_summed",
    "into_nothing",
    (WEIGHT, "pass"),
    (REDUCE, "comm.Allreduce(MPI.IN_PLACE, parameter.grad * share)"),
)
answers.edit(
    "weighted_only",
    "into_a_clone",
    (REDUCE, "comm.Allreduce(MPI.IN_PLACE, parameter.grad.clone())"),
)
answers.edit("nothing_sent", "no_all_reduce", (REDUCE, "pass"))
answers.edit("pickles", "pickled", (REDUCE, "parameter.grad.copy_(comm.allreduce(parameter.grad))"))
answers.edit("skipped", "skips_none", (ZEROS, "continue"))
answers.edit("sum_for_mean", "no_weights", (WEIGHT, "pass"))
answers.edit("equal_weights", "plain_mean", (WEIGHT, "parameter.grad /= comm.size"))
answers.edit(
    "weighted_after",
    "weighted_after",
    (WEIGHT, "pass"),
    (REDUCE, REDUCE + "; parameter.grad *= share"),
)
answers.edit("divided_again", "divided_again", (REDUCE, REDUCE + "; parameter.grad /= comm.size"))
answers.edit("largest", "largest", ("parameter.grad)\n", "parameter.grad, op=MPI.MAX)\n"))
answers.edit("new_gradient", "new_gradient", (WEIGHT, "parameter.grad = parameter.grad * share"))
answers.edit(
    "tied_twice",
    "tied_by_modules",
    (ALL, "[p for m in model.modules() for p in m.parameters(recurse=False)]"),
)
answers.edit(
    "copy_not_written_back",
    "reshaped",
    (REDUCE, "comm.Allreduce(MPI.IN_PLACE, parameter.grad.reshape(-1))"),
)
answers.edit(
    "copy_not_written_back",
    "contiguous_before_weighting",
    (WEIGHT, "grad = parameter.grad.contiguous()"),
    (REDUCE, "grad *= share; comm.Allreduce(MPI.IN_PLACE, grad)"),
)
answers.edit(
    "unused_left_out",
    "first_left_out",
    ("for parameter in model.parameters():", "for parameter in [*model.parameters()][1:]:"),
)
answers.edit(
    "no_gradient",
    "last_left_out",
    ("for parameter in model.parameters():", "for parameter in [*model.parameters()][:-1]:"),
    says="unembed.bias",
)
answers.edit(
    None,
    "reduced_and_broadcast",
    (
        REDUCE,
        "total = parameter.grad.clone(); comm.Reduce(parameter.grad, total, root=0); "
        "comm.Bcast(total, root=0); parameter.grad.copy_(total)",
    ),
    says="each trainable tensor goes once through one all-reduce",
)
answers.edit("lab_communicator", "world", ("comm.Allreduce", "MPI.COMM_WORLD.Allreduce"))
answers.edit("raises", "parameter_itself", (REDUCE, "comm.Allreduce(MPI.IN_PLACE, parameter)"))
answers.edit(None, "minimum", ("parameter.grad)\n", "parameter.grad, op=MPI.MIN)\n"), says="where")
answers.edit(
    "no_gradient",
    "biases_left_out",
    (IF_FROZEN, "if not parameter.requires_grad or parameter.dim() == 1:"),
    says="hidden.bias",
)


@answers.wrong("tied_twice")
def tied_twice_by_name(model, share, comm):
    for parameter in model.parameters():
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad *= share
    for _, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            comm.Allreduce(MPI.IN_PLACE, parameter.grad)


@answers.wrong("tied_twice")
def tied_sent_twice(model, share, comm):
    found = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if parameter.requires_grad:
            grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            found[name] = grad * share
            comm.Allreduce(MPI.IN_PLACE, found[name])
    for name, grad in found.items():
        parameter = model.get_parameter(name)
        if parameter.grad is None:
            parameter.grad = grad
        parameter.grad.copy_(grad)


@answers.wrong("no_gradient")
def none_stays_none(model, share, comm):
    for parameter in model.parameters():
        if not parameter.requires_grad:
            continue
        grad = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        grad *= share
        comm.Allreduce(MPI.IN_PLACE, grad)


@answers.wrong("model_changed")
def the_weights_instead(model, share, comm):
    answers.reference()(model, share, comm)
    for parameter in model.parameters():
        parameter.data *= share


@answers.wrong("returns_something")
def returned(model, share, comm):
    answers.reference()(model, share, comm)
    return [p.grad for p in model.parameters()]


@answers.right
def not_in_place_of_mpi(model, share, comm):
    for parameter in model.parameters():
        if parameter.requires_grad:
            mine = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad * share
            total = torch.empty_like(mine)
            comm.Allreduce(mine.detach(), total)
            if parameter.grad is None:
                parameter.grad = total
            else:
                parameter.grad.copy_(total)


@answers.right
def in_one_message(model, share, comm):
    trainable = [p for p in model.parameters() if p.requires_grad]
    for parameter in trainable:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    flat = torch.cat([p.grad.flatten() for p in trainable]) * share
    comm.Allreduce(MPI.IN_PLACE, flat)
    for parameter, part in zip(trainable, flat.split([p.numel() for p in trainable]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))


@answers.right
def without_waiting(model, share, comm):
    requests = []
    for parameter in reversed(list(model.parameters())):
        if parameter.requires_grad:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            parameter.grad.mul_(share)
            requests.append(comm.Iallreduce(MPI.IN_PLACE, parameter.grad))
    MPI.Request.Waitall(requests)


@answers.right
def zeros_where_the_share_is_empty(model, share, comm):
    for parameter in filter(lambda p: p.requires_grad, model.parameters()):
        grad = parameter.grad
        if share == 0 or grad is None:
            grad = torch.zeros_like(parameter)
        parameter.grad = parameter.grad if parameter.grad is not None else grad
        parameter.grad.data.mul_(share)
        comm.Allreduce(MPI.IN_PLACE, parameter.grad.numpy(), op=MPI.SUM)


@answers.right
def one_by_one_through_a_copy(model, share, comm):
    trainable = [p for p in model.parameters() if p.requires_grad]
    for parameter in trainable:
        parameter.grad = parameter.grad if parameter.grad is not None else parameter.detach() * 0
    for parameter in trainable:
        part = share * parameter.grad
        comm.Allreduce(MPI.IN_PLACE, part)
        with torch.no_grad():
            parameter.grad.copy_(part)
