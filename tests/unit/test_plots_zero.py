"""The figure of bytes on a device, with three independent controls."""

from itertools import product
from typing import Any

import pytest

from parlab.costs import zero
from parlab.plots.zero import KINDS, memory_explorer, who_holds_what

MODELS, WORLDS = {"1 billion": 1e9, "2 billion": 2e9}, [1, 4]
RECIPES = {"mixed": zero.MIXED_ADAM, "float32": zero.FLOAT32_ADAM}


@pytest.fixture
def figure() -> Any:
    return memory_explorer("Bytes", MODELS, WORLDS, RECIPES, {"80 GB": 80e9})


def move(figure: Any, slider: int, position: int) -> None:
    """Do what Plotly does when a reader moves a slider to a position."""
    [changes, indices] = figure.layout.sliders[slider].steps[position].args
    for name, values in changes.items():
        for index, value in zip(indices, values, strict=True):
            figure.data[index][name] = value


def shown(figure: Any) -> list[list[float]]:
    """Return the heights of the visible bars. No other bar reacts to the pointer."""
    bars = [bar for bar in figure.data if bar.y != (None,)]
    assert all((bar.hoverinfo == "all") == bool(bar.opacity) for bar in bars)
    return [list(bar.y) for bar in bars if bar.visible and bar.opacity and bar.offset < 1]


def test_each_choice_shows_its_bars_after_any_other(figure: Any) -> None:
    for i, j, k in [*product((0, 1), repeat=3), (0, 0, 0)]:
        for slider, position in ((2, k), (0, i), (1, j)):
            move(figure, slider, position)
        psi, n, recipe = list(MODELS.values())[i], WORLDS[j], list(RECIPES.values())[k]
        held = [zero.model_states(psi, n, stage, recipe) for stage in zero.STAGES]
        assert shown(figure) == [[of[kind] / 1e9 for of in held] for kind in KINDS]


def test_the_explorer_begins_with_the_first_choices(figure: Any) -> None:
    assert shown(figure) == [[2.0] * 4, [2.0] * 4, [12.0] * 4]


def test_the_ranks_shards_fill_one_copy_together() -> None:
    axes = who_holds_what("Shards", zero.MIXED_ADAM, ranks=3).axes[0]
    filled = [patch for patch in axes.patches if patch.get_fill()]
    for row, copies in enumerate([(3, 3, 3), (3, 3, 1), (3, 1, 1), (1, 1, 1)]):
        widths = [p.get_width() for p in filled if p.get_y() == -row]
        whole = [2 * 2.2 / 16, 2 * 2.2 / 16, 12 * 2.2 / 16]
        by_kind = [sum(widths[kind::3]) for kind in range(3)]
        assert by_kind == pytest.approx([c * w for c, w in zip(copies, whole, strict=True)])
