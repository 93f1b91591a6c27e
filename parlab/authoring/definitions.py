"""The reference's own functions, for tests and benchmarks: the exercise cells, without a notebook.

ring = definitions("01_mpi")["ring_all_reduce"]
"""

import ast
import linecache
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from parlab.authoring.source import read_lab
from parlab.files import ROOT

SOLUTIONS = ROOT / "solutions"


def definitions(lab: str, folder: Path = SOLUTIONS) -> dict[str, Any]:
    """What the exercise cells of `solutions/<lab>.py` define, by name, with the imports they use.

    Nothing else of the lab runs, and `parlab.rank` is left out: it would start MPI's world.
    """
    names: dict[str, Any] = {"__name__": lab}
    for title, code in reference_code(lab, folder):
        file = f"<{lab}: {title}>"
        linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
        exec(compile(code, file, "exec"), names)
    return names


def reference_code(
    lab: str, folder: Path = SOLUTIONS, *, for_checks: bool = False
) -> Iterator[tuple[str, str]]:
    """The code of a lab's exercise cells, and the imports that they use, each with a title.

    With `for_checks` also the imports of its check cells, `parlab.rank` among them.
    """
    parsed = []
    for cell in read_lab(folder / f"{lab}.py").cells:
        if cell.kind == "code":
            text = "\n".join(cell.raw)  # magics and the markers are comments in it
            parsed.append((cell, text, ast.parse(text)))
    used = {
        node.id
        for cell, _, code in parsed
        if cell.role == "exercise" or (for_checks and cell.role)
        for node in ast.walk(code)
        if isinstance(node, ast.Name)
    }
    for cell, text, code in parsed:
        if cell.role == "exercise":
            yield cell.key or "", text
            continue
        imports = [statement for statement in code.body if _imports(statement) & used]
        kept = [one for one in imports if for_checks or not _starts_mpi(one)]
        if kept:
            yield f"line {cell.line}", "\n".join(map(ast.unparse, kept))


def _imports(statement: ast.stmt) -> set[str]:
    """The names that an import statement makes; none for anything else."""
    if not isinstance(statement, ast.Import | ast.ImportFrom):
        return set()
    return {alias.asname or alias.name.partition(".")[0] for alias in statement.names}


def _starts_mpi(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and statement.module == "parlab.rank"
