"""The figures' look: readable on both backgrounds and without color, and without scripts."""

import json
from itertools import combinations

import pytest
from matplotlib.colors import to_rgba

from parlab import plots
from parlab.plots.interactive import MIME, bundle
from parlab.plots.look import ink, paler
from parlab_staff.book.legend import legend_html

WHITE, DARK = "#ffffff", "#121212"


def luminance(colour: str) -> float:
    """Return the relative luminance, as WCAG 2 defines it."""
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("background", [WHITE, DARK])
def test_every_color_has_enough_contrast_in_both_themes(background: str) -> None:
    colours = [drawn.colour for drawn in (*plots.ROLES.values(), *plots.SERIES)]
    for colour in [*colours, *plots.ramp(9)]:
        # WCAG requires 3:1 for graphical objects.
        assert contrast(colour, background) >= 3, (colour, background)


def test_texts_on_colors_have_enough_contrast() -> None:
    colours = [drawn.colour for drawn in (*plots.ROLES.values(), *plots.SERIES)]
    for colour in [*colours, *plots.ramp(9), *(paler(colour, 0.3) for colour in colours)]:
        text = {"black": "#000000", "white": "#ffffff"}[ink(colour)]
        assert contrast(colour, text) >= 4.5, colour  # WCAG requires 4.5:1 for text
    dark, pale = "#33699f", "#aacaea"
    assert (ink(dark), ink(pale), ink("#777777", pale)) == ("white", "black", "black")
    assert (paler(dark, 0), paler(dark, 1)) == (dark, "#ffffff")


@pytest.mark.parametrize(
    "together",
    [
        ("compute", "communication", "idle"),
        ("parameters", "gradients", "optimizer_states", "activations"),
        ("reference", "library", "model"),
    ],
)
def test_roles_in_the_same_figure_differ_without_color(together: tuple[str, ...]) -> None:
    for one, other in combinations([plots.ROLES[name] for name in together], 2):
        assert one.dash != other.dash
        assert one.symbol != other.symbol
        assert one.hatch != other.hatch


def test_the_books_legend_has_every_role() -> None:
    legend = legend_html()
    for drawn in plots.ROLES.values():
        assert f'fill="{drawn.colour}"' in legend and f"</svg>{drawn.label}</li>" in legend


def test_a_figure_stores_its_data_and_no_script() -> None:
    figure = plots.figure("Ranks wait", x="ranks", y="time (s)")
    figure.add_scatter(x=[1, 2, 4], y=[1.0, 2.0, 4.0], **plots.line("idle"))
    shown = bundle(figure)
    assert set(shown) == {MIME, "text/plain"}
    assert shown["text/plain"] == "[Ranks wait: idle]"
    assert len(json.dumps(shown)) < 10_000


def test_a_title_has_space_above_a_legend_of_several_rows() -> None:
    def shown(names: list[str]) -> dict:
        figure = plots.figure("Ranks wait", x="ranks", y="time (s)")
        for name in names:
            figure.add_scatter(x=[1, 2], y=[1, 2], name=name)
        bundle(figure)  # showing it twice does not make it higher
        return bundle(figure)[MIME]["layout"]

    low = shown(["ours", "theirs"])
    high = shown([f"the all-reduce of library {i}" for i in range(5)])
    assert "margin" not in low and low["height"] == plots.interactive.HEIGHT
    # The plot itself keeps its height.
    more = high["height"] - low["height"]
    assert more == high["margin"]["t"] - plots.interactive.HEADROOM > 0
    # Relative to the figure's top, because Plotly centers a title in the margin by default.
    assert (high["title"]["y"], high["title"]["yref"]) == (1, "container")


def test_a_slider_shows_the_traces_of_one_step() -> None:
    figure = plots.figure("Small messages pay for latency")
    figure.add_scatter(x=[1], y=[1], name="always")
    steps = {
        n: [{"type": "scatter", "x": [1], "y": [1], "name": f"{n} {part}"} for part in "ab"]
        for n in ("2", "4", "8")
    }
    plots.add_slider(figure, "ranks:", steps, active=1)
    shown = [trace.visible for trace in figure.data]
    assert shown == [None, False, False, True, True, False, False]
    attribute, visible, traces = figure.layout.sliders[0].steps[2].args
    assert attribute == "visible"
    assert list(visible) == [False, False, False, False, True, True]
    assert list(traces) == [1, 2, 3, 4, 5, 6]


