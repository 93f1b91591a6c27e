"""Exercise `flat_gradients`: one buffer, and every gradient a view into it."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from mpi4py import MPI
from torch import Tensor, nn

from parlab.checks.base import Check, fresh_seed
from parlab.checks.data_parallel.common import (
    awkward_model,
    tokens_for,
)

AllReduce = Callable[[Tensor, float, MPI.Intracomm], None]


def flat_gradients(function: Callable[[nn.Module], Tensor]) -> None:
    """Check that every gradient is a view, stays one, and has its own place in the buffer."""
    check = Check("flat_gradients")
    for dtype in (torch.float32, torch.float64):
        seed = fresh_seed()
        model = awkward_model(seed, seed).to(dtype)
        with check.communicator() as comm:
            flat = check.call(function, model, comm=comm)
        check.agree(_form(flat, model) or _views(flat, model) or _filled(flat, model, seed))
    check.passed("every gradient is a view into one buffer, before and after a backward pass")


def _form(flat: object, model: nn.Module) -> str | None:
    if flat is None:
        return "it returns None: is a `return` missing?"
    if not isinstance(flat, Tensor) or flat.dim() != 1:
        return "it must return one tensor of one dimension"
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    right, dtype = sum(p.numel() for p in trainable.values()), model.unused.dtype
    if flat.dtype != dtype:
        return f"the buffer is {flat.dtype} where the parameters are {dtype}"
    if flat.numel() != right:
        extra = flat.numel() - right
        why = {
            model.frozen.weight.numel(): "the frozen weight, which never gets a gradient, is in it",
            model.embed.weight.numel(): "the tied weight is in it twice",
            -model.unused.numel(): "the weight that no gradient reached yet is not in it",
        }.get(extra, "one place for each element of a trainable parameter")
        return f"the buffer has {flat.numel()} elements where {right} are right: {why}"
    if model.frozen.weight.grad is not None:
        return "frozen.weight has a .grad now, although it requires none"
    missing = [name for name, p in trainable.items() if p.grad is None]
    return (
        f"{missing[0]} has no .grad: give every trainable parameter its view" if missing else None
    )


def _views(flat: Tensor, model: nn.Module) -> str | None:
    if bool((flat != 0).any()):
        return "the buffer must start as zeros: backward() adds to what is there"
    # Number the buffer's places, and look where the numbers turn up.
    flat.copy_(torch.arange(1, flat.numel() + 1))
    owner: dict[int, str] = {}
    for name, parameter in model.named_parameters():
        if not parameter.requires_grad:
            continue
        for place in parameter.grad.flatten().long().tolist():
            if place == 0:
                return (
                    f"the gradient of {name} does not change with the buffer: it is a copy, not a "
                    "view. Cutting (split, view_as) keeps the memory; cat, clone and stack copy"
                )
            if place in owner:
                return f"the gradients of {owner[place]} and {name} overlap at place {place - 1}"
            owner[place] = name
    flat.zero_()
    return None


def _filled(flat: Tensor, model: nn.Module, seed: int) -> str | None:
    inputs, targets = tokens_for(model, 9, seed)
    F.cross_entropy(model(inputs), targets).backward()
    total = sum(p.grad.double().sum() for p in model.parameters() if p.grad is not None)
    if not torch.isclose(flat.double().sum(), total, atol=1e-5) or not bool((flat != 0).any()):
        return "after backward() the buffer does not hold the gradients"
    return None
