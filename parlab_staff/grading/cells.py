"""Edits the code of a submission's cells: splits, compares, and removes parts. Nothing runs."""

import ast
import contextlib

from parlab.runtime.source_code import (
    DEFINITION,
    IMPORT,
    cell_parts,
    defined_names,
    has_code,
    statements,
)


def added_definitions(source: str, original: str) -> str:
    """Return a cell with the definitions and imports that `original` does not have, or ""."""
    known, names = {ast.unparse(node) for node in statements(original)}, defined_names(original)
    added = []
    for node in statements(source):
        is_new = isinstance(node, DEFINITION) and node.name not in names
        if is_new or isinstance(node, IMPORT):
            with contextlib.suppress(RecursionError):
                added.append(ast.unparse(node))
    added = [text for text in added if text not in known]
    magic = [line for line in source.strip().split("\n")[:1] if line.startswith("%%")]
    return "\n".join(magic + added) if added else ""


def without_calls(source: str, module: str) -> str:
    """Return the cell without lines that only call a function of `module`: `check.ring(…)`."""
    lines = source.split("\n")
    for node in statements(source):
        if _calls(node, module):
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines)


def _calls(node: ast.stmt, module: str) -> bool:
    function = node.value.func if _is_call(node) else None
    return isinstance(function, ast.Attribute) and getattr(function.value, "id", "") == module


def _is_call(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)


def pieces(source: str) -> list[str]:
    """Split a cell before each %% outside of strings, in case a student merged several cells."""
    found: list[list[str]] = [[]]
    began = False  # True if the last piece has code
    for lines, _ in cell_parts(source):
        if began and lines[0].startswith("%%"):
            found.append([])
            began = False
        found[-1] += lines
        began |= has_code("\n".join(lines))
    return ["\n".join(lines).strip("\n") if len(found) > 1 else source for lines in found]


def same_code(one: str, other: str) -> bool:
    """Return True if two cells are equal, except for spaces around them and at ends of lines."""
    strip = [line.rstrip() for line in one.strip().split("\n")]
    return strip == [line.rstrip() for line in other.strip().split("\n")]
