"""Tests that this machine grades the lab correctly, before any student is graded."""

from parlab_staff.grading import no_op_answers
from parlab_staff.grading.grader import Grader, workers
from parlab_staff.grading.match import match
from parlab_staff.grading.no_op_answers import Worthless
from parlab_staff.grading.rebuild import build
from parlab_staff.grading.results import ExerciseResult, GradeStatus
from parlab_staff.grading.score import score

REFERENCE, STUB, NOTHING = "the reference", "the stub", "what does nothing"


class ProofFailed(ValueError):
    """The lab cannot be graded correctly, so nothing was graded."""


def prove(grader: Grader, jobs: int) -> Worthless:
    """Grade the reference, which must get all points, and the lab as handed out, which must get 0.

    Return the places of hidden values that even an answer that does nothing displays. Raises
    Stopped, and ProofFailed with all problems.
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
    if reason := ran[NOTHING].broken or ran[NOTHING].ended:
        problems.append(f"{NOTHING} did not run to its end: {reason}. Choose a longer --timeout")
    if problems:
        raise ProofFailed(
            f"lab {lab.name} is not graded correctly on this machine, so nothing was graded:\n  "
            + "\n  ".join(problems)
            + "\n`make notebooks` runs the reference. `parlab doctor` reports what is missing here."
        )
    return found


def _as_must_be(who: str, exercise: ExerciseResult) -> bool:
    if who == REFERENCE:
        return exercise.status == GradeStatus.PASSED
    return exercise.points == 0
