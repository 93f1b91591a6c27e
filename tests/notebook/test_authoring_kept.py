"""Text that people typed into notebooks is never lost."""

from pathlib import Path

import nbformat
import pytest

from tests.support.authoring_course import TinyCourse, cells_by_id


@pytest.fixture
def course(tmp_path: Path) -> TinyCourse:
    return TinyCourse(tmp_path)


def type_into(path: Path, cell: int, text: str) -> None:
    """Edit a notebook as a learner does in JupyterLab, which also stores Python's version."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[cell].source += text
    notebook.metadata.language_info["version"] = "3.12.0"
    nbformat.write(notebook, path)


def test_a_learners_work_is_not_overwritten(
    course: TinyCourse, capsys: pytest.CaptureFixture
) -> None:
    assert course.build("--no-execute") == 0
    type_into(course.lab, 3, "\n    return a + b  # mine")
    own_lab = course.lab.read_bytes()
    for change in (False, True):
        if change:
            course.edit("# ## 1. Add\n", "# ## 1. Add two numbers\n")
        capsys.readouterr()
        assert course.build("--no-execute") == 1
        printed = capsys.readouterr().out
        assert "labs/01_adding.ipynb: kept, since someone edited it" in printed
        assert "--force" in printed
        assert course.lab.read_bytes() == own_lab
    assert course.build("--no-execute", "--force") == 0
    assert "# mine" not in course.lab.read_text()
    assert "Add two numbers" in course.lab.read_text()


def test_an_added_or_deleted_cell_is_work_too(course: TinyCourse) -> None:
    assert course.build("--no-execute") == 0
    notebook = nbformat.read(course.lab, as_version=4)
    notebook.cells.append(nbformat.v4.new_markdown_cell("My notes"))
    nbformat.write(notebook, course.lab)
    assert course.build("--no-execute") == 1
    assert "My notes" in course.lab.read_text()


def test_a_lab_that_was_only_run_is_derived_again(course: TinyCourse) -> None:
    assert course.build("--no-execute") == 0
    derived = course.lab.read_bytes()
    notebook = nbformat.read(course.lab, as_version=4)
    notebook.cells[1].outputs = [nbformat.v4.new_output("stream", text="4 ranks\n")]
    notebook.cells[1].execution_count = 1
    nbformat.write(notebook, course.lab)
    assert course.build("--check") == 1
    assert course.build("--no-execute") == 0
    assert course.lab.read_bytes() == derived


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"cells": [', "<<<<<<< HEAD\n"])
def test_a_file_that_is_no_notebook_is_kept(text: str, course: TinyCourse) -> None:
    course.lab.write_text(text)
    assert course.build("--no-execute") == 1
    assert course.lab.read_text() == text
    assert course.build("--no-execute", "--force") == 0
    cells_by_id(course.lab)


def test_solutions_edited_in_the_wrong_file_are_kept(
    course: TinyCourse, capsys: pytest.CaptureFixture
) -> None:
    assert course.build() == 0
    type_into(course.solution, 3, "\n# faster now")
    assert course.build() == 1
    assert "edit 01_adding.py instead" in capsys.readouterr().out
    assert "faster now" in course.solution.read_text()
