"""The reference's own functions, for tests and benchmarks: the exercise cells, without a notebook.

ring = definitions("01_mpi")["ring_all_reduce"]
"""

import ast
import linecache
from pathlib import Path
from typing import Any

from parlab.authoring.source import read_lab

SOLUTIONS = Path(__file__).resolve().parents[2] / "solutions"


def definitions(lab: str, folder: Path = SOLUTIONS) -> dict[str, Any]:
    """What the exercise cells of `solutions/<lab>.py` define, by name, with the imports they use.

    Nothing else of the lab runs, and `parlab.rank` is left out: it would start MPI's world.
    """
    parsed = []
    for cell in read_lab(folder / f"{lab}.py").cells:
        if cell.kind == "code":
            text = "\n".join(cell.raw)  # magics and the markers are comments in it
            parsed.append((cell, text, ast.parse(text)))
    used = {
        node.id
        for cell, _, code in parsed
        if cell.role == "exercise"
        for node in ast.walk(code)
        if isinstance(node, ast.Name)
    }
    names: dict[str, Any] = {"__name__": lab}
    for cell, text, code in parsed:
        if cell.role != "exercise":
            code.body = [statement for statement in code.body if _imports(statement) & used]
        file = f"<{lab}: {cell.key or f'line {cell.line}'}>"
        linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
        exec(compile(code, file, "exec"), names)
    return names


def _imports(statement: ast.stmt) -> set[str]:
    """The names that an import statement makes; none for anything else, nor for parlab.rank."""
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        return set()
    if isinstance(statement, ast.ImportFrom) and statement.module == "parlab.rank":
        return set()
    return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}
