"""What a check makes of how a learner's function ended on each rank."""

from parlab.checks.endings import unfinished
from parlab.checks.watchdog import Ended, agreed


def said(stub: str) -> str | None:
    finding = unfinished({0: Ended("unfinished", error=stub)}, "train")
    return finding and finding.text


def test_a_stub_of_its_own() -> None:
    assert said("exercise train: not done yet") == said("") == "not done yet"


def test_the_stub_of_an_exercise_that_it_builds_on() -> None:
    text = said("exercise broadcast_state: not done yet")
    assert text is not None
    assert text.startswith("it calls exercise broadcast_state, which is not done yet")
    assert 'use_reference("broadcast_state")' in text


def test_a_rank_was_stuck_where_the_watchdog_saw_it_and_its_call_ended_before_it_knew() -> None:
    waiting = Ended("stuck", line="line 2: comm.Recv(x)")
    sending = Ended("returned", line="line 1: comm.Send(x)")
    endings = agreed({0: waiting, 1: sending, 2: Ended("returned"), 3: Ended("raised")})
    assert [ended.kind for ended in endings.values()] == ["stuck", "stuck", "returned", "raised"]
    assert endings[1].line == "line 1: comm.Send(x)"


def test_a_slow_rank_is_not_stuck() -> None:
    slow = {0: Ended("returned", line="line 1: train()"), 1: Ended("returned")}
    assert agreed(slow) == slow
