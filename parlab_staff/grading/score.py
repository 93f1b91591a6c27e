"""Converts the results of the cells into statuses, points, and messages for the student.

A visible check runs in the student's own process, where code can make it print anything. Therefore,
its points count only if all values of the hidden check are right. They are compared here, outside
that process.
"""

import math
import re

from parlab_staff.grading.compare import NOWHERE, right_at, share_right
from parlab_staff.grading.graded_lab import GradedExercise, GradedLab
from parlab_staff.grading.match import Matched
from parlab_staff.grading.no_op_answers import Worthless
from parlab_staff.grading.rebuild import OWN, uses
from parlab_staff.grading.results import ExerciseResult, GradeStatus
from parlab_staff.grading.run import CellRun, NotebookRun

MESSAGE_CHARACTERS = 20_000
WITHHELD = "(a line of a hidden check, withheld)"
# Parts of lines about the ranks that are useful only to a person at the notebook.
OF_THE_RANKS = ("The ranks are free again", "New ranks are starting")
AS_TEXT = (
    "Your answer is in a Markdown or raw cell, which does not run: change the cell's type to Code."
)
# The name of the error that the ranks of a cell raised first.
_OF_RANKS = re.compile(r"(?:all ranks|ranks? [\d, -]+): (?P<name>\w+)")
# `[rank 0] ` and `[ranks 0-3] ` at the start of lines that ranks printed.
_PRINTED_BY = re.compile(r"^\[ranks? [\d, -]+\]\s?", re.MULTILINE)


def score(
    lab: GradedLab, matched: Matched, run: NotebookRun, worthless: Worthless | None = None
) -> list[ExerciseResult]:
    """Return the exercises' results, in the lab's order.

    `worthless` has the places of hidden values that earn no points.
    """
    if reason := broken(lab, matched, run):
        return not_graded(lab, reason)
    return [score_exercise(e, matched, run, lab.hidden_lines, worthless) for e in lab.exercises]


def report_causes(lab: GradedLab, matched: Matched, results: list[ExerciseResult]) -> None:
    """Add to each message the wrong exercises that the exercise builds on."""
    failed = {r.key for r in results if r.status != GradeStatus.PASSED}
    for exercise, result in zip(lab.exercises, results, strict=True):
        if result.status in (GradeStatus.PASSED, GradeStatus.MISSING):
            continue
        used = uses(lab, matched, exercise) - {exercise.key}
        if causes := [e.key for e in lab.exercises if e.key in used & failed]:
            are = "is" if len(causes) == 1 else "are"
            result.message += (
                f"\nIt builds on {', '.join(causes)}, which {are} not right: begin there."
            )
            result.notes.append(f"it may have failed because of {', '.join(causes)}")


def not_graded(lab: GradedLab, reason: str) -> list[ExerciseResult]:
    return [_ungraded(e, reason) for e in lab.exercises]


def _ungraded(exercise: GradedExercise, reason: str) -> ExerciseResult:
    return ExerciseResult(exercise.key, GradeStatus.GRADER_ERROR, None, exercise.of, notes=[reason])


def zero(lab: GradedLab, status: GradeStatus) -> list[ExerciseResult]:
    return [ExerciseResult(e.key, status, 0.0, e.of) for e in lab.exercises]


def broken(lab: GradedLab, matched: Matched, run: NotebookRun) -> str:
    """Return why this run cannot be graded; "" if it can.

    If a cell of the lab fails before the first cell of the student, the machine lacks something.
    """
    if run.broken:
        return run.broken
    if matched.before_start:
        return ""
    answers = {e.cell for e in lab.exercises}
    for cell, ran in run.cells.items():
        if cell in answers or cell.startswith(OWN):
            return ""
        if ran.outcome == "timeout":
            return f"the lab's own cell {cell} did not end in time: choose a longer --cell-timeout"
        if ran.outcome != "ok":
            return f"the lab's own cell {cell} failed ({ran.outcome}): {ran.ename} {ran.evalue}"
    return ""


