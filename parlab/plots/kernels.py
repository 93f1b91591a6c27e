"""Pictures of kernels: programs on a vector, sectors of a load, order of tiles, rooflines."""

from collections.abc import Iterable, Mapping, Sequence

import matplotlib.pyplot as plt
import plotly.graph_objects as go
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from parlab.costs import kernels as costs
from parlab.costs.kernels import Device, Tile, Traffic
from parlab.plots.interactive import figure as interactive_figure
from parlab.plots.look import NEUTRAL, SERIES, Style, ink, line, series, style
from parlab.plots.still import hatched, subplots
from parlab.plots.two_sliders import add_two_sliders

_TEXT = {"color": NEUTRAL, "fontsize": 12}
_USED = style("compute")
_INSIDE = {"color": ink(_USED.colour), "fontsize": 9}  # readable on "communication", too
_MASKED = Style("masked", "#8b929c", hatch="///")
_STAGES = {"communication": "copying a tile", "compute": "multiplying tiles"}
_LOADED = Style("read but not needed", "#e2a76f", hatch="...")
_NEEDED = Style("needed", "#b4540a")


def device(title: str) -> Figure:
    """Draw multiprocessors with programs, registers, and shared memory; the L2 cache; memory."""
    figure, axes = subplots(title, figsize=(7.2, 3.7))
    for place in range(4):
        left = 0.2 + place * 2.45
        _box(axes, left, 2.5, 2.2, 2.2, style("idle"), "")
        axes.text(left + 1.1, 4.46, "multiprocessor", ha="center", va="center", **_TEXT)
        for half in (0, 1):
            _box(axes, left + 0.12 + half, 3.55, 0.93, 0.66, _USED, "program")
        _box(axes, left + 0.12, 2.62, 1.93, 0.8, SERIES[2], "registers,\nshared memory")
    _box(axes, 0.2, 1.35, 9.55, 0.75, SERIES[3], "L2 cache, shared by all multiprocessors")
    _box(axes, 0.2, 0.1, 9.55, 0.85, SERIES[0], "memory: holds the tensors")
    for place in range(4):
        x = 1.3 + place * 2.45
        _arrow(axes, x, 2.1, 2.5)
        _arrow(axes, x, 0.95, 1.35)
    axes.set(xlim=(0, 9.95), ylim=(0, 4.8))
    bare(axes)
    return finished(figure)


def grid(title: str, numbers: int, block: int) -> Figure:
    """Draw a vector of `numbers` numbers, its programs, and the numbers that the last one masks."""
    programs = costs.programs(numbers, block)
    figure, axes = subplots(title, figsize=(7.2, 2.2))
    for place in range(programs * block):
        drawn_as = hatched(_USED if place < numbers else _MASKED)
        axes.add_patch(Rectangle((place + 0.06, 0), 0.88, 0.8, **drawn_as))
        if place < numbers:
            axes.text(place + 0.5, 0.4, f"{place}", ha="center", va="center", **_INSIDE)
    for program in range(programs):
        first = program * block
        axes.plot([first + 0.1, first + block - 0.1], [1.05, 1.05], color=NEUTRAL, lw=1.5)
        axes.text(first + block / 2, 1.2, f"program {program}", ha="center", **_TEXT)
    axes.set(xlim=(-0.2, programs * block + 0.2), ylim=(-0.1, 1.65))
    bare(axes)
    handles = [
        Patch(**hatched(_USED, "loaded and stored")),
        Patch(**hatched(_MASKED, "beyond the end, masked")),
    ]
    legend(figure, handles)
    return finished(figure)


def warp_loads(title: str, loads: Mapping[str, tuple[int, int]], element_bytes: int = 4) -> Figure:
    """Draw the sectors that a warp reads, one row per load: its stride and first address."""
    figure, axes = subplots(title, figsize=(7.2, 0.6 * len(loads) + 1.4))
    last = max(
        start + (costs.WARP - 1) * stride * element_bytes for stride, start in loads.values()
    )
    count = last // costs.SECTOR_BYTES + 1
    for row, (stride, start) in enumerate(loads.values()):
        for sector in range(count):
            axes.add_patch(
                Rectangle((sector, row - 0.3), 1, 0.6, fill=False, ec=NEUTRAL, lw=0.4, alpha=0.6)
            )
        for sector in costs.sectors_touched(stride, element_bytes, start):
            axes.add_patch(Rectangle((sector, row - 0.3), 1, 0.6, **hatched(_LOADED)))
        wide = element_bytes / costs.SECTOR_BYTES
        for lane in range(costs.WARP):
            left = (start + lane * stride * element_bytes) / costs.SECTOR_BYTES
            axes.add_patch(Rectangle((left, row - 0.3), wide, 0.6, **hatched(_NEEDED)))
        touched = costs.sectors(stride, element_bytes, start)
        share = 100 * costs.load_efficiency(stride, element_bytes, start)
        axes.text(count + 0.4, row, f"{touched}, {share:.3g}%", va="center", **_TEXT)
    axes.set(xlim=(-0.2, count + 6.4), ylim=(len(loads) - 0.5, -0.6))
    axes.set_yticks(range(len(loads)), loads)
    bare(axes, ticks=True)
    legend(figure, [Patch(**hatched(drawn_as)) for drawn_as in (_NEEDED, _LOADED)])
    return finished(figure)


