"""The reference's own functions, from an executed notebook: torch and Triton are all they need.

`parlab.authoring.definitions` has the same from the source; that takes jupytext.
"""

import ast
import linecache
from pathlib import Path
from typing import Any

from parlab.gpu_check.cells import read

# What ranks, checks and learners need, and functions do not.
NOT_IMPORTED = ("parlab.rank", "parlab.checks", "parlab.reference", "parlab.cluster")


def functions(notebook: Path) -> dict[str, Any]:
    """What the exercise cells of a lab define, by name, with the imports that they use."""
    cells = read(notebook)
    used = {
        node.id
        for cell in cells
        if cell.role == "exercise"
        for node in ast.walk(ast.parse(cell.source))
        if isinstance(node, ast.Name)
    }
    names: dict[str, Any] = {"__name__": notebook.stem}
    for cell in cells:
        code = cell.source if cell.role == "exercise" else _imports(cell.source, used)
        file = f"<{notebook.stem}: {cell.id}>"
        # inspect.getsource, which Triton uses, finds the code there.
        linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
        exec(compile(code, file, "exec"), names)
    return names


def _imports(source: str, used: set[str]) -> str:
    """The import statements of a cell that make a name which is used."""
    kept = []
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            made = {a.asname or a.name.partition(".")[0] for a in statement.names}
            ours = str(getattr(statement, "module", "")).startswith(NOT_IMPORTED)
            if made & used and not ours:
                kept.append(ast.unparse(statement))
    return "\n".join(kept)
