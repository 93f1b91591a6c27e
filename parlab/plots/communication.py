"""Still pictures of messages: collectives, rounds, rings, waiting ranks, protocols."""

from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from parlab.plots.look import NEUTRAL, SERIES, ink, paler, style
from parlab.plots.still import subplots

# The contents of one place on one rank: the letters of the ranks whose numbers it contains ("A", or
# "ABCD" for a sum), and a digit if its chunk has another number than the place ("A2").
Piece = str
Grid = Sequence[Sequence[Piece]]

# Pale, so that black letters are easy to read on several colors at once.
_COLOURS = [paler(drawn.colour, 0.3) for drawn in SERIES]


def _colour(piece: Piece) -> str:
    return _COLOURS["ABCDE".index(piece[0])]


def _label(axes: Any, x: float, y: float, text: str, ha: str = "center") -> None:
    axes.text(x, y, text, ha=ha, va="center", fontsize=10, color=NEUTRAL)


def _cell(
    axes: Any,
    x: float,
    y: float,
    piece: Piece,
    text: str,
    width: float = 1.0,
    fontsize: float = 11,
) -> None:
    """Draw one place in a rank's memory, with a stripe for each rank whose numbers are in it."""
    letters = piece.rstrip("0123456789")
    for i, part in enumerate(letters):
        stripe = width / len(letters)
        axes.add_patch(Rectangle((x + i * stripe, y), stripe, 0.8, facecolor=_colour(part)))
    axes.add_patch(
        Rectangle((x, y), width, 0.8, facecolor="none", edgecolor=NEUTRAL, linewidth=0.8)
    )
    axes.text(
        x + width / 2,
        y + 0.38,
        text,
        ha="center",
        va="center",
        color=ink(*map(_colour, letters)) if letters else NEUTRAL,
        fontweight="bold",
        fontsize=fontsize,
    )


def _done(drawn: Figure) -> Figure:
    """Close the figure, so that only the cell's own output shows it."""
    plt.close(drawn)
    return drawn


def collective(title: str, before: Grid, after: Grid) -> Figure:
    """Draw what each rank holds before and after a collective.

    `before[r][i]` is what rank r holds in place i: the letters of the ranks whose numbers are
    there, one letter each, or "" for a place that does not matter. Several letters are a sum.
    Chunks are numbered: A₀ is the first chunk of A. The number is the place's own, unless a digit
    follows the letter: "A2" is A₂ in any place.
    """
    places = max(len(row) for row in (*before, *after))
    drawn, axes = subplots(title, 1, 2, figsize=(8, 0.5 * len(before) + 0.8))
    for axis, name, grid in zip(axes, ("before", "after"), (before, after), strict=True):
        for r, row in enumerate(grid):
            y = -r * 1.0
            _label(axis, -0.25, y + 0.4, f"rank {r}", ha="right")
            for i, piece in enumerate(row):
                _cell(axis, i * 1.15, y, piece, _text(piece, i))
        axis.set_title(name, fontsize="medium", color=NEUTRAL)
        axis.set_xlim(-1.5, places * 1.15)
        axis.set_ylim(-len(grid) + 0.9, 1.0)
        axis.axis("off")
    return _done(drawn)


def _text(piece: Piece, place: int) -> str:
    if not piece:
        return ""
    letters = piece.rstrip("0123456789")
    index = piece[len(letters) :] or place
    return f"Σ$_{index}$" if len(letters) > 1 else f"{letters}$_{index}$"


def rounds(
    title: str,
    messages: Sequence[Sequence[tuple[int, int]]],
    n: int,
    start: Sequence[int] = (0,),
) -> Figure:
    """Draw who sends to whom in each round: one row per rank, time from left to right.

    `messages[k]` holds the (sender, receiver) pairs of round k. A rank is filled once it has data
    to send. The ranks in `start` have data from the beginning.
    """
    drawn, axis = subplots(title, figsize=(8, 0.42 * n + 0.9))
    has, message = set(start), style("communication").colour
    for column in range(len(messages) + 1):
        for r in range(n):
            axis.plot(
                column,
                -r,
                "o",
                markersize=13,
                color=style("compute").colour if r in has else "none",
                markeredgecolor=NEUTRAL,
            )
            colour = ink(style("compute").colour) if r in has else NEUTRAL
            axis.text(column, -r - 0.03, r, ha="center", va="center", color=colour, fontsize=9)
        if column == len(messages):
            break
        for sender, receiver in messages[column]:
            _arrow(axis, (column, -sender), (column + 1, -receiver), message)
        has |= {receiver for _, receiver in messages[column]}
        _label(axis, column + 0.5, 0.75, f"round {column + 1}")
    axis.set_xlim(-0.3, len(messages) + 0.3)
    axis.set_ylim(-n + 0.4, 1.1)
    axis.axis("off")
    return _done(drawn)


def _arrow(
    axis: Any,
    start: tuple[float, float],
    end: tuple[float, float],
    colour: str,
    shrink: float = 9,
) -> None:
    axis.add_patch(
        FancyArrowPatch(
            start,
            end,
            arrowstyle="-|>",
            mutation_scale=12,
            color=colour,
            linewidth=1.6,
            shrinkA=shrink,
            shrinkB=shrink,
        )
    )


