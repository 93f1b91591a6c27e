"""The drawings of the ring show the work of each step, and the times that were measured."""

from parlab.plots.long_contexts import ring_times, ring_work


def test_a_bar_has_a_part_for_each_step() -> None:
    layouts = {"one": [[1.0], [1.0, 0.5]], "other": [[0.25, 0.25], [0.5, 1.0]]}
    figure, panels = ring_work("Work", layouts, "blocks")
    for panel, ranks in zip(panels, layouts.values(), strict=True):
        parts = [(part.get_x() + 0.4, part.get_y(), part.get_height()) for part in panel.patches]
        expected = [(r, sum(s[:i]), s[i]) for r, s in enumerate(ranks) for i in range(len(s))]
        assert [tuple(round(x, 6) for x in part) for part in parts] == expected
    assert [panel.get_title() for panel in panels] == list(layouts)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["step 0", "step 1"]


def test_models_are_lines_and_measurements_are_points() -> None:
    figure, axes = ring_times("Times", (0.5, 2), {"bound": [4, 7]}, {"ring": [4.1, 7.2]})
    model, ring = axes.lines
    assert (list(model.get_ydata()), list(ring.get_ydata())) == ([4, 7], [4.1, 7.2])
    assert model.get_linestyle() != "None" and ring.get_linestyle() == "None"
    assert "emulated" in axes.get_ylabel()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["bound", "ring"]
