"""The figures of what a pipeline's ranks hold show the given numbers and the right stages."""

from matplotlib.patches import Rectangle

from parlab.plots import pipeline_stages


def test_held_draws_measured_and_computed_numbers() -> None:
    measured = {"GPipe": {4: 4.1, 8: 8.2}, "1F1B": {4: 3.1, 8: 3.2}}
    formula = {"GPipe": {4: 4.0, 8: 8.0}, "1F1B": {4: 3.0, 8: 3.0}}
    [axes] = pipeline_stages.held("Held", measured, formula).axes
    lines = [(list(line.get_xdata()), list(line.get_ydata())) for line in axes.lines]
    assert lines[:4] == [
        ([4, 8], [4.1, 8.2]),
        ([4, 8], [4.0, 8.0]),
        ([4, 8], [3.1, 3.2]),
        ([4, 8], [3.0, 3.0]),
    ]
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["GPipe, measured", "1F1B, measured", "formula"]


def test_placements_number_the_stages_of_each_rank() -> None:
    looped, v_shaped, copies = pipeline_stages.placements("Stages", 4).axes

    def stages(axes, rank):
        boxes = [text for text in axes.texts if text.get_text() and text.get_position()[1] == rank]
        return [text.get_text() for text in sorted(boxes, key=lambda text: text.get_position())]

    for rank in range(4):
        assert stages(looped, rank) == [f"{rank}", f"{4 + rank}"]
        assert stages(v_shaped, rank) == [f"{rank}", f"{7 - rank}"]
        assert stages(copies, rank) == [f"{rank}", f"{3 - rank}"]
    for axes, arrows in ((looped, 7), (v_shaped, 7), (copies, 6)):
        assert len([patch for patch in axes.patches if isinstance(patch, Rectangle)]) == 8
        assert len([text for text in axes.texts if not text.get_text()]) == arrows
