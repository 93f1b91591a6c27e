"""The color, dash, marker, and hatch of each thing in figures."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Style:
    """The look of one thing. `dash` and `symbol` are Plotly's names, `hatch` is matplotlib's."""

    label: str
    colour: str
    dash: str = "solid"
    symbol: str = "circle"
    hatch: str = ""

    @property
    def pattern(self) -> str:
        """The hatch for Plotly: one stroke. matplotlib repeats strokes for density."""
        return self.hatch[:1]


# For text, axes, and grids: readable on white and in the dark theme.
NEUTRAL = "#7d8590"

# The uses of a rank's time and of its memory, and the sides of a comparison.
ROLES: Mapping[str, Style] = MappingProxyType(
    {
        "compute": Style("compute", "#3b82c4", "solid", "circle"),
        "communication": Style("communication", "#d9730d", "dash", "square", "///"),
        "idle": Style("idle", "#8b929c", "dot", "x", "..."),
        "parameters": Style("parameters", "#1f9a8a", "solid", "circle"),
        "gradients": Style("gradients", "#cf4f8e", "dash", "square", "///"),
        "optimizer_states": Style("optimizer states", "#8266d0", "dashdot", "diamond", "\\\\\\"),
        "activations": Style("activations", "#a88b00", "dot", "triangle-up", "..."),
        "reference": Style("reference", "#d1495b", "solid", "circle"),
        "library": Style("library", "#1a9ab0", "dash", "square", "///"),
        "model": Style("model", NEUTRAL, "dot", "cross", "..."),
    }
)

# For things without a role, in the order in which a figure uses them.
SERIES: tuple[Style, ...] = (
    Style("1", "#1a9ab0", "solid", "circle"),
    Style("2", "#d1495b", "dash", "square", "///"),
    Style("3", "#4c9a2a", "dashdot", "diamond", "\\\\\\"),
    Style("4", "#a0714f", "dot", "triangle-up", "..."),
    Style("5", "#6a7fdb", "longdash", "x", "xxx"),
)

_RAMP = ("#1a9ab0", "#8266d0", "#d1495b")


def style(role: str) -> Style:
    """Return the style of a role. Raises ValueError, with all roles, for another name."""
    if role not in ROLES:
        raise ValueError(f"no role {role!r}: use one of {', '.join(ROLES)}, or plots.series(i)")
    return ROLES[role]


def series(index: int, label: str) -> Style:
    """Return the style of the `index`-th thing (from 0) without a role, with this `label`."""
    taken = SERIES[index % len(SERIES)]
    return Style(label, taken.colour, taken.dash, taken.symbol, taken.hatch)


def ramp(n: int) -> list[str]:
    """Return `n` colors in order, for a parameter that grows (2, 4, 8 … ranks)."""
    if n < 1:
        raise ValueError(f"a ramp needs at least one color, not {n}")
    stops = [tuple(int(colour[i : i + 2], 16) for i in (1, 3, 5)) for colour in _RAMP]
    colours = []
    for i in range(n):
        at = i / max(n - 1, 1) * (len(stops) - 1)
        left = min(int(at), len(stops) - 2)
        mixed = [
            a + (b - a) * (at - left) for a, b in zip(stops[left], stops[left + 1], strict=True)
        ]
        colours.append("#" + "".join(f"{round(channel):02x}" for channel in mixed))
    return colours


def ink(*backgrounds: str) -> str:
    """Return "black" or "white" for a text on these colors: the one with the higher contrast.

    On a single color, the contrast is always at least 4.5:1, as WCAG 2 requires for text.
    """
    lights = [_luminance(colour) for colour in backgrounds]
    on_black, on_white = (min(lights) + 0.05) / 0.05, 1.05 / (max(lights) + 0.05)
    return "black" if on_black > on_white else "white"


def paler(colour: str, white: float) -> str:
    """Mix a color with a share of white. The result is opaque, so it looks alike in both themes."""
    channels = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return "#" + "".join(f"{round(c + (255 - c) * white):02x}" for c in channels)


def _luminance(colour: str) -> float:
    """Return the relative luminance, as WCAG 2 defines it."""
    channels = (int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5))
    red, green, blue = (
        c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def line(of: str | Style, label: str | None = None) -> dict[str, Any]:
    """Return arguments of a Plotly scatter trace for a role (or `Style`): name, line, marker."""
    drawn = style(of) if isinstance(of, str) else of
    return {
        "name": label or drawn.label,
        "line": {"color": drawn.colour, "dash": drawn.dash, "width": 2.5},
        "marker": {"color": drawn.colour, "symbol": drawn.symbol, "size": 8},
    }


def bar(of: str | Style, label: str | None = None) -> dict[str, Any]:
    """Return arguments of a Plotly bar trace for a role (or a `Style`): name, color, and hatch."""
    drawn = style(of) if isinstance(of, str) else of
    # Draw the hatch over the color. By default, Plotly would replace the color.
    pattern = {"shape": drawn.pattern, "fillmode": "overlay", "fgcolor": "#fff", "size": 6}
    return {"name": label or drawn.label, "marker": {"color": drawn.colour, "pattern": pattern}}
