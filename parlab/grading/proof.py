"""Shows, before any student is graded, that the lab grades right on this machine."""

from nbformat import v4

from parlab.grading.grader import Grader, Stopped, workers
from parlab.grading.master import Master
from parlab.grading.rebuilding import Rebuilt, rebuild
from parlab.grading.results import ExerciseResult, Status
from parlab.grading.running import run
from parlab.grading.scoring import score

REFERENCE, STUB = "the reference", "the stub"


class ProofFailed(ValueError):
    """The lab does not grade as it must; nothing was graded."""


def prove(grader: Grader, jobs: int) -> None:
    """Grade the reference and the notebook as handed out: all points, and none.

    Raises ProofFailed with what was otherwise, and Stopped.
    """
    master = grader.master
    solved = {e.key: _source(master, e.cell) for e in master.exercises}
    work = {
        REFERENCE: Rebuilt(v4.new_notebook(cells=master.cells), dict(solved)),
        STUB: rebuild(master, master.stub),
    }
    with workers(grader, min(jobs, len(work))) as pool:
        graded = pool.map(lambda who: _graded(grader, who, work[who]), work)
        results = dict(zip(work, graded, strict=True))
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


def _graded(grader: Grader, who: str, rebuilt: Rebuilt) -> list[ExerciseResult]:
    ran = run(
        rebuilt.notebook,
        grader.limits,
        grader.sandbox,
        lambda cell: grader.progress(who, cell),
        grader.stop,
    )
    if grader.stop.is_set():
        raise Stopped
    return score(grader.master, rebuilt, ran)


def _source(master: Master, cell_id: str) -> str:
    return next(cell.source for cell in master.cells if cell.id == cell_id)
