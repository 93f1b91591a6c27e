"""The code that ranks run to try an answer to an exercise."""

import ast
import functools
from dataclasses import dataclass

from parlab.runtime.notebook import Cell
from parlab.runtime.source_code import defined_names, names_in, read_names, statements
from parlab_staff.course.definitions import reference_code
from parlab_staff.course.lab import Exercise, Lab
from parlab_staff.course.references import labs


@dataclass(frozen=True)
class Target:
    """An exercise, and the code that tries answers to it.

    Attributes:
        exercise: the exercise.
        setup: the code that runs first: the lab's imports, and the references of all exercises.
        check: the code of the check cells.
        hidden: the code of the hidden checks, with the functions of earlier cells that it uses.
    """

    exercise: Exercise
    setup: str
    check: str
    hidden: str

    @property
    def key(self) -> str:
        return self.exercise.key

    @property
    def reference(self) -> str:
        return self.exercise.cell.code


def targets(keys: list[str] | None = None) -> list[Target]:
    """Return the targets of all exercises of the course, in order, or of those with these keys.

    Raises ValueError for a key that no exercise has.
    """
    known = _known()
    if unknown := set(keys or ()) - {target.key for target in known}:
        raise ValueError(f"no exercise {', '.join(sorted(unknown))}")
    return [target for target in known if not keys or target.key in keys]


@functools.cache  # errors are not cached
def _known() -> tuple[Target, ...]:
    return tuple(target for lab in labs() for target in _targets(lab))


def _targets(lab: Lab) -> list[Target]:
    setup = "\n".join(code for _, code in reference_code(lab, for_checks=True))
    found: list[Target] = []
    for exercise in lab.exercises:
        earlier = "\n".join(target.hidden for target in found)
        hidden = _code(exercise.hidden_checks)
        hidden = "\n".join([*_functions(earlier, hidden), hidden])
        found.append(Target(exercise, setup, _code(exercise.checks), hidden))
    return found


def _functions(earlier: str, code: str) -> list[str]:
    """Return the functions that `code` uses and the code of earlier cells defines, in order."""
    known = {one.name: one for one in statements(earlier) if isinstance(one, ast.FunctionDef)}
    own, wanted = defined_names(code), read_names(code)
    needed: list[str] = []
    for name, function in reversed(known.items()):  # a later function may use an earlier one
        if name in wanted - own:
            needed.insert(0, ast.unparse(function))
            wanted |= names_in(function, ast.Load)
    return needed


def _code(cells: list[Cell]) -> str:
    return "\n".join(cell.code for cell in cells)
