"""Messages of the check of `ping_pong` about invented times and orders of messages.

By day, no test runs the kept answers to this exercise, because a busy machine disturbs their times.
"""

import importlib
from types import SimpleNamespace

import pytest

from parlab.ledger.calls import Call

# Not `from parlab.checks.mpi import ping_pong`, which is the check and not its module.
module = importlib.import_module("parlab.checks.mpi.ping_pong")
TRIPS = [0.01, 0.3, 0.02, 0.09, 0.01]  # seconds; their median is 0.02


def message(op: str, start: float, end: float) -> Call:
    return Call(op.title(), op, 8, 8, 2, start, end)


def calls_of_rank_0() -> list[Call]:
    calls, now = [], 0.0
    for trip in TRIPS:
        calls += [message("send", now, now + 0.001), message("recv", now + 0.001, now + trip)]
        now += trip
    return calls


@pytest.mark.parametrize(
    ("seconds", "expected"),
    [
        (0.01, None),
        (0.013, None),  # a busy machine may add time to what the function measures
        (0.02, "it returns the time of a round trip"),
        (0.043, "it returns the mean"),
        (0.086, "it returns the mean"),
        (0.0005, "A round trip lasts from before rank 0 sends until the answer has arrived"),
        (0.016, "it returns 0.016 s, but half of the median round trip is 0.01 s"),
        (0.005, "it returns 0.005 s, but"),  # half of the first trip
        (None, "it returns None"),
        ([0.01], "expected a number of seconds"),
    ],
)
def test_the_median_of_the_round_trips_is_required(seconds: object, expected: str | None) -> None:
    trial = SimpleNamespace(rank=0, calls=[calls_of_rank_0()])
    finding = module.right_time(seconds, trial)
    assert (finding is None) == (expected is None)
    if finding is not None:
        assert expected in finding.text


@pytest.mark.parametrize(("early", "is_wrong"), [(0.0, False), (0.005, True)])
def test_a_message_that_is_sent_before_the_last_one_has_arrived_is_refused(
    early: float, is_wrong: bool
) -> None:
    sends = [message("send", 0.1 * trip, 0.1 * trip + 0.01) for trip in range(3)]
    receives = [message("recv", 0.1 * trip + 0.01, 0.1 * trip + 0.1 + early) for trip in range(3)]
    answers = [message("send", call.end, call.end + 0.01) for call in sends]
    pings = [message("recv", call.start, call.end) for call in sends]
    trial = SimpleNamespace(
        sends=lambda rank: answers if rank else sends,
        receives=lambda rank: pings if rank else receives,
    )
    finding = module.one_after_the_other(trial)
    assert (finding is not None) == is_wrong
