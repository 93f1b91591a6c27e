"""The figure of a mesh: each line connects the ranks of a group."""

import pytest

from parlab.plots.mesh import mesh_figure

MESH = {"pp": 2, "tp": 3}
GROUPS = {"pp": [[0, 3], [1, 4], [2, 5]], "tp": [[0, 1, 2], [3, 4, 5]]}


def places(axis) -> dict[str, tuple[float, float]]:
    """Return the position of each rank's number."""
    return {text.get_text(): text.get_position() for text in axis.texts}


def test_lines_connect_the_ranks_of_each_group() -> None:
    drawn = mesh_figure("Two stages", MESH, GROUPS)
    (axis,) = drawn.axes
    at = places(axis)
    assert list(at) == [str(rank) for rank in range(6)]
    lines = [line for line in axis.lines if line.get_marker() != "o"]
    ends = {tuple(map(tuple, line.get_xydata())) for line in lines}
    groups = [group for of_dim in GROUPS.values() for group in of_dim]
    assert ends == {tuple(at[str(rank)] for rank in group) for group in groups}
    looks = {(line.get_color(), line.get_linestyle()) for line in lines}
    assert len(looks) == len({look[0] for look in looks}) == 2
    (legend,) = drawn.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert names == ["tp: 2 groups of 3", "pp: 3 groups of 2"]


def test_the_last_dimension_goes_right_the_others_down_and_back() -> None:
    (axis,) = mesh_figure("A block", {"dp": 4, "pp": 3, "tp": 2}, {}).axes
    at = places(axis)
    right, down, back = (
        (at[rank][0] - at["0"][0], at[rank][1] - at["0"][1]) for rank in ("1", "2", "6")
    )
    assert right[0] > 0 and right[1] == 0
    assert down[0] == 0 and down[1] < 0
    assert back[0] > 0 and back[1] > 0
    positions = sorted(at.values())
    near = [
        abs(a[0] - b[0]) + abs(a[1] - b[1])
        for i, a in enumerate(positions)
        for b in positions[i + 1 :]
    ]
    assert min(near) > 0.6, "two ranks overlap"


def test_a_mesh_of_four_dimensions_is_refused() -> None:
    with pytest.raises(ValueError, match="4 dimensions"):
        mesh_figure("Too many", {"a": 1, "b": 1, "c": 1, "d": 2}, {})
