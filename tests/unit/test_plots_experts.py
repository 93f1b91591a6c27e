"""The picture of the experts' load."""

from parlab.plots import experts

EVEN = [[0.25, 0.25, 0.25, 0.25]] * 3
ONE = [[0.4, 0.3, 0.2, 0.1], [0.1, 0.1, 0.7, 0.1], [0.0, 0.0, 1.0, 0.0]]


def heights(band, step: int) -> tuple[float, float]:
    """Return where a band begins and ends in a step."""
    path = band.get_paths()[0]
    ys = [y for x, y in path.vertices if x == step]
    return min(ys), max(ys)


def test_bands_fill_the_panel_with_the_busiest_expert_at_the_bottom() -> None:
    drawn, axes = experts.expert_load("A few work", {"even": EVEN, "one": ONE})
    assert drawn._suptitle.get_text() == "A few work"
    assert [panel.get_title() for panel in axes] == ["even", "one"]
    even, one = (panel.collections for panel in axes)
    assert [heights(band, 0) for band in even] == [(i / 4, (i + 1) / 4) for i in range(4)]
    assert heights(one[0], 2) == (0.0, 1.0)
    assert heights(one[0], 1) == (0.0, 0.7)
    assert len(one) == 4
