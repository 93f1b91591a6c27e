"""Exercise `master_weights`."""

import copy
import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, instead, same
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.mixed_precision.masters import Masters
from parlab.models import Awkward

STEPS = 5
CLOSE = 1e-6  # of float32 numbers: an optimizer may add in another order
SECONDS = 20.0

MISTAKES = Mistakes(
    copies_of_16_bits=(
        "self.master[{i}] has dtype {got}: in 16 bits the copies lose the same updates as the "
        "weights do. They are float32"
    ),
    optimizer_of_parameters=(
        "the optimizer has the model's own parameters: it works on the copies, self.master"
    ),
    rebuilt_each_step=(
        "the copies begin each step from the rounded weights: what a step adds below the last bit "
        "is thrown away, as if there were no copies. Make them once; weights are rounded from them"
    ),
    no_step=(
        "step() leaves the copies as they are, and collect() had put gradients there: the "
        "optimizer's step comes first"
    ),
    not_copied_back=(
        "the model's weights are as before step(): they are to have the copies' values, rounded"
    ),
    gradients_not_moved="after collect() self.master[{i}] has no gradient; the parameter had one",
    gradients_of_16_bits=(
        "the gradient of self.master[{i}] has dtype {got}: the update is computed in float32"
    ),
    gradient_invented=(
        "after collect() self.master[{i}] has a gradient, and the parameter had none: an "
        "optimizer would decay it, and move it by its momentum"
    ),
    gradient_of_the_step_before=(
        "after collect() self.master[{i}] has the gradient of a step before: the parameter has "
        "none now, so its copy has none either"
    ),
    gradients_left=(
        "after collect() a parameter still has its gradient: the next backward pass adds to it"
    ),
    gradients_add_up=(
        "the gradient of self.master[{i}] is the sum of this step's and those before: the copies' "
        "old gradients go"
    ),
    overflow_hidden=(
        "after collect() an infinity or NaN of a parameter's gradient is another number: whoever "
        "looks for an overflow does not see it"
    ),
    parameters_in_float32=(
        "after step() a parameter of the model has dtype {got}: it is to have the copy's values, "
        "rounded to its own. Copy into it"
    ),
    rounded_through_float16=(
        "the parameters are rounded to float16 on their way to bfloat16: round once, to the dtype "
        "that a parameter has"
    ),
    cut_off="the copies are cut off where they should be rounded to the nearest number of 16 bits",
    update_rounded=(
        "the model's weights get the *update* rounded, not the copy: they drift from it, step by "
        "step"
    ),
    new_memory=(
        "after step() a parameter lies in other memory: whoever holds a view of it (a buffer that "
        "is sent, a tied layer's storage) has the old numbers. Copy into it in place"
    ),
)


@dataclass
class Done:
    """After one step: what was there after collect(), and after step()."""

    gradients: list[Tensor | None]
    left: bool
    master: list[Tensor]
    parameters: list[Tensor]
    addresses: list[int]


def optimizers() -> dict[str, Any]:
    return {
        "SGD": partial(torch.optim.SGD, lr=2.0**-9, momentum=0.5, weight_decay=0.25),
        "Adam": partial(torch.optim.AdamW, lr=2.0**-12, weight_decay=0.5),
    }


@check_of(MISTAKES)
def master_weights(check: Check) -> str:
    """Check steps too small for 16 bits, in both formats, with parameters without gradient."""
    with check.trial() as trial:
        for name, make in optimizers().items():
            for dtype in (torch.float16, torch.bfloat16):
                situation = f"{str(dtype)[6:]}, {name}"
                model, gradients = drawn(trial.draw, dtype)
                right = expected(copy.deepcopy(model), make, gradients)
                start = [p.detach().clone() for p in model.parameters() if p.requires_grad]
                parameters = [p for p in model.parameters() if p.requires_grad]
                addresses = [p.data_ptr() for p in parameters]
                weights = trial.run_function(check.function, model, make, seconds=SECONDS)
                trial.situation = f"{situation}, after __init__()"
                trial.require(lambda: copies(weights, start), lambda: model_kept(parameters, start))
                done = trial.run_function(_steps, weights, model, gradients, seconds=SECONDS)
                for number in range(len(done)):
                    trial.situation = f"{situation}, step {number + 1}"
                    before = right[number - 1] if number else None
                    mine = done[number - 1] if number else None
                    trial.require(
                        lambda: collected(done[number], gradients, number),
                        lambda: kept_dtype(done[number], dtype),
                        lambda: stepped(done[number], right[number], before, start, mine),
                        lambda: in_place(done[number], addresses),
                    )
                trial.situation = f"{situation}, gradients that have overflowed"
                found = trial.run_function(_overflowed, weights, parameters, seconds=SECONDS)
                trial.require(lambda: kept_overflow(found))
    return "small steps add up, in float16 and bfloat16; where there is no gradient, nothing moves"


