"""Plans of recomputation: the peak of the activations, and the FLOPs, of a chain of segments.

A plan says for each segment whether its activations are kept (True) or recomputed (False). This is
checkpointing as in Chen et al. 2016 (arXiv:1604.06174), with a choice for each segment. Jain et al.
2020 (Checkmate, arXiv:1910.02653) allow more choices.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Segment(NamedTuple):
    """A part of a model, which the backward pass reaches after all later parts.

    Attributes:
        input: bytes of its input, which is needed to recompute it.
        kept: bytes that its forward pass keeps for its backward pass, including the input.
        peak: the most bytes that its backward pass holds at once, recomputed or not: what its
            forward pass keeps, and gradients.
        flops: FLOPs of its forward pass.
    """

    input: int
    kept: int
    peak: int
    flops: int


def peak_bytes(segments: Sequence[Segment], keep: Sequence[bool]) -> int:
    """Return the most bytes of activations that a step holds at once under a plan.

    When the backward pass reaches a segment, that segment holds its `peak`, recomputed or not. The
    segments before it hold what the plan keeps of them. The segments after it hold nothing.
    """
    held = peak = 0
    for segment, kept in zip(segments, keep, strict=True):
        peak = max(peak, held + segment.peak)
        held += segment.kept if kept else segment.input
    return peak


def recomputed_flops(segments: Sequence[Segment], keep: Sequence[bool]) -> int:
    """Return the FLOPs that a plan adds: one more forward pass of each recomputed segment."""
    return sum(s.flops for s, kept in zip(segments, keep, strict=True) if not kept)


def all_plans(segments: Sequence[Segment]) -> Iterator[tuple[bool, ...]]:
    """Yield all 2ⁿ plans of n segments."""
    return itertools.product((True, False), repeat=len(segments))