def orders(title: str, size: int, count: int, taken: Mapping[str, Sequence[Tile]]) -> Figure:
    """Draw the first `count` tiles of a product in each order, and their blocks of A and B."""
    figure, panels = subplots(title, 1, len(taken), figsize=(7.2, 4.3))
    for axes, (name, tiles) in zip(panels, taken.items(), strict=True):
        first = list(tiles[:count])
        rows, columns = {i for i, _ in first}, {j for _, j in first}
        gap = size + 1
        for i in range(size):
            for j in range(size):
                _cell(axes, j, gap + i, SERIES[2] if i in rows else None)
                _cell(axes, gap + j, i, SERIES[3] if j in columns else None)
                _cell(axes, gap + j, gap + i, _USED if (i, j) in first else None)
        for number, (i, j) in enumerate(first):
            axes.text(
                gap + j + 0.5, gap + i + 0.5, f"{number}", ha="center", va="center", **_INSIDE
            )  # fmt: skip
        axes.text(size / 2, gap - 0.3, "A", ha="center", **_TEXT)
        axes.text(gap - 0.3, size / 2, "B", ha="right", va="center", **_TEXT)
        loaded = costs.blocks_loaded(first, size)
        axes.set_title(f"{name}: {loaded} blocks", fontsize=13, color=NEUTRAL)
        axes.set(xlim=(-0.2, 2 * size + 1.2), ylim=(2 * size + 1.2, -0.4), aspect="equal")
        bare(axes)
    return finished(figure)


def stages(title: str, steps: int, load: float, compute: float, counts: Sequence[int]) -> Figure:
    """Draw a loop over time: a panel per number of buffers, with rows for buffers and products."""
    heights = [count + 1 for count in counts]
    figure, panels = subplots(
        title, len(counts), 1, sharex=True, height_ratios=heights,
        figsize=(7.2, 0.36 * sum(heights) + 0.5 * len(counts) + 1.3),
    )  # fmt: skip
    for axes, count in zip(panels, counts, strict=True):
        loads, computes = costs.staged(steps, load, compute, count)
        for buffer in range(count):
            _spans(axes, buffer, loads, range(buffer, steps, count), "communication")
        _spans(axes, count, computes, range(steps), "compute")
        noun = "buffer" if count == 1 else "buffers"
        name = f"{count} {noun}: {computes[-1][1]:g} units of time"
        axes.set_title(name, fontsize=13, color=NEUTRAL)
        axes.set_yticks(range(count + 1), [f"buffer {i}" for i in range(count)] + ["products"])
        axes.set_ylim(count + 0.5, -0.5)
        bare(axes, ticks=True)
    panels[0].set_xlim(
        0, 1.01 * max(costs.staged(steps, load, compute, n)[1][-1][1] for n in counts)
    )
    handles = [Patch(**hatched(role, name) | {"hatch": ""}) for role, name in _STAGES.items()]
    legend(figure, handles)
    return finished(figure)


def _spans(
    axes: Axes, row: int, spans: Sequence[costs.Span], which: Iterable[int], role: str
) -> None:
    for step in which:
        start, end = spans[step]
        drawn_as = hatched(role) | {"hatch": ""}
        axes.add_patch(Rectangle((start + 0.04, row - 0.36), end - start - 0.08, 0.72, **drawn_as))
        axes.text((start + end) / 2, row, f"{step}", ha="center", va="center", **_INSIDE)


def roofline(
    title: str,
    roofs: Mapping[str, Sequence[Device]],
    kernels: Mapping[str, Sequence[tuple[str, Traffic, int]]],
    labels: tuple[str, str],
    active: tuple[int, int] = (0, 0),
) -> go.Figure:
    """Draw a device's ceilings and each kernel's limit, with sliders for device and size.

    `roofs` maps each device to one or more ceilings, one per number format. `kernels` maps each
    size to its kernels: a name, the traffic, and the index of the kernel's ceiling. Each kernel is
    drawn on the roofline, at the highest rate it can reach.
    """
    figure = interactive_figure(
        title, x="FLOP per byte", y="upper limit (FLOP/s)", height=640,
        xaxis={"type": "log", "range": [-1.6, 4.2], "exponentformat": "power"},
        yaxis={"type": "log", "range": [10.8, 15.4], "exponentformat": "power"},
        margin_t=110,  # a legend of several lines, on a phone
    )  # fmt: skip

    def drawn(devices: Sequence[Device], points: Sequence[tuple[str, Traffic, int]]) -> list:
        return [
            *(_roof(of, place) for place, of in enumerate(devices)),
            *(
                _point(name, moved, devices[which], place)
                for place, (name, moved, which) in enumerate(points)
            ),
        ]

    traces = {
        (device_name, size): drawn(devices, points)
        for device_name, devices in roofs.items()
        for size, points in kernels.items()
    }
    add_two_sliders(figure, labels, traces, active)
    return figure