def drawn(draw: Random, dtype: torch.dtype) -> tuple[Awkward, list[list[Tensor | None]]]:
    """A model of 16 bits, and gradients for its steps; some parameters have none at times."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(draw.getrandbits(32))
        model = Awkward().to(dtype)
        parameters = [p for p in model.parameters() if p.requires_grad]
        never, sometimes = draw.sample(range(len(parameters)), 2)
        gradients: list[list[Tensor | None]] = []
        for step in range(STEPS):
            gradients.append([(0.1 * torch.randn(p.shape)).to(dtype) for p in parameters])
            gradients[-1][never] = None
            if step in (2, 3):
                gradients[-1][sometimes] = None
        if dtype == torch.bfloat16:  # what no float16 holds
            often = next(i for i in range(len(parameters)) if i not in (never, sometimes))
            parameters[often].detach().view(-1)[:2] = torch.tensor([2.0**20, 2.0**-30])
            gradients[0][often].view(-1)[:2] = torch.tensor([2.0**17, 2.0**-30])
    return model, gradients


def expected(model: nn.Module, make: Any, gradients: list[list[Tensor | None]]) -> list[Done]:
    return _steps(Masters(model, make), model, gradients)


def _steps(weights: Any, model: nn.Module, gradients: list[list[Tensor | None]]) -> list[Done]:
    parameters = [p for p in model.parameters() if p.requires_grad]
    dtypes = [p.dtype for p in parameters]
    done = []
    for given in gradients:
        for parameter, gradient in zip(parameters, given, strict=True):
            parameter.grad = None if gradient is None else gradient.clone()
        weights.collect()
        found = [None if m.grad is None else m.grad.detach().clone() for m in weights.master]
        left = any(p.grad is not None for p in parameters)
        weights.step()
        done.append(
            Done(
                found,
                left,
                [m.detach().clone() for m in weights.master],
                [p.detach().clone() for p in parameters],
                [p.data_ptr() for p in parameters],
            )
        )
        for parameter in parameters:
            parameter.grad = None
        if any(p.dtype != old for p, old in zip(parameters, dtypes, strict=True)):
            break  # they take no gradient of 16 bits any more
    return done


def _overflowed(weights: Any, parameters: list[nn.Parameter]) -> list[list[float]]:
    """The copies' gradients, where each parameter's begins with an infinity or a NaN."""
    bad = (torch.inf, -torch.inf, torch.nan)
    for i, parameter in enumerate(parameters):
        parameter.grad = torch.ones_like(parameter)
        parameter.grad.view(-1)[0] = bad[i % 3]
    weights.collect()
    found = [master.grad.flatten().tolist() for master in weights.master]
    for master in weights.master:
        master.grad = None
    return found


def kept_overflow(found: list[list[float]]) -> Finding | None:
    if any(math.isfinite(numbers[0]) for numbers in found):
        return MISTAKES.overflow_hidden()
    return None


def copies(weights: Any, start: list[Tensor]) -> Finding | None:
    """Whether the copies are float32 copies, and the optimizer's."""
    if len(weights.master) != len(start):
        return evidence(
            f"self.master has {len(weights.master)} tensors: self.parameters are {len(start)}"
        )
    for i, (got, right) in enumerate(zip(weights.master, start, strict=True)):
        if not isinstance(got, nn.Parameter):
            return evidence(f"self.master[{i}] is a {type(got).__name__}, not an nn.Parameter")
        if got.dtype != torch.float32:
            return MISTAKES.copies_of_16_bits(i=i, got=got.dtype)
        if found := equal(got.detach(), right.float(), f"self.master[{i}]"):
            return found
    optimizer = getattr(weights, "optimizer", None)
    if not isinstance(optimizer, torch.optim.Optimizer):
        return evidence(
            f"self.optimizer is {optimizer!r}: it is what make_optimizer(self.master) returns"
        )
    held = [p for group in weights.optimizer.param_groups for p in group["params"]]
    if any(p is q for p in held for q in weights.parameters):
        return MISTAKES.optimizer_of_parameters()
    if [id(p) for p in held] != [id(p) for p in weights.master]:
        return evidence("self.optimizer has other parameters than self.master")
    return None


