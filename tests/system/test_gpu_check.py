"""`make gpu-check` without a GPU: labs that pass, fail, hang, crash, or lack modules."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from benchmarks.harness import Benchmark
from parlab.runtime.notebook import read_cells
from parlab.runtime.paths import ROOT
from parlab_staff.course.references import SOLUTIONS
from parlab_staff.gpu_check import kernels
from parlab_staff.gpu_check.cells import (
    named_ranks,
    printed,
    seconds,
    stored_values,
    targets,
)
from parlab_staff.gpu_check.compare import compared, judge
from parlab_staff.gpu_check.outcome import STATUSES, worst
from parlab_staff.gpu_check.record import Record
from parlab_staff.gpu_check.run_lab import LabRun
from tests import rehearsal
from tests.conftest import wait_until
from tests.support.nightly import cases

SET_UP = "import torch\nfrom parlab.rank import comm, device, group, rank, world_size"


VALUES = "from parlab.checks import words as check\ncheck.show_values(x=rank * 2)"


def cell(id: str, source: str, *, tags: str = "", outputs: Any = (), magic: str = "%%px") -> Any:
    return {
        "cell_type": "code",
        "id": id,
        "metadata": {"tags": tags.split(), "exercise": id},
        "source": f"{magic}\n{source}" if magic else source,
        "outputs": list(outputs),
    }


def stream(text: str) -> dict[str, Any]:
    return {"output_type": "stream", "name": "stdout", "text": [text]}


def shows(**values: Any) -> dict[str, Any]:
    return {"output_type": "display_data", "data": {"application/json": values}, "metadata": {}}


def notebook(path: Path, *cells: Any) -> Path:
    local = cell("start", "raise SystemExit('the notebook itself does not run')", magic="")
    setup = cell("set-up", SET_UP)
    path.write_text(json.dumps({"cells": [local, setup, *cells]}), encoding="utf-8")
    return path


def lab_run(path: Path, ranks: int = 2, mpi: bool = False, seconds: float = 100.0) -> LabRun:
    return LabRun(path, ranks, "cpu", mpi, time.monotonic() + seconds)


def statuses(run: LabRun) -> dict[str, str]:
    return {id: cell["status"] for id, cell in run.cells.items()}


def gpu_check(*arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "parlab_staff.gpu_check", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250, **options)


def items(path: Path) -> dict[str, Any]:
    return {item["name"]: item for item in json.loads(path.read_text(encoding="utf-8"))["items"]}


# Reading notebooks


def test_a_cell_is_read_with_its_deadline_its_ranks_and_its_outputs(tmp_path: Path) -> None:
    shown = cell(
        "hidden-check-x",
        "check.show_values(x=1)",
        tags="hidden-check",
        outputs=[stream("[rank 0]\n"), shows(x=[1, 1])],
        magic="%%px --targets 0 --timeout 90",
    )
    _, setup, hidden = read_cells(notebook(tmp_path / "01_x.ipynb", shown))
    assert (setup.role, seconds(setup), targets(setup)) == (None, 60.0, None)
    assert (hidden.role, seconds(hidden), targets(hidden)) == ("hidden-check", 90.0, [0])
    assert stored_values(hidden) == {"x": [1, 1]}
    assert hidden.code == "# %%px --targets 0 --timeout 90\ncheck.show_values(x=1)"


def test_printed_lines_belong_to_the_ranks_of_their_group() -> None:
    text = "[rank 0]\none\ntwo\n[ranks 1, 2] three\n[rank 3]\n"
    assert printed(text) == {0: ["one", "two"], 1: ["three"], 2: ["three"]}
    assert printed("[all ranks] ✓ done\n") == {-1: ["✓ done"]}
    assert printed("[ranks 0, 2-4] four\n") == {rank: ["four"] for rank in (0, 2, 3, 4)}


def test_outputs_are_compared_if_they_are_of_the_same_number_of_ranks(tmp_path: Path) -> None:
    start = cell("ranks", "from parlab import cluster\ncluster.start(3)", magic="")
    values = cell("values", VALUES, tags="hidden-check", outputs=[shows(x=[0, 2, 4])])
    cells = read_cells(notebook(tmp_path / "01_x.ipynb", start, values))
    assert named_ranks(cells) == 3
    assert named_ranks(cells[:2]) is None

    def status(values: list[int]) -> str:
        reports = [{"status": "passed", "values": [{"x": values}]} for _ in values]
        return judge(cells[-1], reports, stored_ranks=3)["status"]

    assert status([0, 2, 4]) == "passed"
    assert status([0, 2, 5]) == "failed"
    assert status([1, 1]) == "passed", "other numbers of ranks have other outputs"


@pytest.mark.parametrize("lab", sorted(SOLUTIONS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_hidden_check_of_the_course_has_values_to_compare_with(lab: Path) -> None:
    hidden = [cell for cell in read_cells(lab) if cell.role == "hidden-check"]
    assert hidden
    assert all(isinstance(stored_values(cell), dict) for cell in hidden)


@pytest.mark.parametrize(
    ("got", "status"),
    [
        (["error 2e-04 of 1,024", "same: True"], "passed"),
        (["error 3.1e-03 of 4,096", "same: True"], "differs"),
        (["same: True"], "differs"),
        (["error 2e-04 of 1,024", "same: False"], "failed"),
        (["error nan of 1,024", "same: True"], "failed"),
        (["error  2e-04 of  1,024", "same:  True"], "passed"),
        (["error 3.1e-03 of      9", "same: True"], "differs"),
        (["error 2e-04 of 1,024", "same: True", "more"], "failed"),
        (["same: True", "error 2e-04 of 1,024"], "failed"),
    ],
)
def test_other_numbers_differ_and_other_words_fail(got: list[str], status: str) -> None:
    assert compared(got, ["error 2e-04 of 1,024", "same: True"])[0] == status


def test_the_worst_status_counts() -> None:
    assert worst(["passed", "skipped"]) == "passed"
    assert worst(STATUSES) == "crashed"
    assert worst([]) == "skipped"


# Labs on ranks


@pytest.fixture(scope="module")
def various(tmp_path_factory: pytest.TempPathFactory) -> LabRun:
    """A run on four ranks without MPI, with all kinds of cells that end on all ranks."""
    path = notebook(
        tmp_path_factory.mktemp("labs") / "02_words.ipynb",
        cell(
            "sum",
            "import torch.distributed as dist\nx = torch.full((2,), rank + 1.0, device=device)\n"
            "dist.all_reduce(x, group=group)\nprint(comm.allreduce(rank), x.tolist())",
            outputs=[stream("[rank 0] 6 [10.0, 10.0]\n[ranks 1, 2, 3] 6 [10.0, 10.0]\n")],
        ),
        cell(
            "comm",
            "from mpi4py import MPI\nhalf = comm.Split(rank % 2, -rank)\n"
            "y = torch.tensor([float(rank)])\nhalf.Allreduce(MPI.IN_PLACE, y)\n"
            "print(half.rank, half.allgather(rank), y.item(), half.bcast(rank, 1))",
            outputs=[
                stream("[rank 0] 1 [2, 0] 2.0 0\n[rank 1] 1 [3, 1] 4.0 1\n"),
                stream("[rank 2] 0 [2, 0] 2.0 0\n[rank 3] 0 [3, 1] 4.0 1\n"),
            ],
        ),
        cell("one", "print(comm.rank)", magic="%%px --targets 0", outputs=[stream("[rank 0] 0\n")]),
        cell("values", VALUES, tags="hidden-check", outputs=[shows(x=[0, 2, 4, 6])]),
        cell("check", "check.sum()", tags="check"),
        cell("deadlock", "comm.Recv(x)", tags="raises-exception"),
        cell("other_values", VALUES, tags="hidden-check", outputs=[shows(x=[0, 2, 5, 6])]),
        cell("line", "print('loss', rank > 2)", outputs=[stream("[all ranks] loss True\n")]),
        cell("less", "pass", outputs=[stream("[all ranks] a line\n")]),
        cell("timing", "print(rank)", tags="nbval-ignore-output", outputs=[stream("[rank 0] 7\n")]),
        cell("error", "if rank == 1:\n    raise ValueError('no such thing')"),
        cell("after", "comm.Barrier()"),
        cell("package", "from no_such_package import thing"),
        cell("uses", "print(thing)"),
        cell("window", "shared = MPI.Win.Allocate(8)"),
        cell("message", "rank or comm.Send(x, 1)"),
        cell("picture", "from parlab import plots\nx = 1\nplots.subplots('x')"),
        cell("own", "print(x, 1 / 0)"),
        cell("mended", "thing = 1"),
        cell("again", "print(thing)", outputs=[stream("[all ranks] 1\n")]),
    )
    run = lab_run(path, ranks=4)
    outcome = run.run()
    assert outcome.status == "failed"
    assert outcome.why.startswith("9 of 21 cells passed; failed: other_values: x of rank 2")
    assert run.notes == ["no MPI; group: gloo, cpu"]
    return run


def test_cells_run_in_order_on_ranks_that_communicate(various: LabRun) -> None:
    ended = statuses(various)
    assert all(ended[id] == "passed" for id in ("set-up", "sum", "comm", "one", "values")), ended
    assert ended["check"] == ended["deadlock"] == "skipped"
    assert "start" not in ended  # the notebook's own cell


def test_other_values_and_other_words_than_the_stored_ones_fail(various: LabRun) -> None:
    why = {id: cell["why"] for id, cell in various.cells.items() if cell["status"] == "failed"}
    assert why["other_values"] == "x of rank 2 is 4, stored is 5"
    assert why["line"] == "rank 0 prints 'loss False', stored is 'loss True'"
    assert various.cells["less"]["why"] == "rank 0 does not print 'a line'"
    assert various.cells["less"]["status"] == "differs"
    assert statuses(various)["timing"] == "passed"


def test_an_error_is_reported_with_its_line_and_later_cells_run(various: LabRun) -> None:
    assert various.cells["error"]["status"] == "failed"
    message = "rank 1: ValueError: no such thing (line 3 of the cell)"
    assert various.cells["error"]["why"] == message
    assert statuses(various)["after"] == "passed"


def test_cells_that_need_missing_modules_or_names_are_skipped(various: LabRun) -> None:
    why = {id: cell["why"] for id, cell in various.cells.items() if cell["status"] == "skipped"}
    assert why["package"] == "rank 0: no_such_package is not installed"
    assert why["uses"].startswith("rank 0: builds on package: NameError")
    assert why["window"] == "rank 0: mpi4py.MPI.Win needs MPI"
    assert why["message"] == "rank 0: comm.Send needs MPI"
    assert "pictures are not drawn here" in why["picture"]
    ended = statuses(various)
    assert ended["own"] == "failed"  # even though a picture in it was skipped
    assert ended["mended"] == ended["again"] == "passed"


@pytest.mark.nightly
def test_cells_that_end_their_ranks_are_left_out_and_the_others_run_on_new_ranks(
    tmp_path: Path,
) -> None:
    """One cell hangs, one fails on a rank while another waits for it, and one ends its process."""
    path = notebook(
        tmp_path / "02_words.ipynb",
        cell("hangs", "import threading\nthreading.Event().wait()", magic="%%px --timeout 2"),
        cell("alone", "if rank == 0:\n    raise ValueError('left')\ncomm.Barrier()"),
        cell("dies", "import os, signal\nrank or os.kill(os.getpid(), signal.SIGSEGV)"),
        cell("needs", "rank or comm.Send(1, 1)\ncomm.Barrier()"),
        cell("rest", "comm.Barrier()"),
    )
    run = lab_run(path, seconds=200.0)
    run.grace_seconds, run.least_seconds = 3.0, 1.0
    outcome = run.run()
    assert statuses(run) == {
        "set-up": "passed",
        "hangs": "timed out",
        "alone": "failed",
        "dies": "crashed",
        "needs": "skipped",
        "rest": "passed",
    }
    assert outcome.status == "crashed"
    assert "ended by SIGSEGV" in outcome.why
    message = "rank 0: ValueError: left (line 3 of the cell); other ranks wait for it"
    assert run.cells["alone"]["why"] == message


def test_a_cell_that_times_out_shows_where_its_ranks_are(tmp_path: Path) -> None:
    hangs = "import signal\nif rank:\n    signal.pause()\ncomm.Barrier()"
    path = notebook(
        tmp_path / "02_words.ipynb", cell("hangs", hangs, magic="%%px --timeout 2"), cell("x", "")
    )
    run = lab_run(path)
    run.least_seconds = 2.0
    assert run.run().status == "timed out"
    first, second = run.cells["hangs"]["why"].split("; ")[1:]
    assert first.startswith("rank 0 in ") and first.endswith("line 5 of the cell"), first
    assert second.startswith("rank 1 in <module> (<hangs>, line 4) < "), second
    assert second.endswith("line 4 of the cell"), second


@pytest.mark.nightly
def test_with_mpi_the_checks_run_too(tmp_path: Path) -> None:
    path = notebook(
        tmp_path / "03_zero.ipynb",
        cell(
            "predict_stages",
            "from parlab.checks import zero as check\n"
            "def predict_stages(parameters, world_size):\n"
            "    plain, part = 16 * parameters, parameters / world_size\n"
            "    stages = 8 * parameters + 8 * part, 4 * parameters + 12 * part, 16 * part\n"
            "    return dict(zip(('plain', 'stage_1', 'stage_2', 'stage_3'), (plain, *stages)))",
            tags="exercise",
        ),
        cell("right", "check.predict_stages(predict_stages)", tags="check"),
        cell("wrong", "check.predict_stages(lambda *_: {})", tags="check"),
    )
    run = lab_run(path, mpi=True)
    run.run()
    ended = statuses(run)
    assert (ended["right"], ended["wrong"]) == ("passed", "failed"), run.cells
    assert "CheckFailed" in run.cells["wrong"]["why"]
    assert run.notes[0].startswith("MPI; group: ")


@pytest.mark.nightly
@pytest.mark.parametrize("gpus", [1, 2])
def test_ranks_without_mpi_use_gpus(
    gpus: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two ranks use two rehearsed GPUs. Gloo cannot send their tensors, and NCCL has no tags."""
    rehearsal.needed()
    for name, value in rehearsal.environment(gpus).items():
        monkeypatch.setenv(name, value)
    messages = (
        "import torch.distributed as dist\nother = 1 - rank\n"
        "sent = [torch.full((2,), 10.0 * rank + tag, device=device) for tag in (0, 1)]\n"
        "works = [dist.isend(sent[tag], other, tag=tag, group=group) for tag in (0, 1)]\n"
        "rooms = [torch.empty(2, device=device) for _ in (0, 1)]\n"
        "for tag in (1, 0):\n    dist.recv(rooms[tag], other, tag=tag, group=group)\n"
        "assert [room[0].item() for room in rooms] == [10.0 * other, 10.0 * other + 1]\n"
        "for over in (group, None):\n    dist.all_reduce(x := sent[0].clone(), group=over)\n"
        "    assert x.tolist() == [10.0, 10.0]\n"
        "parts = [torch.empty(2, device=device) for _ in (0, 1)]\n"
        "work = dist.all_gather(parts, sent[1], group=group, async_op=True)\nwork.wait()\n"
        "assert parts[1].tolist() == [11.0, 11.0] and comm.allreduce(1) == 2"
    )
    ddp = (
        "from torch.nn.parallel import DistributedDataParallel as DDP\n"
        "model = DDP(torch.nn.Linear(2, 1).to(device), process_group=group)\n"
        "model(sent[0]).sum().backward()\n"
        "assert model.module.weight.grad.tolist() == [[5.0, 5.0]]"
    )
    path = notebook(tmp_path / "02_words.ipynb", cell("messages", messages), cell("ddp", ddp))
    run = LabRun(path, 2, "cuda", mpi=False, deadline=time.monotonic() + 200)
    outcome = run.run()
    assert outcome.status == "passed", run.cells
    assert run.notes == ["no MPI; group: staged_gloo, cuda"]


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


