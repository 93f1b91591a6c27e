"""Shows, before any student is graded, that the lab grades right on this machine."""

from parlab.grading.grader import Grader, workers
from parlab.grading.rebuilding import rebuild
from parlab.grading.results import ExerciseResult, Status
from parlab.grading.scoring import score

REFERENCE, STUB = "the reference", "the stub"


class ProofFailed(ValueError):
    """The lab does not grade as it must; nothing was graded."""


def prove(grader: Grader, jobs: int) -> None:
    """Grade the reference and the notebook as handed out: all points, and none.

    Raises ProofFailed with what was otherwise, and Stopped.
    """
    master = grader.master
    work = {REFERENCE: rebuild(master, master.notebook), STUB: rebuild(master, master.stub)}
    with workers(grader, min(jobs, len(work))) as pool:
        runs = list(pool.map(lambda who: grader.run(who, work[who].notebook), work))
    results = {who: score(master, work[who], ran) for who, ran in zip(work, runs, strict=True)}
    problems = [
        f"{who}, {e.key}: {e.points} of {e.of} points ({e.status}). {e.message} {' '.join(e.notes)}"
        for who, exercises in results.items()
        for e in exercises
        if not _as_must_be(who, e)
    ]
    if problems:
        raise ProofFailed(
            f"lab {master.name} does not prove itself on this machine, so nothing was graded:\n  "
            + "\n  ".join(problems)
            + "\n`make notebooks` runs the reference; `parlab doctor` says what is missing here."
        )


def _as_must_be(who: str, exercise: ExerciseResult) -> bool:
    if who == REFERENCE:
        return exercise.status == Status.PASSED
    return exercise.points == 0
