"""Weighted sums of the ranks' gradients: the right sums, and the sums that mistakes compute."""

from collections.abc import Sequence

import torch
from torch import Tensor

from parlab.checks.base.compare import close, equal_states, explained
from parlab.checks.base.mistakes import Finding, Mistakes, observed
from parlab.checks.base.models import TOLERANCE, State, add
from parlab.checks.base.trial import Trial

MISTAKES = Mistakes(
    not_summed=(
        "each rank still has only the gradient of its own samples, so the models drift apart. Sum "
        "in place, or use the result of the all-reduce"
    ),
    sum_for_mean=(
        "the gradients are summed without weights, so with N equal shards the step is N times too "
        "long. Multiply each gradient by its rank's share"
    ),
    equal_weights=(
        "each rank has the weight 1/N, so a sample on a rank with few samples counts more than "
        "others. Use the rank's share of the samples as its weight"
    ),
    divided_again=(
        "the weighted sum is divided by the number of ranks. The weights add up to 1, so the sum "
        "is already the mean"
    ),
)
Weights = tuple[Tensor, list[tuple[str, Tensor]]]  # the right ones; the ones of each mistake


def rank_weights(samples: Sequence[int]) -> Weights:
    """Return matrices. Row r has the weights of all ranks' gradients in rank r's result."""
    shares, size = torch.tensor(samples).double() / sum(samples), len(samples)
    ones = torch.ones(size, size).double()
    return ones * shares, [
        ("not_summed", torch.eye(size).double()),
        ("not_summed", torch.diag(shares)),
        ("sum_for_mean", ones),
        ("equal_weights", ones / size),
        ("divided_again", ones * shares / size),
    ]


def weighted_sum(
    got: Sequence[State],
    parts: Sequence[State],
    weights: Weights,
    rank: int,
    name: str = "the gradient of {}",
    mistakes: Mistakes = MISTAKES,
) -> Finding | None:
    """Compare the results of all ranks with weighted sums of gradients.

    Args:
        got: the result of each rank.
        parts: the gradients that the ranks should sum, one for each rank or micro-batch.
        weights: matrices (ranks × parts).
        rank: the rank whose result to compare with the right sum if no mistake explains all.
    """
    right, wrong = weights
    if all(part.keys() <= state.keys() for state in got for part in parts[:1]):
        rows = [[torch.cat([s[n].flatten() for n in parts[0]]) for s in of] for of in (got, parts)]
        found, each = map(torch.stack, rows)
        variants = [(key, matrix @ each) for key, matrix in wrong]
        finding = explained(found, right @ each, variants, mistakes, tolerance=TOLERANCE)
        if finding is None or finding.mistake:
            return finding
    return equal_states(got[rank], add(parts, right[rank].tolist()), name, TOLERANCE)


def only_all_reduces(trial: Trial) -> Finding | None:
    """Refuse other collectives. An all-gather sends as much, and stores N times the data."""
    others = {call.op for call in trial.calls[trial.rank]} - {"all_reduce"}
    return observed(f"it calls {min(others)}, expected only all-reduces") if others else None


def loss_parts(parts: Sequence[float], right: float) -> Finding | None:
    """Report return values that do not add up to the mean loss over the global batch."""
    if close(sum(parts), right, TOLERANCE):
        return None
    return observed(
        f"the ranks' return values add up to {sum(parts):.6f}, expected {right:.6f}, the mean "
        "loss over the global batch"
    )
