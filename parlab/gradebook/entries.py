"""The gradebook: what the reports are written from."""

from dataclasses import dataclass, replace
from datetime import datetime

from parlab.gradebook.late import Lateness, LatePolicy, read_moment
from parlab.gradebook.roster import RosterEntry
from parlab.grading.results import ExerciseResult, GradeStatus, SubmissionResult

# Not an exercise: points that an instructor adds to a whole submission or takes off. No
# exercise's key has a space.
BY_HAND = "by hand"
# What the message of an exercise starts with that an instructor corrected.
CORRECTED = "corrected by hand: "


@dataclass(frozen=True)
class Entry:
    """One submission, graded.

    Attributes:
        result: after corrections by hand; handed in when the roster says, where it says so.
        name: the roster's; "" where there is none.
        late: whether it came late.
        late_text: in words, for the student; "" when there is nothing to say.
        factor: what the points earned are multiplied with for being late, 0 to 1.
        on_roster: False where a roster was given and the student is not on it.
    """

    result: SubmissionResult
    name: str = ""
    late: bool = False
    late_text: str = ""
    factor: float = 1.0
    on_roster: bool = True

    @property
    def exercises(self) -> list[ExerciseResult]:
        """Those of the lab, without what was added by hand."""
        return [e for e in self.result.exercises if e.key != BY_HAND]

    @property
    def added(self) -> float:
        """Points that were added by hand to the whole; negative where they were taken off."""
        return sum(e.points or 0 for e in self.result.exercises if e.key == BY_HAND)

    @property
    def total(self) -> float | None:
        """Points in all, to two decimals, never below 0; None when any of it was not graded.

        Being late costs a share of what was earned; what an instructor adds is added in full.
        """
        if self.earned is None:
            return None
        return round(max(0.0, self.earned * self.factor + self.added), 2)

    @property
    def earned(self) -> float | None:
        """Points before what being late costs, and what was added by hand; None as `total`."""
        points = [points_of(exercise) for exercise in self.exercises]
        if None in points or self.result.status is GradeStatus.GRADER_ERROR:
            return None
        return sum(p for p in points if p is not None)

    @property
    def earned_text(self) -> str:
        """For the student, where being late took something off; else ""."""
        if not self.earned or self.factor == 1:
            return ""
        return f"{round(self.earned, 2):g} of {self.result.of:g} points were earned before that"

    @property
    def handed_in(self) -> bool:
        return self.result.status is not GradeStatus.MISSING


@dataclass(frozen=True)
class Gradebook:
    """All that the reports show.

    Attributes:
        lab: `01_mpi`.
        entries: one for each submission, and for each student of the roster without one.
        solution: the fingerprint of the executed solution and of the lab as handed out.
        grader: the fingerprint of the grader.
        command: as it was typed.
        date: when it was graded, ISO 8601.
        ignored: files and folders beside the submissions that are none.
    """

    lab: str
    entries: tuple[Entry, ...]
    solution: str = ""
    grader: str = ""
    command: str = ""
    date: str = ""
    ignored: tuple[str, ...] = ()


def points_of(exercise: ExerciseResult) -> float | None:
    """What it earned; None where it could not be graded, whatever else the result says."""
    return None if exercise.status is GradeStatus.GRADER_ERROR else exercise.points


def graded_entry(
    result: SubmissionResult,
    policy: LatePolicy,
    due: datetime | None = None,
    student: RosterEntry | None = None,
    on_roster: bool = True,
) -> Entry:
    """The entry of one submission: the roster's extension and time win over the class's."""
    if student and student.submitted:
        result = replace(result, submitted=student.submitted.isoformat())
    lateness = Lateness()
    if result.status is not GradeStatus.MISSING:
        submitted = read_moment(result.submitted) if result.submitted else None
        lateness = policy.judge(submitted, (student and student.due) or due)
    return Entry(
        result=result,
        name=student.name if student else "",
        late=lateness.late,
        late_text=lateness.text,
        factor=lateness.factor,
        on_roster=on_roster,
    )
