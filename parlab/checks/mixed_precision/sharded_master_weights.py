"""Exercise `sharded_master_weights`."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from parlab import memory
from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.mixed_precision.mixed_step import MISTAKES as WHOLE_STEP
from parlab.checks.mixed_precision.mixed_step import told, updates
from parlab.checks.trial import Trial
from parlab.checks.uninitialized import filled_with_nan
from parlab.checks.watchdog import Ended
from parlab.ledger.ledger import ring_bytes_sent
from parlab.models import Awkward

SCALE = 2.0**8
CLOSE = 2e-6  # of float32 numbers: norms and optimizers may add in another order
SLACK = 1.02  # of bytes: what is measured is within 2 % of the formula
SECONDS = 10.0  # a busy machine takes long to bring ranks together

_OF_THE_SCALER = ("not_updated", "updated_twice", "told_the_opposite", "returns_the_opposite")

MISTAKES = Mistakes(
    **{key: WHOLE_STEP.texts[key] for key in _OF_THE_SCALER},
    whole_master=(
        "self.master has {got} numbers, all weights: a rank keeps those of its own part of "
        "self.flat, {right}"
    ),
    view_of_whole=(
        "self.master is a view of a float32 copy of all weights, and keeps all of that in memory, "
        "{got} bytes: take this rank's part first, then make it float32"
    ),
    copies_of_16_bits=(
        "self.master has dtype {got}: in 16 bits a copy loses the same updates as the weights do"
    ),
    optimizer_of_parameters=(
        "the optimizer has the model's own parameters: it works on self.master"
    ),
    another_part=(
        "self.master has rank {got}'s part of the weights: a rank has the part of its own number"
    ),
    gradients_left="after collect() a parameter has a gradient: the next backward pass adds to it",
    gradient_kept=(
        "after step() self.master.grad is there still: 4 bytes for each number of the shard, "
        "through the whole of the next forward and backward pass"
    ),
    not_reduced="a rank's part moves along the gradient of its own samples: nothing is averaged",
    summed="the step goes along the sum of the ranks' gradients: the mean is asked for",
    overflow_in_the_sum=(
        "all gradients are finite, and so is their mean, and the step is skipped: in 16 bits the "
        "sum overflows. Divide before it"
    ),
    sent_as_float16=(
        "all gradients are finite, and so is their mean, and the step is skipped: they are "
        "bfloat16 and too large for a float16. They travel in the dtype of the weights"
    ),
    none_left_out=(
        "where a parameter has no gradient (None), the gradients behind it lie too early, beside "
        "other parameters' weights: there are zeros in its place"
    ),
    garbage_in_the_buffer=(
        "the gradients are put into memory that was not set to zero: at its end, and where a "
        "parameter has no gradient, lies anything. `torch.zeros_like` is all zeros"
    ),
    clipped_by_own_norm=(
        "each rank clips by the norm of its own shard: the ranks scale by different factors, and "
        "the gradient points elsewhere. The norm is that of all shards"
    ),
    norms_added=(
        "the ranks' norms are added up: the norm of all shards is the root of the sum of their "
        "squares"
    ),
    norm_without_root=(
        "it clips by the sum of the squares: the norm is the root of that, taken after the sum "
        "over the ranks"
    ),
    not_clipped="the gradients are not clipped to max_norm",
    clipped_before_unscaling=(
        "the gradients are clipped while they are scaled: unscale, then clip, then step"
    ),
    not_unscaled="the step goes along the scaled gradient",
    rebuilt_each_step=(
        "self.master begins each step from the rounded weights: what a step adds below the last "
        "bit is thrown away, as if there were no copies. Make them once"
    ),
    skips_alone=(
        "{who} skip{s} the step, the others take it: no rank sees the others' shards, so all must "
        "be told. An infinity or a NaN in any shard is everybody's"
    ),
    leaves_alone=(
        "a rank whose shard has overflowed leaves step() by itself, and the others wait for it in "
        "a collective: first agree, then all skip"
    ),
    stepped_anyway=(
        "a shard has overflowed, and the step is taken: weights are infinite or NaN from now on"
    ),
    moved_in_a_skip="the step is to be skipped, and the {what} have changed: nothing moves in it",
    not_gathered=(
        "after step() this rank has new values in its own part only: the others' have to be "
        "gathered, or the ranks compute with weights of different steps"
    ),
    not_copied_back="the model's weights are as before step(): they get the copies' values",
    gathered_masters=(
        "the parts are gathered in 32 bits, {got} bytes: round them first, and {right} bytes "
        "travel, half as many"
    ),
    gradients_in_32_bits=(
        "the gradients travel in 32 bits, {got} bytes: in 16 they are {right}, and float32 begins "
        "after the reduce-scatter"
    ),
    all_reduced=(
        "an all-reduce gives every rank the mean of all gradients, of which it needs a part: a "
        "reduce-scatter sends half of that"
    ),
    new_memory=(
        "after step() the model's weights lie in other memory than self.flat: whoever holds a view "
        "has the old numbers. Gather in place"
    ),
)


@dataclass
class Planned:
    """One step: this gradient for each rank, (Ψ,) of 16 bits and scaled; clipped to `most`."""

    gradients: list[Tensor]
    factor: float  # max_norm over the norm
    without: int | None = None  # a parameter without gradient
    gap: slice | None = None  # its place
    overflow: bool = False
    large: bool = False  # finite, and so is the mean; not their sum in float16, nor any in bfloat16
    about: str = ""


@dataclass
class Done:
    """After a step, on this rank."""

    taken: Any
    updates: list[bool]
    scale: float
    left: bool  # gradients, after collect()
    collected: Tensor | None  # self.master.grad, after collect()
    kept: bool  # the same, after step()
    master: Tensor
    weights: Tensor
    in_place: bool
    held: int
    early = False  # the scale follows the unscaling, in a step that is right: values show it


class Scaler:
    """A loss scaler that grows after each good step, and notes what it is told."""

    def __init__(self, scale: float) -> None:
        self.scale, self.good_steps, self.growth_interval = scale, 0, 1
        self.growth_factor, self.backoff_factor = 2.0, 0.5
        self.updates: list[bool] = []

    def unscale(self, gradients: list[Tensor]) -> bool:
        finite = [bool(gradient.div_(self.scale).isfinite().all()) for gradient in gradients]
        return not all(finite)

    def update(self, overflow: bool) -> None:
        self.updates.append(bool(overflow))
        self.scale *= self.backoff_factor if overflow else self.growth_factor


@check_of(MISTAKES)
def sharded_master_weights(check: Check) -> str:
    """Check steps, good and bad, clipped and not, on all ranks and fewer, and what is held."""
    optimizers: list[tuple[torch.dtype, Any]] = [
        (torch.float16, partial(torch.optim.SGD, lr=2.0**-3, momentum=0.5, weight_decay=2.0**-6)),
        (torch.bfloat16, partial(torch.optim.AdamW, lr=2.0**-12, weight_decay=2.0**-6)),
    ]
    first_steps()
    for number, trial in enumerate(check.trials()):
        for dtype, make in optimizers if number == 0 else [optimizers[number % 2]]:
            trial.situation = f"{str(dtype)[6:]}, {trial.size} rank" + "s" * (trial.size > 1)
            _train(trial, awkward(trial, dtype), make)
        if number == 0:
            trial.situation = f"2 parameters, {trial.size} rank" + "s" * (trial.size > 1)
            _train(trial, nn.Linear(1, 1).half(), optimizers[0][1])
    return (
        f"the steps of one rank that sees everything, on 1 to {check.world_size} ranks; all skip "
        "or none; of master weights and states each holds a shard; 16 bits are sent"
    )


def first_steps() -> None:
    """Of each optimizer: torch imports much at the first, and a learner's time is counted."""
    for make in (torch.optim.SGD, torch.optim.AdamW):
        parameter = nn.Parameter(torch.zeros(1))
        parameter.grad = torch.zeros(1)
        make([parameter], lr=1.0).step()


