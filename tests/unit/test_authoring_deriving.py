"""Deriving a learner's copy and solutions from a source: what is kept, and equal bytes."""

import json
from pathlib import Path

import nbformat
import pytest

from parlab_staff.course.lab import Lab
from parlab_staff.course.percent_source import read_lab
from parlab_staff.notebooks.make import lab_notebook, solution_notebook, to_text
from tests.support.authoring_course import SOURCE, TinyCourse


@pytest.fixture
def course(tmp_path: Path) -> TinyCourse:
    return TinyCourse(tmp_path)


@pytest.fixture
def lab(course: TinyCourse) -> Lab:
    return read_lab(course.source)


def cell(notebook: nbformat.NotebookNode, cell_id: str) -> nbformat.NotebookNode:
    [found] = [c for c in notebook.cells if c.id == cell_id]
    return found


def test_each_region_becomes_an_error_at_its_indentation(lab: Lab) -> None:
    assert cell(lab_notebook(lab), "exercise-add").source == (
        "def add(a: int, b: int) -> int:\n"
        '    """The sum of `a` and `b`."""\n'
        "    if a is None:\n"
        '        raise NotImplementedError("exercise add: not done yet")\n'
        '    raise NotImplementedError("exercise add: not done yet")'
    )


def test_the_solution_keeps_its_code_without_the_markers(lab: Lab) -> None:
    exercise = cell(solution_notebook(lab), "exercise-add")
    assert exercise.source == (
        "def add(a: int, b: int) -> int:\n"
        '    """The sum of `a` and `b`."""\n'
        "    if a is None:\n"
        "        return b\n"
        "    total = a + b  # the secret of adding\n"
        "\n"
        "    return total"
    )
    assert exercise.metadata == {"tags": ["exercise", "hide-input"], "exercise": "add"}


def test_hidden_checks_and_solution_cells_are_only_in_the_solutions(lab: Lab) -> None:
    learner, solution = lab_notebook(lab), solution_notebook(lab)
    only_there = {c.id for c in solution.cells} - {c.id for c in learner.cells}
    assert only_there == {"hidden-check-add", "after-add-solution-1"}
    assert "commutative" not in to_text(learner)
    assert "JSON" not in to_text(learner)


def test_everything_else_is_the_same_in_both_and_in_order(lab: Lab) -> None:
    learner, solution = lab_notebook(lab), solution_notebook(lab)
    ids = [c.id for c in learner.cells]
    assert ids == [
        "start-markdown-1",
        "start-code-1",
        "start-markdown-2",
        "exercise-add",
        "check-add",
        "after-add-code-1",
    ]
    assert ids == [c.id for c in solution.cells if c.id in ids]
    for name in set(ids) - {"exercise-add"}:
        assert cell(learner, name) == cell(solution, name)
    assert cell(learner, "check-add").metadata == {
        "tags": ["check"],
        "exercise": "add",
        "points": 3,
    }
    assert cell(learner, "start-markdown-1").source.startswith(
        "# Lab 01: Adding\n\nWith $a + b$, and a table:\n\n| a | b |\n"
    )


def test_rank_cells_and_magics_become_magics(course: TinyCourse) -> None:
    course.source.write_text(
        '# %% tags=["exercise"] exercise="add"\n# %%px --timeout 90\ndef add(a, b):\n'
        "    # BEGIN SOLUTION\n    return a + b\n    # END SOLUTION\n\n\n"
        "# %%\n# %matplotlib inline\n"
    )
    learner = lab_notebook(read_lab(course.source))
    assert [c.source for c in learner.cells] == [
        "%%px --timeout 90\ndef add(a, b):\n"
        '    raise NotImplementedError("exercise add: not done yet")',
        "%matplotlib inline",
    ]


def test_the_learners_copy_has_no_outputs_and_no_versions(lab: Lab) -> None:
    learner = lab_notebook(lab)
    code = [c for c in learner.cells if c.cell_type == "code"]
    assert all(not c.outputs and c.execution_count is None for c in code)
    assert learner.metadata.kernelspec.name == "python3"
    assert "version" not in learner.metadata.language_info
    assert learner.nbformat == 4 and learner.nbformat_minor == 5


def test_the_same_source_gives_the_same_bytes(course: TinyCourse, tmp_path: Path) -> None:
    course.build("--no-execute")
    (tmp_path / "elsewhere").mkdir()
    elsewhere = TinyCourse(tmp_path / "elsewhere")
    elsewhere.build("--no-execute")
    assert course.lab.read_bytes() == elsewhere.lab.read_bytes()
    before = course.lab.read_bytes()
    course.lab.unlink()
    course.build("--no-execute")
    assert course.lab.read_bytes() == before
    text = to_text(solution_notebook(read_lab(course.source)))
    assert text == to_text(solution_notebook(read_lab(elsewhere.source)))


def test_a_new_exercise_changes_no_other_cells_id(course: TinyCourse) -> None:
    before = [c.id for c in read_lab(course.source).cells]
    course.edit(
        "# %% [markdown]\n# ## 1. Add\n",
        '# %% tags=["exercise"] exercise="first"\ndef first():\n    # BEGIN SOLUTION\n'
        "    return 1\n    # END SOLUTION\n\n\n# %% [markdown]\n# ## 1. Add\n",
    )
    after = [c.id for c in read_lab(course.source).cells]
    assert set(before) - set(after) == {"start-markdown-2"}  # it is now after the first exercise
    assert set(after) - set(before) == {"exercise-first", "after-first-markdown-1"}


def test_a_stub_never_passes_silently(lab: Lab) -> None:
    namespace: dict = {}
    exec(cell(lab_notebook(lab), "exercise-add").source, namespace)
    with pytest.raises(NotImplementedError, match="exercise add"):
        namespace["add"](None, 1)
    with pytest.raises(NotImplementedError, match="exercise add"):
        namespace["add"](1, 1)


def test_jupytexts_header_is_not_a_cell(course: TinyCourse) -> None:
    header = "# ---\n# jupyter:\n#   kernelspec:\n#     name: other\n# ---\n\n"
    course.source.write_text(header + SOURCE)
    learner = lab_notebook(read_lab(course.source))
    assert learner.cells[0].source.startswith("# Lab 01")
    assert learner.metadata.kernelspec.name == "python3"


def test_the_notebook_is_readable_json_with_a_line_for_each_line(course: TinyCourse) -> None:
    course.build("--no-execute")
    text = course.lab.read_text(encoding="utf-8")
    assert "✓ add" in text  # not as an escape sequence, because people read notebooks in reviews
    assert isinstance(json.loads(text)["cells"][0]["source"], list)
    assert text.endswith("}\n")
