"""Passes of a learner's parallel layer, beside those of the serial layer that it is a share of."""

import copy
import gc
import weakref
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from parlab import memory
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.models import TOLERANCE
from parlab.checks.trial import Trial
from parlab.costs.collectives import ring_bytes
from parlab.ledger import Call
from parlab.ledger.ledger import ring_bytes_sent

# A busy machine takes long to bring ranks together: passes of a check need milliseconds.
SECONDS = 20.0
ACTIVATION_SLACK = 1.1  # of what autograd keeps: means and the like are small, and not counted

Build = Callable[[nn.Module], nn.Module]

# What any parallel layer may do wrong.
MISTAKES = Mistakes(
    no_reduce_backward=(
        "{name} is this rank's part: the ranks' parts have to be added in the backward pass. That "
        "is what f is for, where the parallel part begins"
    ),
    reduced_again=(
        "{name} is {ranks} times what is right: it was whole on every rank already, and has been "
        "added up over the ranks once more"
    ),
    not_summed="{name} is this rank's part: the ranks' parts have to be added. That is what g does",
    whole_weights=(
        "{name} is whole on this rank, {got} numbers where its share has {right}: each rank holds "
        "and computes its own part"
    ),
    weights_gathered=(
        "{got} bytes of parameters are sent in the {which} pass: the weights stay where they are, "
        "and activations travel"
    ),
    not_own_memory=(
        "{name} is a view that keeps {got} bytes in memory where {right} are its own: the whole "
        "layer is still there. Copy the part"
    ),
    memory_of_serial=(
        "{name} lies in the memory of the layer that was given: an optimizer's step would change "
        "both. Make a copy"
    ),
    strided=(
        "{name} has every N-th of the layer's {which}: rank r has the r-th of N parts, each in one "
        "piece"
    ),
    sends_more="the {which} pass sends {got} bytes, and {enough}",
    kept_whole="the serial layer is still in memory after it was cut: something refers to it",
    not_refused=(
        "it accepts {what}: what {ranks} ranks cannot share evenly is to be refused, with a "
        "ValueError that says so"
    ),
    sent_before_refusing="it refuses {what}, but only after it has sent something",
)


def texts(*keys: str) -> dict[str, str]:
    """Of these mistakes, for the check of an exercise in which they can be made."""
    return {key: MISTAKES.texts[key] for key in keys}


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


# Requirements


def holds_its_share(passed: Passed, right: Right, shares: Shares, trial: Trial) -> Finding | None:
    """Names, shapes, values and memory of the parameters."""
    if passed.parameters.keys() != right.parameters.keys():
        missing = sorted(right.parameters.keys() - passed.parameters.keys())
        extra = sorted(passed.parameters.keys() - right.parameters.keys())
        told = [f"there is no {missing[0]}"] if missing else []
        told += [f"there is a parameter {extra[0]}"] if extra else []
        return evidence(f"the parameters have other names than is asked for: {', '.join(told)}")
    for name, whole in right.parameters.items():
        own = share_of(name, whole, shares, trial.rank, trial.size)
        got = passed.parameters[name]
        if got.shape == whole.shape != own.shape:
            return MISTAKES.whole_weights(name=name, got=got.numel(), right=own.numel())
        if (found := equal(got, own, name)) is not None:
            return found
    for name, size in passed.memory.items():
        if size > passed.parameters[name].nbytes:
            return MISTAKES.not_own_memory(
                name=name, got=size, right=passed.parameters[name].nbytes
            )
    if passed.shared:
        return MISTAKES.memory_of_serial(name=passed.shared[0])
    if passed.serial_changed:
        return COMMON.argument_changed(name="the serial layer")
    return MISTAKES.kept_whole() if passed.held_back else None


def are_parts(everyone: Sequence[Tensor | None], right: Tensor) -> bool:
    """Whether each rank has another part, and together they are right."""
    if len(everyone) == 1 or any(g is None or g.shape != right.shape for g in everyone):
        return False
    alike = all(same(g, everyone[0], TOLERANCE) for g in everyone)
    return not alike and same(sum(everyone), right, TOLERANCE)


def gradient_is(
    got: Tensor | None,
    right: Tensor,
    everyone: Sequence[Tensor | None],
    name: str,
    *,
    whole: bool = True,
) -> Finding | None:
    """Whether a gradient is right; where it is this rank's part, or N times too much, say so.

    `everyone` has that of each rank; `whole` says that each is to have all of it.
    """
    ranks = len(everyone)
    if got is None:
        return evidence(f"the gradient of {name} is None")
    if same(got, right, TOLERANCE):
        return None
    if whole and are_parts(everyone, right):
        return MISTAKES.no_reduce_backward(name=f"the gradient of {name}")
    if ranks > 1 and got.shape == right.shape and same(got, ranks * right, TOLERANCE):
        return MISTAKES.reduced_again(name=f"the gradient of {name}", ranks=ranks)
    return equal(got, right, f"the gradient of {name}", TOLERANCE)


