"""The figures of chapter 06 show the formats correctly."""

import math
from itertools import product
from typing import Any

import pytest
from matplotlib.patches import Rectangle

from parlab.costs.mixed_precision import shares
from parlab.formats import BF16, E4M3, E5M2, FORMATS, FP16
from parlab.plots import mixed_precision as pictures

EXPONENTS = {-31: 10.0, -20: 60.0, -10: 25.0, -2: 5.0}
CHOICES, SCALES = [FP16, BF16], [0, 8, 20]


def test_a_box_for_each_bit() -> None:
    [axes] = pictures.bits("Bits", FORMATS).axes
    for row, of in enumerate(FORMATS):
        boxes = [p for p in axes.patches if round(p.get_y() + 0.35) == row]
        assert len(boxes) == of.bits
        colours = [box.get_facecolor() for box in boxes]
        assert len(set(colours)) == 3
        assert colours.count(colours[1]) == of.exponent_bits
        assert colours.count(colours[-1]) == of.mantissa_bits


def test_bars_reach_from_the_smallest_number_to_the_largest() -> None:
    [axes] = pictures.ranges("Ranges", FORMATS).axes
    for row, of in enumerate(FORMATS):
        bars = [
            p for p in axes.patches
            if isinstance(p, Rectangle) and round(p.get_y() + p.get_height() / 2) == row
        ]  # fmt: skip
        ends = sorted(x for bar in bars for x in (bar.get_x(), bar.get_x() + bar.get_width()))
        right = [of.smallest_subnormal, of.smallest_normal, of.smallest_normal, of.largest]
        assert ends == pytest.approx([math.log2(x) for x in right])


def test_a_mark_for_each_number() -> None:
    assert pictures.numbers(E5M2, 2.0)[-5:] == [1.0, 1.25, 1.5, 1.75, 2.0]
    assert pictures.numbers(E5M2, 1.9)[-1] == 1.75
    # 8 subnormal numbers including 0, then 8 in each octave from 2^-6 up to 1, and 1 itself.
    assert len(pictures.numbers(E4M3, 1.0)) == 8 + 6 * 8 + 1
    [axes] = pictures.number_lines("Numbers", [E4M3, E5M2], 2.0).axes
    for collection, of in zip(axes.collections, (E4M3, E5M2), strict=True):
        marks = [segment[0][0] for segment in collection.get_segments()]
        assert marks == pictures.numbers(of, 2.0)


def test_precision_is_epsilon_where_numbers_are_normal() -> None:
    [half, small] = pictures.precision("Steps", [FP16, E4M3], range(-30, 20)).data
    steps = dict(zip(half.x, half.y, strict=True))
    assert min(steps) == -24
    assert max(steps) == 15
    assert {steps[e] for e in range(-14, 16)} == {FP16.epsilon}
    assert steps[-24] == 1
    assert max(small.x) == 8


def test_windows_reach_from_end_to_end() -> None:
    window = pictures.Window(2.0**-8, 2.0**4, "a", "b", (2.0**-7, 2.0**3))
    cases = {"equal": {"before": window, "after": window}, "independent": {"before": window}}
    drawn = pictures.windows("Windows", cases, (2.0**-10, 2.0**6), ("x", "y"))
    for axes, rows in zip(drawn.axes, cases.values(), strict=True):
        bars = [p for p in axes.patches if isinstance(p, Rectangle)]
        assert [(bar.get_x(), bar.get_width()) for bar in bars] == len(rows) * [(-8, 12)]
        *limits, points = [line.get_xdata() for line in axes.lines][: 2 + 1]
        assert [x[0] for x in limits] == [-10, 6]
        assert list(points) == [-7, 3]
        assert {"$a$", "$b$", "12 powers of two"} <= {text.get_text() for text in axes.texts}


@pytest.fixture
def figure() -> Any:
    return pictures.survival("Survival", EXPONENTS, CHOICES, SCALES, -40, (0, 0))


def move(figure: Any, slider: int, position: int) -> None:
    """Do what Plotly does when a reader moves a slider to a position."""
    [changes, indices] = figure.layout.sliders[slider].steps[position].args
    for name, values in changes.items():
        for index, value in zip(indices, values, strict=True):
            figure.data[index][name] = value


def test_each_choice_shows_its_shares(figure: Any) -> None:
    assert figure.layout.barmode == "overlay"
    for (i, of), (j, shift) in product(enumerate(CHOICES), enumerate(SCALES)):
        move(figure, 1, j)
        move(figure, 0, i)
        shown = [bar for bar in figure.data if bar.visible and bar.opacity]
        assert len(shown) == len(pictures.FATES)
        become = shares(EXPONENTS, of, 2.0**shift)
        places = []
        for bar, name in zip(shown, pictures.FATES, strict=True):
            share = getattr(become, name)
            assert bar.name == f"{name} {share:.1%}"
            assert sum(y for y in bar.y if y is not None) == pytest.approx(share)
            places += [x for x in bar.x if x is not None]
        assert sorted(places) == [e + shift for e in EXPONENTS]
