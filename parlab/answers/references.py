"""The reference solution of an exercise, by its key, from `solutions/*.py`."""

import ast
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from parlab.authoring.definitions import SOLUTIONS, definitions
from parlab.authoring.source import Lab, read_lab


@dataclass(frozen=True)
class Exercises:
    """One lab's source, and what its exercise cells define."""

    lab: Lab

    @functools.cached_property
    def names(self) -> dict[str, Any]:
        return definitions(self.lab.name)


def labs() -> list[Exercises]:
    """Every lab that has a source, in order."""
    return [_lab(path) for path in _sources()]


@functools.cache  # an error is not kept
def lab_of(exercise: str) -> Exercises:
    """The lab that an exercise belongs to; KeyError with all keys where there is none."""
    for path in _sources():
        # By its text first: to read all labs takes a rank longer than most checks.
        if f'exercise="{exercise}"' in path.read_text() and exercise in _lab(path).lab.keys:
            return _lab(path)
    known = ", ".join(key for exercises in labs() for key in exercises.lab.keys)
    raise KeyError(f"no exercise {exercise!r}; there are: {known}")


@functools.cache
def _sources() -> list[Path]:
    return sorted(SOLUTIONS.glob("[0-9][0-9]_*.py"))


@functools.cache
def _lab(path: Path) -> Exercises:
    return Exercises(read_lab(path))


def topic_of(exercise: str) -> str:
    """`mpi`: the exercise's chapter, as modules and folders are named."""
    return lab_of(exercise).lab.topic


def cell_source(exercise: str) -> str:
    """The exercise's solved cell, as Python (its magic is a comment)."""
    cell = lab_of(exercise).lab.exercise(exercise)
    assert cell is not None
    return "\n".join(cell.raw)


@functools.cache
def function_name(exercise: str) -> str:
    """What the lab's check cell hands to the check: the function, or class, of that name."""
    for cell in lab_of(exercise).lab.cells:
        if cell.role == "check" and cell.key == exercise:
            for node in ast.walk(ast.parse("\n".join(cell.raw))):
                if (
                    isinstance(node, ast.Call)
                    and isinstance(node.func, ast.Attribute)
                    and node.func.attr == exercise
                ):
                    return ast.unparse(node.args[0])
    raise KeyError(f"no check cell calls check.{exercise}(…)")


def reference(exercise: str) -> Callable[..., Any]:
    """The reference's function or class."""
    return lab_of(exercise).names[function_name(exercise)]
