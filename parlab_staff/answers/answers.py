"""How to write answers: see `parlab_staff.answers`."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parlab.runtime import source_code
from parlab_staff.course.references import definitions, exercise_of, reference


@dataclass(frozen=True)
class Answer:
    """One answer to an exercise.

    Attributes:
        exercise: its key.
        name: its name among the answers to the exercise.
        make: returns the function or class, a new one for each call.
        mistake: the key of the mistake that the check must name; None for a right answer, and for
            a wrong answer whose mistake no check can determine with certainty.
        wrong: True if the check must reject it.
        says: words that the check's message must contain.
    """

    exercise: str
    name: str
    make: Callable[[], Callable[..., Any]]
    mistake: str | None = None
    wrong: bool = True
    says: str = ""


class Answers:
    """The answers to one exercise, in the order of their file."""

    def __init__(self, exercise: str) -> None:
        self.exercise = exercise
        self.all: list[Answer] = []

    def wrong(self, mistake: str | None, says: str = "") -> Callable[[Callable], Callable]:
        """Keep the decorated function (or class) as a wrong answer, under its own name."""

        def keep(function: Callable) -> Callable:
            self._add(
                Answer(self.exercise, function.__name__, lambda: function, mistake, True, says)
            )
            return function

        return keep

    def right(self, function: Callable) -> Callable:
        """Keep the decorated function (or class) as a right answer, under its own name."""
        self._add(Answer(self.exercise, function.__name__, lambda: function, wrong=False))
        return function

    def edit(self, mistake: str | None, name: str, *edits: tuple[str, str], says: str = "") -> None:
        """Keep the reference with parts replaced, each (old, new), as a wrong answer.

        Raises:
            ValueError: an old text is not in the reference's cell exactly once.
        """
        self._add(Answer(self.exercise, name, self._edited(name, edits), mistake, says=says))

    def right_edit(self, name: str, *edits: tuple[str, str]) -> None:
        """Keep the reference with parts replaced, as `edit` does, as a right answer."""
        self._add(Answer(self.exercise, name, self._edited(name, edits), wrong=False))

    def _edited(self, name: str, edits: tuple[tuple[str, str], ...]) -> Callable[[], Any]:
        source = exercise_of(self.exercise).cell.code
        for old, new in edits:
            if source.count(old) != 1:
                raise ValueError(
                    f"{self.exercise}/{name}: {old!r} is {source.count(old)} times in the reference"
                )
            source = source.replace(old, new)
        return lambda: defined_by(self.exercise, source, f"{self.exercise}/{name}")

    def _add(self, answer: Answer) -> None:
        if any(answer.name == other.name for other in self.all):
            raise ValueError(f"two answers to {self.exercise} are called {answer.name}")
        self.all.append(answer)

    def reference(self, exercise: str | None = None) -> Any:
        """Return the reference of this exercise, or of another one that the answer builds on."""
        return reference(exercise or self.exercise)


def defined_by(exercise: str, source: str, title: str) -> Any:
    """Run this source as the exercise's cell, with the other references. Return its definition."""
    built_on = exercise_of(exercise)
    names = dict(definitions(built_on.lab.name))
    # An absolute path, because checks treat files with relative paths as library code.
    file = f"/{title}.py"
    source_code.run(source, file, names)
    return names[built_on.function_name]
