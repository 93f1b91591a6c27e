"""Late submissions: how much they lose, from which time, and which policies are invalid."""

import time
from datetime import UTC, datetime, timedelta

import pytest

from parlab_staff.gradebook.late import read_due, read_moment, read_policy

DUE = datetime(2026, 11, 20, 18, 0, tzinfo=UTC)


def after(**units: float) -> datetime:
    return DUE + timedelta(**units)


@pytest.mark.parametrize(
    ("policy", "submitted", "factor"),
    [
        ("none", after(days=9), 1.0),
        ("zero", after(), 1.0),
        ("zero", after(microseconds=1), 0.0),
        ("10/day", after(days=-1), 1.0),
        ("10/day", after(), 1.0),
        ("10/day", after(seconds=1), 0.9),
        ("10/day", after(days=1), 0.9),
        ("10/day", after(days=1, seconds=1), 0.8),
        ("10/day", after(days=30), 0.0),
        ("10/day max 50", after(days=30), 0.5),
        ("5/hour", after(hours=2.5), 0.85),
        ("2.5%/hour max 10%", after(hours=2), 0.95),
        (" 10/DAY  max 50 ", after(days=2), 0.8),
        ("10/day grace 10min", after(minutes=10), 1.0),
        ("10/day grace 10min", after(minutes=11), 0.9),
        ("10/hour grace 90min", after(minutes=91), 0.8),
        ("zero grace 10 min", after(minutes=10), 1.0),
    ],
)
def test_a_policy_takes_off_for_each_unit_that_has_started(policy, submitted, factor) -> None:
    assert read_policy(policy).factor(submitted, DUE) == pytest.approx(factor, abs=1e-12)


@pytest.mark.parametrize(
    "text",
    ["", "10", "10/week", "-5/day", "10/day max", "ten/day", "10/day max 50 max 60", "1e1/day"],
)
def test_an_unknown_policy_is_refused_with_the_known_ones(text: str) -> None:
    with pytest.raises(ValueError, match=r"--late-policy .* use none, zero, 10/day"):
        read_policy(text)


@pytest.mark.parametrize("text", ["101/day", "10/day max 150"])
def test_more_than_everything_cannot_be_taken_off(text: str) -> None:
    with pytest.raises(ValueError, match="more than 100 %"):
        read_policy(text)


def test_the_text_says_how_late_and_what_it_costs() -> None:
    judged = read_policy("10/day").judge(after(days=1, hours=2, minutes=5), DUE)
    assert judged.late
    assert judged.text == "1 day 2 hours late: 20 % of the points earned are taken off"
    assert read_policy("none").judge(after(minutes=1), DUE).text == "1 minute late"
    assert read_policy("none").judge(after(milliseconds=1), DUE).text == "less than a second late"


def test_an_unknown_time_is_not_late() -> None:
    policy = read_policy("zero")
    assert policy.judge(after(days=1), None).factor == 1.0
    unknown = policy.judge(None, DUE)
    assert (unknown.late, unknown.factor) == (False, 1.0)
    assert "unknown" in unknown.text
    assert policy.judge(after(days=-1), DUE).text == ""


def test_a_time_without_an_offset_is_local(monkeypatch) -> None:
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    try:
        assert read_moment("2026-11-20T13:00") == DUE
        assert read_moment("2026-11-20T19:00+01:00") == DUE
        assert read_moment(" 2026-11-20T18:00Z ") == DUE
        # Summer time has another offset.
        assert read_moment("2026-07-01T14:00") == datetime(2026, 7, 1, 18, tzinfo=UTC)
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_due_date_alone_lasts_to_the_end_of_its_day() -> None:
    due = read_due("2026-11-20")
    policy = read_policy("zero")
    assert policy.factor(read_moment("2026-11-20T23:59:59"), due) == 1.0
    assert policy.factor(read_moment("2026-11-21T00:00:00"), due) == 0.0
    assert read_due("2026-11-20T18:00Z") == DUE


@pytest.mark.parametrize("text", ["", "tomorrow", "2026-13-01", "20.11.2026", "0001-01-01T00:00"])
def test_an_invalid_time_is_refused(text: str, monkeypatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")  # there, midnight of the year 1 has no time in UTC
    time.tzset()
    try:
        with pytest.raises(ValueError, match=r"is not a time: write it as 2026-11-30T18:00"):
            read_due(text)
    finally:
        monkeypatch.undo()
        time.tzset()
