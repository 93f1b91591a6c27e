"""`parlab.rank` on real ranks, without a notebook: what scripts and benchmarks rely on."""

import subprocess
from pathlib import Path

import pytest

from parlab import mpirun
from parlab.rank import engine


def on_ranks(n: int, tmp_path: Path, code: str) -> list[str]:
    """Run `code` on `n` ranks; the sorted lines that they printed."""
    script = tmp_path / "script.py"
    script.write_text(code)
    ran = mpirun.run(n, str(script), capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    return sorted(ran.stdout.splitlines())


@pytest.mark.parametrize("n", [1, 3])
def test_a_script_sees_what_a_lab_sees(tmp_path: Path, n: int):
    lines = on_ranks(
        n,
        tmp_path,
        "from parlab.rank import comm, device, group, rank, world_size\n"
        "import torch, torch.distributed as dist\n"
        "x = torch.ones(2) * rank\n"
        "dist.all_reduce(x, group=group)\n"
        "y = torch.ones(2)\n"
        "dist.all_reduce(y)\n"
        "print(rank, world_size, comm.size, device, x[0].item(), y[0].item(),\n"
        "      dist.get_backend(), torch.get_num_threads())\n",
    )
    total = float(sum(range(n)))
    assert lines == [f"{r} {n} {n} cpu {total} {float(n)} gloo 1" for r in range(n)]


def test_gloo_has_ended_before_python_does(tmp_path: Path):
    """A thread of it that still held a tensor then would abort the rank, now and then."""
    lines = on_ranks(
        2,
        tmp_path,
        "import atexit, glob\n"
        "def threads():\n"
        "    names = (open(path).read() for path in glob.glob('/proc/self/task/*/comm'))\n"
        "    return sum('gloo' in name for name in names)\n"
        "atexit.register(lambda: print('at the end', threads()))  # first in, last out\n"
        "from parlab.rank import group\n"
        "import torch, torch.distributed as dist\n"
        "dist.all_reduce(torch.ones(2))\n"
        "print('before', threads() > 0)\n",
    )
    assert lines == ["at the end 0"] * 2 + ["before True"] * 2


def test_communicators_and_groups_are_renewed_in_place(tmp_path: Path):
    """After a revocation the very objects that a lab holds work again, torch's group too."""
    lines = on_ranks(
        3,
        tmp_path,
        "from mpi4py import MPI\n"
        "from parlab.rank import comm, group, rank\n"
        "from parlab.rank import release, recovery, torch_groups\n"
        "import torch, torch.distributed as dist\n"
        "held = [comm, MPI.COMM_WORLD, group]\n"
        "made = comm.Split(0)\n"
        "def until_revoked(comm):\n"
        "    try:\n        comm.Barrier()\n        comm.recv(source=comm.rank)\n"
        "    except MPI.Exception as error:\n"
        "        assert error.error_class == MPI.ERR_REVOKED, error\n"
        "comm.Barrier()\n"
        "if rank == 0:\n    made.Barrier()\n    made.Revoke()\n"
        "until_revoked(made)\n"
        "if rank == 0:\n    comm.Barrier()\n    release.revoke()\n"
        "until_revoked(comm)\n"
        "torch_groups.close()\n"
        "told = recovery.recover({'made': made, 'comm': comm})\n"
        "x, y = torch.ones(1), torch.ones(1)\n"
        "dist.all_reduce(x, group=held[2])\n"
        "dist.all_reduce(y)\n"
        "print(rank, held[0].allreduce(1), held[1].allreduce(1), x.item(), y.item(), told)\n",
    )
    told = "{'lost': ['made'], 'torch': True}"
    assert lines == [f"{r} 3 3 3.0 3.0 {told}" for r in range(3)]


def test_no_waiting_call_misses_its_revocation(tmp_path: Path):
    """A call on a lab's own communicator, while several ranks revoke one after the other."""
    lines = on_ranks(
        4,
        tmp_path,
        "import os, threading, time\n"
        "from mpi4py import MPI\n"
        "from parlab.rank import comm, rank\n"
        "from parlab.rank import release, recovery\n"
        "release.prepare()\n"
        "def free(ended, number):\n"
        "    # Rank 0 waits by then. If not, it meets a revoked communicator: as good.\n"
        "    time.sleep(0.02 + 0.0002 * rank * (number % 5))\n"
        "    for _ in range(3):\n"
        "        release.revoke()\n"
        "        if ended.wait(0.1):\n            return\n"
        "    if not ended.wait(10):\n"
        "        print('a call missed it', flush=True)\n        os.abort()\n"
        "for number in range(200):\n"
        "    pair = comm.Split(rank // 2)\n"
        "    comm.Barrier()\n"
        "    ended = threading.Event()\n"
        "    thread = threading.Thread(target=free, args=(ended, number))\n"
        "    thread.start()\n"
        "    if rank == 0:\n"
        "        try:\n            pair.Barrier()\n"
        "        except MPI.Exception as error:\n"
        "            assert error.error_class == MPI.ERR_REVOKED, error\n"
        "    ended.set()\n"
        "    thread.join()\n"
        "    recovery.recover({})\n"
        "print(rank)\n",
    )
    assert lines == ["0", "1", "2", "3"]


def test_the_command_line_says_what_it_needs():
    ran = subprocess.run(
        [mpirun.sys.executable, "-m", "parlab.mpirun", "-n", "0"], capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert "a positive number of ranks and a script" in ran.stderr


def test_an_engine_waits_until_the_controllers_file_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, whole = tmp_path / "connection.json", '{"key": "k", "port": 1}'
    pieces = iter(["", whole[:10], whole])
    monkeypatch.setattr(engine.time, "sleep", lambda seconds: file.write_text(next(pieces)))
    assert engine.connection(file) == whole
    assert next(pieces, None) is None
