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

    The kind of a point shows how many pipeline stages the layout has, and its label the sizes of
    data and tensor parallelism and of a micro-batch. Returns matplotlib's figure and axes.
    """
    drawn, axes = subplots("Predicted and measured times of layouts, dp × tp × pp")
    ends = [0.95 * min(*predicted, *measured), 1.08 * max(*predicted, *measured)]
    axes.plot(ends, ends, color=NEUTRAL, linewidth=1)
    for place, stages in enumerate(sorted({layout.pp for layout in layouts})):
        own = [i for i, layout in enumerate(layouts) if layout.pp == stages]
        name = "1 stage" if stages == 1 else f"{stages} stages"
        look = artist(series(place, name)) | {"linestyle": "", "markersize": 8}
        axes.plot([predicted[i] for i in own], [measured[i] for i in own], **look)
    crowded = 0.16 * (ends[1] - ends[0])
    points = sorted(zip(predicted, measured, layouts, strict=True), key=lambda point: point[0])
    for (x, y, layout), (after, *_) in zip(points, [*points[1:], (float("inf"),)], strict=True):
        left = after - x < crowded  # the next point would cover a label on the right
        axes.annotate(
            f"{layout.dp} × {layout.tp} × {layout.pp}, b = {layout.micro_batch}",
            (x, y),
            xytext=(-8, 3) if left else (8, -7),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            color=NEUTRAL,
            fontsize="x-small",
        )
    axes.set_xlabel("predicted time of a step (s)")
    axes.set_ylabel(emulated("time of a step (s)"))
    axes.margins(x=0.3)
    axes.legend(frameon=False, labelcolor=NEUTRAL, loc="lower right")
    return drawn, axes
