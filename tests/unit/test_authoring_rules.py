"""All mistakes of an author are reported at once, each with its file and line."""

from pathlib import Path

import pytest

from tests.support.authoring_course import TinyCourse
from tests.support.authoring_problems import CHECK, EXERCISE, HIDDEN, line_of, problems


@pytest.fixture
def course(tmp_path: Path) -> TinyCourse:
    return TinyCourse(tmp_path)


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
