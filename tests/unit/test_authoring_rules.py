"""All mistakes of an author are reported at once, each with its file and line."""

from pathlib import Path

import pytest

from tests.support.authoring_course import SOURCE, TinyCourse

EXERCISE = '# %% tags=["exercise"] exercise="add"'
CHECK = '# %% tags=["check"] exercise="add" points=3'
HIDDEN = '# %% tags=["hidden-check"] exercise="add" points=1.5'


@pytest.fixture
def course(tmp_path: Path) -> TinyCourse:
    return TinyCourse(tmp_path)


def line_of(text: str, course: TinyCourse, occurrence: int = 1) -> int:
    """Return the number of the line that starts with `text` in the course's source."""
    lines = course.source.read_text().splitlines()
    return [n for n, line in enumerate(lines, 1) if line.startswith(text)][occurrence - 1]


def problems(course: TinyCourse, capsys: pytest.CaptureFixture) -> list[str]:
    """Return the lines that the command prints. It must fail, and write nothing."""
    capsys.readouterr()
    assert course.build("--no-execute") == 1
    assert not course.lab.exists()
    assert course.build("--check") == 1
    printed = capsys.readouterr().out.splitlines()
    assert printed[: len(printed) // 2] == printed[len(printed) // 2 :], (
        "--check tells something else"
    )
    return printed[: len(printed) // 2]


def test_a_right_source_has_no_problems(course: TinyCourse) -> None:
    assert course.build("--no-execute") == 0


# For each mistake: the replaced and the new text, the start of the reported line, and a part of the
# message.
MISTAKES = {
    "two folds without a line between": (
        "# </details>\n",
        "# </details>\n# <details><summary>Hint 2</summary>\n#\n# Add.\n# </details>\n",
        ("# <details><summary>Hint 2", "<details> needs an empty line above it"),
    ),
    "a fold in a paragraph": (
        "# </details>\n",
        "# </details>\n# And then?\n",
        ("# </details>", "</details> needs an empty line below it"),
    ),
    "begin without end": (
        "    return total\n    # END SOLUTION\n",
        "    return total\n",
        ("    # BEGIN SOLUTION", "BEGIN SOLUTION without END SOLUTION in the same cell"),
    ),
    "end without begin": (
        "    # BEGIN SOLUTION\n    total",
        "    total",
        ("    # END SOLUTION", "END SOLUTION without BEGIN SOLUTION"),
    ),
    "nested": (
        "    total = a + b",
        "    # BEGIN SOLUTION\n    total = a + b",
        ("    # BEGIN SOLUTION", 2, "regions do not nest"),
    ),
    "misspelt": (
        "        # BEGIN SOLUTION\n",
        "        # Begin_Solution:\n",
        ("        # Begin_Solution:", "write markers as a line of their own"),
    ),
    "end indented otherwise": (
        "        # END SOLUTION\n",
        "    # END SOLUTION\n",
        ("    # END SOLUTION", "END SOLUTION is not indented as its BEGIN SOLUTION"),
    ),
    "empty": (
        "        return b\n",
        "\n",
        ("        # BEGIN SOLUTION", "nothing between BEGIN SOLUTION and END SOLUTION"),
    ),
    "not whole statements": (
        "        # BEGIN SOLUTION\n        return b\n        # END SOLUTION\n",
        "        # BEGIN SOLUTION\n        return (\n        # END SOLUTION\n            b)\n",
        ("        # BEGIN SOLUTION", "a region is whole statements"),
    ),
    "region in another cell": (
        "add(1, 1)\n",
        "# BEGIN SOLUTION\nadd(1, 1)\n# END SOLUTION\n",
        ("# BEGIN SOLUTION", "marker outside an exercise cell"),
    ),
    "region in markdown": (
        "# Adding is comm",
        "# BEGIN SOLUTION\n# Adding is comm",
        ("# BEGIN SOLUTION", "marker outside an exercise cell"),
    ),
    "region at the top level": (
        f"{EXERCISE}\n",
        f"{EXERCISE}\n# BEGIN SOLUTION\nx = 1\n# END SOLUTION\n",
        ("# BEGIN SOLUTION", "a region at the cell's top level"),
    ),
    "key with capitals": (
        EXERCISE,
        EXERCISE.replace('"add"', '"Add"'),
        (EXERCISE[:30], "exercise='Add' is not snake_case"),
    ),
    "key without quotes": (
        EXERCISE,
        EXERCISE.replace('"add"', "add"),
        (EXERCISE[:30], "cannot read this cell line"),
    ),
    "long key": (
        EXERCISE,
        EXERCISE.replace('"add"', f'"{"a" * 41}"'),
        (EXERCISE[:30], "is longer than 40 characters"),
    ),
    "no key": (
        EXERCISE,
        '# %% tags=["exercise"]',
        ('# %% tags=["exercise"]', 'which exercise? add exercise="its_name" to this exercise'),
    ),
    "a long cell that learners only run": (
        "# %%\nadd(1, 1)",
        "# %%\n" + "add(1, 1)\n" * 21,
        ("# %%", 8, "a cell of 21 lines that learners only run"),
    ),
    "key on a plain cell": (
        "# %%\nadd(1, 1)",
        '# %% exercise="add"\nadd(1, 1)',
        ('# %% exercise="add"', "exercise= without the tag"),
    ),
    "no points": (CHECK, CHECK[:-9], (CHECK[:-9], "a check has points: add points=1")),
    "points as text": (
        CHECK,
        CHECK.replace("=3", '="3"'),
        (CHECK[:20], "points must be a number of at least 0, not '3'"),
    ),
    "points below 0": (
        HIDDEN,
        HIDDEN.replace("1.5", "-1"),
        (HIDDEN[:20], "points must be a number of at least 0, not -1"),
    ),
    "hidden check for nothing": (
        HIDDEN,
        HIDDEN.replace("1.5", "0"),
        (HIDDEN[:20], "a hidden-check without points is not compared: give it some"),
    ),
    "no hidden check": (
        f"{HIDDEN}\n",
        "# %%\n",
        (EXERCISE, "exercise 'add' has points and no hidden check: add one"),
    ),
    "points true": (
        HIDDEN,
        HIDDEN.replace("1.5", "true"),
        (HIDDEN[:20], "points must be a number of at least 0, not True"),
    ),
    "points on an exercise": (
        EXERCISE,
        f"{EXERCISE} points=3",
        (EXERCISE, "points belong to the check of an exercise"),
    ),
    "unknown tag": (
        '["check"]',
        '["chek"]',
        ('# %% tags=["chek"]', "unknown tag 'chek': did you mean 'check'?"),
    ),
    "timed, and no exercise": (
        '["check"]',
        '["check", "timed"]',
        ('# %% tags=["check", ', "the tag 'timed' belongs to an exercise"),
    ),
    "two roles": (
        '["check"]',
        '["check", "solution"]',
        ('# %% tags=["check", ', "one role a cell, not check and solution"),
    ),
    "the same tag twice": (
        '["check"]',
        '["check", "check"]',
        ('# %% tags=["check", ', "cannot read this cell line"),
    ),
    "unknown metadata": (
        "points=3",
        "points=3 timeout=5",
        (CHECK, "unknown 'timeout'"),
    ),
    "a tag that is no text": (
        '["nbval-ignore-output"]',
        "[3]",
        ("# %% tags=[3]", "cannot read this cell line"),
    ),
    "tags as text": (
        '["nbval-ignore-output"]',
        '"nbval-ignore-output"',
        ('# %% tags="nbval', "cannot read this cell line"),
    ),
    "text on the cell line": (
        "# %%\nadd(1, 1)",
        "# %% The sum\nadd(1, 1)",
        ("# %% The sum", "cannot read this cell line"),
    ),
    "exercise in markdown": (
        '# %% [markdown] tags=["solution"]',
        '# %% [markdown] tags=["check"] exercise="add" points=1',
        ('# %% [markdown] tags=["check"]', "the tag 'check' on a markdown cell"),
    ),
    "raw cell": (
        '# %% [markdown] tags=["solution"]',
        "# %% [raw]",
        ("# %% [raw]", "a raw cell: labs have code and Markdown cells"),
    ),
    "check of another exercise": (
        HIDDEN,
        HIDDEN.replace('"add"', '"ad"'),
        (
            HIDDEN[:20],
            "a hidden-check of 'ad', and no such exercise in this lab: did you mean 'add'",
        ),
    ),
    "check that is not compared": (
        '["check"]',
        '["check", "nbval-ignore-output"]',
        ('# %% tags=["check", ', "cannot be tagged 'nbval-ignore-output'"),
    ),
    "check that calls another": (
        "\ncheck.add(add)",
        "\ncheck.added(add)",
        (CHECK, "does not call check.add(…)"),
    ),
    "not Python": ("add(1, 1)", "add(1, 1", ("add(1, 1", "not Python: '(' was never closed")),
    "empty cell": ("add(1, 1)\n", "", ("# %%", 8, "an empty cell")),
    "text before the first cell": (
        "# %% [markdown]\n# # Lab 01",
        "x = 1\n# %% [markdown]\n# # Lab 01",
        ("x = 1", "text before the first # %% line"),
    ),
    "a cell line in a string": (
        "add(1, 1)\n",
        'print("""\n# %%\n""")\n',
        ("", 1, "a # %% line in a string or a code block"),
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_reported_with_its_line(
    mistake: str, course: TinyCourse, capsys: pytest.CaptureFixture
) -> None:
    old, new, (start, *occurrence, message) = MISTAKES[mistake]
    course.edit(old, new)
    line = line_of(start, course, *occurrence)
    printed = problems(course, capsys)
    assert any(
        t.startswith(f"solutions/01_adding.py:{line}: ") and message in t for t in printed
    ), f"nothing at line {line} of\n" + "\n".join(printed)


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


def test_all_mistakes_are_reported_at_once_in_the_order_of_lines(
    course: TinyCourse, capsys: pytest.CaptureFixture
) -> None:
    course.edit("points=3", "points=-3")
    course.edit('["nbval-ignore-output"]', '["nbval"]')
    course.edit("        return b\n", "\n")
    course.edit("add(1, 1)", "add(1, 1")
    printed = problems(course, capsys)
    assert len(printed) == 4
    lines = [int(text.split(":")[1]) for text in printed]
    assert lines == sorted(lines)


def test_a_source_that_is_not_text(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    course.source.write_bytes(b"# %%\nx = '\xff'\n")
    [printed] = problems(course, capsys)
    assert printed.startswith("solutions/01_adding.py:1: not UTF-8 text")


def test_a_source_of_another_name(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    (course.root / "solutions" / "adding.py").write_text("# %%\n1\n")
    assert problems(course, capsys) == [
        "solutions/adding.py:1: a lab's source is called NN_topic.py, as 01_mpi.py"
    ]


def test_an_unknown_lab_is_wrong_usage(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    with pytest.raises(SystemExit) as stopped:
        course.build("07_triton")
    assert stopped.value.code == 2
    assert "there is no lab '07_triton'; the labs are: 01_adding" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["01_adding", "adding", "01", "labs/01_adding.ipynb"])
def test_a_lab_can_be_named_in_several_ways(name: str, course: TinyCourse) -> None:
    assert course.build(name, "--no-execute") == 0
    assert course.lab.exists()


def _parts(course: TinyCourse) -> tuple[str, str, str, str]:
    """Return the source before the exercise, its cell, its check's cell, and the rest."""
    text = course.source.read_text()
    exercise, check = text.index(EXERCISE), text.index(CHECK)
    rest = text.index(HIDDEN)
    return text[:exercise], text[exercise:check], text[check:rest], text[rest:]
