"""Whole notebooks on real ranks: solutions repeat their outputs, and stubs pass no check."""

import os
import re
import secrets
import subprocess
import sys

import nbformat
import pytest
from nbclient import NotebookClient

from parlab.runtime.paths import ROOT, numbered
from tests.conftest import rank_processes, started_with, wait_until

# A lab runs in two minutes on two free cores; these are the limits of something that hangs.
CELL_SECONDS = 300
NOTEBOOK_SECONDS = 1200


# List the sources, so that a missing notebook fails.
LABS = [source.stem for source in numbered(ROOT / "solutions", ".py")]


# A mesh of two stages and two tensor-parallel ranks needs four ranks or a multiple.
FEWER = {"10_composing": 4}


def each_alone(folder: str, labs: list[str] = LABS) -> list:
    """Return the labs as parameters, so that each lab can run at the same time as the others."""
    return [pytest.param(lab, marks=pytest.mark.xdist_group(f"{folder}/{lab}")) for lab in labs]


def environment(**more: str) -> dict[str, str]:
    """Return the environment without pytest's variable, which makes kernels capture less."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}
    return kept | more


def test_there_are_labs() -> None:
    assert LABS


@pytest.mark.timeout(NOTEBOOK_SECONDS + 60)
@pytest.mark.parametrize("lab", each_alone("solutions"))
def test_the_solution_passes_all_and_prints_what_is_stored(lab: str) -> None:
    repeats_its_outputs(lab, PARLAB_ROUNDS="1")


# PyTorch, oneDNN and MKL compute as on a CPU without AVX.
OLD_CPU = {
    "ATEN_CPU_CAPABILITY": "default",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "MKL_CBWR": "COMPATIBLE",
}
# The labs whose outputs depend most on rounding: training, 16 bits, and 8 bits.
ROUNDING = ["02_data_parallel", "06_mixed_precision", "08_memory"]


@pytest.mark.nightly
@pytest.mark.timeout(NOTEBOOK_SECONDS + 60)
@pytest.mark.parametrize("lab", each_alone("old-cpu", ROUNDING))
def test_the_outputs_do_not_depend_on_the_cpu(lab: str) -> None:
    repeats_its_outputs(lab, **OLD_CPU)


def repeats_its_outputs(lab: str, **variables: str) -> None:
    """Run a solution with these variables, and compare its outputs with the stored ones."""
    path = ROOT / "solutions" / f"{lab}.ipynb"
    mark = secrets.token_hex(8)
    # Use a process for each notebook, so that a broken notebook or kernel affects only one.
    command = [sys.executable, "-m", "pytest", str(path), "--nbval", "--nbval-current-env"]
    options = [f"--nbval-cell-timeout={CELL_SECONDS}", f"--timeout={NOTEBOOK_SECONDS}"]
    options += ["-p", "no:cacheprovider", "--color=no", "-q", "-rfExX"]
    ran = subprocess.run(
        command + options,
        cwd=ROOT,
        env=environment(PARLAB_TEST_RUN=mark, **variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=NOTEBOOK_SECONDS,
    )
    printed = ran.stdout
    assert ran.returncode == 0, printed
    cells = nbformat.read(path, as_version=4).cells
    code = sum(cell.cell_type == "code" for cell in cells)
    # After a cell that timed out, nbval expects failures, so count only the passed cells.
    assert f"{code} passed" in printed and "xfailed" not in printed and "skipped" not in printed, (
        printed
    )
    wait_until(
        lambda: not any(started_with(process, mark) for process in rank_processes()),
        60,
        "nbval has killed the kernel, and its ranks have ended",
    )


@pytest.mark.timeout(NOTEBOOK_SECONDS + 60)
@pytest.mark.nightly
@pytest.mark.parametrize("lab", each_alone("fewer"))
def test_the_solution_keeps_its_promises_on_fewer_ranks(lab: str) -> None:
    """Numbers of batches, layers, and parameters are divisible by four, but not by three."""
    ranks = FEWER.get(lab, 3)
    notebook = nbformat.read(ROOT / "solutions" / f"{lab}.ipynb", as_version=4)
    [start] = [c for c in notebook.cells if re.search(r"^cluster\.start\(", c.source, re.M)]
    start.source = re.sub(r"(?m)^cluster\.start\(\d*\)", f"cluster.start({ranks})", start.source)
    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        resources={"metadata": {"path": str(ROOT / "solutions")}},
    )
    client.execute(env=environment())  # raises at an error that the lab does not expect
    printed = [text for cell in notebook.cells if cell.cell_type == "code" for text in shown(cell)]
    assert f"{ranks} ranks" in "".join(shown(start))
    assert not [text for text in printed if re.search(r": False\b", text)]


@pytest.mark.nightly
@pytest.mark.timeout(NOTEBOOK_SECONDS + 60)
@pytest.mark.parametrize("lab", each_alone("labs"))
def test_an_unsolved_lab_passes_no_check(lab: str) -> None:
    """Run the whole lab. `tests/ranks/test_stubs.py` tries each stub alone."""
    path = ROOT / "labs" / f"{lab}.ipynb"
    notebook = nbformat.read(path, as_version=4)
    status: dict[str, str] = {}

    def executed(cell: nbformat.NotebookNode, cell_index: int, execute_reply: dict) -> None:
        # Use the kernel's reply, because a learner's code can hide the output.
        status[cell.id] = execute_reply["content"]["status"]

    client = NotebookClient(
        notebook,
        timeout=CELL_SECONDS,
        kernel_name="python3",
        allow_errors=True,
        resources={"metadata": {"path": str(path.parent)}},
        on_cell_executed=executed,
    )
    client.execute(env=environment())
    [start] = [c for c in notebook.cells if "cluster.start(" in c.source][:1]
    assert status[start.id] == "ok", "\n".join(shown(start))
    checks = [c for c in notebook.cells if "check" in c.metadata.get("tags", [])]
    assert checks
    for check in checks:
        key, printed = check.metadata.exercise, "\n".join(shown(check))
        assert status[check.id] == "error", f"the check of {key} passes on the stub:\n{printed}"
        # An exercise that needs another one may call its stub first. The check then names that one.
        not_done = rf"{key}: (not done yet|it calls exercise \w+, which is not done yet)"
        assert re.search(not_done, printed), f"the check of {key} on the stub says:\n{printed}"
        assert "✓" not in printed


def shown(cell: nbformat.NotebookNode) -> list[str]:
    """Return what a cell printed, and the messages of its errors."""
    return [output.get("text", "") + output.get("evalue", "") for output in cell.outputs]
