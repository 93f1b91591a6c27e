"""`make gpu-check` runs labs without a GPU: cells that pass, fail, hang, crash, or lack modules."""

import time
from pathlib import Path

import pytest

from parlab_staff.gpu_check.run_lab import LabRun
from tests import rehearsal
from tests.support.gpu_check_labs import VALUES, cell, notebook, shows, stream


def lab_run(path: Path, ranks: int = 2, mpi: bool = False, seconds: float = 100.0) -> LabRun:
    return LabRun(path, ranks, "cpu", mpi, time.monotonic() + seconds)


def statuses(run: LabRun) -> dict[str, str]:
    return {id: cell["status"] for id, cell in run.cells.items()}


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
