"""How a check judges the ways in which a learner's function ended on the ranks."""

import sys
import time
from collections.abc import Callable
from functools import partial

import pytest
from mpi4py import MPI

from parlab.checks.base.call_outcome import ending, idle_ranks_left, unfinished
from parlab.checks.base.deadlock import Standstill, next_call
from parlab.checks.base.mistakes import observed
from parlab.checks.base.watchdog import Ended, agreed, is_stub, run_watched
from parlab.ledger import Ledger
from tests.support.on_ranks import World, on_ranks


def text_about(stub: str) -> str | None:
    finding = unfinished({0: Ended("unfinished", error=stub)}, "train")
    return finding and finding.text


def test_an_exercises_own_stub() -> None:
    assert text_about("exercise train: not done yet") == text_about("") == "not done yet"


def test_an_error_of_pytorch_is_no_stub() -> None:
    text = "You must implement either the backward or vjp method"
    assert is_stub(NotImplementedError()) and is_stub(NotImplementedError("exercise f: not done"))
    assert not is_stub(NotImplementedError(text))


def test_the_stub_of_an_exercise_that_it_builds_on() -> None:
    text = text_about("exercise broadcast_state: not done yet")
    assert text is not None
    assert text.startswith("it calls exercise broadcast_state, which is not done yet")
    assert 'use_reference("broadcast_state")' in text


def test_a_rank_that_the_watchdog_saw_stuck_counts_as_stuck_even_if_its_call_ended() -> None:
    waiting = Ended("stuck", line="line 2: comm.Recv(x)")
    sending = Ended("returned", line="line 1: comm.Send(x)")
    endings = agreed({0: waiting, 1: sending, 2: Ended("returned"), 3: Ended("raised")})
    assert [ended.kind for ended in endings.values()] == ["stuck", "stuck", "returned", "raised"]
    assert endings[1].line == "line 1: comm.Send(x)"


@pytest.mark.parametrize(
    ("other", "meaning"),
    [
        (
            Ended("stuck", line="line 5: comm.Recv(y)"),
            "All of them wait in a receive, so none sends",
        ),
        (
            Ended("returned"),
            "Some ranks have already returned. If the stuck ranks wait for messages from them, "
            "or for them to receive, they wait forever",
        ),
    ],
)
def test_the_message_explains_why_ranks_wait(other: Ended, meaning: str) -> None:
    found = ending({0: Ended("stuck", line="line 2: comm.Recv(x)"), 1: other})
    assert found is not None and found.text.splitlines()[-1].startswith(meaning)


def test_ranks_that_wait_for_a_rank_with_an_error_do_not_wait_for_idle_ranks() -> None:
    mistake = observed("ranks without samples skipped the all-reduce")
    endings = {0: Ended("stuck", line="line 2: comm.Allreduce(x)"), 1: Ended("returned")}
    found = idle_ranks_left(endings, [5, 0, 3], mistake)
    assert found is not None and found.text.startswith(mistake.text)
    endings[2] = Ended("raised", error="IndexError: 3", line="line 1: x[3]")
    assert idle_ranks_left(endings, [5, 0, 3], mistake) is None


def test_a_stuck_rank_whose_line_is_not_known_has_not_returned() -> None:
    found = ending({0: Ended("stuck"), 1: Ended("stuck"), 2: Ended("returned")})
    assert found is not None
    assert found.text.splitlines()[1:] == [
        "  ranks 0, 1  did not return in time",
        "  rank 2      returned",
    ]


def test_a_slow_rank_is_not_stuck() -> None:
    slow = {0: Ended("returned", line="line 1: train()"), 1: Ended("returned")}
    assert agreed(slow) == slow


# For each call: how many seconds it lasts, True if it sends messages meanwhile, and how it ends.
CALLS = [(6.0, True, "returned"), (1e9, True, "stuck"), (1e9, False, "stuck")]


def how_it_ends(world: World) -> str:
    """Return how one of `CALLS` ends. Each runs on two ranks, at the same time as the others.

    Its limit is four seconds, because a busy machine may stop both ranks for more than one second.
    If it stops one of them for longer, `standstill` notices.
    """
    call = world.rank // 2
    seconds, messages, _ = CALLS[call]
    ledger = Ledger()
    comm = ledger.watch(world.comm.Split(call))
    board, number = next_call()
    assert board is not None
    standstill = Standstill(board, number, [2 * call, 2 * call + 1], lambda: ledger.made)
    end = time.monotonic() + seconds

    def function() -> None:
        while comm.bcast(time.monotonic() < end):
            comm.barrier() if messages else comm.recv(source=comm.rank)
            time.sleep(0.02)  # or these ranks would keep all cores busy

    watching = standstill if messages else None  # it would also end a call that only waits
    return run_watched(function, (), comm, 4.0, lambda: ledger.made, watching).kind


