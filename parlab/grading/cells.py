"""What the code of a cell says: read from its syntax, never run."""

import ast
import contextlib
import re

DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
# Cell magics whose cell is Python; of others (%%bash, %%writefile) nothing is a definition.
_PYTHON_CELLS = {"px", "time", "timeit", "capture"}
_NBVAL = re.compile(r"^\s*#[#\s]*(NBVAL_\w+|PYTEST_VALIDATE_IGNORE_OUTPUT)\s*$")


def statements(source: str) -> list[ast.stmt]:
    """The statements of a cell, magics and shell lines left out; none where it is not Python.

    A statement's `lineno` is its line in `source`, from 1.
    """
    first = source.lstrip().split("\n", 1)[0].split(maxsplit=1)
    if first and first[0].startswith("%%") and first[0][2:] not in _PYTHON_CELLS:
        return []
    body = "\n".join(_python(line) for line in source.split("\n"))
    try:
        return ast.parse(body).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def _python(line: str) -> str:
    """A line as Python reads it: `pass` where IPython would run a magic or the shell."""
    indent = line[: len(line) - len(line.lstrip())]
    if line.startswith("%%"):
        return ""
    return f"{indent}pass" if line.lstrip().startswith(("%", "!")) else line


def defined_names(source: str) -> frozenset[str]:
    """Functions and classes that a cell defines."""
    return frozenset(node.name for node in statements(source) if isinstance(node, DEFINITION))


def bound_names(source: str) -> frozenset[str]:
    """What a cell defines in any way: functions, classes, `name = …`, imports."""
    names = set(defined_names(source))
    for node in statements(source):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names |= {n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name)}
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name.partition(".")[0] for alias in node.names}
    return frozenset(names)


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
    """A cell cut before each of its lines that starts with %%: the cells that were merged."""
    found: list[list[str]] = [[]]
    for line in source.split("\n"):
        if line.startswith("%%") and has_code("\n".join(found[-1])):
            found.append([])
        found[-1].append(line)
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
