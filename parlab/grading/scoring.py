"""From what happened in the cells to statuses, points and what the student reads.

A visible check runs in the student's own process, where code can make it say anything. So its
points count when the hidden check's values, which are compared here, outside, are all right.
"""

import re

from parlab.grading.comparing import share_right
from parlab.grading.master import Exercise, Master
from parlab.grading.rebuilding import HELPER, Rebuilt
from parlab.grading.results import ExerciseResult, Status
from parlab.grading.running import CellRun, Run

MESSAGE_CHARACTERS = 20_000
WITHHELD = "(a line of a hidden check, withheld)"
# `[rank 0] ` and `[ranks 0-3] ` before what ranks printed.
_SAID_BY = re.compile(r"^\[ranks? [\d, -]+\]\s?", re.MULTILINE)


def score(master: Master, rebuilt: Rebuilt, run: Run) -> list[ExerciseResult]:
    """The exercises' results, in the lab's order."""
    if reason := broken(master, rebuilt, run):
        return not_graded(master, reason)
    return [_score(e, rebuilt, run, master.hidden_lines) for e in master.exercises]


def score_one(master: Master, exercise: Exercise, rebuilt: Rebuilt, run: Run) -> ExerciseResult:
    """The result of the only exercise whose checks ran."""
    if reason := broken(master, rebuilt, run):
        return _ungraded(exercise, reason)
    return _score(exercise, rebuilt, run, master.hidden_lines)


def not_graded(master: Master, reason: str) -> list[ExerciseResult]:
    return [_ungraded(e, reason) for e in master.exercises]


def _ungraded(exercise: Exercise, reason: str) -> ExerciseResult:
    return ExerciseResult(exercise.key, Status.GRADER_ERROR, None, exercise.of, notes=[reason])


def zero(master: Master, status: Status, message: str = "") -> list[ExerciseResult]:
    return [ExerciseResult(e.key, status, 0.0, e.of, message) for e in master.exercises]


def broken(master: Master, rebuilt: Rebuilt, run: Run) -> str:
    """Why this run says nothing of the student; "" when it does.

    The lab's own cells run as they are until the first of the student's: where one of those
    fails, it is the machine that lacks something.
    """
    if run.broken:
        return run.broken
    if rebuilt.before_start:
        return ""
    answers = {e.cell for e in master.exercises}
    for cell, ran in run.cells.items():
        if cell in answers or cell.startswith(HELPER):
            return ""
        if ran.outcome != "ok":
            return f"the lab's own cell {cell} failed ({ran.outcome}): {ran.ename} {ran.evalue}"
    return ""


def _score(
    exercise: Exercise, rebuilt: Rebuilt, run: Run, secrets: frozenset[str]
) -> ExerciseResult:
    """`secrets` are lines of hidden checks: code can put them into an error that is shown."""
    checks = [run.cells[cell] for cell in exercise.checks]
    passed = [_passed(exercise, ran) for ran in checks]
    points_of = list(exercise.checks.values())
    got = sum(points for points, ok in zip(points_of, passed, strict=True) if ok)
    hidden, notes = _hidden(exercise, run)
    worth = exercise.of - sum(points_of)
    points = round((got if hidden == 1 else 0.0) + worth * hidden, 2)
    answer = run.cells[exercise.cell]
    status = _status(exercise, rebuilt, run, points)
    if got and hidden < 1:
        notes.append("the check passed, and the hidden check's values are wrong: look at the code")
    result = ExerciseResult(exercise.key, status, points, exercise.of, notes=notes)
    message = _message(exercise, status, answer, checks, passed, hidden, run)
    result.message = "\n".join(
        WITHHELD if any(line in said for line in secrets) else said for said in message.split("\n")
    )
    return result


def _passed(exercise: Exercise, ran: CellRun) -> bool:
    """Whether a visible check said so: its reply is good, and its line is there."""
    said = _SAID_BY.sub("", ran.text)
    return ran.outcome == "ok" and f"✓ {exercise.key}: " in said


def _hidden(exercise: Exercise, run: Run) -> tuple[float, list[str]]:
    """The share of hidden points, and what the instructor should know."""
    points, notes = 0.0, []
    for cell, (worth, expected) in exercise.hidden.items():
        shown = run.cells[cell].json
        if len(shown) > 1:
            notes.append(f"{cell} displayed {len(shown)} results where the lab displays one")
        elif len(shown) == 1 and run.cells[cell].outcome == "ok":
            right, total = share_right(expected, shown[0])
            points += worth * right / total
    worth = sum(worth for worth, _ in exercise.hidden.values())
    return (points / worth if worth else 1.0), notes


def _status(exercise: Exercise, rebuilt: Rebuilt, run: Run, points: float) -> Status:
    if points >= exercise.of:
        return Status.PASSED
    cells = [run.cells[c] for c in (exercise.cell, *exercise.checks, *exercise.hidden)]
    outcomes = [ran.outcome for ran in cells]
    for outcome in (Status.DIED, Status.TIMEOUT):
        if outcome in outcomes:
            return outcome
    if not rebuilt.given(exercise.key) and not points:
        return Status.MISSING
    if outcomes[0] == Status.NOT_REACHED or all(o == Status.NOT_REACHED for o in outcomes[1:]):
        return Status.NOT_REACHED
    if points:
        return Status.PARTIAL
    return Status.ERROR if outcomes[0] == Status.ERROR else Status.FAILED


def _message(
    exercise: Exercise,
    status: Status,
    answer: CellRun,
    checks: list[CellRun],
    passed: list[bool],
    hidden: float,
    run: Run,
) -> str:
    """What the student reads. Of the hidden check only how much of it was right."""
    if status == Status.PASSED:
        return ""
    lines = []
    if status == Status.NOT_REACHED:
        lines.append(f"Not reached: {run.ended}" if run.ended else "Not reached.")
    elif status == Status.MISSING:
        lines.append("Not done.")
    else:
        if answer.outcome != "ok":
            lines.append(f"The exercise's cell: {_told(answer)}")
        lines += [_told(c) for c, ok in zip(checks, passed, strict=True) if not ok]
        if exercise.hidden and hidden < 1:
            lines.append(f"Of the values of a further check, {_percent(hidden)} are right.")
    return "\n".join(line for line in lines if line)[:MESSAGE_CHARACTERS]


def _percent(share: float) -> str:
    return "none" if share == 0 else f"{100 * share:.0f} %"


def _told(ran: CellRun) -> str:
    match ran.outcome:
        case "timeout":
            return ran.evalue or "it took too long, and was interrupted"
        case "died":
            return ran.evalue or "its process ended"
        case "not_reached":
            return "Its check was not reached."
        case "error":
            # A rank cell's message tells all; its name, DeadlineExceeded or RankFailed, adds
            # nothing. Elsewhere the name says what it was.
            known = ran.ename in ("RankFailed", "DeadlineExceeded", "RankDied", "RankInterrupted")
            return ran.evalue if known else f"{ran.ename}: {ran.evalue}".strip(": ")
        case _:
            return "The check did not say that it passed."
