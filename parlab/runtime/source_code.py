"""Finds the statements, names, and imports in code without running it. Also runs code as a file.

This module needs only the standard library, because it also runs on GPU nodes.
"""

import ast
import contextlib
import functools
import linecache
import re
import symtable
import tokenize
from collections.abc import Iterator
from typing import Any

DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
IMPORT = ast.Import | ast.ImportFrom
# Cell magics whose text is Python. Cells with other magics (%%bash) have no statements.
_PYTHON_CELLS = {"px", "time", "timeit", "prun", "capture"}
_LINE_MAGIC = re.compile(r"\s*%(?:px|time|prun) (?P<code>.*)")
# Statements of IPython that are not Python: `%cd x`, `files = !ls`, `x?`.
_IPYTHON = re.compile(
    r"""(?P<before>\s*(?:[^\s'"#=%!?,;/][^'"#=]*=\s*)?)(?:[%!?,;/]|[^'"#]*\?\s*$)"""
)


def run(code: str, file: str, names: dict[str, Any]) -> None:
    """Run code with the globals `names`. Tracebacks and `inspect.getsource` find its lines."""
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    exec(compile(code, file, "exec"), names)


# Statements


def statements(source: str) -> list[ast.stmt]:
    """Return a cell's statements without magics and shell lines, or [] if it is not Python.

    A statement's `lineno` is its line in `source`, counted from 1.
    """
    magic, _, rest = source.partition("\n")
    is_rank_cell = magic == "%%px" or magic.startswith("%%px ")
    # Most cells are plain Python, perhaps below a `%%px` line, and parsing them directly is fast.
    found = _parsed("\n" + rest if is_rank_cell else source)
    if found is None:
        parts = cell_parts(source)
        lines = (_as_python(lines) if is_python else "" for lines, is_python in parts)
        found = _parsed("\n".join(lines))
    return found or []


def _parsed(code: str) -> list[ast.stmt] | None:
    try:
        return ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def statements_with_magics(source: str) -> list[ast.stmt]:
    """Return the statements of a cell, and those that `%px`, `%time`, and `%prun` lines run."""
    found = [_LINE_MAGIC.match(line) for line in source.split("\n")]
    in_magics = "\n".join(line["code"] if line else "" for line in found)
    both = [*statements(source), *statements(in_magics)]
    return sorted(both, key=lambda statement: statement.lineno)


def cell_parts(source: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the lines of each statement of a cell, and whether they are Python."""
    lines, at, is_python = source.split("\n"), 0, True
    while at < len(lines):
        if lines[at].startswith("%%"):
            is_python = lines[at][2:].split(" ", 1)[0].strip() in _PYTHON_CELLS
        end = _end(lines, at) if is_python else at + 1
        yield lines[at:end], is_python
        at = end


def has_code(source: str) -> bool:
    """Return True if a cell has more than blank lines, comments, and a cell magic."""
    lines = (line.strip() for line in source.split("\n"))
    return any(line and not line.startswith(("#", "%%")) for line in lines)


def _end(lines: list[str], at: int) -> int:
    """Return the line after the statement that begins in line `at`.

    An unfinished statement, such as one with an open bracket, ends before the next `%%`.
    """
    if not has_code(lines[at]):
        return at + 1
    if _IPYTHON.match(lines[at]):
        return next((n + 1 for n in range(at, len(lines)) if lines[n][-1:] != "\\"), len(lines))
    following = map("{}\n".format, map(lines.__getitem__, range(at, len(lines))))
    with contextlib.suppress(tokenize.TokenError, SyntaxError):
        for token in tokenize.generate_tokens(following.__next__):
            if token.type == tokenize.NEWLINE:
                return at + token.end[0]
            line = at + token.start[0] - 1
            if token.type == tokenize.OP and not token.start[1] and lines[line].startswith("%%"):
                return line
    return next((n for n in range(at + 1, len(lines)) if lines[n].startswith("%%")), len(lines))


def _as_python(lines: list[str]) -> str:
    """Convert a statement to Python with the same number of lines.

    For example, `files = !ls` becomes `files = None`.
    """
    if lines[0].startswith("%%"):
        return ""
    found = _IPYTHON.match(lines[0])
    return f"{found['before']}None" + "\n" * (len(lines) - 1) if found else "\n".join(lines)


# Names


def scope_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the nodes that belong to the module's own scope, in order.

    For a function or class, these are the definition itself and its `global` statements. The
    variables of a comprehension belong to another scope.
    """
    waiting = [node]
    while waiting:
        node = waiting.pop()
        yield node
        if isinstance(node, DEFINITION | ast.Lambda):
            yield from (inner for inner in ast.walk(node) if isinstance(inner, ast.Global))
            continue
        children = list(ast.iter_child_nodes(node))
        if isinstance(node, ast.comprehension):
            children.remove(node.target)
        waiting += reversed(children)


def names_bound_by(node: ast.AST) -> list[str]:
    """Return the names that a node binds, if it is a definition, an import, or a target of `=`."""
    if isinstance(node, DEFINITION):
        return [node.name]
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
        return [node.id]
    return list(imported_by(node))


def imported_by(node: ast.AST) -> dict[str, str]:
    """Return the names that an import binds, and their origins, such as `{"np": "numpy"}`.

    The result is empty for other nodes.
    """
    if isinstance(node, ast.ImportFrom):
        return {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    if isinstance(node, ast.Import):
        pairs = [(a, a.name.partition(".")[0]) for a in node.names]
        return {a.asname or top: a.name if a.asname else top for a, top in pairs}
    return {}


def names_in(tree: ast.AST, use: type[ast.expr_context]) -> set[str]:
    """Return the names that occur anywhere in `tree` in the context `use`, such as `ast.Load`."""
    names = (node for node in ast.walk(tree) if isinstance(node, ast.Name))
    return {name.id for name in names if isinstance(name.ctx, use)}


@functools.lru_cache(4096)
def bound_names(source: str) -> frozenset[str]:
    """Return all names that a cell defines, including those in an `if` or a loop."""
    nodes = (node for statement in statements(source) for node in scope_nodes(statement))
    return frozenset(name for node in nodes for name in names_bound_by(node))


def defined_names(source: str) -> frozenset[str]:
    """Return the names of the functions and classes that a cell defines at its top level."""
    return frozenset(node.name for node in statements(source) if isinstance(node, DEFINITION))


def read_names(source: str) -> frozenset[str]:
    """Return all names that a cell reads, including those inside functions."""
    return frozenset().union(*(names_in(one, ast.Load) for one in statements(source)))


@functools.lru_cache(4096)
def free_names(source: str) -> frozenset[str]:
    """Return the names that a cell reads and that another cell may define.

    This excludes parameters, other local variables, and the errors that `except` names.
    """
    try:
        code = "\n".join(map(ast.unparse, statements(source)))
        module = symtable.symtable(code, "cell", "exec")
    except (SyntaxError, RecursionError):  # such as `nonlocal x` without an x: it only parses
        return read_names(source)
    handlers = (node for node in ast.walk(ast.parse(code)) if isinstance(node, ast.ExceptHandler))
    tables = [module]
    found = set()
    while tables:
        table = tables.pop()
        tables += table.get_children()
        found |= {
            symbol.get_name()
            for symbol in table.get_symbols()
            if symbol.is_referenced() and (table is module or symbol.is_global())
        }
    return frozenset(found - {handler.name for handler in handlers})
