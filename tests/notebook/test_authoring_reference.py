"""A learner uses the reference instead of their own code, in the notebook and on the ranks."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from parlab.runtime.paths import ROOT
from parlab_staff.course.percent_source import read_lab
from parlab_staff.notebooks.make import solution_notebook, to_text
from tests.support.authoring_course import TinyCourse
from tests.support.kernel import Notebook

RANK_LAB = '''\
# %% tags=["exercise"] exercise="everyone"
# %%px
def everyone(comm):
    """The ranks, gathered."""
    # BEGIN SOLUTION
    return comm.allgather(comm.rank)
    # END SOLUTION


# %% tags=["exercise"] exercise="broken"
# %%px
@decorator
def broken():
    # BEGIN SOLUTION
    return 1
    # END SOLUTION
'''
USE = "from parlab.reference import use_reference\nuse_reference({key!r})"


@pytest.fixture(scope="module")
def course(tmp_path_factory: pytest.TempPathFactory) -> TinyCourse:
    course = TinyCourse(tmp_path_factory.mktemp("course"))
    source = course.root / "solutions" / "02_ranks.py"
    source.write_text(RANK_LAB)
    for path in (course.source, source):
        notebook = solution_notebook(read_lab(path))
        path.with_suffix(".ipynb").write_text(to_text(notebook))
    return course


@pytest.fixture(scope="module")
def learner(notebook: Notebook, course: TinyCourse) -> Iterator[Notebook]:
    """Provide the notebook with ranks, in the course's folder of labs."""
    folder = str(course.root / "labs")
    assert notebook.run(f"%cd -q {folder}\n%px %cd -q {folder}").status == "ok"
    yield notebook
    home = str(ROOT)
    assert notebook.run(f"%cd -q {home}\n%px %cd -q {home}").status == "ok"


def use(key: str) -> str:
    return USE.format(key=key)


def test_a_local_exercise_runs_in_the_notebook(learner: Notebook) -> None:
    ran = learner.run(use("add"))
    assert ran.status == "ok", ran.message
    assert ran.text == (
        "exercise add: the reference is in place of your code. "
        "The check now tests the reference, and not your code.\n"
    )
    assert learner.run("print(add(2, 3))").text == "5\n"


def test_the_reference_stays_until_the_learner_defines_the_function(
    learner: Notebook,
) -> None:
    code = "from parlab.reference import in_place\nprint(in_place('add'))"
    assert learner.run(use("add")).status == "ok"
    assert learner.run(code).text == "True\n"
    assert learner.run("def add(a, b):\n    return a + b\n" + code).text == "False\n"


def test_a_rank_exercise_runs_on_the_ranks(learner: Notebook) -> None:
    ran = learner.run(use("everyone"))
    assert ran.status == "ok", ran.message
    assert "exercise everyone: the reference is in place" in ran.text
    ran = learner.run("%%px\nprint(everyone(comm))")
    assert ran.text == "[all ranks] [0, 1, 2, 3]\n"
    assert learner.run("everyone").error == "NameError"  # it exists only on the ranks


def test_a_rank_cell_may_ask_for_the_reference_too(learner: Notebook) -> None:
    assert learner.run("%%px\ndel everyone").status == "ok"
    ran = learner.run(f"%%px\n{use('everyone')}\nprint(everyone(comm)[-1])")
    assert ran.status == "ok", ran.message
    printed = ran.text.splitlines()
    assert printed[0].startswith("[all ranks]") and printed[-1] == "3"
    assert ran.text.count("exercise everyone: the reference is in place") == 1


def test_a_rank_cell_cannot_ask_for_a_local_exercise(learner: Notebook) -> None:
    ran = learner.run(f"%%px\n{use('add')}")
    assert ran.status == "error"
    assert "exercise add runs in the notebook" in ran.message


def test_an_unknown_key_lists_the_keys(learner: Notebook) -> None:
    ran = learner.run(use("evryone"))
    assert (ran.status, ran.error) == ("error", "NoReference")
    assert ran.message == (
        "there is no exercise 'evryone'. Did you mean 'everyone'? There are:\n"
        "  01_adding: add\n"
        "  02_ranks: everyone, broken"
    )


def test_a_reference_that_needs_earlier_cells_says_so(learner: Notebook) -> None:
    ran = learner.run(use("broken"))
    assert ran.status == "error"
    assert "run the lab's cells above it first" in ran.message
    assert "is in place" not in ran.text


def test_withheld_solutions(course: TinyCourse, tmp_path: Path) -> None:
    # Copy only the needed files, so that no solutions are near the notebook or the package.
    (tmp_path / "labs").mkdir()
    (tmp_path / "parlab" / "runtime").mkdir(parents=True)
    runtime = ("runtime/__init__.py", "runtime/notebook.py", "runtime/paths.py")
    for name in ("__init__.py", "reference.py", *runtime):
        shutil.copy(ROOT / "parlab" / name, tmp_path / "parlab" / name)
    ran = subprocess.run(
        [sys.executable, "-m", "IPython", "--no-banner", "-c", use("everyone")],
        cwd=tmp_path / "labs",
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert "exercise everyone: this copy of the course comes without solutions" in ran.stdout
    assert "is in place" not in ran.stdout