def test_a_call_that_sends_has_longer() -> None:
    expected = [kind for _, _, kind in CALLS for _ in range(2)]
    assert on_ranks(2 * len(CALLS), how_it_ends) == expected


def errors_after_split(world: World) -> list[str]:
    """Return how calls end in which the last rank raises while others may still be in `Split`."""

    def function(comm: MPI.Intracomm) -> None:
        made = comm.Split(0, comm.rank)
        if comm.rank == comm.size - 1:
            raise KeyError("missing")
        comm.Split(0, comm.rank)
        made.Barrier()

    kinds = set()
    for _ in range(100):  # most runs crashed within 40, when the error also revoked `made`
        comm = Ledger().watch(world.comm.Dup())
        world.comm.Barrier()
        kinds.add(run_watched(function, (comm,), comm, 10.0).kind)
    return sorted(kinds)


def test_an_error_after_split_crashes_no_rank_that_is_still_in_it() -> None:
    assert on_ranks(4, errors_after_split) == [["stuck"]] * 3 + [["raised"]]


def imported_by_a_first_call(world: World) -> list[str]:
    """Return the modules that the first call of a function imports, which uses much of torch."""
    import torch

    from parlab.checks.base.check import Check

    def function(x: torch.Tensor) -> list[str]:
        before = set(sys.modules)
        with Ledger():
            y = 2 * x
        y.backward(torch.ones(1))
        for optimizer in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW):
            optimizer([x]).step()
        return sorted(sys.modules.keys() - before)

    with Check("function", function).trial() as trial:
        return trial.run(torch.ones(1, requires_grad=True))


def test_torch_is_loaded_before_a_call_whose_time_is_limited() -> None:
    assert on_ranks(2, imported_by_a_first_call) == [[], []]


def verdicts_of_one_rank(world: World) -> tuple[list[str], int]:
    """Return verdicts of a check that needs one rank, and how often `right` ran on this rank."""
    from parlab.checks.base.check import Check, check_of
    from parlab.checks.base.mistakes import Finding, Mistakes, observed
    from parlab.checks.base.verdict import CheckFailed

    calls = []

    def is_positive(number: int) -> Finding | None:
        return None if number > 0 else observed(f"{number} is not positive")

    @check_of(Mistakes(), ranks=1)
    def positive(check: Check) -> str:
        with check.trial() as trial:
            for _, number in trial.cases({"a number": 1, "a larger one": 2}):
                result = trial.run(number)
                trial.require(partial(is_positive, result))
        if check.function is breaks_the_check:
            raise OSError("no disk")
        return "all results are positive"

    def right(number: int) -> int:
        calls.append(number)
        return number

    def wrong(number: int) -> int:
        return number if number == 1 else -number

    def no_number(number: int) -> None:
        pass

    def raises(number: int) -> int:
        raise KeyError("missing")

    def hangs(number: int) -> int:
        end = time.monotonic() + 20
        while time.monotonic() < end:
            time.sleep(0.01)
        return number

    def breaks_the_check(number: int) -> int:
        return number

    def verdict(function: Callable[[int], object]) -> str:
        try:
            positive(function, seed=1)
        except CheckFailed as failed:
            return str(failed)
        return "passed"

    functions = (right, wrong, no_number, raises, hangs, breaks_the_check, right)
    return list(map(verdict, functions)), len(calls)


def test_a_check_that_needs_one_rank_runs_on_the_first_and_tells_all() -> None:
    (first, calls), *others = on_ranks(3, verdicts_of_one_rank)
    assert calls == 6  # two runs of two cases, and the first case is repeated
    assert others == [[first, 0]] * 2
    passed, wrong, no_number, raised, hung, broke, again = first
    assert passed == again == "passed"
    assert wrong == "positive: -2 is not positive (a larger one)"
    assert "TypeError" in no_number and "KeyError" in raised and "OSError: no disk" in broke
    assert "rank" not in wrong + no_number + raised + broke
    assert "does not end" in hung.replace("\n", " ") and " of hangs: " in hung, hung
