"""The most frequent messages of checks: one line for each, without ranks and numbers."""

import re
from dataclasses import dataclass, field

from parlab_staff.gradebook.entries import CORRECTED, Entry
from parlab_staff.gradebook.reports.text import first_line
from parlab_staff.grading.results import ExerciseResult, GradeStatus

_RANKS = re.compile(r"(?:all ranks|ranks? \d[\d, -]*): *")
# `ring_shift: `, or with the key of a mistake, `ring_shift [no_wait]: `.
_OF = r"%s(?: \[(?P<mistake>\w+)\])?: "
# The input of the call: "with 3 ranks, shape (15,) of int64", "(on 2 ranks)".
_INPUT = re.compile(r" \((?:with|on) # ranks?\b[^;]*\)(?=;|$)| with # ranks?\b[^;]*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


@dataclass
class Misconception:
    """One mistake that checks named, or one of their messages, with `#` for numbers.

    Attributes:
        text: the first line of its first message.
        exercises: keys of the exercises with this message.
        entries: the submissions with this message, each once.
    """

    text: str
    exercises: list[str] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)


def misconceptions(entries: tuple[Entry, ...]) -> list[Misconception]:
    """Return all messages of checks, the most frequent first."""
    found: dict[str, Misconception] = {}
    for entry in entries:
        for exercise in entry.exercises:
            text = normalized(exercise)
            if not text or exercise.status is GradeStatus.GRADER_ERROR:
                continue
            group = found.setdefault(_mistake(exercise) or text, Misconception(text))
            if exercise.key not in group.exercises:
                group.exercises.append(exercise.key)
            if entry not in group.entries:
                group.entries.append(entry)
    return sorted(found.values(), key=lambda group: (-len(group.entries), group.text))


def normalized(exercise: ExerciseResult) -> str:
    """Return the first line of an exercise's message, without ranks and inputs; "" if none."""
    _, line = _mistake_and_line(exercise)
    text = line.removesuffix(" These ranks had not finished:")  # before a list of ranks
    return _INPUT.sub("", _NUMBER.sub("#", text))


def _mistake(exercise: ExerciseResult) -> str:
    """Return the key of the mistake that the check named; "" if it named none, or only an error."""
    key, _ = _mistake_and_line(exercise)
    return "" if key == "raises" else key


def _mistake_and_line(exercise: ExerciseResult) -> tuple[str, str]:
    """Return the key of the mistake, and the first line without key, ranks, and exercise."""
    message = exercise.message
    if message.startswith(CORRECTED):
        message = message.partition("\n")[2]
    line, key = first_line(message), ""
    while found := _RANKS.match(line) or re.match(_OF % re.escape(exercise.key), line):
        key = key or found.groupdict().get("mistake") or ""
        line = line[found.end() :]
    return key, line
