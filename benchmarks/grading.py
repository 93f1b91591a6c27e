"""The grader against plain nbval, on the same cells; and its memory, of one and of many.

PARLAB_GRADING_SUBMISSIONS=30 grades a class of that size; the usual one is small, since each
submission takes some 20 s. A third of the class is right; the others have wrong answers of
`tests/wrong_answers` in a third of the exercises. Before anything is timed the lab has proved
itself, which a class pays for once: as much as two submissions more.
"""

import ast
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
WRONG = Path(__file__).resolve().parents[1] / "tests" / "wrong_answers" / "mpi"


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
    """Folders `one` and `many` of submissions, and `cells`: what the grader runs for them."""

    def __init__(self) -> None:
        from parlab.grading.master import find_master
        from parlab.grading.rebuilding import rebuild

        folder = tempfile.TemporaryDirectory(prefix="parlab-bench-")
        atexit.register(folder.cleanup)
        self.folder = Path(folder.name)
        for name in ("one", "many", "cells"):
            (self.folder / name).mkdir()
        master = find_master(LAB)
        for number in range(SUBMISSIONS + 1):
            submission = submitted(master, number)
            name = f"{number:03}.ipynb"
            nbformat.write(submission, self.folder / ("many" if number else "one") / name)
            if number:
                rebuilt = rebuild(master, submission).notebook
                nbformat.write(rebuilt, self.folder / "cells" / name)

    def grade(self, name: str) -> float:
        """Seconds that `parlab grade` takes; the proof of an earlier call holds."""
        from parlab.grading.command import ALL_GRADED, Asked, grade

        out = self.folder / "out"
        for result in (out / "results").glob("*/result.json"):
            result.unlink()
        start = time.perf_counter()
        with open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
            code = grade(Asked(LAB, [self.folder / name], out, jobs=JOBS))
        assert code == ALL_GRADED, f"parlab grade ended with {code}"
        return time.perf_counter() - start

    def nbval(self) -> None:
        """As anybody would: one pytest a notebook."""

        def run(notebook: Path) -> None:
            command = [sys.executable, "-m", "pytest", "--nbval-lax", "--nbval-current-env"]
            ran = subprocess.run(
                [*command, "-p", "no:cacheprovider", notebook.name],
                cwd=notebook.parent,
                capture_output=True,
                text=True,
            )
            assert ran.returncode in (0, 1), ran.stdout[-2000:]  # all cells well, or some not

        with ThreadPoolExecutor(JOBS) as pool:
            list(pool.map(run, sorted((self.folder / "cells").glob("*.ipynb"))))


def submitted(master, number: int) -> NotebookNode:
    """The lab as handed out with answers in it: every third one all right."""
    notebook = nbformat.from_dict(json.loads(json.dumps(master.stub)))
    cells = {cell.id: cell for cell in notebook.cells}
    solved = {cell.id: cell.source for cell in master.cells}
    for index, exercise in enumerate(master.exercises):
        is_wrong = number % 3 != 0 and (number + index) % 3 == 0
        source = wrong_answer(exercise.key, number) if is_wrong else solved[exercise.cell]
        cells[exercise.cell].source = source
    return notebook


def wrong_answer(key: str, number: int) -> str:
    """A mistake from the tests, as a rank cell; the docstring, which names it, stays away."""
    files = sorted((WRONG / key).glob("*.py"))
    module = ast.parse(files[number % len(files)].read_text())
    return "%%px\n" + "\n\n".join(ast.unparse(statement) for statement in module.body[1:])


def most_memory() -> int:
    """Bytes of this process alone at its largest so far, without those that it started."""
    status = Path("/proc/self/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024
