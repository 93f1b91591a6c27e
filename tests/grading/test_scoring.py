"""Points, computed from the outcomes of cells, without a kernel."""

from math import inf
from pathlib import Path

import pytest
from nbformat import NotebookNode

from parlab.cluster import ending
from parlab_staff.grading.graded_lab import GradedExercise
from parlab_staff.grading.match import Matched, match
from parlab_staff.grading.rebuild import build
from parlab_staff.grading.run import CellRun, NotebookRun
from parlab_staff.grading.score import WITHHELD, broken, report_causes, score, score_exercise
from parlab_staff.grading.submissions import Submission
from tests.grading.copies import Copy
from tests.grading.plain_lab import InProcess, in_process_lab

LINE = "✓ add: two numbers"
EXPECTED = {"sum": [3, 5]}


def exercise(**hidden: tuple[float, dict]) -> GradedExercise:
    return GradedExercise("add", "exercise-add", frozenset({"add"}), {"check-add": 3.0}, hidden)


def scored(one: GradedExercise, line: str, shown: dict[str, list]) -> tuple[str, float | None]:
    """Return status and points if the check prints `line` and hidden checks display `shown`."""
    cells = {one.cell: CellRun("ok"), "check-add": CellRun("ok", text=line)}
    cells |= {cell: CellRun("ok", json=values) for cell, values in shown.items()}
    result = score_exercise(one, Matched({"add": "def add(): ..."}), NotebookRun(cells))
    return str(result.status), result.points


@pytest.mark.parametrize(
    ("line", "shown", "expected"),
    [
        (LINE, [EXPECTED], ("passed", 4)),
        ("", [EXPECTED], ("partial", 1)),
        (LINE, [{"sum": [3, 6]}], ("partial", 0.5)),
        (LINE, [{}], ("failed", 0)),
        (LINE, [], ("failed", 0)),
        (LINE, [EXPECTED, EXPECTED], ("failed", 0)),
    ],
)
def test_a_visible_check_counts_if_all_hidden_values_are_right(
    line: str, shown: list, expected: tuple[str, float]
) -> None:
    assert scored(exercise(hidden=(1.0, EXPECTED)), line, {"hidden": shown}) == expected


@pytest.mark.parametrize(
    ("line", "shown", "parts"),
    [
        (LINE, EXPECTED, ""),
        ("", EXPECTED, "check 0 of 3, further check 1 of 1"),
        (LINE, {"sum": [3, 6]}, "check 0 of 3, further check 0.5 of 1; the check's points count"),
    ],
)
def test_the_parts_of_the_points_are_reported(line: str, shown: dict, parts: str) -> None:
    one = exercise(hidden=(1.0, EXPECTED))
    cells = {one.cell: CellRun("ok"), "check-add": CellRun("ok", text=line)}
    cells["hidden"] = CellRun("ok", json=[shown])
    result = score_exercise(one, Matched({"add": "def add(): ..."}), NotebookRun(cells))
    assert result.parts.startswith(parts) and bool(result.parts) == bool(parts)


def test_a_line_of_a_hidden_check_in_an_error_is_withheld() -> None:
    one = exercise(hidden=(1.0, EXPECTED))
    shown_text = "I saw\ncheck.show_values(sum=add(1, 2)) in\nthe cell"
    cells = {one.cell: CellRun("ok"), "hidden": CellRun("error")}
    cells["check-add"] = CellRun("error", ename="ValueError", evalue=shown_text)
    matched, secrets = Matched({"add": "def add(): ..."}), frozenset({"check.show_values(sum="})
    message = score_exercise(one, matched, NotebookRun(cells), secrets).message
    assert "show_values" not in message and "I saw" in message and WITHHELD in message


