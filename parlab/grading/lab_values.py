"""The lab's own values, whatever a notebook assigns: what it imports from parlab, and its ranks."""

import ast
import re

from nbformat import NotebookNode

from parlab.grading.cells import DEFINITION, of_the_module, statements
from parlab.grading.lab import GradedLab, is_check

_SETTERS = {"setattr", "delattr"}
# Under this name labs import what starts ranks, and students write of it before they do.
_CLUSTER = {"cluster": "parlab.cluster"}
_RANK_CALLS = {f"parlab.cluster.{name}" for name in ("start", "restart", "stop")}
# Calls by which a cell can assign what its syntax does not name.
_UNNAMED = {"exec", "eval", "globals", "locals", "vars", "get_ipython"}
_LINE_MAGICS = re.compile(r"^\s*%(?:px|time) (?P<code>.*)", re.MULTILINE)


def imports(lab: GradedLab) -> dict[str, str]:
    """What the lab's own cells import from parlab: `comm` → `parlab.rank.comm`."""
    return of_parlab([cell.source for cell in _own_cells(lab)])


def restoring_cells(lab: GradedLab) -> dict[str, list[str]]:
    """By exercise's and check's cell: cells that give the lab's names their values again.

    Whatever a notebook did to them by then: not every way to assign can be seen. They are the
    names that the lab has imported before, in the notebook and on all ranks. What one rank alone
    imports draws, and no check uses it.
    """
    own = {cell.id for cell in _own_cells(lab)}
    imported: dict[str, dict[str, str]] = {"": {}, "%%px": {}}
    found = {}
    for cell in lab.cells:
        magic = cell.source.partition("\n")[0] if cell.source.startswith("%%px") else ""
        if cell.id not in own:
            found[cell.id] = [_importing(*one) for one in imported.items() if one[1]]
        elif "--targets" not in magic:
            imported[magic[:4]] |= of_parlab([cell.source])
    return found


def _own_cells(lab: GradedLab) -> list[NotebookNode]:
    exercises = {e.cell for e in lab.exercises}
    return [cell for cell in lab.cells if cell.id not in exercises and not is_check(cell)]


def _importing(magic: str, names: dict[str, str]) -> str:
    pairs = [(origin.rpartition("."), name) for name, origin in names.items()]
    lines = [
        f"from {module} import {last} as {name}" for (module, _, last), name in pairs if module
    ]
    return "\n".join([magic, *lines]).strip()


def of_parlab(sources: list[str]) -> dict[str, str]:
    """What these cells import from parlab, as `imports`; of `import parlab.rank`, `parlab`."""
    nodes = (n for source in sources for s in statements(source) for n in ast.walk(s))
    found = (pair for node in nodes for pair in _imported(node).items())
    return {name: origin for name, origin in found if origin.partition(".")[0] == "parlab"}


def _imported(node: ast.AST) -> dict[str, str]:
    """What an import binds, with where it comes from; nothing where the node is none."""
    if isinstance(node, ast.ImportFrom):
        return {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    if isinstance(node, ast.Import):
        firsts = [alias.name.partition(".")[0] for alias in node.names]
        return {
            alias.asname or first: alias.name if alias.asname else first
            for alias, first in zip(node.names, firsts, strict=True)
        }
    return {}


def assigned(source: str, known: dict[str, str], own: dict[str, str]) -> list[str]:
    """What a cell assigns of the lab's: `rank`, `check.ring_shift`, `setattr(check, …)`.

    A local variable of a function is the function's own; the lab's own import again is none.
    `known` are the lab's imports from parlab, `own` those of the student: of both, attributes are
    the lab's. A call that can assign anything is told as such.
    """
    found: dict[str, None] = {}
    lines = "\n".join(line["code"] for line in _LINE_MAGICS.finditer(source))
    for statement in [*statements(source), *statements(lines)]:
        for node in of_the_module(statement):
            found |= dict.fromkeys(_names(node, known))
        for node in ast.walk(statement):
            found |= dict.fromkeys(_attributes(node, own | known))
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _UNNAMED:
                found[f"whatever {ast.unparse(node.func)}(…) does"] = None
    return list(found)


def _names(node: ast.AST, known: dict[str, str]) -> list[str]:
    if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
        return [node.id] if node.id in known else []
    if isinstance(node, DEFINITION):
        return [node.name] if node.name in known else []
    if isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        return [node.name] if node.name in known else []
    if isinstance(node, ast.Global):
        return [name for name in node.names if name in known]
    return [name for name, origin in _imported(node).items() if known.get(name, origin) != origin]


def _attributes(node: ast.AST, known: dict[str, str]) -> list[str]:
    if isinstance(node, ast.Attribute | ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return [ast.unparse(node)] if _root(node) in known else []
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") in _SETTERS and node.args:
        root = _root(node.args[0])
        return [f"{node.func.id}({root}, …)"] if root in known else []
    return []


def _root(node: ast.AST) -> str:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def without_attributes_assigned(source: str, known: dict[str, str]) -> str:
    """The cell without its statements that only set attributes of the lab's: `check.ring = …`."""
    lines = source.split("\n")
    for node in statements(source):
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
        own = [t for t in targets if isinstance(t, ast.Attribute) and _root(t) in known]
        if targets and own == targets:
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines)


def start_of(lab: GradedLab) -> str:
    """The lab's own call of `cluster.start`; "" where it starts no ranks."""
    origins = _CLUSTER | imports(lab)
    calls = [call for cell in lab.cells for call in _rank_calls(cell.source, origins)]
    return ast.unparse(calls[0]) if calls else ""


def without_rank_calls(source: str, known: dict[str, str]) -> tuple[str, list[str]]:
    """The cell with None for each call that starts or ends ranks; and those calls.

    Fresh ranks would know nothing of what the lab's cells, and the answers before, define.
    """
    lines = source.split("\n")
    calls = _rank_calls(source, _CLUSTER | known)
    for call in reversed(calls):
        head = lines[call.lineno - 1].encode()[: call.col_offset].decode()
        tail = lines[call.end_lineno - 1].encode()[call.end_col_offset :].decode()
        gone = call.end_lineno - call.lineno
        lines[call.lineno - 1 : call.end_lineno] = [f"{head}None{tail}", *[""] * gone]
    return "\n".join(lines), [ast.unparse(call) for call in calls]


def _rank_calls(source: str, origins: dict[str, str]) -> list[ast.Call]:
    """In the order of the text."""
    nodes = (node for statement in statements(source) for node in ast.walk(statement))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    found = [call for call in calls if _origin(call.func, origins) in _RANK_CALLS]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _origin(node: ast.AST, origins: dict[str, str]) -> str:
    """`parlab.cluster.start` for `cl.start`, where `cl` is `parlab.cluster`."""
    if isinstance(node, ast.Attribute):
        return f"{_origin(node.value, origins)}.{node.attr}"
    return origins.get(node.id, "") if isinstance(node, ast.Name) else ""
