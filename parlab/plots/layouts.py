"""The picture that compares a planner's predictions with measurements."""

from collections.abc import Sequence
from typing import Any

from parlab.layouts import Layout
from parlab.network.labels import emulated
from parlab.plots.look import NEUTRAL, series
from parlab.plots.still import artist, subplots


def predicted_and_measured(
    layouts: Sequence[Layout], predicted: Sequence[float], measured: Sequence[float]
) -> tuple[Any, Any]:
    """Draw a point for each layout, and the line on which both times are equal.

    The look of a point shows how many pipeline stages the layout has. Its label is the position of
    the layout in the planner's list, counted from 1. Returns matplotlib's figure and axes.
    """
    drawn, axes = subplots("Layouts that are predicted to be faster are faster", figsize=(6.4, 5.2))
    ends = [0.9 * min(*predicted, *measured), 1.05 * max(*predicted, *measured)]
    axes.plot(ends, ends, color=NEUTRAL, linewidth=1, label="equal")
    for place, stages in enumerate(sorted({layout.pp for layout in layouts})):
        own = [i for i, layout in enumerate(layouts) if layout.pp == stages]
        name = "1 stage" if stages == 1 else f"{stages} stages"
        look = artist(series(place, name)) | {"linestyle": "", "markersize": 8}
        axes.plot([predicted[i] for i in own], [measured[i] for i in own], **look)
    for number, point in enumerate(zip(predicted, measured, strict=True), 1):
        # Neighbors may be close, so their labels are on different sides and near their points.
        axes.annotate(
            str(number),
            point,
            xytext=(0, 8 if number % 2 else -14),
            textcoords="offset points",
            ha="center",
            color=NEUTRAL,
            fontsize="small",
        )
    axes.set_xlabel("predicted time of a step (s)")
    axes.set_ylabel(emulated("time of a step (s)"))
    axes.set_aspect("equal")
    axes.set(xlim=ends, ylim=ends)
    axes.legend(frameon=False, labelcolor=NEUTRAL, loc="lower right")
    return drawn, axes
