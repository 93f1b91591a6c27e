"""Exercise `chunked_cross_entropy`: values of F.cross_entropy in float64, and peak memory."""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import equal, has_type, same
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.nan_memory import filled_with_nan
from parlab.checks.base.unchanged import unchanged
from parlab.checks.memory._loss_batch import (
    IGNORED,
    Batch,
    Case,
    Gradients,
    copied,
    drawn,
    inputs,
    plain_step,
    token_losses,
)

MISTAKES = Mistakes(
    library_call=(
        "the function calls `F.linear_cross_entropy`, which does the exercise for you. Compute the "
        "chunks yourself"
    ),
    all_logits=(
        "at its peak, the function holds {got} bytes, and all logits take {all}. It may hold the "
        "logits of one chunk, which take {one}"
    ),
    logits_kept=(
        "the forward pass computes chunks, but autograd keeps each chunk's logits for the backward "
        "pass: together {got} bytes, and all logits take {all}. Compute the gradients in the "
        "forward pass, inside an autograd.Function"
    ),
    mean_of_means=(
        "the loss is the mean of the chunks' means, but chunks have different numbers of targets "
        "that count. Add up the losses of all tokens, and divide once"
    ),
    ignored_in_mean=(
        "the loss is divided by the number of all tokens. Divide by the number of targets that are "
        "not −100"
    ),
    not_scaled=(
        "the gradient of {name} does not depend on the gradient that `backward` receives. Multiply "
        "by it: the loss may be scaled"
    ),
    last_chunk=(
        "the weight has the gradient of the last chunk alone. Add up the gradients of all chunks"
    ),
    overflow=(
        "the loss is {got} for logits of several hundred, because their exponentials overflow. Use "
        "`log_softmax`, or subtract each token's largest logit first"
    ),
)


CASES = {
    "the last chunk is shorter": Case(),
    "one chunk for all tokens": Case(tokens=7, chunk=50),
    "chunks of one token": Case(tokens=5, chunk=1),
    "some targets are ignored": Case(ignored=(0, 3, 4, 9, 30, 36)),
    "all targets of a chunk are ignored": Case(ignored=(*range(8, 17), 36)),
    "the loss is multiplied by −2.5": Case(factor=-2.5, ignored=(1, 12)),
    "the weight is tied to the embedding": Case(tied=True, ignored=(2,)),
    "logits of several hundred": Case(size=300.0),
    "the weight is frozen": Case(needs_gradient=(True, False)),
    "the hidden states are frozen": Case(needs_gradient=(False, True)),
}
MEMORY = {
    f"{case.tokens} tokens, chunks of {case.chunk}": case
    for case in (
        Case(tokens=300, chunk=16, vocabulary=1500, hidden=2),
        Case(tokens=290, chunk=4, vocabulary=1600, hidden=2, tied=True),
        Case(tokens=30, chunk=16, vocabulary=1500, hidden=2),
    )
}


@dataclass
class Step:
    """What the function gave: the loss, and the gradients of the leaves (None where frozen)."""

    loss: Any
    gradients: Gradients
    second: Gradients | None = None  # after a second backward pass; None: it raised
    library: bool = False
    changed: Finding | None = None


@check_of(MISTAKES, ranks=1)
def chunked_cross_entropy(check: Check) -> str:
    """Check loss and gradients for all kinds of chunks and targets, and then the peak memory."""
    with check.trial() as trial, filled_with_nan():
        for _, case in trial.cases(CASES):
            batch = drawn(trial.draw, case)
            step = trial.run_function(lambda: taken(check.function, batch, case))
            trial.require(
                lambda: MISTAKES.library_call() if step.library else None,
                lambda: step.changed,
                lambda: loss_is_right(step.loss, batch, case),
                lambda: gradients_are_right(step.gradients, batch, case),
                lambda: second_pass(step, batch, case),
            )
        with memory.Peak():  # PyTorch imports a lot here, and the function's time is limited
            torch.zeros(1)
        for _, case in trial.cases(MEMORY):
            batch = drawn(trial.draw, case)
            with Largest() as largest:
                peak, plain = trial.run_function(lambda: peaks(check.function, batch, case))
            trial.require(
                lambda: one_chunk(peak, plain, case),
                lambda: tokens_at_once(largest.numbers, case),
            )
    return "loss and gradients of F.cross_entropy, with the logits of one chunk in memory"


