"""Draw number formats: their bits, ranges, and steps, and which numbers they lose."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import matplotlib.pyplot as plt
import plotly.graph_objects as go
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle

from parlab.costs.mixed_precision import fate, shares
from parlab.formats import Format
from parlab.plots.interactive import exponents_axis
from parlab.plots.interactive import figure as interactive_figure
from parlab.plots.look import NEUTRAL, SERIES, Style, bar, ink, line, series, style
from parlab.plots.still import hatched, subplots
from parlab.plots.two_sliders import add_two_sliders

_SIGN, _EXPONENT, _MANTISSA = style("idle"), SERIES[1], SERIES[0]
# What happens to a number in a format, from small numbers to large ones.
FATES: Mapping[str, Style] = {
    "lost": Style("lost", "#8b929c", hatch="..."),
    "subnormal": Style("subnormal", "#a0714f", hatch="///"),
    "normal": Style("normal", "#1a9ab0"),
    "overflow": Style("overflow", "#d1495b", hatch="xxx"),
}


def bits(title: str, formats: Sequence[Format]) -> Figure:
    """Draw one row of boxes per format: sign, exponent, and mantissa."""
    figure, axes = subplots(title, figsize=(7.2, 0.5 * len(formats) + 1.1))
    for row, of in enumerate(formats):
        kinds = [_SIGN] + of.exponent_bits * [_EXPONENT] + of.mantissa_bits * [_MANTISSA]
        for place, drawn_as in enumerate(kinds):
            axes.add_patch(
                Rectangle((place + 0.08, row - 0.35), 0.84, 0.7, facecolor=drawn_as.colour, lw=0)
            )
        for start, count, drawn_as in (
            (1, of.exponent_bits, _EXPONENT),
            (1 + of.exponent_bits, of.mantissa_bits, _MANTISSA),
        ):
            axes.text(
                start + count / 2, row, f"{count}", ha="center", va="center",
                color=ink(drawn_as.colour), fontsize=13, fontweight="bold",
                # A filled background, or the gaps between boxes would cut through the digits.
                bbox={"facecolor": drawn_as.colour, "lw": 0, "pad": 1},
            )  # fmt: skip
    axes.set(xlim=(-0.1, max(of.bits for of in formats)), ylim=(len(formats) - 0.5, -0.5))
    axes.set_yticks(range(len(formats)), [of.name for of in formats])
    axes.set_xticks([])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    looks = {"sign": _SIGN, "exponent": _EXPONENT, "mantissa": _MANTISSA}
    _legend(
        figure, [Patch(facecolor=drawn_as.colour, label=name) for name, drawn_as in looks.items()]
    )
    return _finished(figure)


def ranges(title: str, formats: Sequence[Format]) -> Figure:
    """Draw one bar per format, from its smallest number to its largest; subnormals are hatched."""
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
    """Draw one line per format with a mark for each of its numbers from 0 to `end`."""
    figure, axes = subplots(title, figsize=(7.2, 0.62 * len(formats) + 1.2))
    for row, of in enumerate(formats):
        _marks(axes, row, numbers(of, end), SERIES[row])
    axes.set(xlim=(-0.01 * end, 1.01 * end), ylim=(len(formats) - 0.5, -0.5))
    axes.set_yticks(range(len(formats)), [of.name for of in formats])
    return _finished(figure)


def numbers(of: Format, end: float) -> list[float]:
    """Return all numbers of a format from 0 to `end`."""
    found = [0.0]
    while found[-1] < end:
        found.append(found[-1] + of.spacing(found[-1]))
    return found if found[-1] == end else found[:-1]


def _marks(axes: Axes, row: int, places: Sequence[float], drawn_as: Style) -> None:
    axes.plot([0, places[-1]], [row, row], color=NEUTRAL, lw=0.8)
    axes.vlines(places, row - 0.32, row + 0.32, color=drawn_as.colour, lw=1.8)


def precision(title: str, formats: Sequence[Format], exponents: Sequence[int]) -> go.Figure:
    """Draw the step to the next number, relative to the number, at each power of two."""
    figure = interactive_figure(
        title, x="size of a number", y="step to the next number / number", height=440,
        yaxis={"type": "log", "range": [-7.5, 0.3]}, xaxis=exponents_axis(12),
    )  # fmt: skip
    for place, of in enumerate(formats):
        held = [e for e in exponents if of.smallest_subnormal <= 2.0**e <= of.largest]
        steps = [of.spacing(2.0**e) / 2.0**e for e in held]
        drawn_as = line(series(place, of.name))
        figure.add_scatter(
            x=held, y=steps, mode="lines", hovertemplate="%{x}: %{y:.2g}",
            name=drawn_as["name"], line=drawn_as["line"],
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
    """Draw which numbers a format loses, with a slider for the format and one for the scale.

    `exponents` counts the numbers of each octave, and `scales` are exponents of two. The axis
    begins at 2^`first`. The shares in the legend include smaller numbers, which are not drawn.
    """
    total = sum(exponents.values())
    last = max(exponents) + max(scales)
    figure = interactive_figure(
        title, x="size of a number", y="share of all gradients", height=620,
        barmode="overlay",  # stacked bars would leave room for the choices that are hidden
        xaxis={"range": [first - 0.5, last + 0.5]} | exponents_axis(16),
        yaxis={"tickformat": ".0%", "range": [0, 1.12 * max(exponents.values()) / total]},
        margin_t=96,  # room for two lines of legend on a phone
        bargap=0.1,
    )  # fmt: skip

    def bars(of: Format, shift: int) -> list[go.Bar]:
        become = shares(exponents, of, 2.0**shift)
        return [
            go.Bar(
                x=[e + shift for e in exponents if fate(e + shift, of) == name] or [None],
                y=[n / total for e, n in exponents.items() if fate(e + shift, of) == name]
                or [None],
                hovertemplate="%{x}: %{y:.2%}",
                **bar(drawn_as, f"{drawn_as.label} {getattr(become, name):.1%}"),
            )
            for name, drawn_as in FATES.items()
        ]

    traces = {  # short names, for a phone's slider
        (of.name.removeprefix("fp8 "), f"2<sup>{shift}</sup>"): bars(of, shift)
        for of in formats
        for shift in scales
    }
    add_two_sliders(figure, ("format:", "scale:"), traces, active)
    return figure


@dataclass(frozen=True)
class Window:
    """The gradients that a reduction keeps accurate, from `low` to `high`, and their formulas."""

    low: float
    high: float
    low_formula: str
    high_formula: str
    measured: tuple[float, float]


def windows(
    title: str,
    cases: Mapping[str, Mapping[str, Window]],
    limits: tuple[float, float],
    limit_names: tuple[str, str],
) -> Figure:
    """Draw one panel per case and one bar per window, with points where a run's window ends.

    Dashed lines mark the `limits` of the format itself.
    """
    figure, panels = subplots(title, len(cases), figsize=(7.2, 1.9 * len(cases) + 1.2), sharex=True)
    drawn_as, point = FATES["normal"], style("reference")
    for axes, (case, rows) in zip(panels, cases.items(), strict=True):
        for x in map(math.log2, limits):
            axes.axvline(x, color=NEUTRAL, lw=1, ls="--", zorder=0)
        for row, window in enumerate(rows.values()):
            low, high = math.log2(window.low), math.log2(window.high)
            axes.barh(row, high - low, left=low, height=0.7, facecolor=drawn_as.colour, lw=0)
            for x, text, side in (
                (low + 1, f"${window.low_formula}$", "left"),
                ((low + high) / 2, f"{high - low:.4g} powers of two", "center"),
                (high - 1, f"${window.high_formula}$", "right"),
            ):
                axes.text(
                    x, row, text, color=ink(drawn_as.colour), fontsize=12, ha=side, va="center"
                )
            axes.plot(
                [math.log2(x) for x in window.measured], [row, row], ls="", marker="o", ms=7,
                color=point.colour, markeredgecolor="white",
            )  # fmt: skip
        axes.set_title(case, color=NEUTRAL, fontsize=13, loc="center")
        axes.set(ylim=(len(rows) - 0.5, -0.5))
        axes.set_yticks(range(len(rows)), list(rows))
        axes.tick_params(axis="y", length=0)
    low, high = (math.log2(x) for x in limits)
    for x, name in zip((low, high), limit_names, strict=True):
        panels[0].text(x, -0.6, f"${name}$", color=NEUTRAL, fontsize=13, ha="center", va="bottom")
    panels[-1].set_xlim(low - 2, high + 2)
    exponents = range(8 * math.ceil(low / 8), math.floor(high) + 1, 8)
    panels[-1].set_xticks(exponents, [f"$2^{{{e}}}$" for e in exponents])
    panels[-1].set_xlabel("size of the gradients")
    _legend(
        figure,
        [
            Patch(facecolor=drawn_as.colour, label="formula"),
            Line2D([], [], ls="", marker="o", ms=7, color=point.colour, label="run"),
        ],
    )
    return _finished(figure)


def _legend(figure: Figure, handles: Sequence[Artist]) -> None:
    figure.legend(
        handles=list(handles), loc="outside lower right", ncols=len(handles), frameon=False,
        labelcolor=NEUTRAL, fontsize=12,
    )  # fmt: skip


def _rounded(number: float) -> str:
    return f"{number:,.0f}" if number < 1e6 else f"{number:.3g}"


def _finished(figure: Figure) -> Figure:
    plt.close(figure)  # the cell displays what it returns; an open figure would appear twice
    return figure
