"""Awkward models for the checks of this lab, and changes to them that a function must not make."""

from random import Random

import torch
from torch import Tensor, nn

from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import State, trainable
from parlab.models import Awkward

A_FLOAT = "a Python float (`.item()` converts a tensor)"

MISTAKES = Mistakes(
    not_in_place=(
        "{name} is now a different tensor, or has moved in memory. Other objects may still use the "
        "old memory. Keep it, and change its values only in place"
    ),
    copy_not_written_back=(
        "{name} is the only tensor that is wrong. It is transposed in memory, so .contiguous(), "
        ".reshape(-1), and .flatten() return copies. Write the result back, or do not copy"
    ),
)


def awkward_model(draw: Random, rank: int = 0) -> Awkward:
    """Return a float64 `Awkward` of an odd size; values depend on `rank`, shapes do not."""
    vocab_size, hidden_size = draw.randrange(13, 20, 2), draw.randrange(5, 12, 2)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.getrandbits(32) + rank)
        return Awkward(vocab_size, hidden_size).double()


def in_column_order(model: Awkward) -> Awkward:
    """Transpose `hidden.weight` in memory; its shape and values stay the same."""
    weight = model.hidden.weight
    weight.data = weight.detach().t().contiguous().t()
    return model


def gradients_of(model: nn.Module) -> State:
    """Return copies of the trainable parameters' gradients. Leave out gradients that are None.

    A missing gradient of `unused` is returned as zeros: no rank has one, so the sum is zero.
    """
    found = {name: p.grad for name, p in trainable(model).items()}
    if "unused" in found and found["unused"] is None:
        found["unused"] = torch.zeros_like(model.unused)
    return {name: grad.detach().clone() for name, grad in found.items() if grad is not None}


def inside(tensor: Tensor | None, buffer: Tensor) -> bool:
    """Return whether a tensor begins in the memory of a buffer."""
    return tensor is not None and 0 <= tensor.data_ptr() - buffer.data_ptr() < buffer.nbytes


class Tensors:
    """The identity, address, and `requires_grad` of a model's tensors when this was created."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._before = self._now()

    def _now(self) -> dict[str, tuple[tuple[int, int], bool]]:
        # Use all names of a tied tensor, because it must stay tied.
        named = dict(self._model.named_parameters(remove_duplicate=False))
        named |= dict(self._model.named_buffers(remove_duplicate=False))
        return {name: ((id(t), t.data_ptr()), t.requires_grad) for name, t in named.items()}

    def kept(self) -> Finding | None:
        """Report a tensor that was added, replaced, moved, or whose `requires_grad` changed."""
        now = self._now()
        if added := now.keys() - self._before.keys():
            return observed(f"the model has a new tensor, {min(added)}: do not add any")
        for name, (place, required) in self._before.items():
            if name not in now or now[name][0] != place:
                return MISTAKES.not_in_place(name=name)
            if now[name][1] != required:
                return observed(f"{name}.requires_grad is {not required}, expected {required}")
        return None
