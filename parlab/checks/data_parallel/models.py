"""Awkward models for the checks of this lab, and what is in them."""

from collections.abc import Mapping
from random import Random

import torch
from torch import Tensor, nn

from parlab.checks.mistakes import Finding, Mistakes
from parlab.checks.models import State, trainable
from parlab.models import Awkward

A_FLOAT = "a Python float (`.item()` makes one of a tensor)"

# What any function that takes a model may do to it.
MISTAKES = Mistakes(
    new_tensor=(
        "{name} is another tensor than before: whoever holds the old one (an optimizer, a layer "
        "that shares it) does not see the new. Overwrite the values in place"
    ),
    new_memory=(
        "{name} lies in other memory than before: values are to be overwritten in place, where "
        "views of them stay valid"
    ),
    requires_grad="{name}.requires_grad is {got} now, and was {right}",
    new_name="the model has a new tensor, {name}: who saves, sends or counts it, has that as well",
)
# What any function may do to a tensor whose memory is not in the order of its indices.
LAYOUT = Mistakes(
    copy_not_written_back=(
        "{name} is the only one that is still this rank's own. Its memory is in another order than "
        "its indices, as a transposed matrix's is, so that .contiguous(), .reshape(-1) and "
        ".flatten() give copies: what comes into one is to be written back"
    ),
)


def awkward_model(draw: Random, rank: int = 0) -> Awkward:
    """A float64 `Awkward` of an odd size; values differ by `rank`, shapes do not."""
    # Odd, and never equal: a weight that is in a buffer too often is told by its size.
    vocab_size, hidden_size = draw.randrange(13, 20, 2), draw.randrange(5, 12, 2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.getrandbits(32) + rank)
        return Awkward(vocab_size, hidden_size).double()


def in_column_order(model: Awkward) -> Awkward:
    """The same, with `hidden.weight` a transposed matrix: its memory is in another order."""
    weight = model.hidden.weight
    weight.data = weight.detach().t().contiguous().t()
    return model


def gradients_of(model: nn.Module) -> State:
    """Copies of the `.grad` of trainable parameters that have one.

    That of `unused` is zeros where there is none: no rank has one, so nothing is to be summed.
    """
    found = {name: p.grad for name, p in trainable(model).items()}
    if "unused" in found and found["unused"] is None:
        found["unused"] = torch.zeros_like(model.unused)
    return {name: grad.detach().clone() for name, grad in found.items() if grad is not None}


class Tensors:
    """Which object each tensor of a model is, in which memory, and what it requires."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = self._now()

    def _now(self) -> dict[str, tuple[int, int, bool]]:
        # Under all its names: a tied tensor must stay one.
        named: Mapping[str, Tensor] = {
            **dict(self._model.named_parameters(remove_duplicate=False)),
            **dict(self._model.named_buffers(remove_duplicate=False)),
        }
        return {name: (id(t), t.data_ptr(), t.requires_grad) for name, t in named.items()}

    def kept(self) -> Finding | None:
        """What was replaced, moved, or has another `requires_grad` since this was made."""
        now = self._now()
        if added := now.keys() - self._before.keys():
            return MISTAKES.new_name(name=min(added))
        for name, (identity, memory, required) in self._before.items():
            got = now.get(name)
            if got is None or got[0] != identity:
                return MISTAKES.new_tensor(name=name)
            if got[1] != memory:
                return MISTAKES.new_memory(name=name)
            if got[2] != required:
                return MISTAKES.requires_grad(name=name, got=got[2], right=required)
        return None
