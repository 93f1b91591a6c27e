"""Shows, before any student is graded, that the lab grades right on this machine."""

from parlab.grading import doing_nothing
from parlab.grading.building import build
from parlab.grading.doing_nothing import Worthless
from parlab.grading.grader import Grader, workers
from parlab.grading.matching import match
from parlab.grading.results import ExerciseResult, GradeStatus
from parlab.grading.scoring import score

REFERENCE, STUB, NOTHING = "the reference", "the stub", "what does nothing"


class ProofFailed(ValueError):
    """The lab does not grade as it must; nothing was graded."""


def prove(grader: Grader, jobs: int) -> Worthless:
    """Grade the reference and the notebook as handed out: all points, and none.

    Returns what of the hidden checks' values an answer that does nothing shows as well. Raises
    ProofFailed with what was otherwise, and Stopped.
    """
    lab = grader.lab
    work = {REFERENCE: match(lab, lab.solution), STUB: match(lab, lab.handed_out)}
    notebooks = {who: build(lab, matched) for who, matched in work.items()}
    notebooks[NOTHING] = doing_nothing.notebook(lab)
    with workers(grader, min(jobs, len(notebooks))) as pool:
        ran = dict(
            zip(
                notebooks,
                pool.map(lambda who: grader.run(who, notebooks[who]), notebooks),
                strict=True,
            )
        )
    found = doing_nothing.worthless(lab, ran[NOTHING])
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
        if doing_nothing.nothing_left(e, found)
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
