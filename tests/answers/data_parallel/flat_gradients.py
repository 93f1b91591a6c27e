"""Answers to `flat_gradients`."""

import torch

from parlab_staff.answers import Answers

answers = Answers("flat_gradients")

TRAINABLE = "[p for p in model.parameters() if p.requires_grad]"
FLAT = "trainable[0].new_zeros(sum(sizes))"
VIEW = "part.view_as(parameter)"


def trainable_of(model):
    return [p for p in model.parameters() if p.requires_grad]


answers.edit(
    None,
    "flattened_weights",  # a single contiguous tensor is flattened into a view of itself
    (FLAT, "torch._utils._flatten_dense_tensors([p.detach() for p in trainable]).zero_()"),
    says="1.weight at index (0, 0) is 0",
)
answers.edit(
    "wrong_dtype",
    "float32",
    (FLAT, "torch.zeros(sum(sizes))"),
    (VIEW, VIEW + ".to(parameter.dtype)"),
)
answers.edit(
    "other_elements",
    "tied_twice",
    (
        TRAINABLE,
        "[p for _, p in model.named_parameters(remove_duplicate=False) if p.requires_grad]",
    ),
)
answers.edit(
    "other_elements",
    "with_frozen",
    (TRAINABLE, "list(model.parameters())"),
    ("        parameter.grad", "        if parameter.requires_grad: parameter.grad"),
)
answers.edit(
    None,
    "frozen_gradient",
    (
        "    return flat",
        "    for p in model.parameters():\n"
        "        p.grad = torch.zeros_like(p) if p.grad is None else p.grad\n    return flat",
    ),
    says="frozen.weight, requires_grad=False, is a tensor",
)
answers.edit("not_zeros", "ones", ("new_zeros", "new_ones"))
answers.edit("returns_none", "no_return", ("return flat", "pass"))
answers.edit("wrong_shape", "two_dimensions", ("return flat", "return flat[None]"))
answers.edit(
    "other_device",
    "on_the_default_device",
    (FLAT, "torch.zeros(sum(sizes), dtype=trainable[0].dtype)"),
)
answers.edit("raises", "asks_the_second", (FLAT, "trainable[1].new_zeros(sum(sizes))"))
answers.edit(
    None,
    "registers_a_buffer",
    ("    return flat", "    model.register_buffer('flat', flat)\n    return flat"),
    says="new tensor",
)
answers.edit("wrong_type", "the_views", ("return flat", "return list(flat.split(sizes))"))
answers.edit(
    None,
    "not_for_the_first",
    ("        parameter.grad", "        if parameter is not trainable[0]: parameter.grad"),
    says="unused, requires_grad=True, is None",
)
answers.edit(
    None,
    "to_train_mode",
    ("    return flat", "    model.train()\n    return flat"),
    says="`training` of the model is True, expected False",
)
answers.edit(
    None, "requires_grad", ("return flat", "return flat.requires_grad_()"), says="requires a"
)


@answers.wrong("copy")
def concatenated(model):
    for parameter in trainable_of(model):
        parameter.grad = torch.zeros_like(parameter)
    return torch.cat([parameter.grad.flatten() for parameter in trainable_of(model)])


@answers.wrong(None, says="is in two gradients")
def offset_never_moves(model):
    trainable = trainable_of(model)
    flat = trainable[0].new_zeros(sum(p.numel() for p in trainable))
    for parameter in trainable:
        parameter.grad = flat[: parameter.numel()].view_as(parameter)
    return flat


@answers.wrong("not_zeros")
def what_was_there(model):
    trainable = trainable_of(model)
    old = [torch.zeros_like(p) if p.grad is None else p.grad for p in trainable]
    flat = torch.cat([gradient.flatten() for gradient in old])
    for parameter, part in zip(trainable, flat.split([p.numel() for p in trainable]), strict=True):
        parameter.grad = part.view_as(parameter)
    return flat


@answers.wrong(None, says="not a new buffer")
def kept_on_the_model(model):
    if not hasattr(model, "kept"):
        model.kept = [answers.reference()(model)]
    model.kept[0].zero_()
    return model.kept[0]


@answers.wrong(None, says="not a new buffer: the .grad that 1.weight had")
def reused_for_one(model):
    trainable = trainable_of(model)
    if len(trainable) > 1 or trainable[0].grad is None:
        return answers.reference()(model)
    return trainable[0].grad.zero_().view(-1)


@answers.wrong("leaves_the_buffer")
def put_back_by_a_hook(model):
    flat = answers.reference()(model)
    for parameter in trainable_of(model):
        parameter.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad.clone()))
    return flat


@answers.right
def last_layer_first(model):
    trainable = trainable_of(model)[::-1]
    flat = torch.zeros(
        sum(p.numel() for p in trainable), dtype=trainable[0].dtype, device=trainable[0].device
    )
    offset = 0
    for parameter in trainable:
        end = offset + parameter.numel()
        parameter.grad = flat[offset:end].reshape(parameter.shape)
        offset = end
    return flat


@answers.right
def narrow_and_unflatten(model):
    trainable = trainable_of(model)
    flat = torch.cat([torch.zeros_like(p).flatten() for p in trainable])
    start = 0
    for parameter in trainable:
        parameter.grad = flat.narrow(0, start, parameter.numel()).view(parameter.size())
        start += parameter.numel()
    return flat


@answers.right
def old_gradients_dropped_first(model):
    model.zero_grad(set_to_none=True)
    return answers.reference()(model)


@answers.right
def with_as_strided(model):
    trainable = trainable_of(model)
    flat = trainable[-1].detach().new_zeros((sum(p.numel() for p in trainable),))
    offset = 0
    for parameter in trainable:
        shape, stride = parameter.shape, parameter.stride()
        parameter.grad = flat.as_strided(shape, stride, offset)
        offset += parameter.numel()
    return flat


@answers.right
def zeroed_at_the_end(model):
    trainable = trainable_of(model)
    flat = torch.cat([parameter.detach().flatten() for parameter in trainable])
    for parameter, part in zip(trainable, flat.split([p.numel() for p in trainable]), strict=True):
        parameter.grad = part.view(*parameter.shape)
    return flat.zero_()
