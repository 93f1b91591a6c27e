"""A Plotly figure with two sliders that work independently of each other."""

from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from parlab.plots.interactive import slider

# Each slider needs its own property, or it would undo the effect of the other one. The first slider
# changes whether a trace is visible. The second one makes it transparent, and disables hovering.
_SHOWN = {"opacity": 1.0, "hoverinfo": "all", "showlegend": True}
_HIDDEN = {"opacity": 0.0, "hoverinfo": "skip", "showlegend": False}


def add_two_sliders(
    figure: go.Figure,
    labels: tuple[str, str],
    traces: Mapping[tuple[str, str], Sequence[Any]],
    active: tuple[int, int] = (0, 0),
) -> None:
    """Let the reader choose two parameters with sliders, which show `traces[a, b]`.

    The positions of the sliders are the texts in the keys of `traces`, in order of appearance.
    `traces` must have every pair. `labels` come before these texts. Give the axes a range for all
    traces.
    """
    texts = [list(dict.fromkeys(key[i] for key in traces)) for i in (0, 1)]
    always = len(figure.data)
    owners = [key for key, drawn in traces.items() for _ in drawn]
    for drawn in traces.values():
        figure.add_traces(list(drawn))
    chosen = [texts[i][active[i]] for i in (0, 1)]
    for trace, owner in zip(figure.data[always:], owners, strict=True):
        trace.visible = owner[0] == chosen[0]
        trace.update(_SHOWN if owner[1] == chosen[1] else _HIDDEN)
    indices = list(range(always, always + len(owners)))
    first = [{"visible": [owner[0] == text for owner in owners]} for text in texts[0]]
    second = [
        {name: [(_SHOWN if o[1] == text else _HIDDEN)[name] for o in owners] for name in _SHOWN}
        for text in texts[1]
    ]
    sliders = []
    for i, changes in enumerate((first, second)):
        steps = [
            {"label": text, "method": "restyle", "args": [change, indices]}
            for text, change in zip(texts[i], changes, strict=True)
        ]
        sliders.append(slider(labels[i], steps, active[i], top=68 + 92 * i))
    figure.update_layout(sliders=sliders)
