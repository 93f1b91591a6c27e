"""Texts for readers who do not see a figure name its message, its axes, and what it draws."""

import io

from matplotlib import pyplot

from parlab import plots
from parlab_staff.book import alternatives
from parlab_staff.book.accessible import CORRECTIONS


def test_a_figure_of_matplotlib_is_described_from_its_texts() -> None:
    drawn, axes = plots.subplots("Small messages pay for calls")
    axes.plot([1, 2], [3, 4], label="a ring")
    axes.plot([1, 2], [4, 3], label="a tree")
    axes.set(xlabel="message (B)", ylabel="time (s)", title="4 ranks", xscale="log")
    axes.legend()
    file = io.StringIO()
    drawn.savefig(file, format="svg")
    pyplot.close(drawn)
    assert alternatives.of_svg(file.getvalue()) == (
        "Small messages pay for calls. Horizontal axis: message (B). Vertical axis: time (s). "
        "Legend: a ring; a tree. In the figure: 4 ranks."
    )


def slider_figure() -> dict:
    figure = plots.figure("Stage 3 fits<br>on a device", x="ranks", y="memory (GB)")
    bars = {str(n): [{"type": "bar", "x": ["all"], "y": [n], "name": "states"}] for n in (1, 2)}
    plots.add_slider(figure, "ranks:", bars)
    return plots.interactive.bundle(figure)[plots.interactive.MIME]


def test_a_figure_of_plotly_is_described() -> None:
    assert alternatives.of_plotly(slider_figure()) == (
        "Stage 3 fits on a device. Horizontal axis: ranks. Vertical axis: memory (GB). "
        "Bars: states. Slider: ranks."
    )


def test_an_axis_without_a_title_is_described_by_its_texts() -> None:
    layout = {"xaxis": {"title": {"text": ""}, "ticktext": ["8 B", "2 KiB"]}, "yaxis": {}}
    traces = [{"type": "bar", "y": ["GPipe", "inter-<br>leaved"], "x": [4, 3]}]
    description = alternatives.of_plotly({"data": traces, "layout": layout})
    assert description == "Horizontal axis: 8 B; 2 KiB. Vertical axis: GPipe; interleaved."
    drawn, axes = plots.subplots("Stage 3 saves most")
    axes.bar(["stage 1", "stage 3"], [4, 3])
    file = io.StringIO()
    drawn.savefig(file, format="svg")
    pyplot.close(drawn)
    assert alternatives.of_svg(file.getvalue()) == (
        "Stage 3 saves most. Horizontal axis: stage 1; stage 3."
    )


def test_only_what_a_figure_shows_at_first_is_described() -> None:
    parts = {"visible": {"visible": True}, "faded": {"opacity": 0}, "hidden": {"visible": False}}
    traces = [{"name": f"ring, {name}", **settings} for name, settings in parts.items()]
    description = alternatives.of_plotly({"data": traces, "layout": {}})
    assert description == "Curves: ring, visible."


def test_long_lists_are_cut() -> None:
    traces = [{"type": "scatter", "name": f"bucket {i}"} for i in range(20)]
    description = alternatives.of_plotly({"data": traces, "layout": {}})
    assert description.endswith("bucket 11; and more.")


def test_what_confuses_a_screen_reader_is_corrected() -> None:
    text = '<th class="head"><p></p></th><th class="head"><p>Time</p></th><div role="list">'
    for wrong, right in CORRECTIONS:
        text = wrong.sub(right, text)
    assert text == '<td><p></p></td><th class="head"><p>Time</p></th><div>'


def test_a_formula_stays_with_the_comma_after_it() -> None:
    formula = r'<span class="math notranslate nohighlight">\(v\)</span>'
    text = f"<p>divides it by {formula}, and {formula} is small</p>"
    for wrong, right in CORRECTIONS:
        text = wrong.sub(right, text)
    assert text == (
        f'<p>divides it by <span class="with-formula">{formula},</span> and {formula} is small</p>'
    )
