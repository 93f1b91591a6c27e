"""Ranks that run functions: they return values, crash, or hang, and are freed or replaced."""

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from parlab_staff.ranks import RankPool, RanksGone
from tests.conftest import wait_until

SECONDS = 60.0  # limit for functions that end by themselves, even on a busy machine
SOON = 1.0  # limit for functions that do not end


def number(factor: int = 1) -> int:
    from parlab.rank import rank

    return factor * rank


def pid() -> int:
    return os.getpid()


def crash() -> None:
    if number() == 1:
        os._exit(3)
    receive()


def receive() -> None:
    from parlab.rank import comm

    comm.recv()


def fail_on_one() -> None:
    if number() == 1:
        raise ValueError("no such thing")
    receive()


def loop() -> None:
    while True:
        pass


def start_a_child() -> int:
    return psutil.Popen(["sleep", "600"]).pid


@pytest.fixture(scope="module")
def pool() -> Iterator[RankPool]:
    with RankPool(3) as started:
        yield started


@pytest.fixture(scope="module")
def freed() -> Iterator[RankPool]:
    with RankPool(3, frees=True) as started:
        yield started


def test_every_rank_returns_its_value(pool: RankPool) -> None:
    assert pool.call(number, 10, seconds=SECONDS) == [0, 10, 20]


def test_ranks_keep_their_processes(pool: RankPool) -> None:
    assert pool.call(pid, seconds=SECONDS) == pool.call(pid, seconds=SECONDS)


@pytest.mark.nightly
def test_new_ranks_start_after_a_crash(pool: RankPool) -> None:
    before = pool.call(pid, seconds=SECONDS)
    with pytest.raises(RanksGone) as gone:
        pool.call(crash, seconds=SECONDS)
    assert gone.value.kind == "crashed"
    assert "rank 1 ended" in gone.value.endings  # mpiexec ends the others, perhaps before we look
    assert not set(pool.call(pid, seconds=SECONDS)) & set(before)


def test_an_error_is_reported_with_its_rank(pool: RankPool) -> None:
    with pytest.raises(RanksGone, match="rank 1:\nTraceback") as gone:
        pool.call(fail_on_one, seconds=SECONDS, grace_seconds=SOON)
    assert gone.value.kind == "failed"
    assert "ValueError: no such thing" in str(gone.value)


def test_ranks_that_hang_print_where_they_are(pool: RankPool) -> None:
    pool.call(number, seconds=SECONDS)
    with pytest.raises(RanksGone, match=r'test_rank_pool\.py", line \d+ in receive') as gone:
        pool.call(receive, seconds=SOON)
    assert gone.value.kind == "timed out"
    assert [" in receive" in stack for stack in gone.value.stacks] == [True] * 3
    assert pool.call(number, seconds=SECONDS) == [0, 1, 2]


@pytest.mark.parametrize("starts", [True, False])
def test_ranks_can_be_stopped_from_another_thread(starts: bool) -> None:
    """Either while they start, or while a call runs."""
    with RankPool(2) as pool, ThreadPoolExecutor() as threads:
        pids = [] if starts else pool.call(pid, seconds=SECONDS)
        waiting = threads.submit(pool.call, receive, seconds=SECONDS)
        wait_until(lambda: pool.starts > 0, SECONDS, "the ranks start")
        pool.stop()
        with pytest.raises(RanksGone):
            waiting.result(SECONDS / 2)
    assert not any(psutil.pid_exists(one) for one in pids)


def test_processes_without_mpi_have_a_number() -> None:
    with RankPool(2, mpi=False) as pool:
        assert pool.call("os:getenv", "RANK", seconds=SECONDS) == ["0", "1"]
        with pytest.raises(RanksGone, match="ended with exit code 3"):
            pool.call("os:_exit", 3, seconds=SECONDS)


@pytest.mark.parametrize("stuck", [receive, loop])
def test_stuck_ranks_are_freed_and_go_on(freed: RankPool, stuck) -> None:
    before = freed.call(pid, seconds=SECONDS)
    assert freed.call(stuck, seconds=SOON) == [None] * 3
    assert freed.call(pid, seconds=SECONDS) == before


def test_ranks_end_with_their_children_though_mpiexec_is_gone() -> None:
    with RankPool(2) as pool:
        pids = pool.call(pid, seconds=SECONDS) + pool.call(start_a_child, seconds=SECONDS)
        [mpiexec] = {psutil.Process(one).parent() for one in pids[:2]}
        mpiexec.suspend()  # so that it cannot end the ranks
        mpiexec.kill()
    _, left = psutil.wait_procs([psutil.Process(p) for p in pids if psutil.pid_exists(p)], 60)
    assert left == []


def test_nothing_is_left_of_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with RankPool(2) as pool:
        pool.call(number, seconds=SECONDS)
        with pytest.raises(RanksGone) as gone:
            pool.call(crash, seconds=SECONDS)
    assert gone.value.kind == "crashed"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.nightly
def test_ending_is_quick() -> None:
    with RankPool(2) as pool:
        pool.call(number, seconds=SECONDS)
        start = time.monotonic()
    assert time.monotonic() - start < SECONDS / 2
