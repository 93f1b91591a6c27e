"""matplotlib pictures in the same look: transparent, and readable in both themes."""

import os
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt

from parlab.plots.look import NEUTRAL, SERIES, Style, style

_INLINE = "module://matplotlib_inline.backend_inline"
_OF_NOTEBOOKS = {_INLINE, "inline", "widget", "ipympl", "module://ipympl.backend_nbagg", "nbagg"}
_LINESTYLES = {
    "solid": "-",
    "dash": "--",
    "dashdot": "-.",
    "dot": ":",
    "longdash": (0, (8, 3)),
}
_MARKERS = {
    "circle": "o",
    "square": "s",
    "diamond": "D",
    "triangle-up": "^",
    "x": "x",
    "cross": "P",
}
_STYLE = {
    "axes.edgecolor": NEUTRAL,
    "axes.facecolor": "none",
    "axes.labelcolor": NEUTRAL,
    "axes.prop_cycle": mpl.cycler(color=[drawn.colour for drawn in SERIES]),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlecolor": NEUTRAL,
    "axes.titlelocation": "left",
    "axes.titlesize": "large",
    "figure.facecolor": "none",
    # Small, with large text, because a phone shows it at half the size.
    "figure.figsize": (6.4, 3.6),
    "font.size": 13.0,
    "grid.alpha": 0.25,
    "grid.color": NEUTRAL,
    "hatch.color": "white",
    "hatch.linewidth": 0.8,
    "legend.frameon": False,
    "text.color": NEUTRAL,
    "xtick.color": NEUTRAL,
    "ytick.color": NEUTRAL,
}


def subplots(title: str, *shape: int, **options: Any) -> tuple[Any, Any]:
    """Call `plt.subplots` with the course's look. `title` is the picture's message.

    A notebook stores the picture as SVG, which is sharp on every screen and keeps the transparent
    background. Returns matplotlib's figure and axes.
    """
    _use_notebook()
    with mpl.rc_context(_STYLE):
        drawn, axes = plt.subplots(*shape, layout="constrained", **options)
        for one in drawn.axes:  # no marks at half a step or half a rank
            one.xaxis.get_major_locator().set_params(steps=[1, 2, 5, 10])
        drawn.suptitle(title, x=0.01, ha="left", color=NEUTRAL, fontsize="large")
    return drawn, axes


def artist(of: str | Style, label: str | None = None) -> dict[str, Any]:
    """Return arguments of `axes.plot` for a role (or a `Style`)."""
    drawn = style(of) if isinstance(of, str) else of
    return {
        "label": label or drawn.label,
        "color": drawn.colour,
        "linestyle": _LINESTYLES[drawn.dash],
        "marker": _MARKERS[drawn.symbol],
    }


def hatched(of: str | Style, label: str | None = None) -> dict[str, Any]:
    """Return arguments of `axes.bar`, `barh`, `broken_barh`, or a patch for a role (or `Style`)."""
    drawn = style(of) if isinstance(of, str) else of
    return {
        "label": label or drawn.label,
        "facecolor": drawn.colour,
        "hatch": drawn.hatch,
        "edgecolor": "white",
        "linewidth": 0.0,
    }


def _use_notebook() -> None:
    """In a notebook, show pictures below their cells, as SVG.

    MPLBACKEND in the environment is for scripts. A notebook chooses with `%matplotlib`.
    """
    from IPython import get_ipython

    shell = get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return
    if os.environ.get("MPLBACKEND", _INLINE) != _INLINE and mpl.get_backend() not in _OF_NOTEBOOKS:
        shell.run_line_magic("matplotlib", "inline")
    from matplotlib_inline.backend_inline import set_matplotlib_formats

    # Make the SVG of a figure the same every time, so that running a notebook again changes less.
    set_matplotlib_formats("svg", metadata={"Date": None})
    mpl.rcParams["svg.hashsalt"] = "parlab"
