"""Pictures of number formats: their bits, how far they reach, how finely, and what they lose."""

import math
from collections.abc import Mapping, Sequence

import matplotlib.pyplot as plt
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from parlab.costs.mixed_precision import fate, shares
from parlab.formats import Format
from parlab.plots.interactive import figure as interactive_figure
from parlab.plots.look import NEUTRAL, SERIES, Style, bar, line, series, style
from parlab.plots.still import hatched, subplots
from parlab.plots.two_sliders import add_two_sliders

_SIGN, _EXPONENT, _MANTISSA = style("idle"), SERIES[1], SERIES[0]
# What becomes of a number, in the order of its size.
FATES: Mapping[str, Style] = {
    "lost": Style("lost", "#8b929c", hatch="..."),
    "subnormal": Style("subnormal", "#a0714f", hatch="///"),
    "normal": Style("normal", "#1a9ab0"),
    "overflow": Style("overflow", "#d1495b", hatch="xxx"),
}


def bits(title: str, formats: Sequence[Format]) -> Figure:
    """A row of boxes for each format: sign, exponent, mantissa."""
    figure, axes = subplots(title, figsize=(7.2, 0.5 * len(formats) + 1.1))
    for row, of in enumerate(formats):
        kinds = [_SIGN] + of.exponent_bits * [_EXPONENT] + of.mantissa_bits * [_MANTISSA]
        for place, look in enumerate(kinds):
            axes.add_patch(
                Rectangle((place + 0.08, row - 0.35), 0.84, 0.7, facecolor=look.colour, lw=0)
            )
        for start, count, look in (
            (1, of.exponent_bits, _EXPONENT),
            (1 + of.exponent_bits, of.mantissa_bits, _MANTISSA),
        ):
            axes.text(
                start + count / 2, row, f"{count}", ha="center", va="center", color="white",
                fontsize=13, fontweight="bold",
                # White digits would be cut by the gaps between boxes.
                bbox={"facecolor": look.colour, "lw": 0, "pad": 1},
            )  # fmt: skip
    axes.set(xlim=(-0.1, max(of.bits for of in formats)), ylim=(len(formats) - 0.5, -0.5))
    axes.set_yticks(range(len(formats)), [of.name for of in formats])
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    looks = {"sign": _SIGN, "exponent": _EXPONENT, "mantissa": _MANTISSA}
    _legend(figure, [Patch(facecolor=look.colour, label=name) for name, look in looks.items()])
    return _finished(figure)


def ranges(title: str, formats: Sequence[Format]) -> Figure:
    """From each format's smallest number to its largest, by exponent; subnormals hatched."""
    figure, axes = subplots(title, figsize=(7.2, 0.5 * len(formats) + 1.7))
    for row, of in enumerate(formats):
        low, normal, high = (
            math.log2(x) for x in (of.smallest_subnormal, of.smallest_normal, of.largest)
        )
        for start, end, name in ((low, normal, "subnormal"), (normal, high, "normal")):
            axes.barh(row, end - start, left=start, height=0.62, **hatched(FATES[name]))
        axes.text(high + 3, row, _rounded(of.largest), va="center", color=NEUTRAL, fontsize=12)
        axes.text(
            low - 3, row, f"{of.smallest_subnormal:.2g}", va="center", ha="right", color=NEUTRAL,
            fontsize=12,
        )  # fmt: skip
    axes.set(xlim=(-212, 190), ylim=(len(formats) - 0.5, -0.5))
    axes.set_yticks(range(len(formats)), [of.name for of in formats])
    exponents = (-128, -64, 0, 64, 128)
    axes.set_xticks(exponents, [f"$2^{{{e}}}$" for e in exponents])
    axes.set_xlabel("size of a number")
    axes.grid(axis="x", alpha=0.25)
    axes.set_axisbelow(True)
    _legend(figure, [Patch(**hatched(FATES[name])) for name in ("subnormal", "normal")])
    return _finished(figure)