# Benchmarks


@pytest.mark.parametrize(
    "item", cases(kernels.benchmarks(), {"benchmark_matmul", "benchmark_softmax"})
)
def test_benchmarks_of_kernels_do_the_work_of_their_peers(item: str) -> None:
    """They run with small sizes in the interpreter, and nothing is measured."""
    rows: list[dict[str, Any]] = []
    outcome = kernels.run(item, "cpu", 200.0, rows.append)
    assert outcome.status == "passed", outcome
    assert outcome.why.endswith("rehearsed on the CPU, none measured")
    assert rows == []


def test_errors_in_a_benchmark_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = SimpleNamespace(name="adam_of_nobody")
    monkeypatch.setattr(kernels, "benchmarks", lambda: {"benchmark_adam": [unknown]})
    outcome = kernels.run("benchmark_adam", "cpu", 100.0, print)
    assert outcome.status == "failed"
    assert outcome.why.endswith("KeyError: 'adam_of_nobody'")
    assert kernels.run("benchmark_adam", "cpu", 0.001, print).status == "timed out"


def test_a_missed_target_is_reported_and_a_copy_gives_the_share() -> None:
    def row(name: str, ours: float, target: float | None) -> dict[str, Any]:
        words = {"topic": "triton", "peer": "a peer", "work": "work", "gpu": True}
        numbers = {"ranks": 0, "rounds": 3, "calls": 1, "warm_up": 0, "seconds": 9.0}
        bench = Benchmark(name=name, set_up=lambda: None, target=target, **words, **numbers)
        return kernels.row(bench, {"reference": [ours] * 3, "peer": [1.0] * 3})

    slow, good, free = row("x_copy", 1.25, 1.1), row("x_copy", 1.05, 1.1), row("x_fused", 9.0, None)
    assert (slow["ratio"], slow["share_of_copy_rate"]) == (1.25, 0.8)
    assert kernels.missed(slow) and not kernels.missed(good)
    assert not kernels.missed(free) and "share_of_copy_rate" not in free


# The command


@pytest.mark.nightly
def test_a_check_ends_within_its_limit_although_a_cell_hangs(tmp_path: Path) -> None:
    labs, output = tmp_path / "labs", tmp_path / "check.json"
    labs.mkdir()
    notebook(labs / "01_hangs.ipynb", cell("hangs", "import signal\nsignal.pause()"))
    began = time.monotonic()
    gpu_check(*on_cpu(labs, output, "--minutes", "0.5"))
    assert time.monotonic() - began < 30
    assert items(output)["01_hangs"]["status"] == "timed out"


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
