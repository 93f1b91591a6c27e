"""Drawings of the lab on long contexts: the work of each rank on the ring, and its time."""

from collections.abc import Mapping, Sequence
from typing import Any

from parlab.network.labels import emulated
from parlab.plots.look import NEUTRAL, series
from parlab.plots.still import artist, hatched, subplots


def ring_work(
    title: str, layouts: Mapping[str, Sequence[Sequence[float]]], axis: str
) -> tuple[Any, Any]:
    """Draw a bar for each rank, with a part for each step of the ring, one panel for each layout.

    Args:
        title: the picture's message.
        layouts: by name, for each rank the work of its steps, from step 0 on.
        axis: the name of the vertical axis.

    Returns:
        matplotlib's figure and its axes, one for each panel.
    """
    drawn, axes = subplots(title, 1, len(layouts), sharey=True, squeeze=False)
    for panel, (name, ranks) in zip(axes[0], layouts.items(), strict=True):
        for rank, steps in enumerate(ranks):
            below = 0.0
            for step, work in enumerate(steps):
                look = hatched(series(step, f"step {step}"))
                panel.bar(rank, work, bottom=below, **look | {"edgecolor": "white"})
                below += work
        panel.set_title(name)
        panel.set_xticks(range(len(ranks)), [f"rank {rank}" for rank in range(len(ranks))])
    axes[0, 0].set_ylabel(axis)
    found = [panel.get_legend_handles_labels() for panel in axes[0]]
    unique = {label: handle for pair in found for handle, label in zip(*pair, strict=True)}
    steps = sorted(unique)
    drawn.legend(
        [unique[step] for step in steps],
        steps,
        loc="outside lower center",
        ncols=len(steps),
        frameon=False,
        labelcolor=NEUTRAL,
    )
    return drawn, axes[0]


def ring_times(
    title: str,
    ratios: Sequence[float],
    modeled: Mapping[str, Sequence[float]],
    measured: Mapping[str, Sequence[float]],
) -> tuple[Any, Any]:
    """Draw times on an emulated network over the time of a message.

    Args:
        title: the picture's message.
        ratios: times of a message, in units of the time to compute one block.
        modeled: by name, a time for each ratio, in the same unit; drawn as lines.
        measured: the same as `modeled`, but drawn as points.

    Returns:
        matplotlib's figure and axes.
    """
    drawn, axes = subplots(title)
    for place, (name, times) in enumerate(modeled.items()):
        axes.plot(ratios, times, **artist(series(place, name)) | {"marker": ""})
    for place, (name, times) in enumerate(measured.items()):
        look = artist(series(len(modeled) + place, name)) | {"linestyle": "", "markersize": 8}
        axes.plot(ratios, times, **look)
    axes.set(xscale="log", yscale="log", xlabel="time of a message, in blocks (m/c)")
    axes.set_ylabel(emulated("time, in blocks"))
    axes.set_xticks(ratios, [f"{ratio:g}" for ratio in ratios])
    least, most = min(map(min, modeled.values())), max(map(max, modeled.values()))
    ticks = [tick for tick in (1, 2, 4, 8, 16) if least <= tick <= most]
    axes.set_yticks(ticks, [f"{tick}" for tick in ticks])
    axes.minorticks_off()
    drawn.legend(loc="outside lower center", ncols=2, frameon=False, labelcolor=NEUTRAL)
    return drawn, axes
