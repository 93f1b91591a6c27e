"""The grader against plain nbval on the same cells, and its memory for one and many submissions.

PARLAB_GRADING_SUBMISSIONS=30 grades a class of that size. The default is small, because each
submission takes about 20 s. A third of the submissions are right. The others have one small mistake
in a third of the exercises. The test of the lab runs before the timing. It takes as long as three
submissions, but runs only once for a class.
"""

import atexit
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from benchmarks import Pair, benchmark

SUBMISSIONS = int(os.environ.get("PARLAB_GRADING_SUBMISSIONS", "4"))
ROUNDS = 2 if SUBMISSIONS < 10 else 1
SECONDS = 300 + 120.0 * SUBMISSIONS * ROUNDS
JOBS = 2
LAB = "01_mpi"


@benchmark(
    peer="plain nbval",
    work=f"{SUBMISSIONS} submissions of lab 01, {JOBS} at a time, the same cells; proof not timed",
    target=1.25,
    ranks=0,
    rounds=ROUNDS,
    warm_up=0,
    seconds=SECONDS,
)
def grade_class() -> Pair:
    work = Workplace()
    work.grade("one")

    def ours() -> float:
        return work.grade("many")

    return Pair(ours, work.nbval)


@benchmark(
    peer="the same grader after 1",
    work=f"most memory of the grader's own process, after {SUBMISSIONS} submissions of lab 01",
    target=1.1,
    ranks=0,
    rounds=1,
    warm_up=0,
    seconds=SECONDS,
    unit="bytes",
)
def grader_memory() -> Pair:
    work = Workplace()
    work.grade("one")
    after_one = most_memory()

    def ours() -> int:
        work.grade("many")
        return most_memory()

    return Pair(ours, lambda: after_one)


class Workplace:
    """Folders `one` and `many` with submissions, and `cells` with the notebooks that run."""

    def __init__(self) -> None:
        from parlab_staff.grading.graded_lab import find_lab
        from parlab_staff.grading.match import match
        from parlab_staff.grading.rebuild import build

        folder = tempfile.TemporaryDirectory(prefix="parlab-bench-")
        atexit.register(folder.cleanup)
        self.folder = Path(folder.name)
        for name in ("one", "many", "cells"):
            (self.folder / name).mkdir()
        lab = find_lab(LAB)
        for number in range(SUBMISSIONS + 1):
            submission = submitted(lab, number)
            name = f"{number:03}.ipynb"
            nbformat.write(submission, self.folder / ("many" if number else "one") / name)
            if number:
                nbformat.write(build(lab, match(lab, submission)), self.folder / "cells" / name)

    def grade(self, name: str) -> float:
        """Return the seconds of `parlab grade`. It reuses an earlier call's test of the lab."""
        from parlab_staff.gradebook.command import ALL_GRADED, GradeOptions, grade

        out = self.folder / "out"
        for result in (out / "results").glob("*/result.json"):
            result.unlink()
        start = time.perf_counter()
        with open(os.devnull, "w", encoding="utf-8") as null, contextlib.redirect_stdout(null):
            code = grade(GradeOptions(LAB, [self.folder / name], out, jobs=JOBS))
        assert code == ALL_GRADED, f"parlab grade ended with {code}"
        return time.perf_counter() - start

    def nbval(self) -> None:
        """Run nbval in the usual way: one pytest process for each notebook."""

        def run(notebook: Path) -> None:
            command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env"]
            ran = subprocess.run(
                [*command, "-p", "no:cacheprovider", notebook.name],
                cwd=notebook.parent,
                capture_output=True,
                encoding="utf-8",
            )
            assert ran.returncode in (0, 1), ran.stdout[-2000:]  # all cells passed, or some did not

        with ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(run, sorted((self.folder / "cells").glob("*.ipynb"))))


def submitted(lab, number: int) -> NotebookNode:
    """Return the lab as handed out, with answers. Every third submission is right."""
    notebook = nbformat.from_dict(json.loads(json.dumps(lab.handed_out)))
    cells = {cell.id: cell for cell in notebook.cells}
    solved = {cell.id: cell.source for cell in lab.cells}
    for index, exercise in enumerate(lab.exercises):
        is_wrong = number % 3 != 0 and (number + index) % 3 == 0
        source = wrong_answer(exercise.key, number) if is_wrong else solved[exercise.cell]
        cells[exercise.cell].source = source
    return notebook


def wrong_answer(key: str, number: int) -> str:
    """Return the reference with one small mistake, as a rank cell."""
    from parlab_staff.course.references import exercise_of
    from parlab_staff.mutants.generate import mutants_of

    mutants = mutants_of(exercise_of(key).cell)
    return "%%px\n" + mutants[number % len(mutants)].code


def most_memory() -> int:
    """Return the peak memory of this process in bytes, without its children."""
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024
