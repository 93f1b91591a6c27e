"""Pictures of messages have colors for both themes, and only their cells display them."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text

from parlab.plots import NEUTRAL, states, topology
from parlab.plots import communication as pictures
from parlab.plots.look import ink

OWN = [[letter] * 4 for letter in "ABCD"]
SUM = [["ABCD"] * 4] * 4
PICTURES = {
    "collective": lambda: pictures.collective("All-reduce", OWN, SUM),
    "rounds": lambda: pictures.rounds("Tree", [[(0, 1)], [(0, 2), (1, 3)]], 4),
    "ring_rounds": lambda: pictures.ring_rounds("Ring", [OWN, SUM]),
    "waiting": lambda: pictures.waiting("Deadlock", [(0, 1), (1, 0)], 2, [0, 1]),
    "protocols": lambda: pictures.protocols("Eager"),
    "nodes": lambda: topology.nodes("Nodes", 2, 4),
    "subgroups": lambda: topology.subgroups("Split", 2, 4),
    "switches": lambda: topology.switches("Switches", {"all": 8, "ring": 1}),
}


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_readable_in_both_themes(name: str) -> None:
    before = plt.get_fignums()
    figure = PICTURES[name]()
    assert isinstance(figure, Figure)
    assert plt.get_fignums() == before, "an open figure would be shown twice"
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    axes_off = [text for text in shown if text.axes is None or text in _own_texts(text)]
    colours = {to_hex(text.get_color()) for text in axes_off}
    # Black and white are used only on colored cells.
    assert colours <= {NEUTRAL, "#000000", "#ffffff"}


def _own_texts(text: Text) -> list[Text]:
    """Return the texts of the picture, without ticks of hidden axes."""
    return [*text.axes.texts, text.axes.title]


@pytest.mark.parametrize("name", ["collective", "ring_rounds"])
def test_letters_have_enough_contrast_on_each_color_of_their_cell(name: str) -> None:
    for axes in PICTURES[name]().axes:
        cells = [p for p in axes.patches if isinstance(p, Rectangle) and p.get_facecolor()[3]]
        assert all(cell.get_facecolor()[3] == 1 for cell in cells), "the page would shine through"
        for text in axes.texts:
            x, y = text.get_position()
            below = [
                p
                for p in cells
                if p.get_x() - 1 < x < p.get_x() + 1 and abs(p.get_y() + 0.38 - y) < 0.1
            ]
            if to_hex(text.get_color()) != NEUTRAL:
                assert below
                assert {ink(to_hex(cell.get_facecolor())) for cell in below} == {text.get_color()}


def test_sums_and_chunks_are_named() -> None:
    texts = {t.get_text() for t in PICTURES["collective"]().findobj(Text)}
    assert {"A$_0$", "D$_3$", "Σ$_2$", "rank 3", "before", "after"} <= texts


def test_a_chunk_in_another_place_keeps_its_number() -> None:
    drawn = pictures.collective("All-to-all", OWN, [["A0", "B0", "C0", "D0"]] * 4)
    texts = [t.get_text() for t in drawn.axes[1].texts]
    assert "D$_0$" in texts
    assert "D$_3$" not in texts


@pytest.mark.parametrize("n", [2, 4, 8])
def test_algorithms_end_with_the_whole_sum(n: int) -> None:
    every = "ABCDEFGH"[:n]
    scattered = [[every if i == r else "" for i in range(n)] for r in range(n)]
    ring = states.ring_reduce_scatter(n)[-1]
    assert [ring[r][r] for r in range(n)] == [every] * n
    halving = states.halving_doubling(n)
    assert halving[len(halving) // 2] == scattered == states.ring_all_gather(n)[0]
    assert halving[-1] == states.ring_all_gather(n)[-1] == [[every] * n] * n
