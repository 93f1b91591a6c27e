"""Collects the Python files that ranks in a page need: mpi4py, the checks, and the seams."""

import ast
import hashlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

import parlab

PYTHON = Path(__file__).resolve().parent / "python"
REPLACED = PYTHON / "replaced"
COURSE = Path(parlab.__file__).resolve().parents[1]
# Modules that a lab imports on its ranks. The modules that these import are added.
ROOTS = (
    "parlab.checks.mpi",
    "parlab.checks.pipeline_parallel",
    "parlab.checks.zero",
    "parlab.chunks",
    "parlab.costs.collectives",
    "parlab.ledger",
    "parlab.pipeline",
    "parlab.progress",
    "parlab.rank.world",
    "parlab.reference",
)


def python_files(roots: Iterable[str] = ROOTS) -> dict[str, str]:
    """Return the text of each file by its path below the folder of Python's modules."""
    own = [path for path in sorted(PYTHON.rglob("*.py")) if REPLACED not in path.parents]
    files = {str(path.relative_to(PYTHON)): path.read_text("utf-8") for path in own}
    del files["__init__.py"]  # it makes this folder a package only here
    waiting, found = list(roots), set()
    while waiting:
        module = waiting.pop()
        if module in found:
            continue
        found.add(module)
        if (path := _path_of(module)) is None:
            continue  # a name in a module
        name = str(path.relative_to(REPLACED if REPLACED in path.parents else COURSE))
        files[name] = path.read_text("utf-8")
        waiting.extend(_imports(ast.parse(files[name])))
        waiting.append(module.rpartition(".")[0])
    return files


def _path_of(module: str) -> Path | None:
    if module.split(".")[0] != "parlab":
        return None
    for folder in (REPLACED, COURSE):
        base = folder.joinpath(*module.split("."))
        for path in (base.with_suffix(".py"), base / "__init__.py"):
            if path.exists():
                return path
    return None


def _imports(node: ast.AST) -> Iterator[str]:
    """Yield the modules that this code imports when it runs, but not those in its functions."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module:
            yield child.module
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not (
            isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING"
        ):
            yield from _imports(child)


def write_python_files(folder: Path) -> str:
    """Write the files as one JSON file into `folder`. Return its name, which contains a hash."""
    content = json.dumps(python_files(), sort_keys=True, ensure_ascii=False).encode()
    name = f"course-{hashlib.sha256(content).hexdigest()[:12]}.json"
    (folder / name).write_bytes(content)
    return name
