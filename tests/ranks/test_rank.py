"""`parlab.rank` on real ranks without a notebook, as scripts and benchmarks use it."""

import atexit
import glob
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from parlab import mpirun
from parlab.rank.engine import starting
from tests.support.on_ranks import World, expecting, on_ranks


@pytest.mark.parametrize("n", [1, 3])
def test_a_script_sees_what_a_lab_sees(tmp_path: Path, n: int):
    script = tmp_path / "script.py"
    script.write_text(
        "from parlab.rank import comm, device, group, rank, world_size\n"
        "import torch, torch.distributed as dist\n"
        "x = torch.ones(2) * rank\n"
        "dist.all_reduce(x, group=group)\n"
        "y = torch.ones(2)\n"
        "dist.all_reduce(y)\n"
        "print(rank, world_size, comm.size, device, x[0].item(), y[0].item(),\n"
        "      dist.get_backend(), torch.get_num_threads())\n"
    )
    ran = mpirun.run(n, str(script), capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    total = float(sum(range(n)))
    assert sorted(ran.stdout.splitlines()) == [
        f"{r} {n} {n} cpu {total} {float(n)} gloo 1" for r in range(n)
    ]


def count_gloo_threads() -> int:
    names = (Path(path).read_text(encoding="utf-8") for path in glob.glob("/proc/self/task/*/comm"))
    return sum("gloo" in name for name in names)


def note_gloo_threads_at_the_end(world: World, folder: str) -> bool:
    file = Path(folder) / str(world.rank)
    atexit.register(lambda: file.write_text(str(count_gloo_threads())))  # first in, last out
    import torch
    import torch.distributed as dist

    assert world.group
    dist.all_reduce(torch.ones(2))
    return count_gloo_threads() > 0


def test_gloo_has_ended_before_python_does(tmp_path: Path):
    """Otherwise, a thread of Gloo that still holds a tensor occasionally aborts the rank."""
    assert on_ranks(2, note_gloo_threads_at_the_end, str(tmp_path)) == [True, True]
    assert [(tmp_path / str(rank)).read_text() for rank in range(2)] == ["0", "0"]


def until_revoked(comm: Any) -> None:
    from mpi4py import MPI

    with expecting(MPI.Exception, "REVOKED"):
        comm.Barrier()
        comm.recv(source=comm.rank)


def renew_all(world: World) -> list[Any]:
    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    from parlab.rank import torch_groups
    from parlab.rank.engine import freeing, recovery

    comm, held = world.comm, [world.comm, MPI.COMM_WORLD, world.group]
    made = comm.Split(0)
    comm.Barrier()
    if world.rank == 0:
        made.Barrier()
        made.Revoke()
    until_revoked(made)
    freeing.prepare()
    wakers = list(freeing._wakers)
    if world.rank == 0:
        comm.Barrier()
        freeing.revoke()
    until_revoked(comm)
    woken = sum(waker.Is_revoked() for waker in wakers)
    torch_groups.close()
    recovered = recovery.recover({"made": made, "comm": comm}, 1)
    x, y = torch.ones(1), torch.ones(1)
    dist.all_reduce(x, group=held[2])
    dist.all_reduce(y)
    return [held[0].allreduce(1), held[1].allreduce(1), x.item(), y.item(), recovered, woken]


def test_communicators_and_groups_are_renewed_in_place():
    """After a revocation, the same objects work again, including torch's group.

    The rank that revoked has also woken its waiting calls once.
    """
    recovered = {"lost": ["made"], "torch": True, "old": []}
    expected = [[3, 3, 3.0, 3.0, recovered, woken] for woken in (1, 0, 0)]
    assert on_ranks(3, renew_all) == expected


def ask_too_late(world: World) -> int:
    from mpi4py import MPI

    from parlab.rank.engine import freeing, recovery

    requests, ask = os.pipe()
    freeing.start(requests, output=ask)
    recovery.recover({}, 1)
    for late in ("revoke 0", "interrupt 0"):
        os.write(ask, f"{late}\n".encode())
    early = world.comm.allreduce(1)
    freeing.prepare()  # as before each cell, because a single revocation may miss a waiting call
    with expecting(MPI.Exception, "REVOKED"):
        # Rank 0 revokes after all ranks have passed, because a running collective would fail.
        if world.rank:
            world.comm.send("through", dest=0)
        else:
            for other in range(1, world.size):
                world.comm.recv(source=other)
            os.write(ask, b"revoke 1\n" * freeing.WAKERS)
        world.comm.recv(source=world.rank)
    return early


def test_a_request_that_comes_after_the_renewal_is_not_answered():
    assert on_ranks(3, ask_too_late) == [3, 3, 3]


def wait_for_several(world: World) -> None:
    from mpi4py import MPI

    comm, kind, status = world.comm, MPI.Request, MPI.Status()
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size

    def messages(size: int) -> tuple[list[MPI.Request], np.ndarray]:
        got = np.empty(size)
        sent = np.full(size, float(comm.rank))
        return [comm.Isend(sent, right), comm.Irecv(got, left), MPI.REQUEST_NULL], got

    def objects() -> list[MPI.Request]:
        return [comm.isend({"from": comm.rank}, right), comm.irecv(source=left)]

    values = {0: None, 1: {"from": left}}
    for size in (3, 50_000):
        requests, got = messages(size)
        statuses = [MPI.Status() for _ in requests]
        assert kind.Waitall(requests, statuses) is True
        assert (got == left).all() and statuses[1].source == left
        requests, got = messages(size)
        assert {kind.Waitany(requests, status), kind.Waitany(requests)} == {0, 1}
        assert (got == left).all() and kind.Waitany(requests) == MPI.UNDEFINED
        requests, got = messages(size)
        ended = []
        while (some := kind.Waitsome(requests)) is not None:
            ended += some
        assert sorted(ended) == [0, 1] and (got == left).all()
        persistent = [comm.Send_init(got.copy(), right), comm.Recv_init(got, left)]
        for wait in (kind.Waitall, lambda started: [kind.Waitany(started) for _ in started]):
            MPI.Prequest.Startall(persistent)
            wait(persistent)
        assert kind.Waitany(persistent) == MPI.UNDEFINED  # not started
    assert kind.waitall(objects()) == list(values.values())
    requests = objects()
    assert dict(kind.waitany(requests) for _ in requests) == values
    assert kind.waitany(requests) == (MPI.UNDEFINED, None)
    requests, found = objects(), {}
    while (some := kind.waitsome(requests))[0] is not None:
        found |= dict(zip(*some, strict=True))
    assert found == values
    assert isinstance(persistent[0], MPI.Prequest) and isinstance(persistent[0], MPI.Request)
    assert not isinstance(comm, MPI.Request)


def test_waiting_for_several_requests_works_as_in_mpi4py():
    on_ranks(3, wait_for_several)


def free_again_and_again(world: World) -> None:
    from mpi4py import MPI

    from parlab.rank.engine import freeing, recovery

    def free(ended: threading.Event, number: int) -> None:
        # Rank 0 is now waiting. If not, it will call a revoked communicator, which fails as well.
        time.sleep(0.02 + 0.0002 * world.rank * (number % 5))
        for _ in range(3):
            freeing.revoke()
            if ended.wait(0.1):
                return
        if not ended.wait(10):
            print("a call missed it", flush=True)
            os.abort()

    freeing.prepare()
    for number in range(100):
        pair = world.comm.Split(world.rank // 2)
        try:
            world.comm.Barrier()
        except MPI.Exception as error:  # this rank leaves late, and another rank already revokes
            assert world.comm.Is_revoked(), error
        ended = threading.Event()
        thread = threading.Thread(target=free, args=(ended, number))
        thread.start()
        if world.rank == 0:
            try:
                pair.Barrier()
            except MPI.Exception as error:
                # Occasionally, Open MPI reports another error, as if a process had failed.
                assert pair.Is_revoked(), error
        ended.set()
        thread.join()
        recovery.recover({}, number + 1)


@pytest.mark.nightly
def test_no_waiting_call_misses_its_revocation():
    """Several ranks revoke, one after the other, while a call waits on a lab's own communicator."""
    on_ranks(4, free_again_and_again, seconds=300)


def test_the_command_line_says_what_it_needs():
    ran = subprocess.run(
        [mpirun.sys.executable, "-m", "parlab.mpirun", "-n", "0"], capture_output=True, text=True
    )
    assert ran.returncode == 2
    assert "a positive number of ranks and a script" in ran.stderr


def test_one_rank_is_enough_for_the_command(tmp_path: Path):
    script = tmp_path / "script.py"
    script.write_text("from mpi4py import MPI\nprint(MPI.COMM_WORLD.size)\n")
    ran = subprocess.run(
        [mpirun.sys.executable, "-m", "parlab.mpirun", "-n", "1", str(script)],
        capture_output=True,
        text=True,
    )
    assert (ran.returncode, ran.stdout) == (0, "1\n"), ran.stderr


def test_an_engine_waits_until_the_controllers_file_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, whole = tmp_path / "connection.json", '{"key": "k", "port": 1}'
    pieces = iter(["", whole[:10], whole])
    monkeypatch.setattr(starting.time, "sleep", lambda seconds: file.write_text(next(pieces)))
    assert starting.connection(file) == whole
    assert next(pieces, None) is None
