"""The result of grading one submission: plain data, stored as JSON, read by the reports."""

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any


class GradeStatus(StrEnum):
    """The status of an exercise or of a whole submission."""

    PASSED = "passed"  # all points
    PARTIAL = "partial"  # some points
    FAILED = "failed"  # it ran, but nothing is right
    ERROR = "error"  # it raised an error, or could not be read
    TIMEOUT = "timeout"  # a time limit ended it
    DIED = "died"  # its process ended, or was ended because it used too much
    MISSING = "missing"  # no submission was found, or the stub is unchanged
    NOT_REACHED = "not_reached"  # the run ended before it
    GRADER_ERROR = "grader_error"  # not the student's fault: no score, and never a zero


@dataclass
class ExerciseResult:
    """One exercise of one submission.

    Attributes:
        key: the exercise's key.
        status: the outcome.
        points: the earned points; None if it could not be graded.
        of: the points that it can earn.
        message: for the student, plain text with one or more lines: the check's message, with the
            lines where ranks were stuck; "" if all is right. Never the text of a hidden check.
        notes: what the instructor should look at; students do not see it.
        parts: how the points of the check and of the hidden check add up, for the student.
    """

    key: str
    status: GradeStatus
    points: float | None
    of: float
    message: str = ""
    notes: list[str] = field(default_factory=list)
    parts: str = ""


@dataclass
class SubmissionResult:
    """One submission.

    Attributes:
        student: the unchanged name of the folder or file, which may contain any character.
        lab: `01_mpi`.
        path: the graded file; "" if nothing was handed in.
        status: passed, partial, or failed, by points; or else why nothing was graded.
        exercises: in the lab's order; never empty.
        message: for the student, about the whole submission, such as "the file is empty".
        notes: for the instructor only.
        submitted: the time of submission, in ISO 8601 with offset; "" if unknown.
        seconds: how long the run took.
        key: fingerprints {"submission", "lab", "grader", "options"}. The result is valid until
            one of them changes.
    """

    student: str
    lab: str
    path: str
    status: GradeStatus
    exercises: list[ExerciseResult]
    message: str = ""
    notes: list[str] = field(default_factory=list)
    submitted: str = ""
    seconds: float = 0.0
    key: dict[str, str] = field(default_factory=dict)

    @property
    def points(self) -> float | None:
        """The sum of the points; None if an exercise has none."""
        points = [exercise.points for exercise in self.exercises]
        return None if None in points else float(sum(p for p in points if p is not None))

    @property
    def of(self) -> float:
        return float(sum(exercise.of for exercise in self.exercises))

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "SubmissionResult":
        """Read what `to_json` returned. Raises TypeError, KeyError, or ValueError."""
        exercises = [
            ExerciseResult(**{**exercise, "status": GradeStatus(exercise["status"])})
            for exercise in data["exercises"]
        ]
        return cls(**{**data, "status": GradeStatus(data["status"]), "exercises": exercises})


def by_points(exercises: list[ExerciseResult]) -> GradeStatus:
    """Return the status of a submission that ran."""
    if any(e.points is None for e in exercises):
        return GradeStatus.GRADER_ERROR
    if all(e.points == e.of for e in exercises):
        return GradeStatus.PASSED
    return GradeStatus.PARTIAL if any(e.points for e in exercises) else GradeStatus.FAILED
