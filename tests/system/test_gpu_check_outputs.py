"""`make gpu-check` reads a notebook's cells and compares what they show with stored outputs."""

from pathlib import Path

import pytest

from parlab.runtime.notebook import read_cells
from parlab_staff.course.references import SOLUTIONS
from parlab_staff.gpu_check.cells import (
    named_ranks,
    printed,
    seconds,
    stored_values,
    targets,
)
from parlab_staff.gpu_check.compare import compared, judge
from parlab_staff.gpu_check.outcome import STATUSES, worst
from tests.support.gpu_check_labs import VALUES, cell, notebook, shows, stream


def test_a_cell_is_read_with_its_deadline_its_ranks_and_its_outputs(tmp_path: Path) -> None:
    shown = cell(
        "hidden-check-x",
        "check.show_values(x=1)",
        tags="hidden-check",
        outputs=[stream("[rank 0]\n"), shows(x=[1, 1])],
        magic="%%px --targets 0 --timeout 90",
    )
    _, setup, hidden = read_cells(notebook(tmp_path / "01_x.ipynb", shown))
    assert (setup.role, seconds(setup), targets(setup)) == (None, 60.0, None)
    assert (hidden.role, seconds(hidden), targets(hidden)) == ("hidden-check", 90.0, [0])
    assert stored_values(hidden) == {"x": [1, 1]}
    assert hidden.code == "# %%px --targets 0 --timeout 90\ncheck.show_values(x=1)"


def test_printed_lines_belong_to_the_ranks_of_their_group() -> None:
    text = "[rank 0]\none\ntwo\n[ranks 1, 2] three\n[rank 3]\n"
    assert printed(text) == {0: ["one", "two"], 1: ["three"], 2: ["three"]}
    assert printed("[all ranks] ✓ done\n") == {-1: ["✓ done"]}
    assert printed("[ranks 0, 2-4] four\n") == {rank: ["four"] for rank in (0, 2, 3, 4)}


def test_outputs_are_compared_if_they_are_of_the_same_number_of_ranks(tmp_path: Path) -> None:
    start = cell("ranks", "from parlab import cluster\ncluster.start(3)", magic="")
    values = cell("values", VALUES, tags="hidden-check", outputs=[shows(x=[0, 2, 4])])
    cells = read_cells(notebook(tmp_path / "01_x.ipynb", start, values))
    assert named_ranks(cells) == 3
    assert named_ranks(cells[:2]) is None

    def status(values: list[int]) -> str:
        reports = [{"status": "passed", "values": [{"x": values}]} for _ in values]
        return judge(cells[-1], reports, stored_ranks=3)["status"]

    assert status([0, 2, 4]) == "passed"
    assert status([0, 2, 5]) == "failed"
    assert status([1, 1]) == "passed", "other numbers of ranks have other outputs"


@pytest.mark.parametrize("lab", sorted(SOLUTIONS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_hidden_check_of_the_course_has_values_to_compare_with(lab: Path) -> None:
    hidden = [cell for cell in read_cells(lab) if cell.role == "hidden-check"]
    assert hidden
    assert all(isinstance(stored_values(cell), dict) for cell in hidden)


@pytest.mark.parametrize(
    ("got", "status"),
    [
        (["error 2e-04 of 1,024", "same: True"], "passed"),
        (["error 3.1e-03 of 4,096", "same: True"], "differs"),
        (["same: True"], "differs"),
        (["error 2e-04 of 1,024", "same: False"], "failed"),
        (["error nan of 1,024", "same: True"], "failed"),
        (["error  2e-04 of  1,024", "same:  True"], "passed"),
        (["error 3.1e-03 of      9", "same: True"], "differs"),
        (["error 2e-04 of 1,024", "same: True", "more"], "failed"),
        (["same: True", "error 2e-04 of 1,024"], "failed"),
    ],
)
def test_other_numbers_differ_and_other_words_fail(got: list[str], status: str) -> None:
    assert compared(got, ["error 2e-04 of 1,024", "same: True"])[0] == status


def test_the_worst_status_counts() -> None:
    assert worst(["passed", "skipped"]) == "passed"
    assert worst(STATUSES) == "crashed"
    assert worst([]) == "skipped"
