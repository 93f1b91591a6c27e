"""An exercise as its mutants meet it: its cells, and those of the lab that they build on."""

import ast
from dataclasses import dataclass

from parlab.answers.references import labs
from parlab.authoring.definitions import reference_code
from parlab.authoring.source import Cell, Lab


@dataclass(frozen=True)
class Exercise:
    """An exercise of a lab, as its cells have it.

    `lab` is `01_mpi`. `check` and `hidden` are the code of its check cells, `hidden` with what it
    uses of earlier ones; `setup` is what comes before any of them: the lab's imports, and the
    references of all exercises.
    """

    lab: str
    key: str
    cell: Cell
    check: str
    hidden: str
    setup: str

    @property
    def reference(self) -> str:
        return _code([self.cell])


def exercises(keys: list[str] | None = None) -> list[Exercise]:
    """All exercises of the course in order, or those of these keys.

    Raises ValueError for a key that none has.
    """
    known = [one for lab in labs() for one in _exercises(lab.lab)]
    if unknown := set(keys or ()) - {exercise.key for exercise in known}:
        raise ValueError(f"no exercise {', '.join(sorted(unknown))}")
    return [exercise for exercise in known if not keys or exercise.key in keys]


def _exercises(lab: Lab) -> list[Exercise]:
    setup = "\n".join(code for _, code in reference_code(lab.name, for_checks=True))
    found: list[Exercise] = []
    for key in lab.keys:
        cell = lab.exercise(key)
        assert cell is not None
        check, hidden = (
            _code([c for c in lab.cells if c.role == role and c.key == key])
            for role in ("check", "hidden-check")
        )
        earlier = "\n".join(exercise.hidden for exercise in found)
        hidden = "\n".join([*_functions(earlier, hidden), hidden])
        found.append(Exercise(lab.name, key, cell, check, hidden, setup))
    return found


def _functions(earlier: str, code: str) -> list[str]:
    """The functions that the code uses and the code of earlier cells defines, in their order."""
    known = {f.name: ast.unparse(f) for f in _defined(earlier)}
    own = {f.name for f in _defined(code)}
    needed: list[str] = []
    for name, text in reversed(known.items()):  # one that is defined later may use an earlier one
        names = (n.id for n in ast.walk(ast.parse("\n".join([*needed, code]))) if hasattr(n, "id"))
        if name in {*names} - own:
            needed.insert(0, text)
    return needed


def _defined(code: str) -> list[ast.FunctionDef]:
    return [one for one in ast.parse(code).body if isinstance(one, ast.FunctionDef)]


def _code(cells: list[Cell]) -> str:
    """The cells as plain Python: magics and markers are comments in a source."""
    return "\n".join("\n".join(cell.raw) for cell in cells)
