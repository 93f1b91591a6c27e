"""When a submission arrived, and what lateness costs."""

import re
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta

_POLICY = re.compile(
    r"(?:none|(?P<zero>zero)|(?P<percent>\d+(?:\.\d+)?) ?%? ?/ ?(?P<unit>day|hour)"
    r"(?: max (?P<maximum>\d+(?:\.\d+)?) ?%?)?)(?: grace (?P<grace>\d+) ?min)?"
)
_UNITS = {"day": timedelta(days=1), "hour": timedelta(hours=1)}


@dataclass(frozen=True)
class Lateness:
    """How late one submission is, and the effect on its points.

    Attributes:
        late: True if it came after the due time and any grace.
        factor: multiplies its points, 0 to 1.
        text: the same in words, for the student; "" if there is nothing to report.
    """

    late: bool = False
    factor: float = 1.0
    text: str = ""


@dataclass(frozen=True)
class LatePolicy:
    """The rule for the points that are taken off a late submission.

    Attributes:
        percent: taken off for each `unit` that has started after the due time.
        unit: a day or an hour.
        maximum: the largest percentage that is taken off.
        grace: this long after the due time is still on time. After that, lateness counts from the
            due time.
    """

    percent: float = 0.0
    unit: timedelta = _UNITS["day"]
    maximum: float = 100.0
    grace: timedelta = timedelta()

    def is_late(self, submitted: datetime, due: datetime) -> bool:
        return submitted > due + self.grace

    def taken_off(self, submitted: datetime, due: datetime) -> float:
        """Return the percentage of the earned points that is taken off, 0 to 100."""
        if not self.is_late(submitted, due):
            return 0.0
        started = -((due - submitted) // self.unit)  # rounded up
        return min(self.percent * started, self.maximum)

    def factor(self, submitted: datetime, due: datetime) -> float:
        """Return the factor for the points, 0 to 1. Both times have an offset."""
        return (100 - self.taken_off(submitted, due)) / 100

    def judge(self, submitted: datetime | None, due: datetime | None) -> Lateness:
        """Return the lateness of one submission. If a time is unknown, it is not late."""
        if due is None:
            return Lateness()
        if submitted is None:
            return Lateness(text="submission time unknown: treated as on time")
        if not self.is_late(submitted, due):
            return Lateness()
        text = f"{_duration(submitted - due)} late"
        if taken := self.taken_off(submitted, due):
            text += f": {taken:g} % of the points earned are taken off"
        return Lateness(True, self.factor(submitted, due), text)


def read_policy(text: str) -> LatePolicy:
    """Return a policy from `none`, `zero`, `10/day`, `10/day max 50`, `5/hour`, or `… grace 10min`.

    Numbers are percent of the points earned. Raises ValueError for anything else.
    """
    found = _POLICY.fullmatch(" ".join(text.lower().split()))
    if found is None:
        raise ValueError(
            f"--late-policy {text!r} is not known: use none, zero, 10/day, 10/day max 50 or "
            "5/hour (percent of the points earned), and grace 10min behind it"
        )
    percent = 100.0 if found["zero"] else float(found["percent"] or 0)
    maximum = float(found["maximum"] or 100)
    if max(percent, maximum) > 100:
        raise ValueError(f"--late-policy {text!r}: more than 100 % cannot be taken off")
    return LatePolicy(
        percent=percent,
        unit=_UNITS[found["unit"] or "day"],
        maximum=maximum,
        grace=timedelta(minutes=int(found["grace"] or 0)),
    )


def read_moment(text: str) -> datetime:
    """Read an ISO 8601 time. If it has no offset, it is local time. Raises ValueError."""
    try:
        return datetime.fromisoformat(text.strip()).astimezone()
    except (ValueError, OverflowError, OSError):
        raise ValueError(
            f"{text!r} is not a time: write it as 2026-11-30T18:00, or with an offset as "
            "2026-11-30T18:00+01:00"
        ) from None


def read_due(text: str) -> datetime:
    """Read a due time, as `read_moment` does. A date alone means the end of that day."""
    try:
        day = date.fromisoformat(text.strip())
    except ValueError:
        return read_moment(text)
    return read_moment(datetime.combine(day, time.max).isoformat())


def _duration(late: timedelta) -> str:
    """Return a duration in its two largest units: `2 days 3 hours`, `5 minutes`, `20 seconds`."""
    hours, seconds = divmod(int(late.total_seconds()), 3600)
    minutes, seconds = divmod(seconds, 60)
    days, hours = divmod(hours, 24)
    counts = {"day": days, "hour": hours, "minute": minutes, "second": seconds}
    parts = [f"{n} {unit}{'s' if n != 1 else ''}" for unit, n in counts.items() if n]
    return " ".join(parts[:2]) or "less than a second"
