"""How answers are written down: see `parlab.answers`."""

import linecache
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from parlab.answers.references import cell_source, function_name, lab_of, reference


@dataclass(frozen=True)
class Answer:
    """One answer to an exercise.

    Attributes:
        exercise: its key.
        name: of this answer, among those of the exercise.
        make: makes the function or class, fresh at each call.
        mistake: the key under which the check must reject it; None for a right answer, and for a
            wrong one whose mistake no check can be sure of.
        wrong: whether the check must reject it.
        says: words that the check's message must hold besides.
    """

    exercise: str
    name: str
    make: Callable[[], Callable[..., Any]]
    mistake: str | None = None
    wrong: bool = True
    says: str = ""


class Answers:
    """The answers to one exercise, in the order in which they are written down."""

    def __init__(self, exercise: str) -> None:
        self.exercise = exercise
        self.all: list[Answer] = []

    def wrong(self, mistake: str | None, says: str = "") -> Callable[[Callable], Callable]:
        """Keep the decorated function (or class) as a wrong answer, named as it is."""

        def keep(function: Callable) -> Callable:
            self._add(
                Answer(self.exercise, function.__name__, lambda: function, mistake, True, says)
            )
            return function

        return keep

    def right(self, function: Callable) -> Callable:
        """Keep the decorated function (or class) as a right answer, named as it is."""
        self._add(Answer(self.exercise, function.__name__, lambda: function, wrong=False))
        return function

    def edit(self, mistake: str | None, name: str, *edits: tuple[str, str], says: str = "") -> None:
        """Keep the reference with parts replaced, each (old, new), as a wrong answer.

        Raises:
            ValueError: an old text is not in the reference's cell exactly once.
        """
        source = cell_source(self.exercise)
        for old, new in edits:
            if source.count(old) != 1:
                raise ValueError(
                    f"{self.exercise}/{name}: {old!r} is {source.count(old)} times in the reference"
                )
            source = source.replace(old, new)
        make = lambda: defined_by(self.exercise, source, f"{self.exercise}/{name}")  # noqa: E731
        self._add(Answer(self.exercise, name, make, mistake, says=says))

    def _add(self, answer: Answer) -> None:
        if any(answer.name == other.name for other in self.all):
            raise ValueError(f"two answers to {self.exercise} are called {answer.name}")
        self.all.append(answer)

    def reference(self, exercise: str | None = None) -> Any:
        """The reference of this exercise, or of another one that the answer builds on."""
        return reference(exercise or self.exercise)


def defined_by(exercise: str, source: str, title: str) -> Any:
    """What an exercise's cell defines when it reads `source`, beside the lab's other references."""
    names = dict(lab_of(exercise).names)
    # An absolute path: the check tells lines of the learner's, and takes others for a library's.
    file = f"/{title}.py"
    linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
    exec(compile(source, file, "exec"), names)
    return names[function_name(exercise)]
