"""The record of the mutants: the score of each exercise, and the reasons of survivors.

`make mutants` writes the scores into `tests/mutants/scores.csv`, from which the book makes a table.
`tests/mutants/NN_topic.toml` is written by hand. An entry explains one change, or all mutants of an
exercise that only one of its two checks accepts:

    [[ring_shift]]
    change = '''
    - comm.Sendrecv(x, dest=right, recvbuf=received, source=left)
    + comm.Sendrecv(x, dest=right, recvbuf=received)'''
    reason = "the only message comes from the left"
"""

import csv
import io
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from datetime import date
from pathlib import Path

from parlab.runtime.paths import ROOT, numbered, write_atomically
from parlab_staff.course.references import labs
from parlab_staff.mutants.run import Tried

FOLDER = ROOT / "tests" / "mutants"
SCORES = "scores.csv"


@dataclass(frozen=True)
class Survivor:
    """A mutant that `both` checks accept, or only the visible `check`, or only the `hidden` one."""

    operator: str
    change: list[str]
    occurrence: int
    accepted_by: str


@dataclass(frozen=True)
class Score:
    """How many of one exercise's mutants the checks reject.

    Attributes:
        mutants: the number of mutants.
        rejected: how many the visible check rejects.
        named: how many of these it rejects for a named mistake.
        rejected_hidden: how many the hidden check rejects.
        survivors: how many the visible check accepts.
        date: when they were tried, such as 2026-11-25.
    """

    mutants: int
    rejected: int
    named: int
    rejected_hidden: int
    survivors: int
    date: str


def score_of(tried: list[Tried]) -> Score:
    """Return the score of an exercise from the verdicts on its mutants."""
    return Score(
        mutants=len(tried),
        rejected=sum(not one.check for one in tried),
        named=sum(not one.check and one.mistake is not None for one in tried),
        rejected_hidden=sum(not one.hidden for one in tried),
        survivors=sum(one.check for one in tried),
        date=date.today().isoformat(),
    )


def survivors_of(tried: list[Tried]) -> list[Survivor]:
    """Return the mutants that at least one of the two checks accepted."""
    return [
        Survivor(
            one.mutant.operator,
            one.mutant.change.splitlines(),
            one.mutant.occurrence,
            one.accepted_by,
        )
        for one in tried
        if one.accepted_by
    ]


def read(folder: Path = FOLDER) -> dict[str, Score]:
    """Return the recorded scores, by the exercise's key."""
    if not (folder / SCORES).exists():
        return {}
    rows = csv.DictReader((folder / SCORES).read_text(encoding="utf-8").splitlines())
    return {row["exercise"]: _score(row) for row in rows}


def _score(row: dict[str, str]) -> Score:
    counts = {f.name: int(row[f.name]) for f in fields(Score) if f.name != "date"}
    return Score(**counts, date=row["date"])


def write(new: dict[str, Score], folder: Path = FOLDER) -> None:
    """Record these scores. The recorded scores of other exercises do not change."""
    scores = read(folder) | new
    text = io.StringIO()
    names = ["exercise", *(f.name for f in fields(Score))]
    table = csv.DictWriter(text, names, lineterminator="\n")
    table.writeheader()
    for key in (key for lab in labs() for key in lab.keys):
        if key in scores:
            table.writerow({"exercise": key} | asdict(scores[key]))
    write_atomically(folder / SCORES, text.getvalue())


# The reasons of survivors


@dataclass(frozen=True)
class Reason:
    """Why a survivor with a given change is right, or all survivors that only one check accepts."""

    exercise: str
    reason: str
    change: str = ""
    occurrence: int | None = None
    accepted_by: str = ""

    def covers(self, exercise: str, survivor: Survivor) -> bool:
        """Return True if this explains that survivor."""
        if exercise != self.exercise:
            return False
        if not self.change:
            return survivor.accepted_by == self.accepted_by
        same = _lines(self.change) == [line.rstrip() for line in survivor.change]
        return same and self.occurrence in (None, survivor.occurrence)


def _lines(change: str) -> list[str]:
    return [line.rstrip() for line in change.strip("\n").splitlines()]


def reasons(folder: Path = FOLDER) -> list[Reason]:
    """Return all reasons, in the order of the files."""
    return [
        Reason(exercise, **entry)
        for path in numbered(folder, ".toml")
        for exercise, entries in tomllib.loads(path.read_text(encoding="utf-8")).items()
        for entry in entries
    ]


def unexplained(
    survivors: dict[str, list[Survivor]], known: Iterable[Reason]
) -> Iterator[tuple[str, Survivor]]:
    """Yield survivors without a reason, with their exercises. Each may show a gap in a check."""
    known = list(known)
    for key, of_exercise in survivors.items():
        for survivor in of_exercise:
            if not any(reason.covers(key, survivor) for reason in known):
                yield key, survivor
