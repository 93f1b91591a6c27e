"""What `parlab notebooks` reports about the mistakes in a small course."""

import pytest

from tests.support.authoring_course import TinyCourse

EXERCISE = '# %% tags=["exercise"] exercise="add"'
CHECK = '# %% tags=["check"] exercise="add" points=3'
HIDDEN = '# %% tags=["hidden-check"] exercise="add" points=1.5'


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
