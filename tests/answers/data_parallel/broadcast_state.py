"""Answers to `broadcast_state`."""

import itertools

import torch
from mpi4py import MPI

from parlab_staff.answers import Answers

answers = Answers("broadcast_state")

ALL = "itertools.chain(model.parameters(), model.buffers())"
BCAST = "comm.Bcast(tensor.detach(), root=0)"


def tensors_of(model):
    return itertools.chain(model.parameters(), model.buffers())


answers.edit("root_changed", "last_rank", ("root=0", "root=comm.size - 1"))
answers.edit("no_buffers", "no_buffers", (ALL, "model.parameters()"))
answers.edit("nothing_arrived", "into_a_clone", ("tensor.detach()", "tensor.detach().clone()"))
answers.edit(
    "tied_twice",
    "tied_twice",
    (ALL, "[*(p for _, p in model.named_parameters(remove_duplicate=False)), *model.buffers()]"),
)
answers.edit(
    "no_buffers",
    "by_state_dict",
    (ALL, "{t.data_ptr(): t for t in model.state_dict(keep_vars=True).values()}.values()"),
)
answers.edit(
    "no_buffers",
    "only_floats",
    (ALL, f"(t for t in {ALL} if t.is_floating_point())"),
    says="still this rank's own: seen. ",
)
answers.edit(
    None,
    "no_frozen",
    ("model.parameters(), ", "(p for p in model.parameters() if p.requires_grad), "),
    says="frozen.weight",
)
answers.edit("copy_not_written_back", "flattened", ("tensor.detach()", "tensor.detach().flatten()"))
answers.edit("raises", "not_detached", ("tensor.detach()", "tensor"))
answers.edit(
    None,
    "requires_grad_switched_off",
    (BCAST, "comm.Bcast(tensor.requires_grad_(False), root=0)"),
    says="requires_grad is False",
)
answers.edit("lab_communicator", "world", ("comm.Bcast", "MPI.COMM_WORLD.Bcast"))


@answers.wrong("root_changed")
def all_as_floats(model, comm):
    tensors = [t.detach() for t in tensors_of(model)]
    flat = torch.cat([tensor.reshape(-1).double() for tensor in tensors])
    comm.Bcast(flat, root=0)
    for tensor, part in zip(tensors, flat.split([t.numel() for t in tensors]), strict=True):
        tensor.copy_(part.view(tensor.shape))


@answers.wrong(None, says="the .grad of")
def gradients_set_to_zero(model, comm):
    answers.reference()(model, comm)
    model.zero_grad(set_to_none=False)


@answers.wrong(None, says="new tensor")
def notes_it_in_the_model(model, comm):
    answers.reference()(model, comm)
    model.register_buffer("in_step", torch.ones(1))


@answers.wrong("nothing_sent")
def a_common_seed(model, comm):
    torch.manual_seed(0)


@answers.wrong("pickles")
def as_one_object(model, comm):
    model.load_state_dict(comm.bcast(model.state_dict(), root=0))


@answers.wrong("not_in_place")
def new_data(model, comm):
    for tensor in tensors_of(model):
        value = tensor.detach().clone()
        comm.Bcast(value, root=0)
        tensor.data = value


@answers.wrong("returns_something")
def returns_the_model(model, comm):
    answers.reference()(model, comm)
    return model


@answers.wrong(None, says="bytes arrive")
def gathered_from_all(model, comm):
    for tensor in tensors_of(model):
        every = torch.empty(comm.size, *tensor.shape, dtype=tensor.dtype)
        comm.Allgather(tensor.detach().contiguous(), every)
        tensor.detach().copy_(every[0])


@answers.wrong("one_by_one")
def sent_by_rank_0(model, comm):
    for tensor in tensors_of(model):
        if comm.rank == 0:
            for rank in range(1, comm.size):
                comm.Send(tensor.detach(), dest=rank)
        else:
            comm.Recv(tensor.detach(), source=0)


@answers.right
def in_a_tree(model, comm):
    for tensor in tensors_of(model):
        reached = 1
        while reached < comm.size:
            if comm.rank < reached and comm.rank + reached < comm.size:
                comm.Send(tensor.detach(), dest=comm.rank + reached)
            elif reached <= comm.rank < 2 * reached:
                comm.Recv(tensor.detach(), source=comm.rank - reached)
            reached *= 2


@answers.right
def under_no_grad(model, comm):
    with torch.no_grad():
        for tensor in [*model.buffers(), *model.parameters()]:
            comm.Bcast(tensor.data.numpy(), root=0)


@answers.right
def through_a_copy(model, comm):
    for tensor in tensors_of(model):
        arriving = tensor.detach().clone()
        comm.Bcast(arriving, root=0)
        tensor.detach().copy_(arriving)


@answers.right
def all_at_once(model, comm):
    requests = [comm.Ibcast(tensor.detach(), root=0) for tensor in tensors_of(model)]
    MPI.Request.Waitall(requests)


@answers.right
def floats_in_one_message(model, comm):
    floats = [t.detach() for t in tensors_of(model) if t.is_floating_point()]
    flat = torch.cat([t.flatten() for t in floats])
    comm.Bcast(flat, root=0)
    for tensor, part in zip(floats, flat.split([t.numel() for t in floats]), strict=True):
        tensor.copy_(part.view_as(tensor))
    for tensor in tensors_of(model):
        if not tensor.is_floating_point():
            comm.Bcast(tensor.detach(), root=0)