def ring_rounds(title: str, states: Sequence[Grid]) -> Figure:
    """Draw what each rank holds after each round, as one small grid per round.

    `states[k][r][i]` is as in `collective`. A place that the round filled has a bold frame.
    """
    n = len(states[0])
    drawn, axes = subplots(title, 1, len(states), figsize=(8.6, 0.55 * n + 0.8))
    for k, (axis, grid) in enumerate(zip(axes, states, strict=True)):
        for r, row in enumerate(grid):
            for i, piece in enumerate(row):
                _cell(axis, i, -r, piece, piece, width=0.92, fontsize=8)
                if k and piece and piece != states[k - 1][r][i]:
                    axis.add_patch(
                        Rectangle(
                            (i, -r), 0.92, 0.8, facecolor="none", edgecolor=NEUTRAL, linewidth=2.6
                        )
                    )
            if k == 0:
                _label(axis, -0.2, -r + 0.4, f"rank {r}", ha="right")
        for i in range(len(grid[0])):
            _label(axis, i + 0.46, -n + 0.62, str(i))
        title_k = "start" if k == 0 else f"round {k}"
        axis.set_title(title_k, fontsize="small", loc="center", color=NEUTRAL)
        axis.set_xlim(-1.6 if k == 0 else -0.1, len(grid[0]))
        axis.set_ylim(-n + 0.3, 1.0)
        axis.axis("off")
    return _done(drawn)


def waiting(title: str, arrows: Sequence[tuple[int, int]], n: int, circle: Sequence[int]) -> Figure:
    """Draw an arrow from each waiting rank to the rank it waits for. Mark the ranks in `circle`."""
    drawn, axis = subplots(title, figsize=(6.4, 1.7))
    stuck, other = style("reference").colour, style("idle").colour
    for r in range(n):
        colour = stuck if r in circle else other
        axis.plot(r, 0, "o", markersize=26, color=colour)
        axis.text(r, 0, f"{r}", ha="center", va="center", color=ink(colour), fontweight="bold")
    for waiter, awaited in arrows:
        colour = stuck if {waiter, awaited} <= set(circle) else other
        bend = -0.35 if abs(waiter - awaited) == 1 else -0.2
        axis.add_patch(
            FancyArrowPatch(
                (waiter, 0),
                (awaited, 0),
                connectionstyle=f"arc3,rad={bend}",
                arrowstyle="-|>",
                mutation_scale=16,
                color=colour,
                linewidth=2,
                shrinkA=15,
                shrinkB=15,
            )
        )
    axis.set_xlim(-0.5, n - 0.5)
    axis.set_ylim(-0.9, 0.9)
    axis.axis("off")
    return _done(drawn)


def protocols(title: str) -> Figure:
    """Draw the time lines of an eager message and of a rendezvous."""
    drawn, axes = subplots(title, 1, 2, figsize=(8.4, 3.4))
    _eager(axes[0])
    _rendezvous(axes[1])
    for axis, name in zip(axes, ("eager (small)", "rendezvous (large)"), strict=True):
        axis.set_title(name, fontsize="medium", color=NEUTRAL)
        for x, text in ((0, "sender"), (1, "receiver")):
            _label(axis, x, 0.5, text)
            axis.plot([x, x], [0.2, -5.2], color=NEUTRAL, linewidth=1)
        axis.set_xlim(-0.75, 1.75)
        axis.set_ylim(-5.3, 0.8)
        axis.axis("off")
    return _done(drawn)


def _call(axis: Any, x: float, start: float, end: float, text: str) -> None:
    """Draw a call that lasts from `start` to `end` on the time line at `x`."""
    colour = style("idle").colour
    axis.add_patch(Rectangle((x - 0.05, -end), 0.1, end - start, facecolor=colour))
    side = -1 if x == 0 else 1
    _label(axis, x + 0.12 * side, -(start + end) / 2, text, ha="right" if x == 0 else "left")


def _flight(axis: Any, start: float, end: float, text: str, *, back: bool = False) -> None:
    x0, x1 = (0.95, 0.05) if back else (0.05, 0.95)
    _arrow(axis, (x0, -start), (x1, -end), style("communication").colour, shrink=0)
    _label(axis, 0.5, -(start + end) / 2 + 0.28, text)


def _eager(axis: Any) -> None:
    _call(axis, 0, 0.4, 0.9, "Send")
    _flight(axis, 0.6, 1.6, "data")
    axis.add_patch(
        Rectangle((0.95, -3.6), 0.1, 2.0, facecolor="none", edgecolor=NEUTRAL, linestyle=":")
    )
    _label(axis, 1.12, -2.6, "in a buffer", ha="left")
    _call(axis, 1, 3.6, 4.1, "Recv")
    _label(axis, -0.12, -2.6, "continues", ha="right")


def _rendezvous(axis: Any) -> None:
    _call(axis, 0, 0.4, 4.7, "Send\nwaits")
    _flight(axis, 0.6, 1.3, "request")
    _call(axis, 1, 3.0, 4.7, "Recv")
    _flight(axis, 3.1, 3.6, "ready", back=True)
    _flight(axis, 3.9, 4.6, "data")
