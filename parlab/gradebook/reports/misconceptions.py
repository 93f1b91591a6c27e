"""What the checks said most: one line for each misconception, whoever's ranks and numbers."""

import re
from dataclasses import dataclass, field

from parlab.gradebook.entries import CORRECTED, Entry
from parlab.gradebook.reports.text import first_line
from parlab.grading.results import ExerciseResult, GradeStatus

_RANKS = re.compile(r"(?:all ranks|ranks? \d[\d, -]*): *")
# `ring_shift: `, or with the key of a mistake, `ring_shift [no_wait]: `.
_OF = r"%s(?: \[(?P<mistake>\w+)\])?: "
# The input of the call: "with 3 ranks, shape (15,) of int64", "(on 2 ranks)".
_INPUT = re.compile(r" \((?:with|on) # ranks?\b[^;]*\)(?=;|$)| with # ranks?\b[^;]*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


@dataclass
class Misconception:
    """One mistake that checks named; or a message that they gave, with the numbers in it as `#`.

    Attributes:
        text: its first line, of the first student who heard it.
        exercises: keys, in the order in which they came.
        entries: whose message it was, each once.
    """

    text: str
    exercises: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


def said_most(entries: tuple[Entry, ...]) -> list[Misconception]:
    """All that checks said, what most students heard first."""
    found: dict[str, Misconception] = {}
    for entry in entries:
        for exercise in entry.exercises:
            text = normalised(exercise)
            if not text or exercise.status is GradeStatus.GRADER_ERROR:
                continue
            group = found.setdefault(_mistake(exercise) or text, Misconception(text))
            if exercise.key not in group.exercises:
                group.exercises.append(exercise.key)
            if entry not in group.entries:
                group.entries.append(entry)
    return sorted(found.values(), key=lambda group: (-len(group.entries), group.text))


def normalised(exercise: ExerciseResult) -> str:
    """The first line of what its check said; "" where it said nothing.

    Whose it was, and for which input, is left out.
    """
    _, line = _said(exercise)
    text = line.removesuffix(" Not done:")  # a list follows there
    return _INPUT.sub("", _NUMBER.sub("#", text))


def _mistake(exercise: ExerciseResult) -> str:
    """The key of the mistake that the check named; "" where it named none, or only an error."""
    key, _ = _said(exercise)
    return "" if key == "raises" else key


def _said(exercise: ExerciseResult) -> tuple[str, str]:
    """The key of the mistake, and the first line without it, whose it was and in which exercise."""
    message = exercise.message
    if message.startswith(CORRECTED):
        message = message.partition("\n")[2]
    line, key = first_line(message), ""
    while found := _RANKS.match(line) or re.match(_OF % re.escape(exercise.key), line):
        key = key or found.groupdict().get("mistake") or ""
        line = line[found.end() :]
    return key, line