def _roof(of: Device, place: int) -> go.Scatter:
    ends = [10**-1.6, of.ridge, 10**4.2]
    drawn_as = (style("model"), style("idle"))[place % 2]
    return go.Scatter(
        x=ends, y=[of.attainable(x) for x in ends], mode="lines",
        name=f"{of.name}: ridge at {of.ridge:.0f}", hoverinfo="skip",
        line={"color": drawn_as.colour, "dash": ("solid", "dash")[place % 2], "width": 2.5},
    )  # fmt: skip


_SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "cross", "star")


def _point(name: str, moved: Traffic, under: Device, place: int) -> go.Scatter:
    reached = under.attainable(moved.intensity)
    drawn_as = SERIES[place % len(SERIES)]
    return go.Scatter(
        x=[moved.intensity], y=[reached], mode="markers", name=name,
        marker={"color": drawn_as.colour, "symbol": _SYMBOLS[place % len(_SYMBOLS)], "size": 13},
        hovertemplate=f"{moved.intensity:.3g} FLOP/byte,<br>at most {reached / 1e12:.3g} TFLOP/s",
    )  # fmt: skip


def measured_roofline(
    title: str, roof: Device, found: Mapping[str, tuple[Traffic, float]], x_range: tuple, y_range
) -> go.Figure:
    """Draw measured ceilings and kernels, with times in seconds. Axis ranges are powers of ten."""
    figure = interactive_figure(
        title, x="FLOP per byte", y="FLOP/s", height=520,
        xaxis={"type": "log", "range": x_range}, yaxis={"type": "log", "range": y_range},
        margin_t=110,
    )  # fmt: skip
    ends = [10 ** x_range[0], roof.ridge, 10 ** x_range[1]]
    figure.add_scatter(
        x=ends, y=[roof.attainable(x) for x in ends], mode="lines", hoverinfo="skip",
        name=f"ceilings: ridge at {roof.ridge:.1f}", line={"color": NEUTRAL, "width": 2.5},
    )  # fmt: skip
    for place, (name, (moved, seconds)) in enumerate(found.items()):
        drawn_as = line(series(place, name))
        drawn_as["marker"] |= {"symbol": _SYMBOLS[place % len(_SYMBOLS)], "size": 12}
        figure.add_scatter(
            x=[moved.intensity], y=[moved.flop / seconds], mode="markers", name=name,
            marker=drawn_as["marker"], hovertemplate="%{x:.3g} FLOP per byte<br>%{y:.3g} FLOP/s",
        )  # fmt: skip
    return figure


def _cell(axes: Axes, x: float, y: float, of: Style | None) -> None:
    if of is None:
        drawn_as = {"fill": False, "ec": NEUTRAL, "lw": 0.4, "alpha": 0.6}
    else:
        drawn_as = {"facecolor": of.colour, "lw": 0}
    axes.add_patch(Rectangle((x + 0.05, y + 0.05), 0.9, 0.9, **drawn_as))


def _box(axes: Axes, x: float, y: float, width: float, height: float, of: Style, text: str) -> None:
    axes.add_patch(
        Rectangle((x, y), width, height, facecolor=of.colour, alpha=1 if text else 0.18, lw=0)
    )
    axes.text(
        x + width / 2, y + height / 2, text, ha="center", va="center", color=ink(of.colour),
        fontsize=11 if width > 1 else 9,
    )  # fmt: skip


def _arrow(axes: Axes, x: float, low: float, high: float) -> None:
    drawn_as = {"arrowstyle": "<->", "color": NEUTRAL, "lw": 1.2}
    axes.annotate("", (x, high), (x, low), arrowprops=drawn_as | {"shrinkA": 0, "shrinkB": 0})


def bare(axes: Axes, ticks: bool = False) -> None:
    """Remove the frame and the ticks; `ticks` keeps the labels of the vertical axis."""
    axes.set_xticks([])
    if not ticks:
        axes.set_yticks([])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)


def legend(figure: Figure, handles: Sequence[Patch], columns: int | None = None) -> None:
    """Put a legend below the figure, in one row or in `columns` columns."""
    figure.legend(
        handles=list(handles), loc="outside lower right", ncols=columns or len(handles),
        frameon=False, labelcolor=NEUTRAL, fontsize=12,
    )  # fmt: skip


def finished(figure: Figure) -> Figure:
    """Close and return `figure`, so that a notebook cell shows it once instead of twice."""
    plt.close(figure)
    return figure
