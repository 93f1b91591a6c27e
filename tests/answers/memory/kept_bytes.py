"""Answers to `kept_bytes`."""

import torch
from torch.autograd.graph import saved_tensors_hooks

from parlab.memory import tensor_bytes
from parlab_staff.answers import Answers

answers = Answers("kept_bytes")

PLACE = "p.untyped_storage().data_ptr() for p in"
TEST = "if storage.data_ptr() not in parameters:"
COUNT = "kept[storage.data_ptr()] = storage.nbytes()"
RETURN = "return tensor.detach()"
UNPACK = "lambda tensor: tensor"
FORWARD = "        forward()\n"
SUM = "return sum(kept.values())"
EACH = ("kept = {}", "kept = []")
ALL = (SUM, "return sum(kept)")

for mistake, name, *edits in (
    ("parameters_counted", "parameters_too", (TEST, "if True:")),
    (
        None,
        "starts_of_parameters",
        (PLACE, "p.data_ptr() for p in"),
        (TEST, "if tensor.data_ptr() not in parameters:"),
    ),
    (
        None,
        "without_frozen_ones",
        ("model.parameters()}", "model.parameters() if p.requires_grad}"),
    ),
    ("counted_again", "each_storage", EACH, (COUNT, "kept.append(storage.nbytes())"), ALL),
    ("only_the_view", "tensor_bytes", (COUNT, COUNT.replace("storage.nbytes()", "tensor.nbytes"))),
    ("pass_changed", "no_unpack", (UNPACK, "lambda tensor: None")),
    ("pass_changed", "kept_in_16_bits", (RETURN, "return tensor.detach().bfloat16().to(tensor)")),
    ("copied", "copies", (RETURN, "return tensor.detach().clone()")),
    ("never_freed", "the_tensor_itself", (RETURN, "return tensor")),
    (None, "only_floats", (TEST, TEST[:-1] + " and tensor.is_floating_point():")),
    (None, "twice", (FORWARD, 2 * FORWARD)),
    ("wrong_type", "in_kilobytes", (SUM, SUM + " / 1000")),
):
    answers.edit(mistake, name, *edits)


@answers.right
def storages_kept(forward, model):
    """Holds the tensors until the end, and counts them then."""
    kept = []

    def pack(tensor):
        kept.append(tensor.detach())
        return kept[-1]

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    own = tensor_bytes(model.parameters())
    return tensor_bytes([*kept, *model.parameters()]) - own


@answers.right
def a_list_of_places(forward, model):
    seen, total = [p.untyped_storage()._cdata for p in model.parameters()], 0

    def pack(tensor):
        nonlocal total
        if tensor.untyped_storage()._cdata not in seen:
            seen.append(tensor.untyped_storage()._cdata)
            total += len(tensor.untyped_storage())
        return tensor.detach()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        forward()
    return total


@answers.right
def pairs_in_set(forward, model):
    """A set of pairs (place, bytes), without the pairs of the parameters."""

    def pair(tensor):
        storage = tensor.data.untyped_storage()
        return storage.data_ptr(), len(storage)

    pairs = set()

    def pack(tensor):
        pairs.add(pair(tensor))
        return tensor.data

    def unpack(data):
        return data.view_as(data)

    hooks = saved_tensors_hooks(pack, unpack)
    hooks.__enter__()
    try:
        forward()
    finally:
        hooks.__exit__()
    return sum(size for _, size in pairs - {pair(p) for p in model.parameters()})
