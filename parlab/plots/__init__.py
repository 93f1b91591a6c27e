"""The common look of the course's figures: the same color for the same thing in all chapters.

    figure = plots.figure("Small messages pay for latency", x="message (bytes)", y="time (s)")
    figure.add_scatter(x=sizes, y=times, **plots.line("communication"))
    plots.show(figure)

Use interactive figures (Plotly) if the reader should change a parameter, and `plots.subplots`
(matplotlib) for still pictures. Both have a transparent background, and colors with a contrast of
at least 3:1 on white and on the book's dark background. Dashes, markers, or hatches also
distinguish things, for readers who do not see the colors.
"""

from typing import TYPE_CHECKING, Any

from parlab.plots.curves import ending_curves, same_curves
from parlab.plots.look import NEUTRAL, ROLES, SERIES, Style, bar, line, ramp, series, style
from parlab.plots.memory_bars import memory_bars
from parlab.plots.ratio_bars import ratio_bars
from parlab.plots.still import artist, hatched, subplots

if TYPE_CHECKING:
    from parlab.plots.interactive import (
        add_slider,
        bytes_axis,
        exponents_axis,
        figure,
        ranks_axis,
        show,
    )

# These names are imported at their first use, because importing Plotly takes a second on each rank,
# and most ranks draw only still pictures.
INTERACTIVE = ("add_slider", "bytes_axis", "exponents_axis", "figure", "ranks_axis", "show")

__all__ = [
    "NEUTRAL",
    "ROLES",
    "SERIES",
    "Style",
    "add_slider",
    "artist",
    "bar",
    "bytes_axis",
    "ending_curves",
    "exponents_axis",
    "figure",
    "hatched",
    "line",
    "memory_bars",
    "ramp",
    "ranks_axis",
    "ratio_bars",
    "same_curves",
    "series",
    "show",
    "style",
    "subplots",
]


def __getattr__(name: str) -> Any:
    if name in INTERACTIVE:
        from parlab.plots import interactive

        return getattr(interactive, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
