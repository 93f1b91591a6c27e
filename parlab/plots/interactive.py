"""Plotly figures that look alike in JupyterLab and in the book, and load nothing from elsewhere."""

import json
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go
import plotly.io as pio

from parlab.plots.look import NEUTRAL, SERIES

MIME = "application/vnd.plotly.v1+json"
# Values appear under the pointer. Zooming is off, so that a finger scrolls the page and not the
# plot. "responsive" is off: JupyterLab's cells and the book's pages resize figures themselves, and
# with this option, Plotly drops the height, so that a figure vanishes if JupyterLab changes its
# theme.
CONFIG = {"displayModeBar": False, "scrollZoom": False, "doubleClick": False}
HEIGHT = 400
HEADROOM = 64  # above the plot, for a title and one row of legend
_LEGEND_WIDTH = 700
_GRID = "rgba(125,133,144,0.25)"
_FONT = "-apple-system, BlinkMacSystemFont, 'Segoe UI', Roboto, 'Helvetica Neue', sans-serif"


def _template() -> go.layout.Template:
    axis = {
        "gridcolor": _GRID,
        "zerolinecolor": _GRID,
        "linecolor": NEUTRAL,
        "showline": True,
        "ticks": "outside",
        "tickcolor": NEUTRAL,
        "automargin": True,
        "title": {"standoff": 12},
        # Next to a unit, 1e-6 is easier to read as 10⁻⁶ than as 1μ.
        "exponentformat": "power",
    }
    return go.layout.Template(
        layout={
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": _FONT, "size": 14, "color": NEUTRAL},
            "colorway": [drawn.colour for drawn in SERIES],
            "title": {"x": 0, "xref": "paper", "font": {"size": 17}},
            "xaxis": axis,
            "yaxis": axis,
            "legend": {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
            # Leave space on the right, because Plotly drops the last mark's label if it does not
            # fit.
            "margin": {"l": 8, "r": 28, "t": HEADROOM, "b": 8},
            "autosize": True,
            "dragmode": False,
            "hovermode": "closest",
            "barmode": "stack",
        }
    )


TEMPLATE = _template()
# With this renderer, a notebook stores only a figure's data. The default also stores plotly.js,
# which has megabytes.
pio.renderers.default = "plotly_mimetype"


def figure(title: str, x: str = "", y: str = "", **layout: Any) -> go.Figure:
    """Return an empty figure with the course's look.

    `title` is the message of the figure in a short sentence, `x` and `y` name the axes with their
    units, and `layout` goes to Plotly's layout (`xaxis_type="log"`, `yaxis_range=[0, 1]`, …).
    """
    wrapped = "<br>".join(textwrap.wrap(title, 72))
    made = go.Figure(layout={"template": TEMPLATE, "title": {"text": wrapped}, "height": HEIGHT})
    made.update_layout(xaxis_title_text=x, yaxis_title_text=y, **layout)
    for axis in (made.layout.xaxis, made.layout.yaxis):
        if axis.type == "log" and axis.tickvals is None and axis.dtick is None:
            axis.dtick = 1  # only whole decades, because a phone has no space for others
            axis.tickfont.size = 12  # because Plotly draws powers of ten a quarter larger
    return made


def ranks_axis(first: int, last: int, every: int = 1) -> dict[str, Any]:
    """Return a logarithmic axis for numbers of ranks, with marks at powers of two.

    Pass it as `plots.figure(…, xaxis=plots.ranks_axis(1, 1024))`.
    `every` leaves out powers: 2 marks 1, 4, 16 …
    """
    powers = range(first.bit_length() - 1, last.bit_length(), every)
    return {"type": "log", "tickvals": [2**power for power in powers]}


def exponents_axis(every: float) -> dict[str, Any]:
    """Return an axis for exponents of two, with a mark such as 2⁻⁸ at each multiple of `every`."""
    return {"dtick": every, "tickprefix": "2<sup>", "ticksuffix": "</sup>"}


def bytes_axis(first: int, last: int, every: int = 4) -> dict[str, Any]:
    """Return a logarithmic axis for bytes, with marks in B, KiB, MiB, and GiB at powers of two.

    `every` is the step between marks as a power of two: 4 marks 1 KiB, 16 KiB, 256 KiB …
    """
    powers = range(first.bit_length() - 1, last.bit_length(), every)
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    texts = [f"{2 ** (power % 10)} {units[power // 10]}" for power in powers]
    return {"type": "log", "tickvals": [2**power for power in powers], "ticktext": texts}


def add_slider(
    figure: go.Figure, label: str, steps: Mapping[str, Sequence[Any]], active: int = 0
) -> None:
    """Add a slider below `figure`, with which the reader chooses the traces that it shows.

    `steps` maps the text of each position to its traces, in addition to those that `figure` already
    has. `label` comes before this text. The axes do not change, so that a reader sees the effect of
    the parameter. Give them a range that fits all steps.
    """
    if not 0 <= active < len(steps):
        raise ValueError(f"no step {active}: this slider has {len(steps)}")
    always = len(figure.data)
    owners = [i for i, traces in enumerate(steps.values()) for _ in traces]
    for traces in steps.values():
        figure.add_traces(list(traces))
    positions = []
    for i, name in enumerate(steps):
        visible = [owner == i for owner in owners]
        args = ["visible", visible, list(range(always, always + len(owners)))]
        positions.append({"label": name, "method": "restyle", "args": args})
    for trace, owner in zip(figure.data[always:], owners, strict=True):
        trace.visible = owner == active
    # Make the figure taller, so that the slider does not make the plot smaller.
    height = (figure.layout.height or HEIGHT) + 80
    figure.update_layout(sliders=[slider(label, positions, active, top=56)], height=height)


def slider(label: str, steps: Sequence[Any], active: int, *, top: int) -> dict[str, Any]:
    """Return a slider for Plotly's layout, `top` pixels below the plot."""
    shown = {"prefix": label + " ", "xanchor": "left"}
    return {"active": active, "steps": list(steps), "currentvalue": shown, "pad": {"t": top}}


def bundle(figure: go.Figure) -> dict[str, Any]:
    """Return the outputs of a notebook cell for a figure: its data, and a line for a terminal."""
    _make_room_above(figure)
    title = (figure.layout.title.text or "figure").replace("<br>", " ")
    names = [trace.name for trace in figure.data if trace.name]
    text = f"[{title}: {', '.join(dict.fromkeys(names))}]" if names else f"[{title}]"
    return {MIME: json.loads(figure.to_json()) | {"config": CONFIG}, "text/plain": text}


def _make_room_above(figure: go.Figure) -> None:
    """Move the title above a legend of several rows, because Plotly leaves space for only one.

    The number of rows is the one in a cell on a laptop, next to JupyterLab's list of files.
    """
    shown = {trace.name for trace in figure.data if trace.name and trace.visible is not False}
    if not shown:
        return
    in_a_row = max(1, _LEGEND_WIDTH // (48 + 7 * max(map(len, shown))))  # pixels; columns are equal
    rows, lines = -(-len(shown) // in_a_row), (figure.layout.title.text or "").count("<br>") + 1
    if rows + lines > 2:
        top = HEADROOM + 19 * (rows - 1) + 22 * (lines - 1) + 8
        above = {"y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 16}}
        height = (figure.layout.height or HEIGHT) + top - (figure.layout.margin.t or HEADROOM)
        figure.update_layout(title=above, height=height, margin={"t": top})


def show(figure: go.Figure) -> None:
    """Display `figure` under the cell, in JupyterLab and in the book."""
    from IPython.display import display

    display(bundle(figure), raw=True)
