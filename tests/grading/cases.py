"""Submissions and their expected results. The files `cases_*.py` contain them, by kind."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parlab_staff.grading.graded_lab import GradedLab
from parlab_staff.grading.results import SubmissionResult
from tests.grading.copies import Copy

Build = Callable[[Copy, Path], None]


@dataclass
class Case:
    """One submission.

    Attributes:
        name: the name of the case, and of the student if `student` is empty.
        status: the expected status of the submission.
        points: the expected points of the submission; None if it cannot be graded.
        exercises: the expected statuses of all exercises that are not passed, by key.
        says: text that the student's messages must contain.
        notes: text that the instructor's notes must contain.
        says_nothing: True if the submission must have neither a message nor a note.
    """

    name: str
    build: Build
    status: str
    points: float | None
    exercises: dict[str, str] = field(default_factory=dict)
    says: str = ""
    notes: str = ""
    student: str = ""
    says_nothing: bool = False

    def write(self, folder: Path, lab: GradedLab) -> None:
        """Write the submission into the class's folder: the files of `build`, or else the copy."""
        copy = Copy(lab)
        path = folder / f"{self.student}.ipynb"
        before = set(folder.iterdir())
        self.build(copy, path)
        if set(folder.iterdir()) == before:
            path.write_text(copy.text(), encoding="utf-8")

    def verify(self, result: SubmissionResult) -> None:
        """Assert that the result is the expected one."""
        assert (result.status, result.points) == (self.status, self.points), result
        statuses = {e.key: str(e.status) for e in result.exercises if e.status != "passed"}
        if self.status in ("passed", "partial") or self.exercises:
            assert statuses == self.exercises, result
        message = "\n".join([result.message, *(e.message for e in result.exercises)])
        notes = "\n".join([*result.notes, *(n for e in result.exercises for n in e.notes)])
        assert self.says in message, result
        assert self.notes in notes, result
        assert not self.says_nothing or (result.message, result.notes) == ("", []), result
        assert "show_values" not in message and "tolist()" not in message, "a hidden check's text"


class Cases(list[Case]):
    """The cases of a file, for a lab with these points for each exercise."""

    def __init__(self, **points: int) -> None:
        super().__init__()
        self.points = points

    @property
    def all(self) -> int:
        return sum(self.points.values())

    def without(self, *keys: str) -> int:
        """Return the points of all other exercises."""
        return self.all - sum(self.points[key] for key in keys)

    def __call__(self, status: str, points: float | None, **expected: Any) -> Callable:
        """Return a decorator for a function that changes a solved copy or writes to the path."""
        known = {name: expected.pop(name, "") for name in ("says", "notes", "student")}
        known["says_nothing"] = expected.pop("says_nothing", False)

        def register(build: Build) -> Build:
            name = build.__name__
            known["student"] = known["student"] or name
            self.append(Case(name, build, status, points, expected, **known))
            return build

        return register
