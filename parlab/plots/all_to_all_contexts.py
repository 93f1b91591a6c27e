"""Figures of chapter 09 on long contexts: Ulysses, the ring, its overlap, and causal masks."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from parlab.costs.all_to_all import Spans, visible_pairs
from parlab.plots.all_to_all import TEXT, bare, box
from parlab.plots.look import NEUTRAL, series
from parlab.plots.still import artist, hatched, subplots


def memory(title: str, sizes: Mapping[str, Mapping[int, float]], device: float) -> Figure:
    """Draw bytes over the length of a sequence, one line for each name, and a device's memory."""
    figure, axes = subplots(title, figsize=(6.6, 3.8))
    for place, (name, points) in enumerate(sizes.items()):
        axes.plot(
            list(points), [size / 1e9 for size in points.values()], **artist(series(place, name))
        )
    axes.axhline(device / 1e9, color=NEUTRAL, ls="--", lw=1.5)
    axes.text(
        min(next(iter(sizes.values()))), device / 1e9 * 1.25, f"a device: {device / 1e9:.0f} GB",
        **TEXT,
    )  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="tokens in the sequence", ylabel="memory (GB)")
    figure.legend(
        loc="outside lower center", ncols=2, labelcolor=NEUTRAL, fontsize=11, frameon=False
    )
    plt.close(figure)
    return figure


def ulysses_layout(title: str, ranks: int, heads: int) -> Figure:
    """Draw which rank holds which tokens of which heads, outside and inside attention."""
    figure, panels = subplots(title, 1, 2, figsize=(8.4, 3.6))
    names = ("outside: all heads, some tokens", "inside attention: some heads, all tokens")
    for axes, name, inside in zip(panels, names, (False, True), strict=True):
        for head in range(heads):
            for part in range(ranks):
                owner = head * ranks // heads if inside else part
                box(axes, head, -part, series(owner, ""), f"{owner}")
        for part in range(ranks):
            axes.text(-0.15, 0.5 - part, f"tokens {part}", ha="right", va="center", **TEXT)
        for head in range(heads):
            axes.text(head + 0.5, 1.12, f"head {head}", ha="center", **TEXT)
        axes.set_title(name, color=NEUTRAL, fontsize=12, loc="center")
        bare(axes, (-1.6, heads + 0.1), (0.9 - ranks, 1.6))
    plt.close(figure)
    return figure


def ring_steps(title: str, ranks: int) -> Figure:
    """Draw the block of keys and values that each rank computes with in each step."""
    figure, axes = subplots(title, figsize=(7.0, 0.68 * ranks + 1.4))
    for rank in range(ranks):
        y = -1.25 * rank
        axes.text(-0.15, y + 0.5, f"rank {rank}: Q{rank}", ha="right", va="center", **TEXT)
        for step in range(ranks):
            block = (rank - step) % ranks
            box(axes, 1.6 * step, y, series(block, ""), f"K{block}, V{block}", w=1.2)
            if step and rank:
                axes.annotate(
                    "", (1.6 * step - 0.02, y + 0.55), (1.6 * step - 0.38, y + 1.7),
                    arrowprops={"arrowstyle": "->", "color": NEUTRAL, "lw": 1.2},
                )  # fmt: skip
    for step in range(ranks):
        axes.text(1.6 * step + 0.6, 1.15, f"step {step}", ha="center", **TEXT)
    bare(axes, (-1.9, 1.6 * ranks - 0.2), (-1.25 * (ranks - 1) - 0.1, 1.7))
    plt.close(figure)
    return figure


