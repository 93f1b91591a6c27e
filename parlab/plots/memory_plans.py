"""Draws the plans of recomputation that a learner can choose from."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
from matplotlib.figure import Figure

from parlab.costs.recomputation import Segment, all_plans, peak_bytes, recomputed_flops
from parlab.plots.look import NEUTRAL, series
from parlab.plots.still import artist, subplots

MOST_SEGMENTS = 14  # for more, there are too many plans to draw


def plan_frontier(
    title: str,
    segments: Sequence[Segment],
    measured: Mapping[str, tuple[int, int]],
    budget: int,
) -> Figure:
    """Draw all plans of recomputation by peak and FLOPs, their frontier, and measured steps.

    Args:
        title: the picture's message.
        segments: the segments that the plans keep or recompute, at most `MOST_SEGMENTS`.
        measured: peak bytes and recomputed FLOPs of some plans' steps, by name.
        budget: bytes, drawn as a vertical line.

    Raises:
        ValueError: there are more than `MOST_SEGMENTS` segments.
    """
    if len(segments) > MOST_SEGMENTS:
        raise ValueError(f"{len(segments)} segments have too many plans: at most {MOST_SEGMENTS}")
    forward = sum(segment.flops for segment in segments)
    plans = sorted(
        {(peak_bytes(segments, keep), recomputed_flops(segments, keep))
         for keep in all_plans(segments)}
    )  # fmt: skip
    figure, axes = subplots(title, figsize=(7.5, 4.2))
    axes.scatter(
        *_scaled(plans, forward), s=9, color=NEUTRAL, alpha=0.45, linewidth=0, label="all plans"
    )
    line = artist("compute", "frontier") | {"marker": ""}
    axes.plot(*_scaled(frontier(plans), forward), drawstyle="steps-post", **line)
    for number, (name, point) in enumerate(measured.items()):
        look = artist(series(number + 1, f"{name}, measured")) | {"linestyle": "none"}
        axes.plot(*_scaled([point], forward), markersize=9, **look)
    axes.axvline(budget / 1e6, color=NEUTRAL, linestyle=":", label="budget")
    axes.set(xlabel="peak of activations (MB)", ylabel="recomputed (forward passes)")
    axes.set_ylim(bottom=-0.04)
    axes.legend(frameon=False, labelcolor=NEUTRAL, fontsize="small")
    plt.close(figure)
    return figure


def frontier(plans: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the plans that need fewer FLOPs than every plan with at most their peak.

    A plan is (bytes, FLOPs). The result is in ascending order of bytes.
    """
    best: list[tuple[int, int]] = []
    for peak, flops in sorted(plans):
        if not best or flops < best[-1][1]:
            best.append((peak, flops))
    return best


def _scaled(plans: Sequence[tuple[int, int]], forward: int) -> tuple[list[float], list[float]]:
    """Return the plans' peaks in megabytes, and their FLOPs in forward passes."""
    return [peak / 1e6 for peak, _ in plans], [flops / forward for _, flops in plans]
