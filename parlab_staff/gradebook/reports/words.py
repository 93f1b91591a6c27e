"""Statuses in words and signs, which need no color."""

from datetime import datetime

from parlab_staff.grading.results import GradeStatus

SIGNS = {
    GradeStatus.PASSED: "✓",
    GradeStatus.PARTIAL: "◐",
    GradeStatus.FAILED: "✗",
    GradeStatus.ERROR: "!",
    GradeStatus.TIMEOUT: "◷",
    GradeStatus.DIED: "■",
    GradeStatus.MISSING: "–",
    GradeStatus.NOT_REACHED: "↷",
    GradeStatus.GRADER_ERROR: "?",
}

OF_EXERCISE = {
    GradeStatus.PASSED: "right",
    GradeStatus.PARTIAL: "partly right",
    GradeStatus.FAILED: "not right yet",
    GradeStatus.ERROR: "stopped with an error",
    GradeStatus.TIMEOUT: "took too long and was ended",
    GradeStatus.DIED: "its process ended before it was done",
    GradeStatus.MISSING: "not done",
    GradeStatus.NOT_REACHED: "not reached: something before it ended the run",
    GradeStatus.GRADER_ERROR: "could not be graded, which is not your fault and not a zero",
}

OF_SUBMISSION = OF_EXERCISE | {
    GradeStatus.PASSED: "all of it is right",
    GradeStatus.FAILED: "none of it is right yet",
    GradeStatus.ERROR: "could not be read or run",
    GradeStatus.DIED: "its process ended early, and nothing was right",
    GradeStatus.MISSING: "no submission was found",
    GradeStatus.GRADER_ERROR: "could not be graded in full, which is not your fault and not a zero",
}

# The style of each status. Several statuses share a style, and differ in their signs.
TONES = dict.fromkeys(GradeStatus, "bad") | {
    GradeStatus.PASSED: "good",
    GradeStatus.PARTIAL: "half",
    GradeStatus.MISSING: "none",
    GradeStatus.NOT_REACHED: "none",
    GradeStatus.GRADER_ERROR: "none",
}


def number(value: float | None) -> str:
    """Return points to two decimals, without trailing zeros; "" if there are none."""
    return "" if value is None else f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def moment(text: str) -> str:
    """Return `2026-11-30 18:00:00+01:00` from ISO 8601; "" if the time is unknown."""
    return datetime.fromisoformat(text).isoformat(" ", "seconds") if text else ""


def points_text(points: float | None, of: float) -> str:
    """Return `2.5 of 3`, or `no score of 3` if it could not be graded."""
    return f"{number(points) or 'no score'} of {number(of)}"
