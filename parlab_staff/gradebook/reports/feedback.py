"""Feedback for a student, as HTML and Markdown, without notes and text of hidden checks."""

import re

from parlab_staff.gradebook.entries import BY_HAND, Entry, Gradebook, points_of
from parlab_staff.gradebook.reports.html import page
from parlab_staff.gradebook.reports.text import one_line, shown
from parlab_staff.gradebook.reports.words import (
    OF_EXERCISE,
    OF_SUBMISSION,
    SIGNS,
    number,
    points_text,
)
from parlab_staff.grading.results import ExerciseResult

_PUNCTUATION = re.compile(r"([!-/:-@\[-`{-~])")


def as_html(entry: Entry, gradebook: Gradebook) -> str:
    return page("feedback.html.j2", entry=entry, gradebook=gradebook, by_hand=BY_HAND)


def as_markdown(entry: Entry, gradebook: Gradebook) -> str:
    result = entry.result
    who = f" ({escaped(entry.name)})" if entry.name else ""
    lines = [
        f"# Lab {escaped(result.lab)}: feedback for {escaped(result.student)}{who}",
        f"**{points_text(entry.total, result.of)} points**: {OF_SUBMISSION[result.status]}",
        *([f"Handed in {entry.late_text}."] if entry.late else []),
        *([f"{entry.earned_text}."] if entry.earned_text else []),
        *([fenced(result.message)] if result.message else []),
        *(_section(exercise) for exercise in result.exercises),
        f"Graded {escaped(gradebook.date)}",
    ]
    return "\n\n".join(lines) + "\n"


def _section(exercise: ExerciseResult) -> str:
    if exercise.key == BY_HAND:
        return f"## By hand: {number(exercise.points)}\n\n{fenced(exercise.message)}"
    points = points_text(points_of(exercise), exercise.of)
    parts = f": {escaped(exercise.parts)}" if exercise.parts else ""
    words = f"{SIGNS[exercise.status]} {OF_EXERCISE[exercise.status]}{parts}"
    title = f"## {escaped(exercise.key)}: {points}\n\n{words}"
    return f"{title}\n\n{fenced(exercise.message)}" if exercise.message else title


def escaped(text: str) -> str:
    """Return `text` on one line, escaped so that Markdown shows no markup, links, or HTML."""
    return _PUNCTUATION.sub(r"\\\1", one_line(text))


def fenced(text: str) -> str:
    """Return `text` in a code block that nothing in it can end."""
    text = shown(text)
    longest = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, longest + 1)
    return f"{fence}text\n{text}\n{fence}"
