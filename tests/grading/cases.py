"""Submissions with what they must get. The files `cases_*.py` hold them, by what is wrong."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from parlab.grading.master import Master
from tests.grading.small_lab import Copy

POINTS = {"ring_shift": 3, "ring_all_gather": 4, "ring_reduce_scatter": 4, "ring_all_reduce": 3}
ALL = sum(POINTS.values())

Build = Callable[[Copy, Path], None]


@dataclass
class Case:
    """One submission.

    Attributes:
        name: also the student's, unless `student` says another one.
        status: of the whole.
        points: of the whole; None where it cannot be graded.
        exercises: status by key, for those that are not passed (of a case with points).
        says: text that the student's messages must hold.
        notes: text that the instructor's notes must hold.
    """

    name: str
    build: Build
    status: str
    points: float | None
    exercises: dict[str, str] = field(default_factory=dict)
    says: str = ""
    notes: str = ""
    student: str = ""

    def write(self, folder: Path, master: Master) -> None:
        """Make the submission in the class's folder: what `build` made, or else the copy."""
        copy = Copy(master)
        path = folder / f"{self.student}.ipynb"
        before = set(folder.iterdir())
        self.build(copy, path)
        if set(folder.iterdir()) == before:
            path.write_text(copy.text(), encoding="utf-8")


CASES: list[Case] = []


def case(
    status: str,
    points: float | None,
    *,
    says: str = "",
    notes: str = "",
    student: str = "",
    **exercises: str,
) -> Callable[[Build], Build]:
    """A function that changes a solved copy, or writes something else to the path, as a case."""

    def register(build: Build) -> Build:
        name = build.__name__
        CASES.append(Case(name, build, status, points, exercises, says, notes, student or name))
        return build

    return register


def without(*keys: str) -> int:
    """The points of all other exercises."""
    return ALL - sum(POINTS[key] for key in keys)
