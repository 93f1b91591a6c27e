"""Which modules of parlab a lab's outputs come from.

When one of them changes, stored outputs may be out of date, and `make notebooks` runs the lab
again. That is not for `--check` to decide, which the tests call: nbval runs every solution there
and compares what it prints with what is stored, and an edit of a comment in parlab must not turn
the tests red. Modules are read, not imported.
"""

import ast
from functools import cache
from pathlib import Path

from parlab.authoring.notebooks import digest

_PACKAGE = "parlab"
# They write notebooks, and nothing that a notebook shows.
_WITHOUT_OUTPUT = ("parlab.authoring.", "parlab.reference.")


def package_digest(code: str, root: Path) -> str:
    """Fingerprint of the modules below `root/parlab` that `code` imports, directly or not."""
    found: dict[str, Path] = {}
    waiting = list(_imported(code, package=""))
    while waiting:
        name = waiting.pop()
        path = _file_of(name, root)
        if name in found or path is None or f"{name}.".startswith(_WITHOUT_OUTPUT):
            continue
        found[name] = path
        waiting += _imports_of(path, _package_of(name, path), path.stat().st_mtime_ns)
    return digest([[name, found[name].read_text(encoding="utf-8")] for name in sorted(found)])


def _package_of(name: str, path: Path) -> str:
    return name if path.name == "__init__.py" else name.rpartition(".")[0]


def _file_of(name: str, root: Path) -> Path | None:
    base = root.joinpath(*name.split("."))
    candidates = base.with_suffix(".py"), base / "__init__.py"
    return next((path for path in candidates if path.is_file()), None)


@cache  # `changed`, the time of its last change, is there to read it again after one
def _imports_of(path: Path, package: str, changed: int) -> frozenset[str]:
    return _imported(path.read_text(encoding="utf-8"), package)


def _imported(code: str, package: str) -> frozenset[str]:
    """Names below parlab that the code may import: modules, their packages, and what they hold."""
    try:
        tree = ast.parse(code)
    except SyntaxError:  # a cell with a magic, or a module that is being written
        return frozenset()
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            module = _absolute(node, package)
            names |= {module} | {f"{module}.{alias.name}" for alias in node.names}
    return frozenset(
        ".".join(parts[:length])
        for parts in (name.split(".") for name in names)
        if parts[0] == _PACKAGE
        for length in range(1, len(parts) + 1)
    )


def _absolute(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")[: -(node.level - 1) or None]
    return ".".join([*parts, *([node.module] if node.module else [])])
