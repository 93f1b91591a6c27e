"""The command of `make gpu-check` without a GPU: its record, its messages, and how it ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from parlab.runtime.paths import ROOT
from parlab_staff.course.references import SOLUTIONS
from parlab_staff.gpu_check.record import Record
from tests.conftest import wait_until
from tests.support.gpu_check_labs import cell, notebook


def gpu_check(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parlab_staff.gpu_check", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, **options)


def items(path: Path) -> dict[str, Any]:
    return {item["name"]: item for item in json.loads(path.read_text(encoding="utf-8"))["items"]}


def small_course(folder: Path) -> Path:
    folder.mkdir()
    bytecode = "import sys\nassert not sys.dont_write_bytecode\ncomm.Barrier()"
    notebook(folder / "01_right.ipynb", cell("right", bytecode))
    notebook(folder / "02_wrong.ipynb", cell("wrong", "raise ValueError('wrong')"))
    return folder


def on_cpu(folder: Path, output: Path, *more: str) -> list[str]:
    options = ["--solutions", str(folder), "--output", str(output), "--ranks", "1"]
    only = [] if "--only" in more else ["--only", *sorted(path.stem for path in folder.iterdir())]
    return ["--device", "cpu", "--without-mpi", *options, *only, *more]


# A node that has only torch, Triton, NumPy, and their dependencies.
LACKING = """
import sys
ABSENT = {"IPython", "ipykernel", "ipyparallel", "jupytext", "matplotlib", "mpi4py"}
ABSENT |= {"nbclient", "nbformat", "plotly", "psutil", "pytest", "rich", "typer", "zmq"}

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name in ABSENT:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent())
"""


@pytest.mark.nightly
def test_a_node_with_torch_and_little_else_is_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The imports of all labs, a benchmark, and the command."""
    (tmp_path / "sitecustomize.py").write_text(LACKING)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    labs = tmp_path / "labs"
    labs.mkdir()
    lacking = "import sys\ntry:\n    import psutil\nexcept ModuleNotFoundError:\n    sys = None\n"
    lacking += "assert sys is None"
    for lab in sorted(SOLUTIONS.glob("*.ipynb")):
        first = next(c for c in json.loads(lab.read_text())["cells"] if c["id"] == "start-code-2")
        cells = [first, cell("here", lacking)]
        (labs / lab.name).write_text(json.dumps({"cells": cells}))
    output = tmp_path / "check.json"
    names = [path.stem for path in sorted(labs.iterdir())]
    ran = gpu_check(*on_cpu(labs, output, "--only", "benchmark_add", *names))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert {item["status"] for item in items(output).values()} == {"passed"}, items(output)


@pytest.mark.nightly
def test_a_check_ends_within_its_limit_although_a_cell_hangs(tmp_path: Path) -> None:
    labs, output = tmp_path / "labs", tmp_path / "check.json"
    labs.mkdir()
    notebook(labs / "01_hangs.ipynb", cell("hangs", "import signal\nsignal.pause()"))
    began = time.monotonic()
    gpu_check(*on_cpu(labs, output, "--minutes", "0.5"))
    assert time.monotonic() - began < 30
    assert items(output)["01_hangs"]["status"] == "timed out"