def score_exercise(
    exercise: GradedExercise,
    matched: Matched,
    run: NotebookRun,
    secrets: frozenset[str] = frozenset(),
    worthless: Worthless | None = None,
) -> ExerciseResult:
    """Return the result of one exercise.

    `secrets` are lines of hidden checks, which are withheld because code could put them into an
    error's text. `worthless` has the places of hidden values that earn no points.
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
        notes.append("the check passed, and values of the hidden check are wrong")
    result = ExerciseResult(exercise.key, status, points, exercise.of, notes=notes)
    if status not in (GradeStatus.PASSED, GradeStatus.MISSING):
        result.parts = _parts(got, exercise.of - worth, worth * hidden, worth, all_right)
    message = _message(exercise, matched, status, answer, checks, passed, hidden, run)
    result.message = "\n".join(
        WITHHELD if any(secret in line for secret in secrets) else line
        for line in message.split("\n")
    )
    return result


def _passed(exercise: GradedExercise, ran: CellRun) -> bool:
    """Return True if a visible check passed: its cell raised no error and printed its line."""
    printed = _PRINTED_BY.sub("", ran.text)
    return ran.outcome == "ok" and f"✓ {exercise.key}: " in printed


def _hidden(
    exercise: GradedExercise, run: NotebookRun, worthless: Worthless
) -> tuple[bool, float, list[str]]:
    """Return True if all hidden values are right (or else False), the share of points, and notes.

    Without a hidden check, nothing is right, because the output of a visible check proves nothing.
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


def _status(
    exercise: GradedExercise, matched: Matched, run: NotebookRun, points: float
) -> GradeStatus:
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
    exercise: GradedExercise,
    matched: Matched,
    status: GradeStatus,
    answer: CellRun,
    checks: list[CellRun],
    passed: list[bool],
    hidden: float,
    run: NotebookRun,
) -> str:
    """Return the message for the student. Of hidden checks, show only the share of right values."""
    if status == GradeStatus.PASSED:
        return ""
    lines = []
    if status == GradeStatus.NOT_REACHED:
        lines.append(f"Not reached: {run.ended}" if run.ended else "Not reached.")
    elif status == GradeStatus.MISSING:
        lines.append(AS_TEXT if exercise.key in matched.as_text else "Not done.")
    else:
        if answer.outcome != "ok":
            lines.append(f"The exercise's cell: {_description(answer)}")
        lines += [_description(c) for c, ok in zip(checks, passed, strict=True) if not ok]
        if exercise.hidden and hidden < 1:
            ends = "".join(filter(None, (_end(run.cells[cell]) for cell in exercise.hidden)))
            lines.append(f"In a further check, {_percent(hidden)} of the values are right{ends}.")
    text = "\n".join(line for line in lines if line)
    kept = [line for line in text.split("\n") if not any(part in line for part in OF_THE_RANKS)]
    return "\n".join(kept)[:MESSAGE_CHARACTERS]


def _end(ran: CellRun) -> str:
    """Return how a hidden check failed, without any of its text; "" if it did not fail."""
    if ran.outcome == "timeout" or ran.ename == "DeadlineExceeded":
        return ": it did not end in time"
    if ran.outcome == "died":
        return ": its process ended"
    if ran.ename == "RankDied":
        return ": the process of a rank ended"
    if ran.outcome != "error":
        return ""
    found = _OF_RANKS.match(ran.evalue) if ran.ename == "RankFailed" else None
    name = found["name"] if found else ran.ename
    return f": it ended with {name}" if name.isidentifier() else ""


def _parts(visible: float, of: float, hidden: float, of_hidden: float, all_right: bool) -> str:
    """Return how the points of an exercise add up."""
    text = f"check {_of(visible if all_right else 0.0, of)}, further check {_of(hidden, of_hidden)}"
    if visible and not all_right:
        text += "; the check's points count once all values of the further one are right"
    return text


def _of(points: float, of: float) -> str:
    return f"{round(points, 2):g} of {of:g}"


def _percent(share: float) -> str:
    """Round down, because 100 % would mean that all values are right."""
    return "none" if share == 0 else f"{math.floor(100 * share + 1e-9)} %"


def _description(ran: CellRun) -> str:
    match ran.outcome:
        case "timeout":
            return ran.evalue or "it took too long, and was interrupted"
        case "died":
            return ran.evalue or "its process ended"
        case "not_reached":
            return "Its check was not reached."
        case "error":
            # A rank cell's message says everything without the error's name.
            known = ran.ename in ("RankFailed", "DeadlineExceeded", "RankDied", "RankInterrupted")
            return ran.evalue if known else f"{ran.ename}: {ran.evalue}".strip(": ")
        case _:
            return "The check did not report that it passed."
