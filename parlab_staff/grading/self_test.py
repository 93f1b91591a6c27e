"""Tests, before any student is graded, that this machine grades the lab correctly."""

from parlab_staff.grading import no_op_answers
from parlab_staff.grading.grader import Grader, workers
from parlab_staff.grading.match import match
from parlab_staff.grading.no_op_answers import Worthless
from parlab_staff.grading.rebuild import build
from parlab_staff.grading.results import ExerciseResult, GradeStatus
from parlab_staff.grading.score import score

REFERENCE, STUB, NOTHING = "the reference", "the stub", "what does nothing"


class ProofFailed(ValueError):
    """The lab does not grade as it must, so nothing was graded."""


def prove(grader: Grader, jobs: int) -> Worthless:
    """Grade the reference and the notebook as handed out: they must get all points, and none.

    Return the values of hidden checks that an answer that does nothing displays, too. Raises
    Stopped, and ProofFailed with all that is wrong.
    """
    lab = grader.lab
    work = {REFERENCE: match(lab, lab.solution), STUB: match(lab, lab.handed_out)}
    notebooks = {who: build(lab, matched) for who, matched in work.items()}
    notebooks[NOTHING] = no_op_answers.notebook(lab)
    with workers(grader, min(jobs, len(notebooks))) as pool:
        ran = dict(
            zip(
                notebooks,
                pool.map(lambda who: grader.run(who, notebooks[who]), notebooks),
                strict=True,
            )
        )
    found = no_op_answers.worthless(lab, ran[NOTHING])
    results = {who: score(lab, work[who], ran[who], found) for who in work}
    results[REFERENCE] = grader.timed_again(REFERENCE, work[REFERENCE], results[REFERENCE])
    problems = [
        f"{who}, {e.key}: {e.points} of {e.of} points ({e.status}). {e.message} {' '.join(e.notes)}"
        for who, exercises in results.items()
        for e in exercises
        if not _as_must_be(who, e)
    ]
    problems += [
        f"{e.key}: an answer that does nothing shows all values of a hidden check, too"
        for e in lab.exercises
        if no_op_answers.nothing_left(e, found)
    ]
    if problems:
        raise ProofFailed(
            f"lab {lab.name} does not prove itself on this machine, so nothing was graded:\n  "
            + "\n  ".join(problems)
            + "\n`make notebooks` runs the reference; `parlab doctor` says what is missing here."
        )
    return found


def _as_must_be(who: str, exercise: ExerciseResult) -> bool:
    if who == REFERENCE:
        return exercise.status == GradeStatus.PASSED
    return exercise.points == 0