def test_a_long_title_is_wrapped_for_jupyterlab() -> None:
    title = plots.figure("word " * 40).layout.title.text
    assert max(len(line) for line in title.split("<br>")) <= 72


def test_an_unknown_role_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="communication"):
        plots.style("comunication")


def test_pictures_are_transparent_and_labelled() -> None:
    drawn, axes = plots.subplots("Ranks wait")
    axes.barh([0], [1], **plots.hatched("idle"))
    assert drawn.get_facecolor()[3] == 0
    assert axes.get_facecolor()[3] == 0
    assert axes.patches[0].get_hatch() == plots.ROLES["idle"].hatch


def test_axes_of_steps_have_whole_numbers_and_keep_names() -> None:
    drawn, (left, right) = plots.subplots("Twenty steps", 1, 2)
    left.plot(range(20), range(20))
    right.bar(["ours", "theirs"], [1, 2])
    drawn.canvas.draw()
    assert all(mark == int(mark) for mark in left.get_xticks())
    assert [text.get_text() for text in right.get_xticklabels()] == ["ours", "theirs"]


def test_logarithmic_axes_are_marked_in_powers_of_two() -> None:
    assert plots.ranks_axis(1, 1024, every=5)["tickvals"] == [1, 32, 1024]
    axis = plots.bytes_axis(1024, 16 * 2**20, every=7)
    assert axis["tickvals"] == [2**10, 2**17, 2**24]
    assert axis["ticktext"] == ["1 KiB", "128 KiB", "16 MiB"]
    decades = plots.figure("title", xaxis_type="log").layout.xaxis
    assert decades.dtick == 1
    assert plots.figure("title", xaxis=axis).layout.xaxis.dtick is None


def test_equal_curves_are_all_visible() -> None:
    runs = {"one rank": [2.0, 1.0], "two ranks": [2.0, 1.0], "three ranks": [2.0, 1.0]}
    _, axes = plots.same_curves("One curve", {"SGD": runs, "Adam": runs, "other": runs})
    assert axes.shape == (2, 2)
    for panel, title in zip(axes.flat, ("SGD", "Adam", "other"), strict=False):
        widths = [line.get_linewidth() for line in panel.get_lines()]
        assert panel.get_title() == title
        assert len(widths) == 3
        assert widths == sorted(widths, reverse=True)
        assert widths[0] > 2 * widths[-1]
    assert not axes[1, 1].axison
    assert [text.get_text() for text in axes[0, 0].get_legend().get_texts()] == list(runs)


def test_memory_bars_are_stacked() -> None:
    ways = {
        "plain": {"parameters": 2e6, "gradients": 1e6},
        "sharded": {"parameters": 1e6, "gradients": 0},
    }
    _, axes = plots.memory_bars("Less on each rank", ways)
    tops = [bar.get_y() + bar.get_height() for bar in axes.containers[1]]
    assert tops == [3.0, 1.0]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [
        "parameters",
        "gradients",
    ]


def test_ratio_bars_are_in_order_from_the_top() -> None:
    ratios = {"ours": 0.5, "library": 2.0}
    _, axes = plots.ratio_bars("Ours and the library", {"small": ratios, "large": ratios})
    assert [panel.get_title() for panel in axes] == ["small", "large"]
    assert [text.get_text() for text in axes[0].get_yticklabels()] == ["ours", "library"]
    for panel in axes:
        ours, library = (bars[0] for bars in panel.containers)
        assert (ours.get_width(), library.get_width()) == (0.5, 2.0)
        assert ours.get_y() > library.get_y()


def test_ratio_bars_of_libraries_have_the_librarys_look() -> None:
    _, axes = plots.ratio_bars("Ours", {"small": {"ours": 0.5, "DDP": 1.0}}, libraries=["DDP"])
    ours, library = (bars[0] for bars in axes[0].containers)
    assert ours.get_facecolor() == to_rgba(plots.hatched("reference")["facecolor"])
    assert library.get_facecolor() == to_rgba(plots.hatched("library")["facecolor"])
