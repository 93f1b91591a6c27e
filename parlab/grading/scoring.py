"""From what happened in the cells to statuses, points and what the student reads.

A visible check runs in the student's own process, where code can make it say anything. So its
points count when the hidden check's values, which are compared here, outside, are all right.
"""

import re

from parlab.grading.building import OWN
from parlab.grading.cells import used_names
from parlab.grading.comparing import NOWHERE, right_at, share_right
from parlab.grading.doing_nothing import Worthless
from parlab.grading.lab import Exercise, GradedLab
from parlab.grading.matching import Matched
from parlab.grading.results import ExerciseResult, GradeStatus
from parlab.grading.running import CellRun, NotebookRun

MESSAGE_CHARACTERS = 20_000
WITHHELD = "(a line of a hidden check, withheld)"
# `[rank 0] ` and `[ranks 0-3] ` before what ranks printed.
_SAID_BY = re.compile(r"^\[ranks? [\d, -]+\]\s?", re.MULTILINE)


def score(
    lab: GradedLab, matched: Matched, run: NotebookRun, worthless: Worthless | None = None
) -> list[ExerciseResult]:
    """The exercises' results, in the lab's order.

    `worthless` are the places of hidden values that earn nothing.
    """
    if reason := broken(lab, matched, run):
        return not_graded(lab, reason)
    results = [score_exercise(e, matched, run, lab.hidden_lines, worthless) for e in lab.exercises]
    _tell_causes(lab, matched, results)
    return results


def _tell_causes(lab: GradedLab, matched: Matched, results: list[ExerciseResult]) -> None:
    """Say where an exercise that is not right builds on others that are not."""
    failed = {r.key for r in results if r.status != GradeStatus.PASSED}
    for exercise, result in zip(lab.exercises, results, strict=True):
        if result.status in (GradeStatus.PASSED, GradeStatus.MISSING):
            continue
        used = used_names(matched.answers[exercise.key] or "")
        builds_on = {e.key for e in lab.exercises if e.names & used}
        builds_on |= {key for c in (*exercise.checks, *exercise.hidden) for key in lab.builds_on[c]}
        causes = [e.key for e in lab.exercises if e.key in (builds_on & failed) - {exercise.key}]
        if causes:
            result.message += (
                f"\nIt builds on {', '.join(causes)}, which is not right: begin there."
            )
            result.notes.append(f"it may have failed because of {', '.join(causes)}")


def not_graded(lab: GradedLab, reason: str) -> list[ExerciseResult]:
    return [_ungraded(e, reason) for e in lab.exercises]


def _ungraded(exercise: Exercise, reason: str) -> ExerciseResult:
    return ExerciseResult(exercise.key, GradeStatus.GRADER_ERROR, None, exercise.of, notes=[reason])


def zero(lab: GradedLab, status: GradeStatus, message: str = "") -> list[ExerciseResult]:
    return [ExerciseResult(e.key, status, 0.0, e.of, message) for e in lab.exercises]


def broken(lab: GradedLab, matched: Matched, run: NotebookRun) -> str:
    """Why this run says nothing of the student; "" when it does.

    The lab's own cells run as they are until the first of the student's: where one of those
    fails, it is the machine that lacks something.
    """
    if run.broken:
        return run.broken
    if matched.before_start:
        return ""
    answers = {e.cell for e in lab.exercises}
    for cell, ran in run.cells.items():
        if cell in answers or cell.startswith(OWN):
            return ""
        if ran.outcome != "ok":
            return f"the lab's own cell {cell} failed ({ran.outcome}): {ran.ename} {ran.evalue}"
    return ""


def score_exercise(
    exercise: Exercise,
    matched: Matched,
    run: NotebookRun,
    secrets: frozenset[str] = frozenset(),
    worthless: Worthless | None = None,
) -> ExerciseResult:
    """The result of one exercise.

    `secrets` are lines of hidden checks: code can put them into an error that is shown.
    `worthless` are the places of hidden values that earn nothing.
    """
    checks = [run.cells[cell] for cell in exercise.checks]
    passed = [_passed(exercise, ran) for ran in checks]
    points_of = list(exercise.checks.values())
    got = sum(points for points, ok in zip(points_of, passed, strict=True) if ok)
    all_right, hidden, notes = _hidden(exercise, run, worthless or {})
    worth = exercise.of - sum(points_of)
    points = round((got if all_right else 0.0) + worth * hidden, 2)
    answer = run.cells[exercise.cell]
    status = _status(exercise, matched, run, points)
    if got and not all_right:
        notes.append("the check passed, and the hidden check's values are wrong: look at the code")
    result = ExerciseResult(exercise.key, status, points, exercise.of, notes=notes)
    if status not in (GradeStatus.PASSED, GradeStatus.MISSING):
        result.parts = _parts(got, exercise.of - worth, worth * hidden, worth, all_right)
    message = _message(exercise, status, answer, checks, passed, hidden, run)
    result.message = "\n".join(
        WITHHELD if any(line in said for line in secrets) else said for said in message.split("\n")
    )
    return result