def awkward(trial: Trial, dtype: torch.dtype) -> nn.Module:
    """A model whose number of parameters does not divide by that of the ranks."""
    while True:
        with torch.random.fork_rng(devices=[]):
            vocab, hidden = trial.draw.randrange(30, 50), trial.draw.randrange(17, 30)
            torch.manual_seed(trial.draw.getrandbits(32) + trial.rank)
            model = Awkward(vocab, hidden).to(dtype)
        if trial.size == 1 or len(flat_of(model)) % trial.size:
            return model


def trainable(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def flat_of(model: nn.Module) -> Tensor:
    """A copy of the trainable weights, side by side."""
    return torch.cat([p.detach().flatten() for p in trainable(model)])


def _train(trial: Trial, model: nn.Module, make: Any) -> None:
    situation, sizes = trial.situation, [p.numel() for p in trainable(model)]
    start = trial.gather(flat_of(model))[0]
    plan = planned(trial, sizes, start.dtype)
    with filled_with_nan():
        weights = trial.run(model, make, trial.group, seconds=SECONDS)
        trial.situation = f"{situation}, after __init__()"
        trial.require(lambda: made(weights, model, start, trial))
        whole, scaler = Whole(start, make, trial.size), Scaler(SCALE)
        for number, step in enumerate(plan):
            trial.situation = f"{situation}, step {number + 1}{step.about}"
            _step(trial, weights, model, whole, scaler, step)


def planned(trial: Trial, sizes: list[int], dtype: torch.dtype) -> list[Planned]:
    """Good steps and bad ones; small integers times powers of two, of which any mean is exact.

    Gradients are for the scale that a step has: doubled after a good one, halved after a bad one.
    """
    numbers, ranks = sum(sizes), trial.size
    generator = torch.Generator().manual_seed(trial.draw.getrandbits(32))
    scale, plan = SCALE, []
    loose = 2.0 * ranks + 1  # more than clipping to a sum's norm would need

    def drawn(factor: float, about: str = "", without: int | None = None) -> Planned:
        nonlocal scale
        most = max(1, 60 // ranks)
        small = torch.randint(-most, most + 1, (ranks, numbers), generator=generator)
        gradients = (small * ranks * scale * 2.0**-10).to(dtype)
        gap = None
        if without is not None:
            before = sum(sizes[:without])
            gap = slice(before, before + sizes[without])
            gradients[:, gap] = 0
        scale *= 2
        return Planned(list(gradients), factor, without, gap, about=about)

    def bad(value: float) -> Planned:
        nonlocal scale
        step = drawn(loose)
        scale /= 4
        rank, place = trial.draw.randrange(ranks), trial.draw.randrange(numbers)
        step.gradients[rank][place] = value
        step.overflow = True
        step.about = f", in which rank {rank}'s gradient is {value:g} at {place} of {numbers}"
        return step

    plan += [drawn(loose), drawn(0.3, without=trial.draw.randrange(len(sizes)))]
    plan += [bad(math.inf), drawn(0.5), bad(math.nan)]
    half = dtype == torch.float16
    about = "near the largest half" if half else "that no float16 holds"
    large = drawn(0.5, f", with a gradient {about}")
    large.large = ranks > 1 or not half
    place = trial.draw.randrange(numbers)
    for gradient in large.gradients:  # of few bits
        gradient[place] = ranks * 2.0 ** (math.floor(math.log2(65504 / ranks)) if half else 20)
    nothing = drawn(loose, ", in which all gradients are zero")
    for gradient in nothing.gradients:
        gradient.zero_()
    return [*plan, large, nothing, drawn(loose)]


class Whole:
    """The same training on one rank, with all master weights and everybody's gradients.

    `found` are the shards that the learner's ranks had after the last step.
    """

    def __init__(self, start: Tensor, make: Any, ranks: int) -> None:
        self.dtype, self.make, self.ranks = start.dtype, make, ranks
        self.width = -(-len(start) // ranks)
        self.found = list(padded(start.float(), ranks).chunk(ranks))
        self.master = nn.Parameter(start.float())
        self.optimizer = make([self.master])

    def copy(self) -> "Whole":
        other = Whole(self.master.detach().clone(), self.make, self.ranks)
        other.dtype = self.dtype
        other.optimizer.load_state_dict(self.optimizer.state_dict())
        for state in other.optimizer.state.values():
            for name, value in state.items():
                state[name] = value.clone() if isinstance(value, Tensor) else value
        return other

    def after(self, gradient: Tensor) -> Tensor:
        """The master weights after a step along `gradient`; this stays as it is."""
        other = self.copy()
        other.step(gradient)
        return other.master.detach()

    def step(self, gradient: Tensor) -> None:
        self.master.grad = gradient
        self.optimizer.step()
        self.master.grad = None

    def rounded(self) -> "Whole":
        """With master weights that are the 16-bit ones."""
        other = self.copy()
        other.master.data = other.master.detach().to(self.dtype).float()
        return other

    def own_parts(self, per_rank: list[Tensor]) -> Tensor:
        """Part r of rank r's."""
        parts = [g[r * self.width : (r + 1) * self.width] for r, g in enumerate(per_rank)]
        return torch.cat(parts)


def clipped(gradient: Tensor, most: float) -> Tensor:
    return gradient * min(1.0, most / max(gradient.norm().item(), 1e-30))


def _step(
    trial: Trial, weights: Any, model: nn.Module, whole: Whole, scaler: Scaler, step: Planned
) -> None:
    scale = scaler.scale
    gradients = [g.float() / scale for g in step.gradients]
    mean = sum(gradients) / trial.size
    norm = mean.norm().item()
    most = step.factor * norm if 0 < norm < math.inf else 1.0
    scaler.updates = []
    done = trial.run_function(
        _taken,
        weights,
        model,
        scaler,
        step,
        most,
        max(trial.rank, 0),
        seconds=SECONDS,
        explain=_leaving(step),
    )
    shards = trial.gather(done.master if done else None)
    together = torch.cat(shards)[: len(mean)]
    moved = [not same(part, old) for part, old in zip(shards, whole.found, strict=True)]
    weights_before = torch.cat(whole.found)[: len(mean)].to(whole.dtype)
    if not step.overflow:
        fitting = whole.copy()
        fitting.step(clipped(mean, most))
        right = fitting.master.detach()
    else:
        fitting, right = whole, whole.master.detach()
    trial.require(
        lambda: MISTAKES.gradients_left() if done.left else None,
        lambda: agreed(moved[: -(-len(mean) // whole.width)], together, step),
        lambda: skipped_for_nothing(done, moved, step, mean, trial.size, whole.dtype),
        lambda: stepped(together, right, whole, gradients, most, scale, step),
        lambda: equal(together, right, "of all shards together, the master weight", CLOSE),
        lambda: weights_right(done, together, weights_before, trial, whole),
        lambda: None if done.in_place else MISTAKES.new_memory(),
        lambda: collected(done, mean * scale, step, trial),
        lambda: updates(done, 0 if step.overflow else None),
        lambda: told(done, 0 if step.overflow else None),
        lambda: MISTAKES.gradient_kept() if done.kept else None,
        lambda: held(done, fitting, trial.size),
        lambda: sent(trial, 2 * whole.width * trial.size),
    )
    whole.master, whole.optimizer, whole.found = fitting.master, fitting.optimizer, shards


def padded(flat: Tensor, ranks: int) -> Tensor:
    return torch.cat([flat, flat.new_zeros(-len(flat) % ranks)])


def _taken(
    weights: Any, model: nn.Module, scaler: Scaler, step: Planned, most: float, rank: int
) -> Done:
    parameters = trainable(model)
    parts = step.gradients[rank].split([p.numel() for p in parameters])
    for number, (parameter, part) in enumerate(zip(parameters, parts, strict=True)):
        parameter.grad = None if number == step.without else part.view_as(parameter).clone()
    places = [p.data_ptr() for p in parameters]
    weights.collect()
    left = any(p.grad is not None for p in parameters)
    collected = None if weights.master.grad is None else weights.master.grad.clone()
    taken = weights.step(scaler, most)
    kept = weights.master.grad is not None
    return Done(
        taken,
        scaler.updates,
        scaler.scale,
        left,
        collected,
        kept,
        weights.master.detach().clone(),
        flat_of(model),
        places == [p.data_ptr() for p in parameters],
        bytes_held(weights, model),
    )


def _leaving(step: Planned) -> Any:
    """Explains an end in which a rank has returned from a bad step, and others wait for it."""

    def explain(endings: dict[int, Ended]) -> Finding | None:
        kinds = [ended.kind for ended in endings.values()]
        if step.overflow and "returned" in kinds and "stuck" in kinds:
            return MISTAKES.leaves_alone()
        return None

    return explain


def made(weights: Any, model: nn.Module, start: Tensor, trial: Trial) -> Finding | None:
    """Whether master weights and optimizer are a shard's, right after the beginning."""
    master, width = weights.master, -(-len(start) // trial.size)
    if not isinstance(master, Tensor):
        return evidence(f"self.master is a {type(master).__name__}, not a parameter")
    if master.dtype != torch.float32:
        return MISTAKES.copies_of_16_bits(got=master.dtype)
    if trial.size > 1 and master.numel() in (len(start), width * trial.size):
        return MISTAKES.whole_master(got=master.numel(), right=width)
    parts = padded(start, trial.size).float().chunk(trial.size)
    for rank, part in enumerate(parts):
        if rank != trial.rank and same(master, part) and not same(part, parts[trial.rank]):
            return MISTAKES.another_part(got=rank)
    if found := equal(master.detach(), parts[trial.rank], "self.master"):
        return found
    if (got := memory.tensor_bytes([master.detach()])) > SLACK * 4 * width and trial.size > 1:
        return MISTAKES.view_of_whole(got=got)
    owned = [p for group in weights.optimizer.param_groups for p in group["params"]]
    if any(p is q for p in owned for q in trainable(model)):
        return MISTAKES.optimizer_of_parameters()
    if [id(p) for p in owned] != [id(master)]:
        return evidence("self.optimizer has other parameters than self.master")
    return None


def collected(done: Done, scaled: Tensor, step: Planned, trial: Trial) -> Finding | None:
    """Whether collect() has left this rank's part of the mean, still scaled."""
    if step.overflow:
        return None
    right = padded(scaled, trial.size).chunk(trial.size)[trial.rank]
    return equal(done.collected, right, "after collect() self.master.grad", CLOSE)


def agreed(moved: list[bool], together: Tensor, step: Planned) -> Finding | None:
    if not step.overflow:
        return None
    if not bool(together.isfinite().all()):
        return MISTAKES.stepped_anyway()
    still = [rank for rank, changed in enumerate(moved) if not changed]
    if any(moved) and still:
        who = "rank " + ", ".join(map(str, still))
        return MISTAKES.skips_alone(who=who, s="s" if len(still) == 1 else "")
    return MISTAKES.moved_in_a_skip(what="master weights") if any(moved) else None


def skipped_for_nothing(
    done: Done,
    moved: list[bool],
    step: Planned,
    mean: Tensor,
    ranks: int,
    dtype: torch.dtype,
) -> Finding | None:
    """Why a good step was skipped by all: those before it were right."""
    if step.overflow or any(moved) or not done.updates or not done.updates[0]:
        return None
    if step.large:
        half = dtype == torch.float16
        return MISTAKES.overflow_in_the_sum() if half else MISTAKES.sent_as_float16()
    if len(mean) % ranks or step.without is not None:
        return MISTAKES.garbage_in_the_buffer()
    return None


def stepped(
    got: Tensor,
    right: Tensor,
    whole: Whole,
    gradients: list[Tensor],
    most: float,
    scale: float,
    step: Planned,
) -> Finding | None:
    """What a good step went along, instead of the clipped mean."""
    if step.overflow or same(got, right, CLOSE):
        return None
    if step.gap is not None:
        mean = sum(gradients) / len(gradients)
        early = torch.cat([mean[: step.gap.start], mean[step.gap.stop :], mean[step.gap]])
        if same(got, whole.after(clipped(early, most)), CLOSE):
            return MISTAKES.none_left_out()
    for values, finding in wrong(whole, gradients, most, scale):
        if same(got, values, CLOSE) and not same(right, values, 2 * CLOSE):
            return finding
    return None


def wrong(
    whole: Whole, gradients: list[Tensor], most: float, scale: float
) -> Iterator[tuple[Tensor, Finding]]:
    ranks = len(gradients)
    mean = sum(gradients) / ranks
    yield whole.rounded().after(clipped(mean, most)), MISTAKES.rebuilt_each_step()
    once = whole.after(clipped(mean, most))
    yield once.to(whole.dtype).float(), MISTAKES.rebuilt_each_step()
    yield whole.after(mean), MISTAKES.not_clipped()
    by_part = [clipped(part, most) for part in mean.split(whole.width)]
    yield whole.after(torch.cat(by_part)), MISTAKES.clipped_by_own_norm()
    yield whole.after(clipped(mean * scale, most) / scale), MISTAKES.clipped_before_unscaling()
    for gradient in (clipped(mean * scale, most), mean * scale):
        yield whole.after(gradient), MISTAKES.not_unscaled()
    yield whole.after(clipped(mean, most) * scale), MISTAKES.not_unscaled()
    if ranks == 1:
        return
    norm = mean.norm().item()
    parts = sum(part.norm().item() for part in mean.split(whole.width))
    for other, finding in (
        (parts, MISTAKES.norms_added()),
        (norm**2, MISTAKES.norm_without_root()),
    ):
        yield whole.after(mean * min(1.0, most / max(other, 1e-30))), finding
    for gradient in (mean * ranks, clipped(mean * ranks, most), clipped(mean, most) * ranks):
        yield whole.after(gradient), MISTAKES.summed()
    own = whole.own_parts(gradients)
    for gradient in (own, own / ranks, clipped(own, most), clipped(own / ranks, most)):
        yield whole.after(gradient), MISTAKES.not_reduced()


def weights_right(
    done: Done, together: Tensor, before: Tensor, trial: Trial, whole: Whole
) -> Finding | None:
    """Whether the model has the copies' values on this rank, rounded."""
    right = together.to(whole.dtype)
    if same(done.weights, right):
        return None
    own = slice(trial.rank * whole.width, (trial.rank + 1) * whole.width)
    stale = before.clone()
    stale[own] = right[own]
    if same(done.weights, before):
        return MISTAKES.not_copied_back()
    if same(done.weights, stale):
        return MISTAKES.not_gathered()
    return equal(done.weights, right, "in the model, the weight")


def bytes_held(weights: Any, model: nn.Module) -> int:
    """Of all tensors that the attributes hold, the trainable parameters, and the states."""
    found = [leaf for leaf in tree_leaves(vars(weights)) if isinstance(leaf, Tensor)]
    found += [t.grad for t in found if t.is_leaf and t.grad is not None]
    found += trainable(model)
    tensors = memory.tensor_bytes(t.detach() for t in found)
    return tensors + memory.optimizer_bytes(weights.optimizer)


def held(done: Done, whole: Whole, ranks: int) -> Finding | None:
    numbers = whole.width * ranks
    states = sum(
        t.nbytes
        for state in whole.optimizer.state.values()
        for t in state.values()
        if isinstance(t, Tensor) and t.dim()
    )
    right = 2 * numbers + 4 * whole.width + states / ranks
    if done.held > SLACK * right + 64:
        return evidence(
            f"between steps a rank holds {done.held} bytes where {right:.0f} are enough: 16-bit "
            "weights, and of master weights and states a shard"
        )
    return None


def sent(trial: Trial, whole: int) -> Finding | None:
    """What travels: `whole` are the bytes of all 16-bit weights, with the zeros at their end."""
    if trial.size == 1:
        return None
    for call in trial.calls[trial.rank]:
        if call.op == "all_reduce" and call.bytes > 16:
            return MISTAKES.all_reduced()
        if call.op == "reduce_scatter" and call.bytes > SLACK * whole + 16:
            return MISTAKES.gradients_in_32_bits(got=call.bytes, right=whole)
        if call.op == "all_gather" and call.bytes > SLACK * whole + 16 * trial.size:
            return MISTAKES.gathered_masters(got=call.bytes, right=whole)
    got = ring_bytes_sent(trial.calls[trial.rank])
    right = 2 * (trial.size - 1) / trial.size * whole
    if got > right + 16 * trial.size:
        return evidence(
            f"a rank sends {got:.0f} bytes (on a ring) where {right:.0f} are right: 16-bit "
            "gradients and weights once, and two numbers"
        )
    return None
