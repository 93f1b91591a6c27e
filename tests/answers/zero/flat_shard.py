"""Answers to `flat_shard`."""

import torch
import torch.nn.functional as F

from parlab_staff.answers import Answers

answers = Answers("flat_shard")

ONCE = "list(dict.fromkeys(p for p in parameters if p.requires_grad))"
FLAT = "flat = trainable[0].detach().new_zeros(shard_size * world_size)"
COPY, VIEW = "part.copy_(parameter.detach().flatten())", "parameter.data = part.view_as(parameter)"
RETURN = "return flat, flat.chunk(world_size)[rank]"

for mistake, name, *edit in (
    ("other_elements", "as_named", ONCE, "[p for p in parameters if p.requires_grad]"),
    ("other_elements", "frozen_too", ONCE, "list(dict.fromkeys(parameters))"),
    ("own_order", "by_size", ONCE, f"sorted({ONCE}, key=lambda p: (p.numel(), id(p)))"),
    ("other_elements", "not_padded", FLAT, FLAT.replace("shard_size * world_size", "sum(sizes)")),
    ("wrong_dtype", "dtype_of_torch", FLAT, FLAT.replace("trainable[0].detach().new_", "torch.")),
    (None, "padded_with_ones", FLAT, FLAT.replace("new_zeros", "new_ones")),
    ("not_views", "copies_only", VIEW, "pass"),
    ("shard_copied", "shard_copied", RETURN, RETURN + ".clone()"),
    ("strided", "every_nth", RETURN, "return flat, flat[rank::world_size]"),
    (None, "not_filled", COPY, "pass"),
    ("wrong_type", "flat_alone", RETURN, "return flat"),
):
    answers.edit(mistake, name, tuple(edit))

for name, old, new, says in (
    ("sizes_too", RETURN, RETURN + ", sizes", "it returns 3 values"),
    (
        "all_from_index_0",
        VIEW,
        VIEW.replace("part", "flat[: parameter.numel()]"),
        "embed.weight at",
    ),
    ("thawed", ONCE, "list(dict.fromkeys(p.requires_grad_() for p in parameters))", "is True"),
):
    answers.edit(None, name, (old, new), says=says)


@answers.wrong("own_rank")
def rank_that_runs_it(parameters, rank, world_size):
    from parlab.rank import rank as own_rank

    flat, _ = answers.reference()(parameters, rank, world_size)
    return flat, flat.chunk(world_size)[min(own_rank, world_size - 1)]


def concatenated(parameters, rank, world_size, detach=True):
    own = list(dict.fromkeys(p for p in parameters if p.requires_grad))
    flat = torch.nn.utils.parameters_to_vector(own)
    flat = F.pad(flat.detach() if detach else flat, (0, -len(flat) % world_size))
    torch.nn.utils.vector_to_parameters(flat, own)
    return flat, flat.view(world_size, -1)[rank]


answers.right(concatenated)


@answers.wrong(None, says="requires a gradient")
def not_detached(parameters, rank, world_size):
    return concatenated(parameters, rank, world_size, detach=False)


@answers.right
def narrowed(parameters, rank, world_size):
    trainable = []
    for p in parameters:
        if p.requires_grad and not any(p is other for other in trainable):
            trainable.append(p)
    width = (sum(p.numel() for p in trainable) - 1) // world_size + 1
    flat = torch.zeros(width * world_size, dtype=trainable[0].dtype, device=trainable[0].device)
    start = 0
    for p in trainable:
        view = flat.narrow(0, start, p.numel()).view_as(p)
        view.copy_(p.data)
        p.data = view
        start += p.numel()
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
def tensor_split(parameters, rank, world_size):
    flat, _ = concatenated(parameters, rank, world_size)
    return flat, torch.tensor_split(flat, world_size)[rank]