def gradients_are(
    passed: Passed,
    right: Right,
    shares: Shares,
    everyone: Sequence[Passed],
    trial: Trial,
) -> Finding | None:
    """The gradients of all parameters, this rank's share of them."""
    for name, whole in right.gradients.items():
        own = share_of(name, whole, shares, trial.rank, trial.size)
        of_all = [one.gradients[name] for one in everyone]
        found = gradient_is(
            passed.gradients[name], own, of_all, name, whole=shares[name] is None,
            
        )  # fmt: skip
        if found is not None:
            return found
    return None


def untouched(passed: Passed, name: str = "`x`") -> Finding | None:
    return None if passed.unchanged else COMMON.argument_changed(name=name)


def total(calls: Sequence[Call]) -> int:
    """Bytes of all calls, the larger side of each."""
    return sum(call.bytes for call in calls)


def sends_too_much(calls: Sequence[Call], size: int, ranks: int, times: int = 1) -> bool:
    """Whether calls send more than all-reduces of `size` bytes, so many `times`, on a ring.

    Such an all-reduce may be made of others: its two halves, or messages. Those are padded where a
    tensor does not divide, and a library's all-reduce is not.
    """
    if ranks == 1:
        return False
    built = not any(call.op == "all_reduce" for call in calls)
    padding = 16 * ranks * times if built and size else 0
    enough = times * ring_bytes("all_reduce", size, ranks)
    return ring_bytes_sent(calls) > enough + padding + 0.5  # of a byte: halves are rounded


def told_calls(calls: Sequence[Call]) -> str:
    """What was sent, in words, the same calls counted."""
    counted = Counter(f"{call.op} of {call.bytes}" for call in calls)
    return ", ".join(f"{n} × {one}" if n > 1 else one for one, n in counted.items())


def sends(
    calls: Sequence[Call], size: int, ranks: int, which: str, weights: int = 0
) -> Finding | None:
    """Whether a pass sends no more than one all-reduce of `size` bytes; nothing where it is 0.

    `weights` are the bytes of the parameters, where they might travel.
    """
    if not sends_too_much(calls, size, ranks):
        return None
    if weights and any(call.op == "all_gather" and call.bytes >= weights for call in calls):
        return MISTAKES.weights_gathered(got=total(calls), which=which)
    enough = f"one all-reduce of {size} bytes is enough" if size else "nothing is to be sent"
    return MISTAKES.sends_more(which=which, got=told_calls(calls), enough=enough)


def refusal(trial: Trial, attempt: Callable[[], Any], what: str) -> None:
    """Require that `attempt` raises a ValueError on every rank, before anything is sent."""
    if trial.size == 1:
        return

    def tried() -> Exception | None:
        try:
            attempt()
        except NotImplementedError:
            raise  # a stub
        except Exception as error:
            return error
        return None

    raised = trial.run_function(tried, seconds=SECONDS)
    trial.require(
        lambda: _refused(raised, what, trial.size),
        lambda: MISTAKES.sent_before_refusing(what=what) if trial.calls[trial.rank] else None,
    )


def _refused(raised: Exception | None, what: str, ranks: int) -> Finding | None:
    if raised is None:
        return MISTAKES.not_refused(what=what, ranks=ranks)
    if not isinstance(raised, ValueError):
        return evidence(
            f"for {what} it raises {type(raised).__name__}: {raised}. A ValueError is asked for"
        )
    return None if str(raised) else evidence(f"the ValueError for {what} says nothing")


def uses_classes(trial: Trial, module: nn.Module) -> None:
    """Require that the exercise's function makes its layers with the two classes it is given."""
    made: list[str] = []

    def noted(name: str) -> Callable[..., nn.Module]:
        def make(linear: nn.Linear, group: object, *more: object, **named: object) -> nn.Module:
            made.append(name)
            return nn.Identity()

        return make

    got = trial.run(module, trial.group, noted("column"), noted("row"))
    trial.require(
        lambda: COMMON.returns_none() if got is None else None,
        lambda: (
            None
            if sorted(made) == ["column", "row"]
            else evidence(
                f"given two other classes, it makes layers with {made or 'neither'} of them"
            )
        ),
    )
