"""Runs the exercise cells of a lab without a notebook. Needs only the standard library."""

import ast
from collections.abc import Iterator
from typing import Any

from parlab.runtime import source_code
from parlab.runtime.source_code import imported_by, names_in
from parlab_staff.course.lab import Lab


def definitions_in(lab: Lab) -> dict[str, Any]:
    """Run a lab's exercise cells and the imports that they use. Return their names and values.

    Nothing else of the lab runs. `parlab.rank` is left out, because it would start MPI.
    """
    names: dict[str, Any] = {"__name__": lab.name}
    for title, code in reference_code(lab):
        source_code.run(code, f"<{lab.name}: {title}>", names)
    return names


def reference_code(lab: Lab, *, for_checks: bool = False) -> Iterator[tuple[str, str]]:
    """Yield the code of the exercise cells, and the imports that they use, each with a title.

    With `for_checks`, the imports of check cells and of `parlab.rank` are included.
    """
    parsed = [(cell, ast.parse(cell.code)) for cell in lab.cells if cell.kind == "code"]
    used: set[str] = set()
    for cell, code in parsed:
        if cell.role == "exercise" or (for_checks and cell.role):
            used |= names_in(code, ast.Load)
    for cell, code in parsed:
        if cell.role == "exercise":
            yield cell.key or "", cell.code
            continue
        imports = [one for one in code.body if used & imported_by(one).keys()]
        kept = [one for one in imports if for_checks or not _starts_mpi(one)]
        if kept:
            yield cell.id, "\n".join(map(ast.unparse, kept))


def _starts_mpi(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "parlab.rank"
