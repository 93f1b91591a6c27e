"""Figures of chapter 09 on all-to-alls, experts on ranks, and the groups that reduce gradients."""

from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from parlab.plots.look import NEUTRAL, SERIES, Style, ink, series, style
from parlab.plots.still import artist, hatched, subplots

TEXT = {"color": NEUTRAL, "fontsize": 11}
_OWN = style("idle")
_EMPTY = Style("empty slot, filled with zeros", style("idle").colour, hatch="...")


def box(axes: Axes, x: float, y: float, look: Style, text: str, *, w: float = 1.0) -> None:
    """Draw a cell of width `w` and height 1 with a text, its lower left corner at (x, y)."""
    axes.add_patch(Rectangle((x + 0.04, y + 0.06), w - 0.08, 0.88, **hatched(look)))
    back = {"facecolor": look.colour, "edgecolor": "none", "boxstyle": "square,pad=0.2"}
    shown = {"bbox": back} if look.hatch else {}
    axes.text(
        x + w / 2, y + 0.5, text, ha="center", va="center", color=ink(look.colour), fontsize=11,
        **shown,
    )  # fmt: skip


def bare(axes: Axes, x: tuple[float, float], y: tuple[float, float]) -> None:
    """Set the limits and hide the axes."""
    axes.set(xlim=x, ylim=y)
    axes.axis("off")


def pairwise_steps(title: str, ranks: int) -> Figure:
    """Draw the step in which each rank (rows) sends to each rank (columns)."""
    figure, axes = subplots(title, figsize=(6.4, 0.62 * ranks + 1.7))
    for sender in range(ranks):
        for receiver in range(ranks):
            step = (receiver - sender) % ranks
            look = series(step - 1, "") if step else _OWN
            box(axes, receiver, -sender, look, f"step {step}" if step else "copy")
        axes.text(-0.15, 0.5 - sender, f"rank {sender} sends", ha="right", va="center", **TEXT)
    for receiver in range(ranks):
        axes.text(receiver + 0.5, 1.15, f"to rank {receiver}", ha="center", **TEXT)
    bare(axes, (-1.6, ranks + 0.1), (0.9 - ranks, 1.6))
    plt.close(figure)
    return figure


def queues(
    title: str, slots: Sequence[Sequence[Sequence[str]]], dropped: Sequence[str], capacity: int
) -> Figure:
    """Draw the slots of each expert, and the choices for which no slot was free.

    Args:
        slots: for each expert, the names in its slots, each with the number of the choice (1 or 2).
        dropped: for each expert, the names of the choices that it drops.
    """
    figure, axes = subplots(title, figsize=(7.2, 0.72 * len(slots) + 1.3))
    for expert, taken in enumerate(slots):
        y = -1.2 * expert
        axes.text(-0.15, y + 0.5, f"expert {expert}", ha="right", va="center", **TEXT)
        for slot in range(capacity):
            if slot < len(taken):
                name, choice = taken[slot]
                box(axes, 1.1 * slot, y, series(int(choice) - 1, ""), name)
            else:
                box(axes, 1.1 * slot, y, _EMPTY, "0")
        if dropped[expert]:
            axes.text(
                1.1 * capacity + 0.2, y + 0.5, f"drops {dropped[expert]}", va="center", **TEXT
            )
    handles = [
        Patch(**hatched(series(0, "first choice"))),
        Patch(**hatched(series(1, "second choice"))),
        Patch(**hatched(_EMPTY)),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=3, frameon=False,
                  labelcolor=NEUTRAL, fontsize=11)  # fmt: skip
    bare(axes, (-1.4, 1.1 * capacity + 2.4), (-1.2 * (len(slots) - 1) - 0.1, 1.1))
    plt.close(figure)
    return figure


