"""Drawings of ZeRO in time and memory: shards in buffers, gathered units, offloaded steps."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from parlab.plots.look import NEUTRAL, ink, series, style
from parlab.plots.still import hatched, subplots


def shard_layouts(title: str, layers: Mapping[str, int], ranks: int = 4) -> Figure:
    """Draw two ways to shard the same layers: one flat buffer, and one buffer for each layer.

    `layers` has numbers of parameters by name. The number in each piece is the rank that owns it.
    """
    figure, axes = subplots(title, figsize=(8.5, 3.4))
    padded = {name: -(-size // ranks) * ranks for name, size in layers.items()}
    whole = sum(layers.values())
    gap = 0.04 * whole
    start = 0.0
    for name, size in layers.items():
        _box(axes, start, 2.0, size, name, NEUTRAL, "")
        start += size
    shard = -(-whole // ranks)
    for rank in range(ranks):
        _shard(axes, rank * shard, 1.0, shard, rank)
    _padding(axes, whole, 1.0, shard * ranks - whole)
    start = 0.0
    for name, size in layers.items():
        part = padded[name] // ranks
        for rank in range(ranks):
            _shard(axes, start + rank * part, 0.0, part, rank)
        _padding(axes, start + size, 0.0, padded[name] - size)
        start += padded[name] + gap
    rows = ("stages 2 and 3:\na buffer for each layer", "stage 1:\none flat buffer", "layers")
    for row, text in enumerate(rows):
        axes.text(-0.02 * whole, row + 0.25, text, ha="right", va="center", color=NEUTRAL)
    axes.set(xlim=(-0.48 * whole, start), ylim=(-0.2, 2.7))
    axes.axis("off")
    padding = Patch(facecolor="none", edgecolor=NEUTRAL, hatch="xxx", label="padding")
    handles = [
        Patch(facecolor=series(rank, "").colour, label=f"rank {rank}") for rank in range(ranks)
    ]
    figure.legend(
        handles=[*handles, padding], loc="outside lower right", ncols=ranks + 1, frameon=False,
        labelcolor=NEUTRAL, columnspacing=1.0,
    )  # fmt: skip
    plt.close(figure)
    return figure


def hybrid_groups(title: str, nodes: int = 2, ranks: int = 4) -> Figure:
    """Draw each rank's shard on each node, and the collectives that run in rows and columns."""
    figure, axes = subplots(title, figsize=(8.5, 1.3 + 1.0 * nodes))
    names = [style("parameters").colour, style("gradients").colour]
    for node in range(nodes):
        y = -1.3 * node
        axes.text(-0.2, y + 0.25, f"node {node}", ha="right", va="center", color=NEUTRAL)
        for rank in range(ranks):
            _shard(axes, 1.3 * rank, y, 1.0, rank, f"shard {rank}")
            if rank:
                _arrow(axes, (1.3 * rank - 0.3, y + 0.25), (1.3 * rank, y + 0.25), names[0])
            if node:
                _arrow(axes, (1.3 * rank + 0.5, y + 1.3), (1.3 * rank + 0.5, y + 0.5), names[1])
    right = 1.3 * ranks - 0.1
    axes.text(
        right, 0.25, "in a node: gather and\nreduce-scatter shards", color=names[0], va="center"
    )
    axes.text(right, -0.4, "between nodes: all-reduce\ngradients of a shard", color=names[1],
              va="center")  # fmt: skip
    axes.set(xlim=(-0.9, right + 2.4), ylim=(-1.3 * (nodes - 1) - 0.2, 0.7))
    axes.axis("off")
    plt.close(figure)
    return figure


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], colour: str) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "<->", "color": colour, "lw": 1.8})


def _box(axes: Axes, x: float, y: float, width: float, text: str, colour: str, hatch: str) -> None:
    axes.add_patch(
        Rectangle(
            (x, y), width, 0.5, facecolor="none", edgecolor=colour, hatch=hatch, linewidth=1.2
        )
    )
    axes.text(x + width / 2, y + 0.25, text, ha="center", va="center", color=NEUTRAL)


def _shard(
    axes: Axes, x: float, y: float, width: float, rank: int, text: str | None = None
) -> None:
    colour = series(rank, "").colour
    axes.add_patch(Rectangle((x, y), width, 0.5, facecolor=colour, edgecolor="white", linewidth=1))
    axes.text(
        x + width / 2, y + 0.25, text or f"{rank}", ha="center", va="center", color=ink(colour)
    )


def _padding(axes: Axes, x: float, y: float, width: float) -> None:
    if width:
        axes.add_patch(
            Rectangle(
                (x, y), width, 0.5, facecolor="none", edgecolor=NEUTRAL, hatch="xxx", linewidth=0
            )
        )


class Bar(NamedTuple):
    """A bar in a row of a drawing over time: its kind, its start, and its end."""

    row: int
    role: str
    start: float
    end: float
    text: str = ""


def unit_lifetimes(title: str, blocks: int = 3) -> Figure:
    """Draw when each FSDP unit is gathered, computes, and is freed, in both passes.

    The first row is the model's own unit, which computes first and last in each pass. Times are
    schematic: in the forward pass, each end of the model takes 1, and a block takes 2. The backward
    pass takes twice as long. A gather takes 1.
    """
    figure, axes = subplots(title, figsize=(9.0, 1.6 + 0.5 * (blocks + 1)))
    bars = _lifetimes(blocks)
    end = max(bar.end for bar in bars)
    for bar in bars:
        _draw(axes, bar, 0.36 if bar.role == "parameters" else 0.24)
    names = ["model's own unit", *(f"block {i}" for i in range(1, blocks + 1))]
    axes.set_yticks(range(blocks + 1), names)
    axes.set(xlim=(0, end), ylim=(blocks + 0.5, -0.5), xticks=[], xlabel="time")
    labels = {"parameters": "whole on this rank", "communication": "gather",
              "compute": "forward or backward", "gradients": "reduce-scatter"}  # fmt: skip
    _legend(figure, labels, pale=("parameters",))
    plt.close(figure)
    return figure