class Largest(TorchDispatchMode):
    """Remembers how many numbers the largest storage behind a result has."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, Tensor):
                count = one.untyped_storage().nbytes() // one.element_size()
                self.numbers = max(self.numbers, count)
        return result


class SeesLibrary(TorchFunctionMode):
    """Notices a call of F.linear_cross_entropy."""

    called = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.called |= func is F.linear_cross_entropy
        return func(*args, **(kwargs or {}))


def taken(function: Callable, batch: Batch, case: Case) -> Step:
    """Call the function, and go backward twice."""
    leaves, targets = batch.leaves(case), batch.targets.clone()
    before = [leaf.detach().clone() for leaf in leaves]
    with SeesLibrary() as watch:
        loss = function(*inputs(leaves, batch), targets, case.chunk)
    changed = unchanged("`targets`", targets, batch.targets)
    for leaf, old in zip(leaves, before, strict=True):
        changed = changed or unchanged("the hidden states or the weight", leaf, old)
    if any(leaf.grad is not None for leaf in leaves):
        changed = observed("the forward pass sets .grad. Return the gradients from `backward`")
    step = Step(loss, [], library=watch.called, changed=changed)
    if isinstance(loss, Tensor) and loss.shape == () and loss.requires_grad:
        scaled = loss * case.factor
        scaled.backward(retain_graph=True)
        step.gradients = copied(leaves)
        try:
            scaled.backward()
        except Exception:  # the text allows any error here
            return step
        step.second = copied(leaves)
    return step


def loss_is_right(loss: Any, batch: Batch, case: Case) -> Finding | None:
    """Require the mean over the targets that count, as a tensor that has a gradient."""
    if found := has_type(loss, Tensor, "a torch.Tensor", "the loss"):
        return found
    right, _ = plain_step(batch, case)
    if loss.shape == () and not loss.isfinite() and case.size > 1:
        return MISTAKES.overflow(got=loss.item())
    tolerance = case.tolerance * max(1.0, right.item())
    for key, value in wrong_losses(batch, case):
        if loss.shape == () and same(loss, value, tolerance) and not same(value, right, tolerance):
            return getattr(MISTAKES, key)()
    if found := equal(loss.detach(), right.float(), "the loss", tolerance):
        return found
    if not loss.requires_grad:
        return observed("the loss does not require a gradient, so backward() is not possible")
    return None


def wrong_losses(batch: Batch, case: Case) -> Iterator[tuple[str, Tensor]]:
    losses = token_losses(batch.leaves(case, torch.float64), batch).detach()
    counts = batch.targets != IGNORED
    yield "ignored_in_mean", losses.mean()
    parts = list(zip(losses.split(case.chunk), counts.split(case.chunk), strict=True))
    yield "mean_of_means", torch.stack([loss.mean() for loss, _ in parts]).mean()
    means = [loss[counted].mean() for loss, counted in parts if counted.any()]
    yield "mean_of_means", torch.stack(means).mean()


def gradients_are_right(got: Gradients, batch: Batch, case: Case, times: int = 1) -> Finding | None:
    """Compare the leaves' gradients with `times` those of F.cross_entropy, in their order."""
    _, right = plain_step(batch, case, times * case.factor)
    _, unscaled = plain_step(batch, case, times)
    last = (case.tokens - 1) // case.chunk * case.chunk
    _, of_last = plain_step(batch, case, times * case.factor, last)
    names = ["the tied weight"] if case.tied else ["the hidden states", "the weight"]
    for name, one, wanted, plain, end in zip(names, got, right, unscaled, of_last, strict=True):
        if wanted is None:
            continue
        tolerance = case.tolerance * wanted.abs().max().item()
        if one is not None and one.shape == wanted.shape and not same(one, wanted, tolerance):
            if same(one, plain, tolerance):
                return MISTAKES.not_scaled(name=name)
            if name == "the weight" and same(one, end, tolerance):
                return MISTAKES.last_chunk()
        if found := equal(one, wanted.float(), f"the gradient of {name}", tolerance):
            return found
    return None


def second_pass(step: Step, batch: Batch, case: Case) -> Finding | None:
    """Require twice the gradients after a second backward pass, if it raised no error."""
    if step.second is None or gradients_are_right(step.second, batch, case, 2) is None:
        return None
    return observed(
        "a second backward pass through the same loss adds wrong gradients without an error. Keep "
        "them with ctx.save_for_backward, which notices that they have changed, or do not scale "
        "them in place"
    )


def peaks(function: Callable, batch: Batch, case: Case) -> tuple[int, int]:
    """Return the peak of a forward and a backward pass, and of a forward pass without autograd."""
    found = []
    for context in (nullcontext(), torch.no_grad()):
        leaves = batch.leaves(case)
        hidden, weight = inputs(leaves, batch)
        with context, memory.Peak() as peak:
            loss = function(hidden, weight, batch.targets, case.chunk)
            if loss.requires_grad:
                (loss * case.factor).backward()
        found.append(peak.bytes)
    return found[0], found[1]


def one_chunk(peak: int, forward: int, case: Case) -> Finding | None:
    """Allow eight tensors of a chunk's size, and six of each gradient's size."""
    one, every = 4 * case.chunk * case.vocabulary, 4 * case.tokens * case.vocabulary
    gradients = 4 * case.hidden * (case.vocabulary + case.tokens)
    limit = 8 * one + 6 * gradients
    if peak <= limit:
        return None
    if forward <= limit and peak >= every:
        return MISTAKES.logits_kept(got=peak, all=every)
    if forward >= every:
        return MISTAKES.all_logits(got=forward, all=every, one=one)
    return observed(
        f"at its peak, the function holds {peak} bytes. The logits of one chunk take {one}, and "
        f"both gradients {gradients}, so {limit} should be enough"
    )


def tokens_at_once(numbers: int, case: Case) -> Finding | None:
    """Allow no storage that is larger than the logits of a chunk."""
    if numbers <= case.chunk * case.vocabulary:
        return None
    return observed(
        f"a tensor has {numbers:,} numbers, as the logits of {numbers / case.vocabulary:.0f} "
        f"tokens, expected those of {case.chunk} tokens at the same time"
    )