@pytest.mark.parametrize(
    ("hidden", "says"),
    [
        (CellRun("error", "AttributeError", "secret"), ": it ended with AttributeError."),
        (CellRun("error", "RankFailed", "ranks 1, 2: KeyError: secret"), ": it ended with KeyE"),
        (CellRun("error", "RankFailed", "secret"), ": it ended with RankFailed."),
        (CellRun("error", "DeadlineExceeded", "secret"), ": it did not end in time."),
        (CellRun("timeout", "RankInterrupted", "secret"), ": it did not end in time."),
        (CellRun("error", "RankDied", "Rank 1 died: secret"), ": the process of a rank ended."),
        (CellRun("died", evalue="secret"), ": its process ended."),
        (CellRun("error", "not a name", "secret"), "none of the values are right."),
        (CellRun("ok", json=[{}]), "none of the values are right."),
    ],
)
def test_the_end_of_a_hidden_check_is_reported_without_its_text(hidden: CellRun, says: str) -> None:
    one = exercise(hidden=(1.0, EXPECTED))
    cells = {one.cell: CellRun("ok"), "check-add": CellRun("ok", text=LINE), "hidden": hidden}
    message = score_exercise(one, Matched({"add": "def add(): ..."}), NotebookRun(cells)).message
    assert says in message and "secret" not in message


@pytest.mark.parametrize(
    "text",
    [
        ending.INTACT,
        f"Ranks 1-3 then finished the cell. {ending.COMM_WORKS}",
        ending.replaced_text(["x"]),
    ],
)
def test_the_state_of_the_ranks_is_not_in_the_feedback(text: str) -> None:
    one = exercise(hidden=(1.0, EXPECTED))
    shown_text = f"all ranks: add: it hangs\n{text}"
    cells = {one.cell: CellRun("ok"), "hidden": CellRun("error")}
    cells["check-add"] = CellRun("error", "RankFailed", shown_text)
    message = score_exercise(one, Matched({"add": "def add(): ..."}), NotebookRun(cells)).message
    assert "it hangs" in message and text not in message


def test_a_lab_cell_that_takes_too_long_says_which_option_to_change() -> None:
    lab = in_process_lab()
    matched = match(lab, Copy(lab).notebook)
    cells = {cell.id: CellRun() for cell in lab.cells}
    cells[next(iter(cells))] = CellRun("timeout", "RankInterrupted", "Interrupted.")
    assert "--cell-timeout" in broken(lab, matched, NotebookRun(cells))


def test_a_submission_that_could_not_be_graded_says_why(tmp_path: Path) -> None:
    class NoKernel(InProcess):
        def run(self, student: str, notebook: NotebookNode, seconds: float = inf) -> NotebookRun:
            return NotebookRun({}, broken="the kernel did not start: no room")

    grader = NoKernel(in_process_lab())
    path = tmp_path / "ada.ipynb"
    path.write_text(Copy(grader.lab).text())
    result = grader.grade(Submission("ada", path))
    assert (result.status, result.points) == ("grader_error", None)
    assert result.notes == ["the kernel did not start: no room"]


def test_a_printed_line_alone_earns_nothing() -> None:
    """Code can print the same line as a check, so only values prove anything."""
    assert scored(exercise(), LINE, {}) == ("failed", 0)


def test_an_exercise_that_a_check_uses_is_named_as_the_cause() -> None:
    """The answer to `mean` is right and calls nothing, but its hidden check calls `total`."""
    lab = in_process_lab()
    sources = {
        "total": "def twice(function):\n    return function([2, 2]) / total([2])\n"
        "check.show_values(total=total([4, 7, 11]), count=3)",
        "mean": "check.show_values(mean=twice(mean), ranks=cluster.ranks)",
    }
    for cell in lab.solution.cells:
        if "hidden-check" in cell.metadata.get("tags", []) and cell.metadata.exercise in sources:
            cell.source = f"%%px\n{sources[cell.metadata.exercise]}"
    copy = Copy(lab).answer("total", "%%px\ndef total(values):\n    return 7\n")
    copy.answer("mean", "%%px\ndef mean(values):\n    return sum(values) / len(values)\n")
    matched = match(lab, copy.notebook)
    ran = InProcess(lab).run("student", build(lab, matched))
    results = score(lab, matched, ran)
    report_causes(lab, matched, results)
    mean = next(e for e in results if e.key == "mean")
    assert mean.status == "partial" and mean.notes[-1] == "it may have failed because of total"
