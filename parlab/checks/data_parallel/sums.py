"""The weighted sum of the ranks' gradients, and what ranks may have instead."""

from collections.abc import Iterator, Sequence

import torch

from parlab.checks.compare import close, equal_states, instead, same_states
from parlab.checks.mistakes import Finding, Mistakes, evidence
from parlab.checks.models import TOLERANCE, State, add

MISTAKES = Mistakes(
    not_summed=(
        "every rank has the gradient of its own samples: nothing was summed over the ranks, so the "
        "models drift apart"
    ),
    weighted_only=(
        "each rank's own gradient is weighted with its share, but not summed over the ranks, so "
        "the models drift apart"
    ),
    one_ranks=(
        "every rank holds rank {root}'s gradient: broadcast where a sum is needed. The other "
        "ranks' samples count for nothing"
    ),
    sum_for_mean=(
        "the gradients are summed without weights: a sum where a mean is needed. With N ranks "
        "the step is about N times too long (SGD shows it, Adam hides it)"
    ),
    equal_weights=(
        "each rank weighs 1/N, whatever it holds: in the last, uneven batch a sample on a rank "
        "with few of them weighs more. Weight each rank with its share"
    ),
    weighted_after=(
        "the sum is weighted with each rank's own share: weight before the all-reduce, "
        "afterwards it is too late"
    ),
    divided_again=(
        "the weighted sum is divided by the number of ranks: the weights, which add up to 1, make "
        "it a mean already"
    ),
    largest="the ranks hold the largest of their values, not their sum: is `op` right?",
)


class WeightedSum:
    """The gradient of a global batch, from what each rank has of it by itself.

    Attributes:
        local: `local[r]` is the gradient of the mean loss over rank r's samples.
        samples: `samples[r]` is how many these are.
        shares: those numbers over that of all samples.
        right: what all ranks are to have.
    """

    def __init__(self, local: Sequence[State], samples: Sequence[int]) -> None:
        self.local, self.samples = local, samples
        self.shares = [n / sum(samples) for n in samples]
        self.right = add(local, self.shares)

    def instead(self, everyone: Sequence[State]) -> Finding | None:
        """What the ranks have instead of it; None where that is not certain."""
        return instead(everyone, [self.right] * len(everyone), self._wrong(), alike)

    def equals(self, got: State, name: str = "the gradient of {}") -> Finding | None:
        """Where one rank's differs from it."""
        return equal_states(got, self.right, name, TOLERANCE)

    def _wrong(self) -> Iterator[tuple[list[State], Finding]]:
        size = len(self.samples)
        weighted = [add([g], [w]) for g, w in zip(self.local, self.shares, strict=True)]
        plain = add(self.local, [1.0] * size)
        yield list(self.local), MISTAKES.not_summed()
        yield weighted, MISTAKES.weighted_only()
        for states in (self.local, weighted):
            for root in range(size):
                yield [states[root]] * size, MISTAKES.one_ranks(root=root)
        yield [plain] * size, MISTAKES.sum_for_mean()
        yield [add([plain], [1 / size])] * size, MISTAKES.equal_weights()
        yield [add([plain], [share]) for share in self.shares], MISTAKES.weighted_after()
        yield [add([self.right], [1 / size])] * size, MISTAKES.divided_again()
        largest = {n: torch.stack([state[n] for state in weighted]).amax(0) for n in plain}
        yield [largest] * size, MISTAKES.largest()


def alike(got: State, right: State) -> bool:
    return same_states(got, right, TOLERANCE)


def loss_parts(parts: Sequence[float], right: float) -> Finding | None:
    """Whether what the ranks return adds up to the mean loss over the global batch."""
    if close(sum(parts), right, TOLERANCE):
        return None
    return evidence(
        f"the ranks' return values add up to {sum(parts):.6f} where the mean loss over the global "
        f"batch is {right:.6f}"
    )