def _passed(exercise: Exercise, ran: CellRun) -> bool:
    """Whether a visible check said so: its reply is good, and its line is there."""
    said = _SAID_BY.sub("", ran.text)
    return ran.outcome == "ok" and f"✓ {exercise.key}: " in said


def _hidden(
    exercise: Exercise, run: NotebookRun, worthless: Worthless
) -> tuple[bool, float, list[str]]:
    """Whether all hidden values are right, the share of points, and notes for the instructor.

    Nothing is right where nothing was compared: what a check printed is no proof.
    """
    points, notes, all_right = 0.0, [], bool(exercise.hidden)
    for cell, (worth, expected) in exercise.hidden.items():
        shown = run.cells[cell].json if run.cells[cell].outcome == "ok" else []
        if len(run.cells[cell].json) > 1:
            displayed = len(run.cells[cell].json)
            notes.append(f"{cell} displayed {displayed} results where the lab displays one")
            shown = []
        got = shown[0] if shown else None
        right, total = share_right(expected, got, worthless.get(cell, NOWHERE))
        points += worth * right / total if total else 0.0
        all_right &= all(right_at(expected, got).values())
    worth = sum(worth for worth, _ in exercise.hidden.values())
    return all_right, (points / worth if worth else 0.0), notes


def _status(exercise: Exercise, matched: Matched, run: NotebookRun, points: float) -> GradeStatus:
    if points >= exercise.of:
        return GradeStatus.PASSED
    cells = [run.cells[c] for c in (exercise.cell, *exercise.checks, *exercise.hidden)]
    outcomes = [ran.outcome for ran in cells]
    for outcome in (GradeStatus.DIED, GradeStatus.TIMEOUT):
        if outcome in outcomes:
            return outcome
    if not matched.given(exercise.key) and not points:
        return GradeStatus.MISSING
    if outcomes[0] == GradeStatus.NOT_REACHED or all(
        o == GradeStatus.NOT_REACHED for o in outcomes[1:]
    ):
        return GradeStatus.NOT_REACHED
    if points:
        return GradeStatus.PARTIAL
    return GradeStatus.ERROR if outcomes[0] == GradeStatus.ERROR else GradeStatus.FAILED


def _message(
    exercise: Exercise,
    status: GradeStatus,
    answer: CellRun,
    checks: list[CellRun],
    passed: list[bool],
    hidden: float,
    run: NotebookRun,
) -> str:
    """What the student reads. Of the hidden check only how much of it was right."""
    if status == GradeStatus.PASSED:
        return ""
    lines = []
    if status == GradeStatus.NOT_REACHED:
        lines.append(f"Not reached: {run.ended}" if run.ended else "Not reached.")
    elif status == GradeStatus.MISSING:
        lines.append("Not done.")
    else:
        if answer.outcome != "ok":
            lines.append(f"The exercise's cell: {_told(answer)}")
        lines += [_told(c) for c, ok in zip(checks, passed, strict=True) if not ok]
        if exercise.hidden and hidden < 1:
            lines.append(f"Of the values of a further check, {_percent(hidden)} are right.")
    return "\n".join(line for line in lines if line)[:MESSAGE_CHARACTERS]


def _parts(visible: float, of: float, hidden: float, of_hidden: float, all_right: bool) -> str:
    """How the points of an exercise came about."""
    text = f"check {_of(visible if all_right else 0.0, of)}, further check {_of(hidden, of_hidden)}"
    if visible and not all_right:
        text += "; the check's points count once all values of the further one are right"
    return text


def _of(points: float, of: float) -> str:
    return f"{round(points, 2):g} of {of:g}"


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
