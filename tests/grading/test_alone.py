"""A wrong answer costs only its own points, whatever state it leaves.

In each submission, one exercise is wrong. The exercises before it are right, and so are those after
it, as far as they are answered.
"""

import builtins
import json
import subprocess
import sys
from pathlib import Path

import pytest

from parlab.runtime.paths import ROOT, numbered
from parlab.runtime.source_code import bound_names, free_names
from parlab_staff.grading.graded_lab import GradedExercise, GradedLab, find_lab
from parlab_staff.grading.match import match
from parlab_staff.grading.rebuild import alone, uses
from tests.grading.copies import Copy
from tests.grading.plain_lab import in_process_lab

PATHS = numbered(ROOT / "solutions", ".ipynb")
# In lab 01, each exercise is wrong once, and all others are answered. In other labs, only one is
# wrong, and this many are answered after it, because each of them runs twice.
COMPLETE, AFTER = "01_mpi", 3

LEAVES = """

def _leaving(function):
    def leaves(*arguments, **named):
        import builtins, os, random, threading, time, warnings
        for comm in (a for a in (*arguments, globals().get("comm")) if hasattr(a, "Isend")):
            for tag in (0, 1):
                comm.Isend(np.full(5, 7.0), dest=(comm.rank + 1) % comm.size, tag=tag)
        threading.Thread(target=time.sleep, args=(600,), daemon=True).start()
        random.seed(1)
        np.random.seed(1)
        os.environ["OMP_NUM_THREADS"] = "1"
        warnings.simplefilter("error")
        builtins.kept = [open("/dev/null") for _ in range(100)]
        np.seterr(all="raise")
        raise ValueError("it leaves much")
    return leaves


import numpy as np
"""


def unanswered(lab: GradedLab, exercise: GradedExercise) -> set[str]:
    """Return the keys of the exercises that are not answered if this one is wrong."""
    if lab.name == COMPLETE:
        return set()
    after = lab.exercises[lab.exercises.index(exercise) + 1 :]
    return {later.key for later in after[AFTER:]}


def wrong(lab: GradedLab, exercise: GradedExercise) -> Copy:
    copy = Copy(lab)
    for key in unanswered(lab, exercise):
        copy.stub(key)
    names = "".join(f"{name} = _leaving({name})\n" for name in sorted(exercise.names))
    return copy.answer(exercise.key, copy.reference(exercise.key) + LEAVES + names)


def users_of(copy: Copy, key: str) -> set[str]:
    """Return the exercises that use the answer to this one."""
    matched = match(copy.lab, copy.notebook)
    return {e.key for e in copy.lab.exercises if key in uses(copy.lab, matched, e)}


def exercises_to_break(path: Path) -> list[str]:
    """Return all exercises of lab 01, and one from the middle of every other lab."""
    keys = [exercise.key for exercise in find_lab(path.stem).exercises]
    return keys if path.stem == COMPLETE else [keys[len(keys) // 2]]


@pytest.mark.nightly
@pytest.mark.needs("bubblewrap")
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_wrong_answer_costs_no_other_exercise_a_point(path: Path, tmp_path: Path) -> None:
    lab = find_lab(path.stem)
    folder, out = tmp_path / "class", tmp_path / "out"
    folder.mkdir()
    broken = {e.key: e for e in lab.exercises if e.key in exercises_to_break(path)}
    copies = {key: wrong(lab, exercise) for key, exercise in broken.items()}
    for key, copy in copies.items():
        (folder / f"{key}.ipynb").write_text(copy.text())
    arguments = ["grade", str(lab.path), str(folder), "--out", str(out), "--jobs", "2"]
    ended = subprocess.run(
        [sys.executable, "-m", "parlab.setup.cli", *arguments], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    results = [json.loads(path.read_text()) for path in out.glob("results/*/result.json")]
    assert len(results) == len(copies)
    for result in results:
        key = result["student"]
        missing = {e["key"] for e in result["exercises"] if e["status"] == "missing"}
        assert missing == unanswered(lab, broken[key])
        failed = {e["key"] for e in result["exercises"] if e["status"] != "passed"} - missing
        assert key in failed and failed <= users_of(copies[key], key), result


def test_the_notebook_of_one_exercise_has_only_the_answers_that_it_uses() -> None:
    lab = in_process_lab()
    total, mean = lab.exercises[1:]
    copy = Copy(lab)
    copy.insert("%%px\ndef half(values):\n    return mean(values) / 2\n", before="check-mean")
    copy.answer("mean", copy.reference("mean") + "    # by half, too: " + "\n")
    matched = match(lab, copy.notebook)
    assert uses(lab, matched, total) == {"total"}
    assert uses(lab, matched, mean) == {"total", "mean"}
    cells = {cell.id: cell.source for cell in alone(lab, matched, mean).cells}
    assert "not done yet" in cells["exercise-add"] and "half" not in cells["exercise-add"]
    assert "result += value" in cells["exercise-total"]
    checks = {cell for cell in cells if "check-" in cell and not cell.startswith("restore-")}
    assert checks == {"check-mean", "hidden-check-mean"}


def test_a_parameter_is_not_a_use_of_another_answer() -> None:
    lab = in_process_lab()
    copy = Copy(lab).answer("add", "%%px\nvalues = [1]\ndef add(a, b):\n    return a + b\n")
    assert uses(lab, match(lab, copy.notebook), lab.exercises[1]) == {"total"}


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_the_notebook_of_one_exercise_defines_every_name_that_its_checks_read(path: Path) -> None:
    """Hidden checks use functions of earlier hidden checks, which do not run then."""
    lab = find_lab(path.stem)
    matched = match(lab, Copy(lab).notebook)
    for exercise in lab.exercises:
        cells = alone(lab, matched, exercise).cells
        defined = {name for cell in cells for name in bound_names(cell.source)} | {*dir(builtins)}
        for cell in cells:
            if cell.id in (*exercise.checks, *exercise.hidden):
                assert free_names(cell.source) <= defined, cell.id
        others = {key for cell in exercise.hidden for key in lab.builds_on[cell]}
        assert others <= uses(lab, matched, exercise)
