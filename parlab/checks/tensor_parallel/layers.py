"""Passes of a learner's parallel layer, beside those of the serial layer that it is a share of."""

import copy
import gc
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

import torch
from torch import Tensor, nn

from parlab import memory
from parlab.checks.compare import same
from parlab.checks.trial import Trial
from parlab.ledger import Call

# A busy machine takes long to bring ranks together: passes of a check need milliseconds.
SECONDS = 10.0
ACTIVATION_SLACK = 1.1  # of what autograd keeps: means and the like are small, and not counted

Build = Callable[[nn.Module], nn.Module]


@dataclass
class Passed:
    """A forward and a backward pass on this rank."""

    output: Tensor
    input_gradient: Tensor | None
    parameters: dict[str, Tensor]
    gradients: dict[str, Tensor | None]
    forward: list[Call]
    backward: list[Call]
    finished: list[Call]  # of the module's own finish()
    kept: int  # bytes of activations
    memory: dict[str, int]  # bytes behind each parameter
    shared: list[str]  # parameters in memory of the serial layer, where that was to be left alone
    held_back: bool  # whether the serial layer outlived the cut
    serial_changed: bool  # whether the serial layer has other values than before
    unchanged: bool  # whether the input is what it was
    tied: bool  # whether the output layer of a GPT is its embedding


def passes(
    trial: Trial,
    serial: Callable[[], nn.Module],
    cut: Build,
    x: Tensor,
    weigh: Callable[[Tensor], Tensor],
    *,
    finish: bool = False,
    in_place: bool = False,
    leave: bool = True,
) -> Passed:
    """Cut a fresh serial layer, and run it: the loss is what `weigh` makes of its output.

    `x` may be of integers; else its gradient is part of what is told. With `finish`, the module's
    own is called after the backward pass. What is cut `in_place` is to be returned as well: a
    ValueError says so. With `leave`, anything else leaves the serial layer as it was. Runs on the
    ranks of the trial alone.
    """
    whole = serial()
    inside = [weakref.ref(p) for p in whole.parameters()]
    before = [p.detach().clone() for p in whole.parameters()]
    names = [name for name, _ in whole.named_parameters()]
    places = {p.untyped_storage().data_ptr() for p in whole.parameters()}
    module = cut(whole)
    if not isinstance(module, nn.Module):
        raise ValueError(f"it returns {told(module)}, and no module")
    if in_place and module is not whole:
        raise ValueError(
            f"it returns {told(module)}: change what is given, in place, and return it"
        )
    in_place = module is whole
    after = list(whole.parameters())
    left_alone = leave and not in_place
    serial_changed = left_alone and not (
        all(map(same, after, before)) and all(p.requires_grad for p in after)
    )
    shared = [
        name
        for name, p in module.named_parameters()
        if left_alone and p.untyped_storage().data_ptr() in places
    ]
    del after
    del whole
    held_back = not in_place and _alive(inside, module)
    given = x.clone().requires_grad_(x.is_floating_point())
    start = len(trial.ledger.calls)
    with memory.Saved(module) as saved:
        output = module(given.view_as(given))  # no leaf: to write into it would be allowed
    middle = len(trial.ledger.calls)
    weigh(output).backward()
    end = len(trial.ledger.calls)
    if finish:
        module.finish()
    calls = trial.ledger.calls
    named = named_as(module, names)
    return Passed(
        output.detach().clone(),
        None if given.grad is None else given.grad.clone(),
        {name: p.detach().clone() for name, p in named.items()},
        {name: None if p.grad is None else p.grad.clone() for name, p in named.items()},
        calls[start:middle],
        calls[middle:end],
        calls[end:],
        saved.bytes,
        {name: memory.tensor_bytes([p.detach()]) for name, p in named.items()},
        shared,
        held_back,
        serial_changed,
        same(given, x),
        hasattr(module, "unembed") and module.unembed.weight is module.tokens.weight,
    )


def _alive(refs: list[weakref.ref], module: nn.Module) -> bool:
    """Whether some parameter still exists that is none of the module's."""
    own = {id(p) for p in module.parameters()}

    def any_left() -> bool:
        left = (ref() for ref in refs)
        return any(p is not None and id(p) not in own for p in left)

    if any_left():
        gc.collect()  # which takes long
    return any_left()


def named_as(module: nn.Module, names: Sequence[str]) -> dict[str, nn.Parameter]:
    """Parameters by name; a tied one by that of its names which is among `names`."""
    every = list(module.named_parameters(remove_duplicate=False))
    first = {id(p): name for name, p in reversed(every)}
    known = {id(p): name for name, p in reversed(every) if name in names}
    return {known.get(i, name): dict(every)[name] for i, name in first.items()}


def told(value: object) -> str:
    return "None" if value is None else f"another {type(value).__name__} than it was given"


@dataclass
class Right:
    """What the serial layer gives: everything whole."""

    output: Tensor
    input_gradient: Tensor | None
    parameters: dict[str, Tensor]
    gradients: dict[str, Tensor]


def serially(module: nn.Module, x: Tensor, weigh: Callable[[Tensor], Tensor]) -> Right:
    """Output and gradients of the serial layer, of a copy of it."""
    module = copy.deepcopy(module)
    given = x.clone().requires_grad_(x.is_floating_point())
    output = module(given)
    weigh(output).backward()
    named = dict(module.named_parameters())
    return Right(
        output.detach(),
        given.grad,
        {name: p.detach() for name, p in named.items()},
        {name: p.grad if p.grad is not None else torch.zeros_like(p) for name, p in named.items()},
    )


def weighing(weights: Tensor) -> Callable[[Tensor], Tensor]:
    """A loss: the output's sum with `weights`; its plain sum where its shape is another."""
    return lambda y: (y * weights).sum() if y.shape == weights.shape else y.sum()


@dataclass(frozen=True)
class Share:
    """Which part of a tensor each rank has: along `dim`, of each of `sections` by itself."""

    dim: int
    sections: tuple[int, ...] = field(default=())

    def of(self, whole: Tensor, rank: int, size: int) -> Tensor:
        sections = list(self.sections) or [whole.shape[self.dim]]
        parts = whole.split(sections, dim=self.dim)
        return torch.cat([p.chunk(size, dim=self.dim)[rank] for p in parts], dim=self.dim)


Shares = Mapping[str, Share | None]  # None: whole on every rank


def share_of(name: str, whole: Tensor, shares: Shares, rank: int, size: int) -> Tensor:
    share = shares[name]
    return whole if share is None else share.of(whole, rank, size)


def random(draw: Random, *shape: int) -> Tensor:
    """Normal numbers in float64, the same on all ranks."""
    generator = torch.Generator().manual_seed(draw.getrandbits(32))
    return torch.randn(shape, dtype=torch.float64, generator=generator)


def seeded(seed: int, make: Callable[[], nn.Module]) -> nn.Module:
    """A module in float64 whose start follows from `seed`; the global generator stays."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().double()
