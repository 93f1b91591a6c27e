"""Loss curves of parallel training and of its reference, which should be equal."""

from collections.abc import Mapping, Sequence
from typing import Any

from parlab.plots.look import NEUTRAL, series
from parlab.plots.still import artist, subplots

_WIDEST, _NARROWEST = 8.0, 2.0  # points


def same_curves(
    title: str, panels: Mapping[str, Mapping[str, Sequence[float]]], loss: str = "loss"
) -> tuple[Any, Any]:
    """Draw the losses of runs that should be equal, with wide lines below narrow ones.

    Args:
        title: the picture's message.
        panels: by title, each run's losses by its name; all panels have the same runs.
        loss: the name of the vertical axes. The axes of a row have the same scale.

    Returns:
        matplotlib's figure and its axes, two in each row.
    """
    columns = min(len(panels), 2)
    rows = -(-len(panels) // columns)
    size = (6.4, 3.6) if rows == 1 else (9.0, 3.2 * rows)
    drawn, axes = subplots(title, rows, columns, sharey="row", squeeze=False, figsize=size)
    for panel in axes.flat[len(panels) :]:
        panel.set_axis_off()
    for panel, (name, runs) in zip(axes.flat, panels.items(), strict=False):
        thinner = (_WIDEST - _NARROWEST) / max(len(runs) - 1, 1)
        for i, (who, values) in enumerate(runs.items()):
            drawn_as = artist(series(i, who)) | {"linewidth": _WIDEST - thinner * i, "marker": ""}
            panel.plot(values, **drawn_as | {"alpha": 0.8})
        panel.set(title=name, xlabel="step" if rows == 1 else "")
    for left in axes[:, 0]:
        left.set_ylabel(loss)
    if rows > 1:
        for bottom in axes[-1]:
            bottom.set_xlabel("step")
    axes[0, 0].legend(frameon=False, labelcolor=NEUTRAL)
    return drawn, axes


def ending_curves(
    title: str,
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    points: int,
    steps: Mapping[str, int],
) -> tuple[Any, Any]:
    """Draw the losses of runs. A cross marks the end of a run that stops early with a NaN.

    Args:
        title: the picture's message.
        panels: by title, each run's losses by its name; the first run is drawn in gray.
        points: how many losses a complete run has.
        steps: by title, the training steps between two losses.

    Returns:
        matplotlib's figure and its axes, in a row.
    """
    drawn, axes = subplots(title, 1, len(panels), squeeze=False, figsize=(10, 4))
    for panel, (name, runs) in zip(axes[0], panels.items(), strict=True):
        for i, (who, losses) in enumerate(runs.items()):
            drawn_as = artist(series(i - 1, who)) | {"linewidth": 7 - i, "alpha": 0.8, "marker": ""}
            if i == 0:
                drawn_as |= {"color": NEUTRAL, "linestyle": "solid"}
            at = [steps[name] * (k + 1) for k in range(len(losses))]
            panel.plot(at, losses, **drawn_as)
            if len(losses) < points:
                panel.plot(at[-1], losses[-1], "x", color=drawn_as["color"], markersize=10, mew=3)
                panel.annotate(
                    "NaN", (at[-1], losses[-1]), (8, 6), textcoords="offset points", color=NEUTRAL
                )
        panel.margins(y=0.12)
        panel.set_title(name, fontsize="medium")
        panel.set_xlabel("step")
    axes[0, 0].set_ylabel("loss")
    drawn.legend(
        *axes[0, 0].get_legend_handles_labels(),
        loc="outside lower center",
        ncols=3,
        frameon=False,
        labelcolor=NEUTRAL,
    )
    return drawn, axes[0]
