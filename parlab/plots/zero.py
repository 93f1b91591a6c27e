"""Pictures of ZeRO: what ranks store in each stage, and how many bytes this is for a model."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import matplotlib.pyplot as plt
import plotly.graph_objects as go
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from parlab.costs.zero import Recipe, model_states
from parlab.plots.interactive import figure as interactive_figure
from parlab.plots.interactive import slider
from parlab.plots.look import NEUTRAL, bar, style
from parlab.plots.still import subplots

KINDS = ("parameters", "gradients", "optimizer_states")
STAGES = ("data parallel", "stage 1", "stage 2", "stage 3")
_WIDTH = 0.24


def who_holds_what(title: str, recipe: Recipe, ranks: int = 4) -> Figure:
    """Draw a row for each stage and a column for each rank.

    Each bar is a full copy, and its filled part is what the rank stores. Widths are bytes per
    parameter.
    """
    figure, axes = subplots(title, figsize=(8.5, 3.6))
    scale, gap = 2.2 / recipe.total, 2.6
    for row, name in enumerate(STAGES):
        axes.text(-0.15, -row + 0.25, name, ha="right", va="center", color=NEUTRAL, fontsize=11)
        for rank in range(ranks):
            left = gap * rank
            for kind, split_from in zip(KINDS, (3, 2, 1), strict=True):
                width = getattr(recipe, kind) * scale
                drawn = style(kind)
                place = (left, -row)
                axes.add_patch(Rectangle(place, width, 0.5, fill=False, edgecolor=drawn.colour))
                shard = width / ranks if row >= split_from else width
                start = left + (rank * shard if row >= split_from else 0.0)
                axes.add_patch(
                    Rectangle(
                        (start, -row), shard, 0.5, facecolor=drawn.colour, hatch=drawn.hatch,
                        edgecolor="white", linewidth=0,
                        label=drawn.label if row == rank == 0 else None,
                    )
                )  # fmt: skip
                left += width
    for rank in range(ranks):
        axes.text(gap * rank + 1.1, 0.75, f"rank {rank}", ha="center", color=NEUTRAL, fontsize=11)
    axes.set(xlim=(-1.9, gap * ranks), ylim=(-3.2, 1.1))
    axes.axis("off")
    figure.legend(loc="outside lower right", ncols=3, frameon=False, labelcolor=NEUTRAL)
    plt.close(figure)  # the cell shows what it returns, and would show it twice
    return figure


def memory_explorer(
    title: str,
    models: Mapping[str, float],
    worlds: Sequence[int],
    recipes: Mapping[str, Recipe],
    devices: Mapping[str, float],
    active: tuple[int, int, int] = (0, 0, 0),
) -> go.Figure:
    """Draw a device's bytes by kind for each stage, with controls for model, ranks, and recipe.

    Each control changes its own property of the bars, or it would undo the effect of another one.
    The model changes whether a bar is visible, the ranks its opacity, and the recipe its position,
    on the plot or outside. `active` has the controls' initial positions.
    """
    figure = interactive_figure(
        title, y="on each device", yaxis=_gigabytes_axis(), height=740, barmode="overlay",
        xaxis_range=[-0.5, len(STAGES) - 0.5], margin_r=64,
    )  # fmt: skip
    # On a phone, longer lines would be rotated or overlap.
    stages = [name.replace(" ", "<br>", 1) for name in STAGES]
    for kind in KINDS:  # for the legend
        figure.add_bar(x=[stages[0]], y=[None], **bar(kind))
    always = len(figure.data)
    keys = [(m, n, r, kind) for m in models for n in worlds for r in recipes for kind in KINDS]
    first = tuple(
        list(of)[place] for of, place in zip((models, worlds, recipes), active, strict=True)
    )
    for m, n, r, kind in keys:
        figure.add_bar(
            x=stages,
            y=[model_states(models[m], n, stage, recipes[r])[kind] / 1e9 for stage in range(4)],
            offset=_place(kind, r == first[2]),
            width=_WIDTH,
            showlegend=False,
            visible=m == first[0],
            opacity=1.0 if n == first[1] else 0.0,
            hoverinfo="all" if n == first[1] else "skip",
            hovertemplate="%{y:.3g} GB",
            **bar(kind),
        )
    indices = list(range(always, len(figure.data)))
    figure.update_layout(sliders=_sliders((models, worlds, recipes), keys, indices, active))
    for name, size in devices.items():
        figure.add_hline(y=size / 1e9, line={"color": NEUTRAL, "dash": "dot", "width": 1.5})
        figure.add_annotation(
            text=name, x=1, xref="paper", y=math.log10(size / 1e9), showarrow=False, xanchor="left",
        )  # fmt: skip
    figure.update_xaxes(tickangle=0)
    return figure


def _sliders(
    choices: tuple[Iterable[str], Iterable[int], Iterable[str]],
    keys: list[tuple[str, int, str, str]],
    bars: list[int],
    active: tuple[int, int, int],
) -> list[dict[str, Any]]:
    """Return the three controls.

    Args:
        choices: the models, the numbers of ranks, and the recipes.
        keys: model, ranks, recipe, and kind of each bar.
        bars: the bars' indices among all traces.
        active: the positions at which the controls begin.
    """
    models, worlds, recipes = choices

    def step(label: str, change: dict[str, list[Any]]) -> dict[str, Any]:
        return {"label": label, "method": "restyle", "args": [change, bars]}

    by_model = [step(m, {"visible": [key[0] == m for key in keys]}) for m in models]
    by_ranks = [
        step(
            f"{n}",
            {
                "opacity": [1.0 if key[1] == n else 0.0 for key in keys],
                "hoverinfo": ["all" if key[1] == n else "skip" for key in keys],
            },
        )
        for n in worlds
    ]
    by_recipe = [
        step(r, {"offset": [_place(key[3], key[2] == r) for key in keys]}) for r in recipes
    ]
    return [
        slider("parameters:", by_model, active[0], top=44),
        slider("ranks:", by_ranks, active[1], top=136),
        slider("training:", by_recipe, active[2], top=228),
    ]


def _place(kind: str, on_the_plot: bool) -> float:
    """Return where a bar begins, relative to the middle of its stage."""
    return _WIDTH * (KINDS.index(kind) - 1.5) + (0 if on_the_plot else 100)


def _gigabytes_axis() -> dict[str, Any]:
    texts = {0.01: "10 MB", 0.1: "100 MB", 1: "1 GB", 10: "10 GB", 100: "100 GB", 1000: "1 TB",
             10_000: "10 TB"}  # fmt: skip
    return {
        "type": "log",
        "tickvals": list(texts),
        "ticktext": list(texts.values()),
        "range": [-2.5, 4.0],
    }
