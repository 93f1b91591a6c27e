"""An exercise has a region, a key of its own, and after it a check that the topic has."""

from pathlib import Path

import pytest

from tests.support.authoring_course import SOURCE, TinyCourse
from tests.support.authoring_problems import CHECK, EXERCISE, HIDDEN, line_of, problems


@pytest.fixture
def course(tmp_path: Path) -> TinyCourse:
    return TinyCourse(tmp_path)


def test_a_check_before_its_exercise(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    head, exercise, check, rest = _parts(course)
    course.source.write_text(head + check + exercise + rest)
    line, at = line_of(CHECK, course), line_of(EXERCISE, course)
    expected = f"solutions/01_adding.py:{line}: a check of 'add' before its exercise, at {at}"
    assert expected in problems(course, capsys)


def test_an_exercise_without_check(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    head, exercise, _, rest = _parts(course)
    course.source.write_text(head + exercise + rest)
    line = line_of(EXERCISE, course)
    assert problems(course, capsys) == [
        f"solutions/01_adding.py:{line}: exercise 'add' has no check"
    ]


def test_an_exercise_for_practice_needs_no_hidden_check(course: TinyCourse) -> None:
    course.edit(f"{HIDDEN}\n", "# %%\n")
    course.edit(CHECK, CHECK.replace("=3", "=0"))
    assert course.build("--no-execute") == 0


def test_an_exercise_without_region(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    lines = course.source.read_text().splitlines(keepends=True)
    course.source.write_text("".join(line for line in lines if " SOLUTION" not in line))
    line = line_of(EXERCISE, course)
    assert problems(course, capsys) == [
        f"solutions/01_adding.py:{line}: an exercise without # BEGIN SOLUTION … # END SOLUTION"
    ]


def test_a_key_twice_in_a_lab(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    head, exercise, check, rest = _parts(course)
    course.source.write_text(head + exercise + exercise + check + rest)
    first, second = line_of(EXERCISE, course, 1), line_of(EXERCISE, course, 2)
    assert problems(course, capsys) == [
        f"solutions/01_adding.py:{second}: exercise 'add' again: it is at line {first}"
    ]


def test_a_key_in_two_labs(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    other = course.root / "solutions" / "02_more.py"
    other.write_text(SOURCE)
    (course.root / "parlab" / "checks" / "more.py").write_text("from elsewhere import add\n")
    line = line_of(EXERCISE, course)
    assert problems(course, capsys) == [
        f"solutions/02_more.py:{line}: exercise 'add' is also in 01_adding.py:{line}"
    ]
    # If only the first lab is selected, the problem is reported there.
    assert course.build("01_adding", "--check") == 1
    printed = capsys.readouterr().out
    assert f"solutions/01_adding.py:{line}: exercise 'add' is also in 02_more.py:{line}" in printed


@pytest.mark.parametrize("module", [None, "def subtract(function): ...\n", "def add(\n"])
def test_a_key_that_the_checks_do_not_know(
    module: str | None, course: TinyCourse, capsys: pytest.CaptureFixture
) -> None:
    path = course.root / "parlab" / "checks" / "adding.py"
    if module is None:
        path.unlink()
    else:
        path.write_text(module)
    [printed] = problems(course, capsys)
    text = "has no function 'add'" if module == "def subtract(function): ...\n" else "no module"
    assert printed.startswith(f"solutions/01_adding.py:{line_of(CHECK, course)}: ")
    assert "parlab.checks.adding" in printed and text in printed


def test_checks_may_be_a_package_and_are_not_imported(course: TinyCourse) -> None:
    checks = course.root / "parlab" / "checks"
    (checks / "adding.py").unlink()
    (checks / "adding").mkdir()
    (checks / "adding" / "__init__.py").write_text(
        "import nothing_of_this_name\nfrom nothing_of_this_name import plus as add\n"
    )
    assert course.build("--no-execute") == 0


def _parts(course: TinyCourse) -> tuple[str, str, str, str]:
    """Return the source before the exercise, its cell, its check's cell, and the rest."""
    text = course.source.read_text()
    exercise, check = text.index(EXERCISE), text.index(CHECK)
    rest = text.index(HIDDEN)
    return text[:exercise], text[exercise:check], text[check:rest], text[rest:]
