"""Exercise `chunked_cross_entropy`: values of F.cross_entropy in float64, and peak memory."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from parlab import memory
from parlab.checks.base.check import Check, check_of
from parlab.checks.base.compare import explained, has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.nan_memory import filled_with_nan
from parlab.checks.base.unchanged import unchanged

TOLERANCE = 1e-5  # float32, added in another order
IGNORED = -100
MISTAKES = Mistakes(
    library_call=(
        "the function calls `F.linear_cross_entropy`, which does the exercise for you. Compute the "
        "chunks yourself"
    ),
    all_logits=(
        "at its peak, the function holds {got} bytes. All logits take {all}, and those of one "
        "chunk {one}. Compute each chunk's gradients in the forward pass, inside an "
        "autograd.Function: otherwise, autograd keeps the logits of every chunk"
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
        "a gradient does not depend on the one that `backward` receives. Multiply by it: the loss "
        "may be scaled"
    ),
)

Gradients = list[Tensor | None]


@dataclass(frozen=True)
class Case:
    """What is drawn for a case, and how the function is called."""

    tokens: int = 37
    chunk: int = 8
    ignored: tuple[int, ...] = ()  # tokens whose target is ignored
    factor: float = 1.0  # of the loss
    size: float = 1.0  # of the logits
    tied: bool = False
    needs_gradient: tuple[bool, bool] = (True, True)  # the hidden states, the weight
    vocabulary: int = 11
    hidden: int = 6

    @property
    def tolerance(self) -> float:
        """Of the largest number. Large logits in float32 have fewer digits after the point."""
        return TOLERANCE * max(1.0, self.size)


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


@check_of(MISTAKES, ranks=1)
def chunked_cross_entropy(check: Check) -> str:
    """Check loss and gradients for all kinds of chunks and targets, and then the peak memory."""
    with check.trial() as trial, filled_with_nan():
        for _, case in trial.cases(CASES):
            batch = Batch(trial.draw, case)
            step = trial.run_function(lambda: Step(check.function, batch))
            trial.require(
                lambda: MISTAKES.library_call() if step.uses_library else None,
                lambda: step.changed,
                lambda: loss_is_right(step.loss, batch),
                lambda: gradients_are_right(step.gradients, batch),
                lambda: second_pass(step.second, batch),
            )
        with memory.Peak():  # PyTorch imports a lot here, and the function's time is limited
            torch.zeros(1)
        for _, case in trial.cases(MEMORY):
            batch = Batch(trial.draw, case)
            with Largest() as largest:
                peak = trial.run_function(lambda: peak_bytes(check.function, batch))
            trial.require(
                lambda: one_chunk(peak, case),
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


class Batch:
    """Inputs of the function. With tied weights, the hidden states come from the weight."""

    def __init__(self, draw: Random, case: Case) -> None:
        generator = torch.Generator().manual_seed(draw.getrandbits(32))
        hidden = torch.randn(case.tokens, case.hidden, generator=generator) * case.size
        weight = torch.randn(case.vocabulary, case.hidden, generator=generator)
        words = torch.randint(case.vocabulary, (2, case.tokens), generator=generator)
        words[0, list(case.ignored)] = IGNORED
        self.targets, self.tokens, self.case = words[0], words[1], case
        self.tensors = [weight] if case.tied else [hidden, weight]
        self.names = ["the tied weight"] if case.tied else ["the hidden states", "the weight"]

    def leaves(self, dtype: torch.dtype = torch.float32) -> list[Tensor]:
        copies = [tensor.to(dtype, copy=True) for tensor in self.tensors]
        needed = zip(copies, self.case.needs_gradient, strict=False)
        return [copy.requires_grad_(needs) for copy, needs in needed]

    def arguments(self, leaves: list[Tensor]) -> tuple[Tensor, Tensor, Tensor, int]:
        hidden = torch.tanh(leaves[0][self.tokens]) if self.case.tied else leaves[0]
        return hidden, leaves[-1], self.targets.clone(), self.case.chunk


class Step:
    """What the function computes, and the gradients of the leaves after two backward passes."""

    def __init__(self, function: Callable, batch: Batch) -> None:
        leaves = batch.leaves()
        hidden, weight, targets, chunk = batch.arguments(leaves)
        with SeesLibrary() as watch:
            self.loss = function(hidden, weight, targets, chunk)
        self.uses_library = watch.called
        self.changed = unchanged("`targets`", targets, batch.targets) or unchanged(
            "the hidden states or the weight", leaves, batch.tensors
        )
        if any(leaf.grad is not None for leaf in leaves):
            self.changed = observed(
                "the forward pass sets .grad. Return the gradients from `backward`"
            )
        self.gradients: Gradients = []
        self.second: Gradients | None = None  # None if the second pass raises, which is allowed
        if isinstance(self.loss, Tensor) and self.loss.shape == () and self.loss.requires_grad:
            scaled = self.loss * batch.case.factor
            scaled.backward(retain_graph=True)
            self.gradients = copied(leaves)
            with suppress(Exception):
                scaled.backward()
                self.second = copied(leaves)


def copied(leaves: list[Tensor]) -> Gradients:
    return [None if leaf.grad is None else leaf.grad.clone() for leaf in leaves]


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    return F.cross_entropy(hidden @ weight.T, targets)


def over_all_tokens(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    return F.cross_entropy(hidden @ weight.T, targets, reduction="sum") / len(targets)


def mean_of_means(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    parts = zip(hidden.split(chunk), targets.split(chunk), strict=True)
    means = [plain(x, weight, y, chunk) for x, y in parts if (y != IGNORED).any()]
    return torch.stack(means).mean()


def loss_is_right(loss: Any, batch: Batch) -> Finding | None:
    """Require the mean over the targets that count, as a tensor that has a gradient."""
    if found := has_type(loss, Tensor, "a torch.Tensor", "the loss"):
        return found
    arguments = batch.arguments(batch.leaves(torch.float64))
    right = plain(*arguments).float()
    wrong = {"ignored_in_mean": over_all_tokens, "mean_of_means": mean_of_means}
    variants = ((key, variant(*arguments)) for key, variant in wrong.items())
    tolerance = batch.case.tolerance * max(1.0, right.item())
    if found := explained(loss.detach(), right, variants, MISTAKES, "the loss", tolerance):
        return found
    if not loss.requires_grad:
        return observed("the loss does not require a gradient, so backward() is not possible")
    return None


def gradients_are_right(got: Gradients, batch: Batch, passes: int = 1) -> Finding | None:
    """Compare the leaves' gradients after some backward passes with those of F.cross_entropy."""
    leaves = batch.leaves(torch.float64)
    plain(*batch.arguments(leaves)).backward()
    for name, one, leaf in zip(batch.names, got, leaves, strict=True):
        if leaf.grad is not None:
            unscaled = leaf.grad * passes
            right = unscaled * batch.case.factor
            tolerance = batch.case.tolerance * right.abs().max().item()
            wrong, called = {"not_scaled": unscaled}, f"the gradient of {name}"
            if found := explained(one, right.float(), wrong, MISTAKES, called, tolerance):
                return found
    return None


def second_pass(got: Gradients | None, batch: Batch) -> Finding | None:
    """Require twice the gradients after a second backward pass, if it raised no error."""
    if got is None or gradients_are_right(got, batch, passes=2) is None:
        return None
    return observed(
        "a second backward pass through the same loss adds wrong gradients without an error. Keep "
        "them with ctx.save_for_backward, which notices that they have changed, or do not scale "
        "them in place"
    )


def peak_bytes(function: Callable, batch: Batch) -> int:
    """Return the peak of a forward and a backward pass."""
    arguments = batch.arguments(batch.leaves())
    with memory.Peak() as peak:
        (function(*arguments) * batch.case.factor).backward()
    return peak.bytes


def one_chunk(peak: int, case: Case) -> Finding | None:
    """Allow eight tensors of a chunk's size, and six of each gradient's size."""
    one, every = 4 * case.chunk * case.vocabulary, 4 * case.tokens * case.vocabulary
    gradients = 4 * case.hidden * (case.vocabulary + case.tokens)
    limit = 8 * one + 6 * gradients
    if peak <= limit:
        return None
    if peak >= every:
        return MISTAKES.all_logits(got=peak, all=every, one=one)
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