def test_the_record_has_every_item_and_resume_repeats_the_failed_ones(tmp_path: Path) -> None:
    labs, output = small_course(tmp_path / "labs"), tmp_path / "made" / "check.json"
    ran = gpu_check(*on_cpu(labs, output), env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"})
    assert ran.returncode == 1, ran.stderr
    assert "Failed: 02_wrong" in ran.stderr
    record = json.loads(output.read_text())
    assert record["complete"] is True
    assert record["machine"]["torch"]
    assert record["mpi"] == "--without-mpi"
    assert record["command"].startswith("python -m parlab_staff.gpu_check --device cpu")
    found = items(output)
    assert found["01_right"]["status"] == "passed"
    assert found["02_wrong"]["why"].endswith("rank 0: ValueError: wrong (line 2 of the cell)")
    assert found["02_wrong"]["cells"]["set-up"]["status"] == "passed"

    notebook(labs / "02_wrong.ipynb", cell("mended", "comm.Barrier()"))
    ran = gpu_check(*on_cpu(labs, output, "--resume"))
    assert ran.returncode == 0, ran.stderr
    assert items(output)["01_right"] == found["01_right"]
    assert items(output)["02_wrong"]["status"] == "passed"


@pytest.mark.nightly
def test_a_kill_keeps_finished_items(tmp_path: Path) -> None:
    labs, output = small_course(tmp_path / "labs"), tmp_path / "check.json"
    begun = tmp_path / "begun"
    hangs = (
        "import os, threading\nfrom pathlib import Path\n"
        f"Path({str(begun)!r}).write_text(f'{{os.getpid()}} ')\nthreading.Event().wait()"
    )
    notebook(labs / "02_wrong.ipynb", cell("hangs", hangs))
    command = [sys.executable, "-m", "parlab_staff.gpu_check", *on_cpu(labs, output)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL) as process:
        wait_until(lambda: begun.exists() and " " in begun.read_text(), 100, "the cell began")
        process.kill()
    rank = int(begun.read_text())
    wait_until(lambda: not psutil.pid_exists(rank), 60, "its ranks end with the check")
    record = json.loads(output.read_text())
    assert record["complete"] is False
    found = items(output)
    assert found["01_right"]["status"] == "passed"
    assert found["02_wrong"]["why"] == "ended while it was running"
    assert {id: c["status"] for id, c in found["02_wrong"]["cells"].items()} == {"set-up": "passed"}


@pytest.mark.parametrize("mpi", [pytest.param(True, marks=pytest.mark.nightly), False])
def test_ctrl_c_ends_labs_that_run_side_by_side(mpi: bool, tmp_path: Path) -> None:
    labs, output = small_course(tmp_path / "labs"), tmp_path / "check.json"
    begun = [tmp_path / str(number) for number in range(2)]
    for file, name in zip(begun, ["01_right", "02_wrong"], strict=True):
        hangs = (
            "import os, signal\nfrom pathlib import Path\n"
            f"Path({str(file)!r}).write_text(f'{{os.getpid()}} ')\nsignal.pause()"
        )
        notebook(labs / f"{name}.ipynb", cell("hangs", hangs))
    notebook(labs / "03_later.ipynb", cell("later", "pass"))
    options = on_cpu(labs, output, "--jobs", "2")
    if mpi:
        options.remove("--without-mpi")
    # A shell may have blocked Ctrl-C in background processes such as this one.
    command = ["env", "--default-signal=INT", sys.executable, "-m", "parlab_staff.gpu_check"]
    command += options
    with subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True) as process:
        wait_until(lambda: all(file.exists() for file in begun), 100, "both labs run")
        wait_until(lambda: all(" " in file.read_text() for file in begun), 10, "they have written")
        ranks = [psutil.Process(int(file.read_text())) for file in begun]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=20)
    assert process.returncode == 130
    assert errors == f"Interrupted. Finished items are in {output}\n"
    assert not any(rank.is_running() for rank in ranks)
    found = {name: item["why"] for name, item in items(output).items()}
    assert found == dict.fromkeys(["01_right", "02_wrong"], "ended while it was running")


def test_a_gpu_that_cannot_compute_is_a_failure(tmp_path: Path) -> None:
    """This torch finds a GPU, and then cannot use it, like one without kernels for it."""
    finds_one = "import torch\ntorch.cuda.device_count = lambda: 1\n"
    finds_one += "torch.cuda.get_device_name = lambda number: 'GeForce 256'\n"
    (tmp_path / "sitecustomize.py").write_text(finds_one)
    output = tmp_path / "check.json"
    environment = os.environ | {"PYTHONPATH": str(tmp_path)}
    ran = gpu_check("--only", "01_mpi", "--output", str(output), env=environment)
    assert ran.returncode == 1, ran.stderr
    assert ran.stdout.startswith("Nothing was checked: torch does not compute here: ")
    assert items(output)["01_mpi"]["status"] == "failed"


def test_without_a_gpu_one_line_says_that_all_is_skipped(tmp_path: Path) -> None:
    labs, output = small_course(tmp_path / "labs"), tmp_path / "check.json"
    ran = gpu_check(
        *("--solutions", str(labs), "--output", str(output)),
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
    )
    assert ran.returncode == 0
    assert ran.stdout == (
        "Nothing was checked: no GPU here: --device cpu checks the logic without one\n"
    )
    assert {item["status"] for item in items(output).values()} == {"skipped"}
    assert json.loads(output.read_text())["complete"] is True


@pytest.mark.nightly
def test_too_little_time_is_reported(tmp_path: Path) -> None:
    labs, output = small_course(tmp_path / "labs"), tmp_path / "check.json"
    gpu_check(*on_cpu(labs, output, "--minutes", "0.001"))
    assert {item["status"] for item in items(output).values()} == {"skipped"}
    assert "no time left" in items(output)["01_right"]["why"]


def test_an_output_that_cannot_be_written_is_reported_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    labs = small_course(tmp_path / "labs")
    ran = gpu_check(*on_cpu(labs, tmp_path / "file" / "check.json"))
    assert ran.returncode == 2
    assert "Not a directory" in ran.stderr or "File exists" in ran.stderr
    assert "ranks on" not in ran.stdout


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    labs = small_course(tmp_path / "labs")
    ran = gpu_check(*on_cpu(labs, tmp_path / "check.json", "--only", "09_none"))
    assert ran.returncode == 2
    assert "nothing is named 09_none" in ran.stderr


def test_a_record_of_another_machine_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "check.json"
    Record(path, {"gpus": ["A"]}, "gpu_check").save()
    assert Record(path, {"gpus": ["A"]}, "gpu_check").resume() == set()
    with pytest.raises(ValueError, match="another machine"):
        Record(path, {"gpus": ["B"]}, "gpu_check").resume()
    path.write_text("[]")
    with pytest.raises(ValueError, match="no record"):
        Record(path, {"gpus": ["A"]}, "gpu_check").resume()
