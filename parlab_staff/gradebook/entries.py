"""The gradebook, from which the reports are written."""

from dataclasses import dataclass, replace
from datetime import datetime

from parlab_staff.gradebook.late import Lateness, LatePolicy, read_moment
from parlab_staff.gradebook.roster import RosterEntry
from parlab_staff.grading.results import ExerciseResult, GradeStatus, SubmissionResult

# The key of points that an instructor adds to a whole submission, or takes off. No exercise has it,
# because keys have no spaces.
BY_HAND = "by hand"
# The start of the message of an exercise that an instructor corrected.
CORRECTED = "corrected by hand: "


@dataclass(frozen=True)
class Entry:
    """One graded submission.

    Attributes:
        result: after corrections by hand, with the roster's time of submission if it has one.
        name: from the roster; "" without one.
        late: True if it was late.
        late_text: the same in words, for the student; "" if there is nothing to report.
        factor: multiplies the earned points because of lateness, 0 to 1.
        on_roster: False if there is a roster and the student is not on it.
    """

    result: SubmissionResult
    name: str = ""
    late: bool = False
    late_text: str = ""
    factor: float = 1.0
    on_roster: bool = True

    @property
    def exercises(self) -> list[ExerciseResult]:
        """The lab's exercises, without points added by hand."""
        return [e for e in self.result.exercises if e.key != BY_HAND]

    @property
    def added(self) -> float:
        """Points added by hand to the whole submission; negative if they were taken off."""
        return sum(e.points or 0 for e in self.result.exercises if e.key == BY_HAND)

    @property
    def total(self) -> float | None:
        """All points, to two decimals, never below 0; None if an exercise was not graded.

        Lateness costs a share of the earned points. Points added by hand count in full.
        """
        if self.earned is None:
            return None
        return round(max(0.0, self.earned * self.factor + self.added), 2)

    @property
    def earned(self) -> float | None:
        """Points before lateness, without points added by hand; None when `total` is None."""
        points = [points_of(exercise) for exercise in self.exercises]
        if None in points or self.result.status is GradeStatus.GRADER_ERROR:
            return None
        return sum(p for p in points if p is not None)

    @property
    def earned_text(self) -> str:
        """The points before lateness, in words for the student; "" if lateness cost nothing."""
        if not self.earned or self.factor == 1:
            return ""
        return f"{round(self.earned, 2):g} of {self.result.of:g} points were earned before that"

    @property
    def handed_in(self) -> bool:
        return self.result.status is not GradeStatus.MISSING


@dataclass(frozen=True)
class Gradebook:
    """Everything that the reports show.

    Attributes:
        lab: `01_mpi`.
        entries: one for each submission, and for each student of the roster without one.
        solution: the fingerprint of the executed solution and of the lab as handed out.
        grader: the fingerprint of the grader.
        command: as typed.
        date: when it was graded, in ISO 8601.
        ignored: files and folders next to the submissions that are not submissions.
    """

    lab: str
    entries: tuple[Entry, ...]
    solution: str = ""
    grader: str = ""
    command: str = ""
    date: str = ""
    ignored: tuple[str, ...] = ()


def points_of(exercise: ExerciseResult) -> float | None:
    """Return an exercise's points; None if it could not be graded, even if it has points."""
    return None if exercise.status is GradeStatus.GRADER_ERROR else exercise.points


def graded_entry(
    result: SubmissionResult,
    policy: LatePolicy,
    due: datetime | None = None,
    student: RosterEntry | None = None,
    on_roster: bool = True,
) -> Entry:
    """Return the entry of a submission. The roster's due and submission times have priority."""
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