def model_kept(parameters: list[nn.Parameter], start: list[Tensor]) -> Finding | None:
    """Whether __init__() leaves the model's parameters alone."""
    for i, (got, right) in enumerate(zip(parameters, start, strict=True)):
        if not got.requires_grad:
            return evidence(f"self.parameters[{i}] does not require a gradient any more")
        if found := equal(got.detach(), right, f"self.parameters[{i}]"):
            return found
    return None


def kept_dtype(done: Done, dtype: torch.dtype) -> Finding | None:
    for parameter in done.parameters:
        if parameter.dtype != dtype:
            return MISTAKES.parameters_in_float32(got=parameter.dtype)
    return None


def collected(done: Done, gradients: list[list[Tensor | None]], number: int) -> Finding | None:
    for i, (got, right) in enumerate(zip(done.gradients, gradients[number], strict=True)):
        if right is None:
            if got is not None:
                old = [step[i] for step in gradients[:number] if step[i] is not None]
                if any(same(got, one) for one in old):
                    return MISTAKES.gradient_of_the_step_before(i=i)
                return MISTAKES.gradient_invented(i=i)
            continue
        if got is None:
            return MISTAKES.gradients_not_moved(i=i)
        if got.dtype != torch.float32:
            return MISTAKES.gradients_of_16_bits(i=i, got=got.dtype)
        if same(got, right):
            continue
        sums = [step[i].float() for step in gradients[: number + 1] if step[i] is not None]
        if same(got, sum(sums), CLOSE):
            return MISTAKES.gradients_add_up(i=i)
        return equal(got, right.float(), f"after collect() the gradient of self.master[{i}]")
    return MISTAKES.gradients_left() if done.left else None


def stepped(
    done: Done, right: Done, before: Done | None, start: list[Tensor], mine: Done | None
) -> Finding | None:
    """Whether copies and weights are right; a step earlier, `before` was right, `mine` there."""
    rounded = before.parameters if before else start
    unrounded = before.master if before else [p.float() for p in start]
    pairs = list(zip(done.master, right.master, strict=True))
    if not all(same(a, b, CLOSE) for a, b in pairs):
        halves = zip(done.master, right.parameters, strict=True)
        if all(same(a, b, CLOSE) for a, b in halves):
            return MISTAKES.rebuilt_each_step()
        moved = [b - u for b, u in zip(right.master, unrounded, strict=True)]
        again = [p.float() + m for p, m in zip(rounded, moved, strict=True)]
        # Weight decay takes a little more or less of the rounded weight.
        if all(same(a, b, 2e-5) for a, b in zip(done.master, again, strict=True)):
            return MISTAKES.rebuilt_each_step()
        own = mine.master if mine else unrounded
        if all(same(got, old) for got, old in zip(done.master, own, strict=True)):
            return MISTAKES.no_step()
    for i, (got, wanted) in enumerate(pairs):
        if found := equal(got, wanted, f"self.master[{i}]", CLOSE):
            return found
    kept = [same(got, old) for got, old in zip(done.parameters, start, strict=True)]
    changed = [not same(new, old) for new, old in zip(right.parameters, start, strict=True)]
    if any(changed) and all(kept):
        return MISTAKES.not_copied_back()
    if found := instead(
        done.parameters,
        [m.to(p.dtype) for m, p in zip(done.master, start, strict=True)],
        wrong_roundings(done, start, mine),
        same,
    ):
        return found
    for i, (got, master) in enumerate(zip(done.parameters, done.master, strict=True)):
        if found := equal(got, master.to(got.dtype), f"self.parameters[{i}]"):
            return found
    return None


def wrong_roundings(
    done: Done, start: list[Tensor], mine: Done | None
) -> Iterator[tuple[list[Tensor], Finding]]:
    """What the model's weights are instead of the copies, rounded."""
    dtype = start[0].dtype
    through = [m.half().to(dtype) for m in done.master]
    yield through, MISTAKES.rounded_through_float16()
    mask = -(2 ** (16 if dtype == torch.bfloat16 else 13))
    cut = [(m.view(torch.int32) & mask).view(torch.float32).to(dtype) for m in done.master]
    yield cut, MISTAKES.cut_off()
    rounded, unrounded = (
        (mine.parameters, mine.master) if mine else (start, [p.float() for p in start])
    )
    moved = [a - b for a, b in zip(done.master, unrounded, strict=True)]
    added = [p + m.to(dtype) for p, m in zip(rounded, moved, strict=True)]
    yield added, MISTAKES.update_rounded()


def in_place(done: Done, addresses: list[int]) -> Finding | None:
    return None if done.addresses == addresses else MISTAKES.new_memory()
