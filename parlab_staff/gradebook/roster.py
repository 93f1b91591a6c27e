"""The roster: all students, with names and extensions."""

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from parlab_staff.gradebook.late import read_due, read_moment
from parlab_staff.gradebook.table import Row, read_table
from parlab_staff.grading.student_names import plain_name


@dataclass(frozen=True)
class RosterEntry:
    """One student of the roster.

    Attributes:
        student: the name of the submission's folder or file.
        name: the full name; "" if the roster has none.
        due: an extension; None if the class's due time applies.
        submitted: the time of submission, from a learning platform; None if unknown.
        line: in the roster, counted from 1.
    """

    student: str
    name: str = ""
    due: datetime | None = None
    submitted: datetime | None = None
    line: int = 0


@dataclass(frozen=True)
class Roster:
    """All students of the roster, in its order, and the names of columns that are not used."""

    entries: tuple[RosterEntry, ...]
    ignored: tuple[str, ...] = ()

    def find(self, student: str) -> RosterEntry | None:
        """Return the entry of a submission's student; None if the roster has none."""
        wanted = plain_name(student)
        return next((e for e in self.entries if plain_name(e.student) == wanted), None)


def read_roster(path: Path) -> Roster:
    """Return the roster in a CSV file with a column `student`, and optionally others.

    Raises ValueError with file and line for what cannot be read, and OSError.
    """
    lines: dict[str, int] = {}
    entries = []
    table = read_table(path, required=("student",), optional=("name", "due", "submitted"))
    for row in table.rows:
        entry = _entry(row)
        first = lines.setdefault(plain_name(entry.student), row.line)
        if first != row.line:
            raise row.error(f"the student {entry.student!r} is already in line {first}")
        entries.append(entry)
    return Roster(tuple(entries), table.ignored)


def _entry(row: Row) -> RosterEntry:
    if not plain_name(row["student"]):
        raise row.error("the student is missing")
    try:
        return RosterEntry(
            student=plain_name(row["student"]),
            name=row["name"],
            due=read_due(row["due"]) if row["due"] else None,
            submitted=read_moment(row["submitted"]) if row["submitted"] else None,
            line=row.line,
        )
    except ValueError as error:
        raise row.error(str(error)) from None
