"""Exercise `chunked_cross_entropy`: values of F.cross_entropy in float64, and peak memory."""

from collections.abc import Callable
from contextlib import suppress
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
from parlab.checks.base.compare import explained, has_type
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.nan_memory import filled_with_nan
from parlab.checks.base.unchanged import unchanged

IGNORED = -100
MISTAKES = Mistakes(
    library_call=(
        "the function calls `F.linear_cross_entropy`, which does the exercise for you. Compute the "
        "chunks yourself"
    ),
    all_logits=(
        "at its peak, the function holds {got} bytes. All logits take {all}, and those of one "
        "chunk {one}. Something keeps the logits of every chunk, or their gradients: autograd "
        "does if it records the loop, and so does a list. Compute each chunk's gradients in the "
        "forward pass, inside an autograd.Function, and add them up at once"
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

REPLACED = (
    "a `.grad` is another tensor than before the backward pass. Return the gradients from "
    "`backward`: autograd adds them to what is in `.grad`"
)
Gradients = dict[str, Tensor]


@dataclass(frozen=True)
class Case:
    """The inputs to draw, and how to call the function."""

    tokens: int = 37
    chunk: int = 8
    ignored: tuple[int, ...] = ()  # tokens whose target is ignored
    factor: float = 1.0  # of the loss
    size: float = 1.0  # of the logits
    tied: bool = False
    frozen: str = ""
    vocabulary: int = 11
    hidden: int = 6

    @property
    def tolerance(self) -> float:
        """The tolerance, relative to the largest number. Large float32 logits are less exact."""
        return 1e-5 * self.size


CASES = {
    "the last chunk is shorter, and the loss is multiplied by −2.5": Case(factor=-2.5),
    "one chunk for all tokens": Case(tokens=7, chunk=50),
    "chunks of one token": Case(tokens=5, chunk=1),
    "some targets are ignored": Case(ignored=(0, 3, 4, 9, 30, 36)),
    "all targets of a chunk are ignored": Case(ignored=(*range(8, 17), 36)),
    "the weight is tied to the embedding": Case(tied=True, ignored=(2,)),
    "logits of several hundred": Case(size=300.0),
    "the weight is frozen": Case(frozen="the weight"),
    "the hidden states are frozen": Case(frozen="the hidden states"),
}
LARGE = {
    "300 tokens, chunks of 16": Case(300, chunk=16, vocabulary=1500, hidden=2),
    "290 tokens, chunks of 4": Case(290, chunk=4, vocabulary=1600, hidden=2, tied=True),
    "30 tokens, chunks of 16": Case(30, chunk=16, vocabulary=1500, hidden=2),
}


@check_of(MISTAKES, ranks=1)
def chunked_cross_entropy(check: Check) -> str:
    """Compare loss and gradients with those in float64, and limit the memory of large cases."""
    with check.trial() as trial, filled_with_nan():
        for name, case in trial.cases(CASES | LARGE):
            seed = trial.draw.getrandbits(32)
            right = Run(plain, case, seed, torch.float64)
            run = trial.run_function(Run, check.function, case, seed)
            trial.require(
                lambda: MISTAKES.library_call() if run.library.called else None,
                lambda: run.changed,
                lambda: loss_is_right(run.loss, right.loss, case, seed),
                lambda: gradients_are_right(run.first, right.first, case),
                lambda: observed(REPLACED) if run.replaced else None,
                lambda: second_pass(run, right, case),
                lambda: one_chunk(run, case) if name in LARGE else None,
            )
    return "loss and gradients of F.cross_entropy, with the logits of one chunk in memory"


class Largest(TorchDispatchMode):
    """Records how many numbers fit into the largest storage of any result."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for one in tree_leaves(result):
            if isinstance(one, Tensor):
                count = one.untyped_storage().nbytes() // one.element_size()
                self.numbers = max(self.numbers, count)
        return result


class SeesLibrary(TorchFunctionMode):
    """Detects calls of F.linear_cross_entropy."""

    called = False

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.called |= func is F.linear_cross_entropy
        return func(*args, **(kwargs or {}))


class Run:
    """The loss, the gradients after one and after two backward passes, and the memory.

    With tied weights, the hidden states come from the weight.
    """

    def __init__(
        self, function: Callable, case: Case, seed: int, dtype: torch.dtype = torch.float32
    ) -> None:
        generator = torch.Generator().manual_seed(seed)
        drawn = {
            "the hidden states": torch.randn(case.tokens, case.hidden, generator=generator),
            "the weight": torch.randn(case.vocabulary, case.hidden, generator=generator),
        }
        drawn["the hidden states"] *= case.size
        words = torch.randint(case.vocabulary, (2, case.tokens), generator=generator)
        words[0, list(case.ignored)] = IGNORED
        leaves = {
            name: numbers.to(dtype, copy=True).requires_grad_(name != case.frozen)
            for name, numbers in drawn.items()
        }
        hidden, weight = leaves.values()
        hidden = torch.tanh(weight[words[1]]) if case.tied else hidden
        targets = words[0].clone()
        buffers = {name: torch.zeros_like(x) for name, x in leaves.items() if x.requires_grad}
        for name, buffer in buffers.items():  # autograd adds to it
            leaves[name].grad = buffer
        self.second: Gradients | None = None  # None if the second pass raises, which is allowed
        with memory.Peak() as self.peak, Largest() as self.largest, SeesLibrary() as self.library:
            self.loss = function(hidden, weight, targets, case.chunk)
            if isinstance(self.loss, Tensor) and self.loss.requires_grad:
                scaled = self.loss.sum() * case.factor
                scaled.backward(retain_graph=True)
        self.first: Gradients = copied(leaves)
        self.replaced = any(leaves[name].grad is not buffer for name, buffer in buffers.items())
        with suppress(Exception):
            scaled.backward()
            self.second = copied(leaves)
        self.changed = unchanged("`targets`", targets, words[0]) or unchanged(
            "the hidden states or the weight", [*leaves.values()], [*drawn.values()]
        )


def copied(leaves: dict[str, Tensor]) -> Gradients:
    return {name: leaf.grad.clone() for name, leaf in leaves.items() if leaf.grad is not None}


def plain(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    return F.cross_entropy(hidden @ weight.T, targets)


def over_all_tokens(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    return F.cross_entropy(hidden @ weight.T, targets, reduction="sum") / len(targets)


def mean_of_means(hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int) -> Tensor:
    parts = zip(hidden.split(chunk), targets.split(chunk), strict=True)
    means = [plain(x, weight, y, chunk) for x, y in parts if (y != IGNORED).any()]
    return torch.stack(means).mean()


def loss_is_right(got: Any, right: Tensor, case: Case, seed: int) -> Finding | None:
    """Require the mean over the targets that count, as a tensor that has a gradient."""
    if found := has_type(got, Tensor, "a torch.Tensor", "the loss"):
        return found
    wrong = {"ignored_in_mean": over_all_tokens, "mean_of_means": mean_of_means}
    variants = ((key, Run(loss, case, seed, right.dtype).loss) for key, loss in wrong.items())
    tolerance = case.tolerance * max(1.0, right.item())
    if found := explained(got, right.float(), variants, MISTAKES, "the loss", tolerance):
        return found
    if not got.requires_grad:
        return observed("the loss does not require a gradient, so backward() is not possible")
    return None


def gradients_are_right(got: Gradients, right: Gradients, case: Case) -> Finding | None:
    for name, gradient in right.items():
        tolerance = case.tolerance * gradient.abs().max().item()
        wrong, called = {"not_scaled": gradient / case.factor}, f"the gradient of {name}"
        expected = gradient.float()
        if found := explained(got.get(name), expected, wrong, MISTAKES, called, tolerance):
            return found
    return None


def second_pass(run: Run, right: Run, case: Case) -> Finding | None:
    """Require twice the gradients after a second backward pass, if it raised no error."""
    if run.second is None or not gradients_are_right(run.second, right.second, case):
        return None
    return observed(
        "a second backward pass through the same loss adds wrong gradients without an error. Keep "
        "them with ctx.save_for_backward, which notices that they have changed, or do not scale "
        "them in place"
    )


def one_chunk(run: Run, case: Case) -> Finding | None:
    """Allow twelve tensors of a chunk's logits and six of each gradient, but no larger tensor."""
    one, every = 4 * case.chunk * case.vocabulary, 4 * case.tokens * case.vocabulary
    if run.peak.bytes > 12 * one + 24 * case.hidden * (case.vocabulary + case.tokens):
        return MISTAKES.all_logits(got=run.peak.bytes, all=every, one=one)
    at_once = run.largest.numbers / case.vocabulary
    if at_once <= case.chunk:
        return None
    return observed(
        f"a tensor is as large as the logits of {at_once:.0f} tokens, expected those of "
        f"{case.chunk} tokens at the same time"
    )
