"""What the checks said most: one line for each misconception, whoever's ranks and numbers."""

import re
from dataclasses import dataclass, field

from parlab.grading.gradebook import CORRECTED, Entry
from parlab.grading.reports.text import first_line
from parlab.grading.results import ExerciseResult, Status

_RANKS = re.compile(r"(?:all ranks|ranks? \d[\d, -]*): *")
# The input of the call: "with 3 ranks, shape (15,) of int64", "(on 2 ranks)".
_INPUT = re.compile(r" \((?:with|on) # ranks?\b[^;]*\)(?=;|$)| with # ranks?\b[^;]*")
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*(?:e[+-]?\d+)?")


@dataclass
class Misconception:
    """One message that checks gave, with the numbers in it as `#`.

    Attributes:
        text: its first line.
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
            if not text or exercise.status is Status.GRADER_ERROR:
                continue
            group = found.setdefault(text, Misconception(text))
            if exercise.key not in group.exercises:
                group.exercises.append(exercise.key)
            if entry not in group.entries:
                group.entries.append(entry)
    return sorted(found.values(), key=lambda group: (-len(group.entries), group.text))


def normalised(exercise: ExerciseResult) -> str:
    """The first line of what its check said; "" where it said nothing.

    Whose it was, and for which input, is left out.
    """
    message = exercise.message
    if message.startswith(CORRECTED):
        message = message.partition("\n")[2]
    line = first_line(message).removeprefix(f"{exercise.key}: ")
    if ranks := _RANKS.match(line):
        line = line[ranks.end() :]
    return _INPUT.sub("", _NUMBER.sub("#", line.removeprefix(f"{exercise.key}: ")))
