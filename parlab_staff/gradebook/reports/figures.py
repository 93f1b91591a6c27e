"""The numbers of the summary page. Means leave out exercises that could not be graded."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from parlab_staff.gradebook.entries import Entry, points_of
from parlab_staff.grading.results import ExerciseResult

BINS = 10


@dataclass(frozen=True)
class ExerciseRow:
    """A class's results in one exercise: numbers of students by points.

    Attributes:
        share: mean share of its points, 0 to 1; None if it could not be graded for any student.
    """

    key: str
    of: float
    share: float | None
    full: int
    partial: int
    nothing: int
    ungraded: int


def exercise_rows(entries: Sequence[Entry], keys: list[str]) -> list[ExerciseRow]:
    """Return a row for each exercise, lowest share first, over all students who submitted."""
    handed_in = [e for entry in entries if entry.handed_in for e in entry.exercises]
    rows = [_row(key, [e for e in handed_in if e.key == key]) for key in keys]
    return sorted(rows, key=lambda row: (row.share is None, row.share))


def _row(key: str, exercises: list[ExerciseResult]) -> ExerciseRow:
    graded = [(points, e.of) for e in exercises if (points := points_of(e)) is not None]
    full = sum(points >= of for points, of in graded)
    nothing = sum(points == 0 < of for points, of in graded)
    return ExerciseRow(
        key=key,
        of=max((e.of for e in exercises), default=0.0),
        share=fmean(points / of if of else 1.0 for points, of in graded) if graded else None,
        full=full,
        partial=len(graded) - full - nothing,
        nothing=nothing,
        ungraded=len(exercises) - len(graded),
    )


@dataclass(frozen=True)
class Seconds:
    """How long the submissions ran. Several may have run at the same time."""

    count: int
    sum: float
    median: float
    maximum: float


def seconds(entries: Sequence[Entry]) -> Seconds | None:
    """Return the seconds of submissions that ran; None if none did."""
    found = [entry.result.seconds for entry in entries if entry.result.seconds]
    return Seconds(len(found), sum(found), median(found), max(found)) if found else None


@dataclass(frozen=True)
class Totals:
    """The totals of all graded submissions, in points after lateness.

    Attributes:
        bins: numbers of submissions with 0 to 10 % of the points, 10 to 20 %, …, 90 to 100 %.
    """

    count: int
    mean: float | None
    median: float | None
    of: float
    bins: list[int]


def totals(entries: Sequence[Entry]) -> Totals:
    graded = [e for e in entries if e.handed_in and e.total is not None]
    points = [entry.total for entry in graded]
    bins = [0] * BINS
    for entry in graded:
        share = entry.total / entry.result.of if entry.result.of else 1.0
        bins[min(int(share * BINS), BINS - 1)] += 1
    return Totals(
        count=len(graded),
        mean=fmean(points) if points else None,
        median=median(points) if points else None,
        of=max((entry.result.of for entry in entries), default=0.0),
        bins=bins,
    )
