"""Statuses in words and signs: the sign says it without colour."""

from parlab.grading.results import Status

SIGNS = {
    Status.PASSED: "✓",
    Status.PARTIAL: "◐",
    Status.FAILED: "✗",
    Status.ERROR: "!",
    Status.TIMEOUT: "◷",
    Status.DIED: "■",
    Status.MISSING: "–",
    Status.NOT_REACHED: "↷",
    Status.GRADER_ERROR: "?",
}

OF_EXERCISE = {
    Status.PASSED: "right",
    Status.PARTIAL: "partly right",
    Status.FAILED: "not right yet",
    Status.ERROR: "stopped with an error",
    Status.TIMEOUT: "took too long and was ended",
    Status.DIED: "its process ended before it was done",
    Status.MISSING: "not done",
    Status.NOT_REACHED: "not reached: something before it ended the run",
    Status.GRADER_ERROR: "could not be graded, which is not your fault and not a zero",
}

OF_SUBMISSION = OF_EXERCISE | {
    Status.PASSED: "all of it is right",
    Status.FAILED: "nothing of it is right yet",
    Status.ERROR: "could not be read or run",
    Status.DIED: "its process ended before anything was graded",
    Status.MISSING: "nothing handed in, or the lab as it was handed out",
    Status.GRADER_ERROR: "could not be graded in full, which is not your fault and not a zero",
}

# Which of three looks a status has; the sign tells the rest.
TONES = dict.fromkeys(Status, "bad") | {
    Status.PASSED: "good",
    Status.PARTIAL: "half",
    Status.MISSING: "none",
    Status.NOT_REACHED: "none",
    Status.GRADER_ERROR: "none",
}


def number(value: float | None) -> str:
    """Points to two decimals, without zeros behind; "" where there are none."""
    return "" if value is None else f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")


def points_text(points: float | None, of: float) -> str:
    """`2.5 of 3`; `no score of 3` where it could not be graded."""
    return f"{number(points) or 'no score'} of {number(of)}"
