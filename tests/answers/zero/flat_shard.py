"""Answers to `flat_shard`."""

import math

import torch
import torch.nn.functional as F

from parlab.answers import Answers

answers = Answers("flat_shard")

ONCE = "list(dict.fromkeys(p for p in parameters if p.requires_grad))"
SIZE = "shard_size = -(-sum(sizes) // world_size)"
FLAT = "flat = trainable[0].detach().new_zeros(shard_size * world_size)"
VIEW = "parameter.data = part.view_as(parameter)"
RETURN = "return flat, flat.chunk(world_size)[rank]"

answers.edit("tied_twice", "as_named", (ONCE, "[p for p in parameters if p.requires_grad]"))
answers.edit("frozen_inside", "frozen_too", (ONCE, "list(dict.fromkeys(parameters))"))
answers.edit(
    "own_order",
    "by_size",
    (ONCE, f"sorted({ONCE}, key=lambda p: (p.numel(), id(p)))"),
)
answers.edit("own_order", "backwards", (ONCE, f"{ONCE}[::-1]"))
answers.edit(
    "not_padded", "not_padded", (FLAT, "flat = trainable[0].detach().new_zeros(sum(sizes))")
)
answers.edit(
    "wrong_dtype",
    "dtype_of_torch",
    (FLAT, "flat = torch.zeros(shard_size * world_size)"),
    says="dtype torch.float32",
)
answers.edit("padded_too_much", "one_more", (SIZE, "shard_size = sum(sizes) // world_size + 2"))
answers.edit(
    "padding_not_zero",
    "padded_with_ones",
    (FLAT, "flat = trainable[0].detach().new_ones(shard_size * world_size)"),
)
answers.edit("not_views", "copies_only", (VIEW, "pass"))
answers.edit("shard_copied", "shard_copied", (RETURN, RETURN + ".clone()"))
answers.edit("strided", "every_nth", (RETURN, "return flat, flat[rank::world_size]"))
answers.edit("first_shard", "first_shard", (RETURN, "return flat, flat.chunk(world_size)[0]"))
answers.edit("values_lost", "not_filled", ("part.copy_(parameter.detach().flatten())", "pass"))
answers.edit("returns_none", "no_return", (RETURN, "pass"))
answers.edit(None, "flat_alone", (RETURN, "return flat"), says="the buffer and the shard")


@answers.wrong("own_rank")
def whoever_runs_it(parameters, rank, world_size):
    from parlab.rank import rank as own_rank

    flat, _ = answers.reference()(parameters, rank, world_size)
    return flat, flat.chunk(world_size)[min(own_rank, world_size - 1)]


@answers.wrong(None, says="requires a gradient")
def not_detached(parameters, rank, world_size):
    own = list(dict.fromkeys(p for p in parameters if p.requires_grad))
    flat = torch.nn.utils.parameters_to_vector(own)
    flat = F.pad(flat, (0, -len(flat) % world_size))
    torch.nn.utils.vector_to_parameters(flat, own)
    return flat, flat.chunk(world_size)[rank]


@answers.wrong("rest_dropped")
def rounded_down(parameters, rank, world_size):
    trainable = list(dict.fromkeys(p for p in parameters if p.requires_grad))
    whole = torch.cat([p.detach().flatten() for p in trainable])
    width = len(whole) // world_size
    flat = whole[: width * world_size].clone()
    return flat, flat[rank * width : (rank + 1) * width]


@answers.right
def concatenated_and_padded(parameters, rank, world_size):
    seen = {}
    for p in parameters:
        if p.requires_grad and id(p) not in seen:
            seen[id(p)] = p
    whole = torch.cat([p.data.reshape(-1) for p in seen.values()])
    flat = F.pad(whole, (0, -len(whole) % world_size))
    start = 0
    for p in seen.values():
        p.data = flat[start : start + p.numel()].view(p.shape)
        start += p.numel()
    return flat, flat.view(world_size, -1)[rank]


@answers.right
def rounded_up_by_math(parameters, rank, world_size):
    trainable = []
    for p in parameters:
        if p.requires_grad and not any(p is other for other in trainable):
            trainable.append(p)
    total = sum(p.numel() for p in trainable)
    width = math.ceil(total / world_size)
    flat = torch.zeros(width * world_size, dtype=trainable[0].dtype, device=trainable[0].device)
    at = 0
    with torch.no_grad():
        for p in trainable:
            view = flat.narrow(0, at, p.numel()).view_as(p)
            view.copy_(p)
            p.data = view
            at += p.numel()
    return flat, flat.narrow(0, rank * width, width)


@answers.right
def shard_first(parameters, rank, world_size):
    flat, _ = answers.reference()(parameters, rank, world_size)
    width = flat.numel() // world_size
    return flat, flat[rank * width :][:width]


@answers.right
def as_a_list(parameters, rank, world_size):
    return list(answers.reference()(parameters, rank, world_size))


@answers.right
def set_in_place(parameters, rank, world_size):
    trainable = list(dict.fromkeys(p for p in parameters if p.requires_grad))
    vector = torch.nn.utils.parameters_to_vector(trainable).detach()
    padding = vector.new_zeros(-len(vector) % world_size)
    flat = torch.cat([vector, padding])
    torch.nn.utils.vector_to_parameters(flat, trainable)
    return flat, torch.tensor_split(flat, world_size)[rank]