def timelines(title: str, plans: Mapping[str, tuple[Spans, Spans]]) -> Figure:
    """Draw when a rank computes and when it sends, one panel for each plan.

    Times are in units of the computation of one block.
    """
    figure, panels = subplots(
        title, len(plans), 1, figsize=(7.2, 0.9 + 1.3 * len(plans)), sharex=True, squeeze=False
    )
    for axes, (name, lanes) in zip(panels[:, 0], plans.items(), strict=True):
        axes.set_title(name, color=NEUTRAL, fontsize=12)
        for row, (role, spans) in enumerate(zip(("compute", "communication"), lanes, strict=True)):
            drawn_as = hatched(role) | {"edgecolor": "white", "linewidth": 1.0}
            axes.broken_barh(spans, (row - 0.38, 0.76), **drawn_as)
        end = sum(lanes[0][-1])
        axes.axvline(end, color=NEUTRAL, ls=":", lw=1.5)
        axes.text(end, -0.3, f" {end:g}", ha="left", va="center", **TEXT)
        axes.set(ylim=(1.6, -0.6))
        axes.set_yticks((0, 1), ("compute", "messages"))
    last = max(sum(lanes[0][-1]) for lanes in plans.values())
    panels[-1, 0].set_xlim(0, 1.06 * last)
    panels[-1, 0].set_xlabel("time (in units of the computation of one block)")
    plt.close(figure)
    return figure


def masks(title: str, layouts: Mapping[str, Sequence[Sequence[int]]]) -> Figure:
    """Draw the pairs that a causal mask allows, in the color of the rank that computes them.

    Args:
        layouts: by name, the positions of each rank's tokens.
    """
    figure, panels = subplots(
        title, 1, len(layouts), figsize=(4.0 * len(layouts), 4.7), squeeze=False
    )
    for axes, (name, positions) in zip(panels[0], layouts.items(), strict=True):
        work = [sum(steps) for steps in visible_pairs([list(own) for own in positions])]
        for rank, own in enumerate(positions):
            look = series(rank, "")
            for query in own:
                axes.add_patch(Rectangle((0, query), query + 1, 1, **hatched(look)))
        _legend(axes, [f"rank {rank}: {share / sum(work):.0%}" for rank, share in enumerate(work)])
        length = sum(len(own) for own in positions)
        axes.set_title(name, color=NEUTRAL, fontsize=12, loc="center")
        axes.set(xlim=(0, length), ylim=(length, 0), aspect="equal", xlabel="key")
        axes.set(xticks=[], yticks=[])
        axes.set_ylabel("query")
    plt.close(figure)
    return figure


def _legend(axes: Axes, names: Sequence[str]) -> None:
    handles = [Patch(**hatched(series(rank, name))) for rank, name in enumerate(names)]
    axes.legend(handles=handles, labelcolor=NEUTRAL, loc="upper right", fontsize=11, frameon=False)


def step_work(title: str, layouts: Mapping[str, Sequence[Sequence[int]]]) -> Figure:
    """Draw the work of each rank in each step of the ring, as a share of a block without a mask.

    A panel's title has the sum of the largest share in each step, for which all ranks wait.
    """
    figure, panels = subplots(
        title, 1, len(layouts), figsize=(4.2 * len(layouts), 3.2), sharey=True, squeeze=False
    )
    for axes, (name, positions) in zip(panels[0], layouts.items(), strict=True):
        work = np.array(visible_pairs([list(own) for own in positions]), dtype=float)
        shares = 100 * work / len(positions[0]) ** 2
        ranks = len(positions)
        width = 0.8 / ranks
        for rank in range(ranks):
            x = np.arange(ranks) - 0.4 + (rank + 0.5) * width
            axes.bar(x, shares[rank], width, **hatched(series(rank, f"rank {rank}")))
        total = shares.max(0).sum() / 100
        axes.set_title(f"{name}: {total:.2f} blocks in all", color=NEUTRAL, fontsize=12,
                       loc="center")  # fmt: skip
        axes.set_xticks(range(ranks), [f"step {step}" for step in range(ranks)])
    panels[0, 0].set_ylabel("work (% of a block)")
    handles, labels = panels[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False,
                  labelcolor=NEUTRAL, fontsize=11)  # fmt: skip
    plt.close(figure)
    return figure
