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
    drawn, axes = subplots("The planner puts layouts into the right order")
    ends = [0.95 * min(*predicted, *measured), 1.08 * max(*predicted, *measured)]
    axes.plot(ends, ends, color=NEUTRAL, linewidth=1)
    for place, stages in enumerate(sorted({layout.pp for layout in layouts})):
        own = [i for i, layout in enumerate(layouts) if layout.pp == stages]
        name = "1 stage" if stages == 1 else f"{stages} stages"
        look = artist(series(place, name)) | {"linestyle": "", "markersize": 8}
        axes.plot([predicted[i] for i in own], [measured[i] for i in own], **look)
    for place, (layout, x, y) in enumerate(zip(layouts, predicted, measured, strict=True)):
        left = place % 2 == 0  # labels of neighbors are on different sides of the line
        axes.annotate(
            f"{layout.dp} × {layout.tp} × {layout.pp}, b = {layout.micro_batch}",
            (x, y),
            xytext=(-9, 4) if left else (9, -4),
            textcoords="offset points",
            ha="right" if left else "left",
            va="center",
            color=NEUTRAL,
            fontsize="x-small",
        )
    axes.set_xlabel("predicted time of a step (s)")
    axes.set_ylabel(emulated("time of a step (s)"))
    axes.margins(x=0.2)
    legend = axes.legend(frameon=False, labelcolor=NEUTRAL, title="dp × tp × pp", loc="lower right")
    legend.get_title().set_color(NEUTRAL)
    return drawn, axes
