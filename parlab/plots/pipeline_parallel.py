"""Draw what each rank of a pipeline does over time, for any schedule."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from parlab.pipeline import Span, bubble, live, simulate
from parlab.plots.interactive import figure as interactive_figure
from parlab.plots.interactive import slider
from parlab.plots.look import NEUTRAL, SERIES, Style, ink, paler, style
from parlab.plots.pipeline_policies import schedule
from parlab.plots.still import hatched, subplots

# Three tones of the color for computing. Every cell also shows its micro-batch number.
PASSES = {
    "forward": Style("forward", "#5596d2"),
    "backward": Style("backward", "#33699f"),
    "weights": Style("backward, weights only", "#9fb3d6"),
}
PANELS = ("gpipe", "1f1b", "interleaved")
_NAMES = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved": "inter-<br>leaved"}
_PANEL, _GAP = 8.0, 2.6  # height of a panel for any number of ranks; space for its text
_GANTT_POINTS = 580  # width of the time axis in `gantt`
_EXPLORER_PIXELS = 620  # width of the time axis in the explorer, on a laptop
_AWAY = 100.0  # offset that moves a trace outside the plot
_IDLE = "rgba(139,146,156,0.22)"
# Cell colors: idle, then forward and backward in two alternating tones each.
_TONES = (_IDLE, "#5596d2", "#4582bd", "#33699f", "#2f5f91")

_IDEAL = {"color": SERIES[1].colour, "dash": "dot", "width": 2}


def gantt(title: str, panels: Mapping[str, Sequence[Span]], unit: float = 1.0) -> Figure:
    """Draw what each rank does over time: one panel per schedule, with a common time axis.

    The numbers are micro-batches. A rank's second stage has a prime and a paler color, its third
    stage two primes, and so on. `unit` is the length of a forward pass in the units of the spans.
    """
    ranks = {name: 1 + max(span.rank for span in spans) for name, spans in panels.items()}
    height = 1.1 + sum(0.34 * n + 0.45 for n in ranks.values())
    figure, axes = subplots(
        title, len(panels), 1, figsize=(9.0, height), sharex=True, squeeze=False,
        height_ratios=list(ranks.values()),
    )  # fmt: skip
    longest = max(span.end for spans in panels.values() for span in spans) / unit
    shortest = min(span.end - span.start for spans in panels.values() for span in spans) / unit
    fontsize = min(9.0, 0.78 * _GANTT_POINTS * shortest / longest)
    for part, (name, spans) in zip(axes[:, 0], panels.items(), strict=True):
        _panel(part, spans, ranks[name], unit, fontsize)
        if name:
            part.set_title(name, fontsize="medium", color=NEUTRAL)
        part.set(xlim=(0, longest), ylim=(ranks[name] - 0.5, -0.5))
        part.set_yticks(range(ranks[name]), [f"rank {rank}" for rank in range(ranks[name])])
    axes[-1, 0].set_xlabel("time (forward passes)")
    kinds = dict.fromkeys(span.action.kind for spans in panels.values() for span in spans)
    patches = [Patch(**hatched(PASSES[kind])) for kind in PASSES if kind in kinds]
    patches.append(Patch(facecolor=style("idle").colour, alpha=0.22, label="idle"))
    figure.legend(
        handles=patches, loc="outside lower right", ncols=len(patches), frameon=False,
        labelcolor=NEUTRAL,
    )  # fmt: skip
    plt.close(figure)  # the cell shows the returned figure
    return figure


def _panel(axes: Axes, spans: Sequence[Span], ranks: int, unit: float, fontsize: float) -> None:
    end = max(span.end for span in spans) / unit
    chunks = 1 + max(span.action.stage for span in spans) // ranks
    for rank in range(ranks):
        axes.add_patch(
            Rectangle((0, rank - 0.4), end, 0.8, color=style("idle").colour, alpha=0.22, lw=0)
        )
    for span in spans:
        drawn, chunk = PASSES[span.action.kind], span.action.stage // ranks
        start, width = span.start / unit, (span.end - span.start) / unit
        colour = paler(drawn.colour, 0.5 * chunk / max(chunks - 1, 1))
        axes.add_patch(
            Rectangle((start, span.rank - 0.4), width, 0.8, facecolor=colour, edgecolor="white",
                      lw=0.8)
        )  # fmt: skip
        axes.text(
            start + width / 2, span.rank, f"{span.action.micro_batch}{'′' * chunk}", ha="center",
            va="center", color=ink(colour), fontsize=fontsize,
        )  # fmt: skip


def schedule_explorer(
    title: str,
    ranks: Sequence[int],
    micro_batches: Sequence[int],
    chunks: Sequence[int],
    active: tuple[int, int, int] = (0, 0, 0),
) -> go.Figure:
    """Draw GPipe, 1F1B, and interleaved 1F1B with their bubbles; p, m, and v have sliders.

    Each slider changes its own property of the traces, so that no slider undoes another one: p
    changes the visibility, m the horizontal position, and v the vertical position. A position is
    either on the plot or far outside. Times are fractions of GPipe's time. `active` has the initial
    position of each slider.
    """
    rows = len(PANELS) * (_PANEL + _GAP)
    figure = interactive_figure(
        title, x="time (share of GPipe's)", height=760, legend_traceorder="normal",
        xaxis={"range": [0, 1.001], "tickformat": ".0%", "showgrid": False},
        yaxis={
            "range": [rows, -0.2], "showgrid": False, "zeroline": False, "ticks": "",
            "tickvals": [_top(panel) + _PANEL / 2 for panel in PANELS],
            "ticktext": [_NAMES[panel] for panel in PANELS],
        },
    )  # fmt: skip
    for drawn in (PASSES["forward"], PASSES["backward"], Style("idle", _IDLE)):  # for the legend
        figure.add_bar(x=[None], y=[None], name=drawn.label, marker_color=drawn.colour)
    figure.add_scatter(x=[None], y=[None], mode="lines", line=_IDEAL, name="end without a bubble")
    always = len(figure.data)
    parts = [part for p in ranks for m in micro_batches for part in _parts(p, m, chunks)]
    first = (ranks[active[0]], micro_batches[active[1]], chunks[active[2]])
    for part in parts:
        trace = part.trace
        trace.visible = part.p == first[0]
        trace.x0 = _left(part, first[1])
        trace.update(_down(part, first[2]))
        figure.add_trace(trace)
    indices = list(range(always, always + len(parts)))

    def step(label: int, change: dict[str, list[Any]]) -> dict[str, Any]:
        return {"label": f"{label}", "method": "restyle", "args": [change, indices]}

    by_ranks = [step(p, {"visible": [part.p == p for part in parts]}) for p in ranks]
    by_micro_batches = [step(m, {"x0": [_left(part, m) for part in parts]}) for m in micro_batches]
    by_chunks = [
        step(v, {name: [_down(part, v).get(name) for part in parts] for name in ("y0", "y")})
        for v in chunks
    ]
    figure.update_layout(
        sliders=[
            slider("ranks p:", by_ranks, active[0], top=64),
            slider("micro-batches m:", by_micro_batches, active[1], top=156),
            slider("interleaved stages on a rank v:", by_chunks, active[2], top=248),
        ]
    )
    return figure


@dataclass
class Part:
    """A trace of the explorer: its p, m, and v (None: any v), and its position when shown."""

    trace: Any
    p: int
    m: int
    v: int | None
    x0: float
    y: float
    height: float = 0.0  # of a line that starts at y and goes down


def _left(part: Part, m: int) -> float:
    return part.x0 if part.m == m else part.x0 + _AWAY


def _down(part: Part, v: int) -> dict[str, Any]:
    """Return the vertical position as the property that this kind of trace uses."""
    y = part.y if part.v in (None, v) else part.y + _AWAY
    if part.trace.type == "heatmap":
        return {"y0": y}
    return {"y": [y, y + part.height] if part.height else [y]}


def _top(panel: str) -> float:
    return _GAP * 0.8 + PANELS.index(panel) * (_PANEL + _GAP)


def _parts(p: int, m: int, chunks: Sequence[int]) -> Iterator[Part]:
    """Yield the traces of one p and m: panels, their text, and the end of an ideal step."""
    total = 3.0 * (m + p - 1)
    for panel in PANELS:
        for v in chunks if panel == "interleaved" else [None]:
            of = {"p": p, "m": m, "v": v}
            try:
                spans = simulate(schedule(panel, p, m, v or 1))
            except ValueError:
                note = f"needs m = {p}, {2 * p}, {3 * p}, …"
            else:
                width = 1 / (total * (v or 1))
                yield Part(
                    _heatmap(spans, p, width), **of, x0=width / 2, y=_top(panel) + _PANEL / p / 2
                )
                held = max(live(spans))
                note = f"bubble {bubble(spans):.1%}, holds {held:g}"
            yield Part(
                go.Scatter(
                    text=[note], mode="text", textposition="middle right", showlegend=False,
                    hoverinfo="skip",
                ),
                **of, x0=0.0, y=_top(panel) - _GAP * 0.3,
            )  # fmt: skip
    ideal = go.Scatter(
        dx=1e-9, mode="lines", showlegend=False, hoverinfo="skip", line=_IDEAL,
    )  # fmt: skip
    yield Part(ideal, p, m, None, m / (m + p - 1), 0.4, len(PANELS) * (_PANEL + _GAP))


def _heatmap(spans: Sequence[Span], ranks: int, width: float) -> go.Heatmap:
    """Return a heatmap with one cell per rank and unit of time, each `width` wide.

    Numbers that do not fit into a cell are left out.
    """
    units = round(max(span.end for span in spans))
    size = min(12.0, max(8.0, 0.9 * _EXPLORER_PIXELS * width))
    tones = np.zeros((ranks, units), np.int8)
    numbers = np.full((ranks, units), "", object)
    for span in spans:
        start, end, (kind, _, micro_batch) = round(span.start), round(span.end), span.action
        tones[span.rank, start:end] = (1 if kind == "forward" else 3) + micro_batch % 2
        text = f"{micro_batch}"
        if _EXPLORER_PIXELS * width >= 0.56 * size * len(text) + 2:
            dark = ink(_TONES[tones[span.rank, start]]) == "white"
            numbers[span.rank, start] = f"<span style='color:white'>{text}</span>" if dark else text
    return go.Heatmap(
        z=tones,
        text=numbers.tolist(),
        dx=width,
        dy=_PANEL / ranks,
        zmin=0,
        zmax=len(_TONES) - 1,
        colorscale=[(i / (len(_TONES) - 1), tone) for i, tone in enumerate(_TONES)],
        showscale=False,
        ygap=1.5,
        texttemplate="%{text}",
        textfont={"color": "black", "size": size},
        hoverinfo="skip",
    )