def loads(title: str, runs: Mapping[str, np.ndarray], smooth: int = 10) -> Figure:
    """Draw each expert's share of the tokens over the steps, one panel for each run.

    Args:
        runs: by name, the shares with shape (steps, experts).
        smooth: number of steps that one point averages.
    """
    figure, panels = subplots(
        title, 1, len(runs), figsize=(3.0 * len(runs), 3.2), sharey=True, squeeze=False
    )
    for axes, (name, shares) in zip(panels[0], runs.items(), strict=True):
        steps = len(shares) // smooth
        means = shares[: steps * smooth].reshape(steps, smooth, -1).mean(1)
        order = np.argsort(-means[-1])
        bottom = np.zeros(steps)
        x = smooth * (np.arange(steps) + 0.5)
        for place, expert in enumerate(order):
            look = SERIES[place % len(SERIES)]
            top = bottom + 100 * means[:, expert]
            axes.fill_between(
                x, bottom, top, facecolor=look.colour, hatch=look.hatch, edgecolor="white", lw=0.4
            )
            bottom = top
        axes.set_title(name, color=NEUTRAL, fontsize=12, loc="center")
        axes.set(xlabel="step", xlim=(x[0], x[-1]), ylim=(0, 100))
    panels[0, 0].set_ylabel("share of the tokens (%)")
    plt.close(figure)
    return figure


def dropped_shares(title: str, shares: Mapping[str, Mapping[float, float]]) -> Figure:
    """Draw the share of dropped choices over the capacity factor, one line for each name."""
    figure, axes = subplots(title, figsize=(6.4, 3.4))
    for place, (name, points) in enumerate(shares.items()):
        axes.plot(
            list(points), [100 * share for share in points.values()], **artist(series(place, name))
        )
    axes.set(xlabel="capacity factor", ylabel="dropped choices (%)", ylim=(0, None))
    axes.legend(labelcolor=NEUTRAL, frameon=False)
    plt.close(figure)
    return figure


def expert_exchange(title: str, ranks: int, experts: int) -> Figure:
    """Draw the buffers of dispatched tokens before and after the all-to-all.

    A cell is the capacity of one expert. Its row shows the rank that holds it, and its color the
    rank that owns the expert.
    """
    figure, panels = subplots(title, 1, 2, figsize=(9.2, 0.62 * ranks + 1.6))
    own = experts // ranks
    columns = {
        "before: sorted by expert": [(f"E{e}", e // own) for e in range(experts)],
        "after: sorted by sender": None,
    }
    for axes, (name, cells) in zip(panels, columns.items(), strict=True):
        for rank in range(ranks):
            axes.text(-0.15, 0.5 - rank, f"rank {rank}", ha="right", va="center", **TEXT)
            for place in range(experts):
                if cells:
                    text, owner = cells[place]
                    text = f"{text} of {rank}"
                else:
                    sender, expert = divmod(place, own)
                    text, owner = f"E{rank * own + expert} of {sender}", rank
                box(axes, 1.45 * place, -rank, series(owner, ""), text, w=1.42)
        axes.set_title(name, color=NEUTRAL, fontsize=12, loc="center")
        bare(axes, (-1.3, 1.45 * experts), (0.9 - ranks, 1.05))
    plt.close(figure)
    return figure


def gradient_groups(title: str, replicas: int, expert_ranks: int) -> Figure:
    """Draw which parameters the ranks of a grid hold, and which ranks hold the same experts."""
    figure, axes = subplots(title, figsize=(7.2, 1.6 * replicas + 1.4))
    for row in range(replicas):
        for column in range(expert_ranks):
            x, y, rank = 3.2 * column, -2.6 * row, row * expert_ranks + column
            axes.text(x + 1.3, y + 2.12, f"rank {rank}", ha="center", **TEXT)
            box(axes, x, y + 1, _OWN, "attention, router", w=2.6)
            box(axes, x, y, series(column, ""), f"experts of group {column}", w=2.6)
    axes.annotate(
        "", (3.2 * expert_ranks - 0.3, 1.5), (3.2 * expert_ranks - 0.3, -2.6 * (replicas - 1)),
        arrowprops={"arrowstyle": "<->", "color": NEUTRAL, "lw": 1.5},
    )  # fmt: skip
    axes.text(
        3.2 * expert_ranks - 0.1, 0.75 - 1.3 * (replicas - 1), "replicas:\nthe same\nexperts",
        va="center", **TEXT,
    )  # fmt: skip
    axes.annotate(
        "", (0, 2.75), (3.2 * expert_ranks - 0.6, 2.75),
        arrowprops={"arrowstyle": "<->", "color": NEUTRAL, "lw": 1.5},
    )  # fmt: skip
    axes.text(1.6 * expert_ranks - 0.3, 2.9, "exchange tokens", ha="center", **TEXT)
    bare(axes, (-0.2, 3.2 * expert_ranks + 1.4), (-2.6 * (replicas - 1) - 0.1, 3.4))
    plt.close(figure)
    return figure
