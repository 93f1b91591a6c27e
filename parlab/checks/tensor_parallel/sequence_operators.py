"""Exercise `sequence_operators`."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from parlab import memory
from parlab.checks.check import Check, check_of
from parlab.checks.compare import equal, same
from parlab.checks.mistakes import COMMON, Finding, Mistakes, evidence
from parlab.checks.tensor_parallel import requirements
from parlab.checks.tensor_parallel.layers import SECONDS, Share, random
from parlab.checks.trial import Trial
from parlab.costs.collectives import ring_bytes
from parlab.ledger import Call
from parlab.ledger.ledger import ring_bytes_sent

TOLERANCE = 1e-9

MISTAKES = Mistakes(
    scatter_not_summed=(
        "scatter gives this rank's part of the sequence of its own tensor: the ranks' tensors have "
        "to be added"
    ),
    scatter_own_gradient=(
        "the gradient that scatter gives back has zeros where other ranks' parts of the sequence "
        "are: this rank's tensor went into all of them, so their gradients are to be gathered"
    ),
    scatter_gradient_times=(
        "the gradient that scatter gives back is {ranks} times what is right: it is gathered, not "
        "added up"
    ),
    gather_not_summed=(
        "x's gradient is this rank's part of the sequence of its own gradient: every rank has used "
        "x for its outputs, so their gradients have to be added. A reduce-scatter does both"
    ),
    weight_of_own_part=(
        "the gradient of `{name}` is that of this rank's part of the sequence alone: the product "
        "was with all of it"
    ),
    keeps_whole=(
        "{got} bytes are kept for the backward pass where the shard has {right}, and the weight is "
        "there anyway: save these two as they came, and gather again in the backward pass"
    ),
    not_gathered_again=(
        "gather_linear's backward sends {got} bytes, and does not gather the input again: so it "
        "was kept whole, out of autograd's sight (an attribute of `ctx`?). Keep the shard alone"
    ),
    weights_summed=(
        "the gradient of `{name}` is summed over the ranks: each rank has a weight of its own, and "
        "has seen all of the sequence"
    ),
    all_reduced=(
        "{which} uses an all-reduce, which gives every rank all of the sequence: of that it needs "
        "its part, and a reduce-scatter sends half as much"
    ),
    **requirements.texts("not_refused"),
)


@dataclass
class Seen:
    """What one of the two did on this rank."""

    output: Tensor
    gradients: list[Tensor | None]
    forward: list[Call]
    backward: list[Call]
    kept: int
    unchanged: list[bool]


@check_of(MISTAKES)
def sequence_operators(check: Check) -> str:
    """Check values, gradients, calls and what is kept; then what is refused."""
    for trial in check.trials():
        for dtype in (torch.float64, torch.float32):
            trial.situation = f"{trial.size} ranks, {dtype}"
            _scatter(trial, dtype)
            for bias in (True, False):
                trial.situation = f"{trial.size} ranks, {dtype}, {'a' if bias else 'no'} bias"
                _gather(trial, dtype, bias)
        trial.situation = f"{trial.size} ranks"
        requirements.refusal(
            trial,
            lambda: check.function(trial.group)[1](torch.ones(2, 2 * trial.size + 1, 3)),
            f"{2 * trial.size + 1} tokens",
            [2 * trial.size + 1],
        )
    return (
        "values and gradients; only the shard is kept; gathers and reduce-scatters, and no "
        f"all-reduce, on 1 to {check.world_size} ranks"
    )


def _run(trial: Trial, which: int, tensors: list[Tensor | None], gradient: Tensor) -> Seen:
    function = trial.check.function(trial.group)[which]
    leaves = [None if t is None else t.clone().requires_grad_() for t in tensors]
    start = len(trial.ledger.calls)
    owner = nn.Module()
    if which == 0:
        owner.weight = nn.Parameter(leaves[1].detach())
    with memory.Saved(owner) as saved:
        output = function(*(None if t is None else t.view_as(t) for t in leaves))
    middle = len(trial.ledger.calls)
    wanted = [t for t in leaves if t is not None]
    before = gradient.clone()
    got = iter(torch.autograd.grad(output, wanted, grad_outputs=gradient, allow_unused=True))
    gradients = [None if t is None else next(got) for t in leaves]
    calls = trial.ledger.calls
    unchanged = [t is None or same(t, was) for t, was in zip(leaves, tensors, strict=True)]
    return Seen(
        output.detach().clone(),
        [None if g is None else g.clone() for g in gradients],
        calls[start:middle],
        calls[middle:],
        saved.bytes,
        [*unchanged, same(gradient, before)],
    )


def _close(dtype: torch.dtype) -> float:
    return 1e-4 if dtype is torch.float32 else TOLERANCE


def _changed(seen: Seen, names: tuple[str, ...]) -> Finding | None:
    for name, same_as_before in zip(names, seen.unchanged, strict=True):
        if not same_as_before:
            return COMMON.argument_changed(name=name)
    return None


def _scatter(trial: Trial, dtype: torch.dtype) -> None:
    n, part = trial.size, Share(1)
    shape = (2, n * trial.draw.randrange(2, 4), 3)
    every = [random(trial.draw, *shape).to(dtype) for _ in range(n)]
    total, gradient = sum(every), random(trial.draw, *shape).to(dtype)
    r = max(trial.rank, 0)
    seen = trial.run_function(
        _run, trial, 1, [every[r]], part.of(gradient, r, n).contiguous(), seconds=SECONDS
    )
    close = _close(dtype)

    def output() -> Finding | None:
        if n > 1 and same(seen.output, part.of(every[r], r, n), close):
            return MISTAKES.scatter_not_summed()
        return equal(seen.output, part.of(total, r, n), "scatter(x)", close)

    def back() -> Finding | None:
        (got,) = seen.gradients
        if got is None:
            return evidence("scatter gives no gradient back")
        alone = torch.cat([c * (i == r) for i, c in enumerate(gradient.chunk(n, dim=1))], dim=1)
        if n > 1 and same(got, alone, close):
            return MISTAKES.scatter_own_gradient()
        if n > 1 and same(got, n * gradient, close):
            return MISTAKES.scatter_gradient_times(ranks=n)
        return equal(got, gradient, "the gradient that scatter gives back", close)

    trial.require(
        lambda: _changed(seen, ("x", "the gradient given to scatter's backward")),
        output,
        lambda: calls_are(seen.forward, total.nbytes, "scatter"),
        back,
        lambda: calls_are(seen.backward, total.nbytes, "scatter's backward"),
    )


def _gather(trial: Trial, dtype: torch.dtype, bias: bool) -> None:
    n, part = trial.size, Share(1)
    shape = (2, n * trial.draw.randrange(2, 4), 6)
    whole = random(trial.draw, *shape).to(dtype)
    outputs = trial.draw.randrange(2, 5)
    r = max(trial.rank, 0)
    leaves, products = [whole.clone().requires_grad_()], []
    weights = []
    for _ in range(n):  # each rank has a weight and a gradient of its own
        weight = random(trial.draw, outputs, 6).to(dtype).requires_grad_()
        shift = random(trial.draw, outputs).to(dtype).requires_grad_() if bias else None
        gradient = random(trial.draw, *shape[:2], outputs).to(dtype)
        weights.append((weight, shift, gradient))
        products.append((F.linear(leaves[0], weight, shift) * gradient).sum())
    own_x = [torch.autograd.grad(p, leaves[0], retain_graph=True)[0] for p in products]
    sum(products).backward()
    weight, shift, gradient = weights[r]
    seen = trial.run_function(
        _run,
        trial,
        0,
        [part.of(whole, r, n), weight.detach(), None if shift is None else shift.detach()],
        gradient,
        seconds=SECONDS,
    )
    close = _close(dtype)
    right = F.linear(whole, weight, shift).detach()
    shard = part.of(whole, r, n)

    def of_x() -> Finding | None:
        got, expected = seen.gradients[0], part.of(leaves[0].grad, r, n)
        if got is None:
            return evidence("gather_linear gives no gradient for x")
        if n > 1 and same(got, part.of(own_x[r], r, n), close):
            return MISTAKES.gather_not_summed()
        return equal(got, expected, "x's gradient", close)

    def of_weights() -> Finding | None:
        own = part.of(gradient, r, n)
        local = (own.flatten(0, 1).T @ shard.flatten(0, 1), own.sum(dim=(0, 1)))
        for name, got, expected, alone in zip(
            ("weight", "bias"), seen.gradients[1:], (weight, shift), local, strict=True
        ):
            if expected is None:
                continue
            if got is None:
                return evidence(f"gather_linear gives no gradient for {name}")
            if n > 1 and same(got, alone, close):
                return MISTAKES.weight_of_own_part(name=name)
            of_all = sum(one[0 if name == "weight" else 1].grad for one in weights)
            if n > 1 and same(got, of_all, close):
                return MISTAKES.weights_summed(name=name)
            if (found := equal(got, expected.grad, f"{name}'s gradient", close)) is not None:
                return found
        return None

    def kept() -> Finding | None:
        # The weight itself is not counted; whether there is a bias may be known by saving it.
        own = seen.kept - (shift.nbytes if shift is not None else 0)
        if n > 1 and own > 1.2 * shard.nbytes:
            return MISTAKES.keeps_whole(got=own, right=shard.nbytes)
        return None

    def gathered_again() -> Finding | None:
        got = ring_bytes_sent(seen.backward)
        if got < 2 * ring_bytes("all_gather", whole.nbytes, n) - 1:
            return MISTAKES.not_gathered_again(got=requirements.told_calls(seen.backward) or 0)
        return None

    trial.require(
        lambda: _changed(seen, ("x", "weight", "bias", "the gradient given to its backward")),
        lambda: equal(seen.output, right, "gather_linear(x, weight, bias)", close),
        lambda: calls_are(seen.forward, whole.nbytes, "gather_linear"),
        of_x,
        of_weights,
        kept,
        gathered_again,
        lambda: calls_are(seen.backward, 2 * whole.nbytes, "gather_linear's backward"),
    )


def calls_are(calls: list[Call], right: int, which: str) -> Finding | None:
    if any(call.op == "all_reduce" and call.size > 1 for call in calls):
        return MISTAKES.all_reduced(which=which)
    got = requirements.total(calls)
    if got > right:
        return evidence(f"{which} sends {got} bytes where {right} are enough")
    return None