def _lifetimes(blocks: int) -> list[Bar]:
    forward, gather, edge = 2.0, 1.0, 1.0
    now = gather
    timeline: list[Bar] = [
        Bar(0, "communication", 0, gather),
        Bar(0, "compute", now, now + edge, "F"),
    ]
    start, now = now, now + edge
    for block in range(1, blocks + 1):  # the gather runs during the computation before it
        timeline.append(Bar(block, "communication", start, start + gather))
        timeline.append(Bar(block, "parameters", start, now + forward))
        timeline.append(Bar(block, "compute", now, now + forward, "F"))
        start, now = now, now + forward
    timeline.append(Bar(0, "compute", now, now + edge, "F"))
    now += edge
    timeline.append(Bar(0, "compute", now, now + 2 * edge, "B"))
    start, now = now, now + 2 * edge
    for block in range(blocks, 0, -1):
        timeline.append(Bar(block, "communication", start, start + gather))
        timeline.append(Bar(block, "parameters", start, now + 2 * forward))
        timeline.append(Bar(block, "compute", now, now + 2 * forward, "B"))
        timeline.append(Bar(block, "gradients", now + 2 * forward, now + 2 * forward + gather))
        start, now = now, now + 2 * forward
    timeline.append(Bar(0, "compute", now, now + 2 * edge, "B"))
    timeline.append(Bar(0, "gradients", now + 2 * edge, now + 2 * edge + gather))
    timeline.append(Bar(0, "parameters", 0.0, now + 2 * edge))
    return sorted(timeline, key=lambda bar: bar.role != "parameters")


def offload_steps(
    title: str, forward: float, gradients: float, adam: float, parameters: float, steps: int = 3
) -> Figure:
    """Draw steps of ZeRO-Offload in seconds, without and with the delayed parameter update.

    The backward pass takes twice as long as the forward pass, and sends gradients to the host. Then
    the CPU runs Adam, and the parameters return. With the delay, both happen during the next step.
    """
    figure, axes = subplots(title, 2, 1, figsize=(9.0, 4.6), sharex=True)
    after, compute = adam + parameters, 3 * forward
    panels = {
        "each step waits for the CPU": max(compute, forward + gradients) + after,
        "delayed parameter update": max(compute, after, forward + gradients),
    }
    ends = []
    for part, (name, period) in zip(axes, panels.items(), strict=True):
        for step in range(steps):
            bars = _offloaded(step * period, step, forward, gradients, adam, parameters)
            ends.append(max(bar.end for bar in bars))
            for bar in bars:
                _draw(part, bar, 0.38)
        part.set_title(name, fontsize="medium", color=NEUTRAL)
        part.set_yticks(range(4), ["GPU", "link, out", "CPU", "link, in"])
        part.set_ylim(3.6, -0.6)
    axes[-1].set(xlim=(0, max(ends)), xlabel="time (s), model")
    labels = {"compute": "forward (F), backward (B)", "gradients": "gradients",
              "optimizer_states": "Adam", "parameters": "parameters"}  # fmt: skip
    _legend(figure, labels)
    plt.close(figure)
    return figure


def _offloaded(
    start: float, step: int, forward: float, gradients: float, adam: float, parameters: float
) -> list[Bar]:
    middle = start + forward
    update = max(middle + 2 * forward, middle + gradients)
    number = f"{step + 1}"
    return [
        Bar(0, "compute", start, middle, f"F{number}"),
        Bar(0, "compute", middle, middle + 2 * forward, f"B{number}"),
        Bar(1, "gradients", middle, middle + gradients, number),
        Bar(2, "optimizer_states", update, update + adam, number),
        Bar(3, "parameters", update + adam, update + adam + parameters, number),
    ]


def _draw(axes: Axes, bar: Bar, half: float) -> None:
    drawn_as = style(bar.role)
    pale = bar.role == "parameters" and not bar.text
    axes.add_patch(
        Rectangle(
            (bar.start, bar.row - half), bar.end - bar.start, 2 * half, facecolor=drawn_as.colour,
            alpha=0.3 if pale else 1.0, hatch="" if pale else drawn_as.hatch, edgecolor="white",
            linewidth=0.8,
        )
    )  # fmt: skip
    if bar.text:
        plate = {"boxstyle": "round,pad=0.15", "facecolor": drawn_as.colour, "linewidth": 0}
        axes.text((bar.start + bar.end) / 2, bar.row, bar.text, ha="center", va="center",
                  color=ink(drawn_as.colour), fontsize=10, bbox=plate)  # fmt: skip


def _legend(figure: Figure, labels: Mapping[str, str], pale: Sequence[str] = ()) -> None:
    handles = [
        Patch(facecolor=style(role).colour, alpha=0.3, label=label)
        if role in pale
        else Patch(**hatched(role, label))
        for role, label in labels.items()
    ]
    figure.legend(
        handles=handles, loc="outside lower right", ncols=len(handles), frameon=False,
        labelcolor=NEUTRAL, columnspacing=1.2,
    )  # fmt: skip
