"""What the code of a cell says: read from its syntax, never run."""

import ast
import contextlib
import re
import tokenize
from collections.abc import Iterator

DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# Cell magics whose cell is Python; of others (%%bash, %%writefile) nothing is a definition.
_PYTHON_CELLS = {"px", "time", "timeit", "capture"}
_NBVAL = re.compile(r"^\s*#[#\s]*(NBVAL_\w+|PYTEST_VALIDATE_IGNORE_OUTPUT)\s*$")
# What IPython runs otherwise than Python where a statement begins: `%cd x`, `files = !ls`, `x?`.
_IPYTHON = re.compile(
    r"""(?P<before>\s*(?:[^\s'"#=%!?,;/][^'"#=]*=\s*)?)(?:[%!?,;/]|[^'"#]*\?\s*$)"""
)


def statements(source: str) -> list[ast.stmt]:
    """The statements of a cell, magics and shell lines left out; none where it is not Python.

    A statement's `lineno` is its line in `source`, from 1.
    """
    body = "\n".join(_as_python(lines) if is_python else "" for lines, is_python in _parts(source))
    try:
        return ast.parse(body).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _parts(source: str) -> Iterator[tuple[list[str], bool]]:
    """The cell's lines, those of a statement together; and whether they are Python."""
    lines, at, is_python = source.split("\n"), 0, True
    while at < len(lines):
        if lines[at].startswith("%%"):
            is_python = lines[at][2:].split(" ", 1)[0].strip() in _PYTHON_CELLS
        end = _end(lines, at) if is_python else at + 1
        yield lines[at:end], is_python
        at = end


def _end(lines: list[str], at: int) -> int:
    """The line behind the statement that begins in line `at`.

    Where it does not end, as of a bracket that is not closed, it ends before the next %%.
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
    """A statement as Python reads it, with as many lines: `files = None` for `files = !ls`."""
    if lines[0].startswith("%%"):
        return ""
    found = _IPYTHON.match(lines[0])
    return f"{found['before']}None" + "\n" * (len(lines) - 1) if found else "\n".join(lines)


def defined_names(source: str) -> frozenset[str]:
    """Functions and classes that a cell defines."""
    return frozenset(node.name for node in statements(source) if isinstance(node, DEFINITION))


def bound_names(source: str) -> frozenset[str]:
    """What a cell defines in any way, also in an `if`: functions, classes, `name = …`, imports."""
    nodes = (node for statement in statements(source) for node in of_the_module(statement))
    return frozenset(name for node in nodes for name in _bound(node))


def _bound(node: ast.AST) -> list[str]:
    if isinstance(node, DEFINITION):
        return [node.name]
    if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr):
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        return [n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname or alias.name.partition(".")[0] for alias in node.names]
    return []


def of_the_module(statement: ast.stmt) -> list[ast.AST]:
    """The nodes that run in the module; of functions those that say `global`."""
    waiting, found = [statement], []
    while waiting:
        node = waiting.pop()
        found.append(node)
        if isinstance(node, DEFINITION | ast.Lambda):
            found += [n for n in ast.walk(node) if isinstance(n, ast.Global)]
        else:
            waiting += ast.iter_child_nodes(node)
    return found


def used_names(source: str) -> frozenset[str]:
    """All names that stand in a cell, wherever they come from."""
    nodes = (node for statement in statements(source) for node in ast.walk(statement))
    return frozenset(node.id for node in nodes if isinstance(node, ast.Name))


def added_definitions(source: str, original: str) -> str:
    """A cell with the imports, functions and classes that `original` has not; "" without any."""
    known, names = {ast.unparse(node) for node in statements(original)}, defined_names(original)
    added = []
    for node in statements(source):
        is_new = isinstance(node, DEFINITION) and node.name not in names
        if is_new or isinstance(node, ast.Import | ast.ImportFrom):
            with contextlib.suppress(RecursionError):
                added.append(ast.unparse(node))
    added = [text for text in added if text not in known]
    magic = [line for line in source.strip().split("\n")[:1] if line.startswith("%%")]
    return "\n".join(magic + added) if added else ""


def without_calls(source: str, module: str) -> str:
    """The cell without its lines that only call a function of `module`: `check.ring(…)`."""
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
    """A cell cut before each %% that is in no string: the cells that were merged."""
    found: list[list[str]] = [[]]
    began = False  # whether the last piece has code
    for lines, _ in _parts(source):
        if began and lines[0].startswith("%%"):
            found.append([])
            began = False
        found[-1] += lines
        began |= has_code("\n".join(lines))
    return ["\n".join(lines).strip("\n") if len(found) > 1 else source for lines in found]


def has_code(source: str) -> bool:
    """Whether more is in the cell than blank lines, comments and a cell magic."""
    lines = (line.strip() for line in source.split("\n"))
    return any(line and not line.startswith(("#", "%%")) for line in lines)


def same_code(one: str, other: str) -> bool:
    """Whether two cells are the same, but for spaces at the ends of lines and around the cell."""
    strip = [line.rstrip() for line in one.strip().split("\n")]
    return strip == [line.rstrip() for line in other.strip().split("\n")]


def without_nbval(source: str) -> str:
    """The cell without comments that steer nbval: they are not for those who are graded."""
    return "\n".join(line for line in source.split("\n") if not _NBVAL.match(line))