def number_lines(title: str, formats: Sequence[Format], end: float) -> Figure:
    """Every number of each format from 0 to `end`, as a mark on a line."""
    figure, axes = subplots(title, figsize=(7.2, 0.62 * len(formats) + 1.2))
    for row, of in enumerate(formats):
        _marks(axes, row, numbers(of, end), SERIES[row])
    axes.set(xlim=(-0.01 * end, 1.01 * end), ylim=(len(formats) - 0.5, -0.5))
    axes.set_yticks(range(len(formats)), [of.name for of in formats])
    return _finished(figure)


def numbers(of: Format, end: float) -> list[float]:
    """All numbers of a format from 0 to `end`."""
    found = [0.0]
    while found[-1] < end:
        found.append(found[-1] + of.spacing(found[-1]))
    return found if found[-1] == end else found[:-1]


def _marks(axes: Axes, row: int, places: Sequence[float], look: Style) -> None:
    axes.plot([0, places[-1]], [row, row], color=NEUTRAL, lw=0.8)
    axes.vlines(places, row - 0.32, row + 0.32, color=look.colour, lw=1.8)


def precision(title: str, formats: Sequence[Format], exponents: Sequence[int]) -> go.Figure:
    """The step to the next number over the number, at each power of two that a format has."""
    figure = interactive_figure(
        title, x="size of a number, 2^x", y="step to the next, over the number", height=440,
        yaxis={"type": "log", "range": [-7.5, 0.3]}, xaxis={"dtick": 12},
    )  # fmt: skip
    for place, of in enumerate(formats):
        held = [e for e in exponents if of.smallest_subnormal <= 2.0**e <= of.largest]
        steps = [of.spacing(2.0**e) / 2.0**e for e in held]
        look = line(series(place, of.name))
        figure.add_scatter(
            x=held, y=steps, mode="lines", hovertemplate="2^%{x}: %{y:.2g}",
            name=look["name"], line=look["line"],
        )  # fmt: skip
    return figure


def survival(
    title: str,
    exponents: Mapping[int, float],
    formats: Sequence[Format],
    scales: Sequence[int],
    first: int,
    active: tuple[int, int] = (0, 0),
) -> go.Figure:
    """What becomes of numbers counted by octave, for a format and a scale to choose.

    `scales` are exponents of two. The axis begins at 2^`first`; what is smaller is in the shares,
    which the legend has, and not in the picture.
    """
    total = sum(exponents.values())
    last = max(exponents) + max(scales)
    figure = interactive_figure(
        title, x="size of a number, 2^x", y="share of all numbers", height=620,
        barmode="overlay",  # or those that are not chosen would lie below, unseen
        xaxis={"range": [first - 0.5, last + 0.5], "dtick": 16},
        yaxis={"tickformat": ".0%", "range": [0, 1.12 * max(exponents.values()) / total]},
        margin_t=96,  # a legend of two lines, on a phone
        bargap=0.1,
    )  # fmt: skip

    def bars(of: Format, shift: int) -> list[go.Bar]:
        become = shares(exponents, of, 2.0**shift)
        return [
            go.Bar(
                x=[e + shift for e in exponents if fate(e + shift, of) == name] or [None],
                y=[n / total for e, n in exponents.items() if fate(e + shift, of) == name]
                or [None],
                hovertemplate="2^%{x}: %{y:.2%}",
                **bar(look, f"{look.label} {getattr(become, name):.1%}"),
            )
            for name, look in FATES.items()
        ]

    traces = {(of.name, f"2^{shift}"): bars(of, shift) for of in formats for shift in scales}
    add_two_sliders(figure, ("format:", "scale:"), traces, active)
    return figure


def _legend(figure: Figure, handles: Sequence[Patch]) -> None:
    figure.legend(
        handles=list(handles), loc="outside lower right", ncols=len(handles), frameon=False,
        labelcolor=NEUTRAL, fontsize=12,
    )  # fmt: skip


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number < 1e6 else f"{number:.3g}"


def _finished(figure: Figure) -> Figure:
    plt.close(figure)  # the cell shows what it returns, and would show it twice
    return figure
