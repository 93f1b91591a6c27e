"""Protects the lab's ranks, and its imports from parlab, from a notebook's assignments."""

import ast

from parlab.runtime.notebook import Cell
from parlab.runtime.source_code import (
    IMPORT,
    imported_by,
    names_bound_by,
    scope_nodes,
    statements,
    statements_with_magics,
)
from parlab_staff.grading.graded_lab import GradedLab

_SETTERS = {"setattr", "delattr"}
# The name under which labs import `parlab.cluster`. Students may use it before that import.
_CLUSTER = {"cluster": "parlab.cluster"}
_RANK_CALLS = {f"parlab.cluster.{name}" for name in ("start", "restart", "stop")}
# Calls that can assign names that do not occur in the code.
_UNNAMED = {"exec", "eval", "globals", "locals", "vars", "get_ipython"}


def imports(lab: GradedLab) -> dict[str, str]:
    """Return the imports of the lab's own cells from parlab: `comm` → `parlab.rank.comm`."""
    return of_parlab([cell.source for cell in _own_cells(lab)])


def restoring_cells(lab: GradedLab) -> dict[str, list[str]]:
    """Return cells that restore the lab's names, by the cell of an exercise or check that follows.

    Some assignments cannot be found in the code, so all names that the lab has imported so far, in
    the notebook and on all ranks, are always restored. Imports on only some ranks are for drawing,
    and no check uses them.
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


def _own_cells(lab: GradedLab) -> list[Cell]:
    exercises = {e.cell for e in lab.exercises}
    return [cell for cell in lab.cells if cell.id not in exercises and not cell.is_check]


def _importing(magic: str, names: dict[str, str]) -> str:
    pairs = [(origin.rpartition("."), name) for name, origin in names.items()]
    lines = [
        f"from {module} import {last} as {name}" for (module, _, last), name in pairs if module
    ]
    return "\n".join([magic, *lines]).strip()


def of_parlab(sources: list[str]) -> dict[str, str]:
    """Return what these cells import from parlab, in the form of `imports`."""
    nodes = (n for source in sources for s in statements(source) for n in ast.walk(s))
    found = (pair for node in nodes for pair in imported_by(node).items())
    return {name: origin for name, origin in found if origin.partition(".")[0] == "parlab"}


def notes(source: str, known: dict[str, str], own: dict[str, str]) -> list[str]:
    """Return notes on assignments to the lab's names. See `assigned` for the arguments."""
    found = []
    if names := assigned(source, known, own):
        found.append(f"assigns to {', '.join(names)}")
    if calls := calls_that_can_assign(source):
        found.append(f"calls {', '.join(calls)}, which can assign to the lab's names")
    return found


def assigned(source: str, known: dict[str, str], own: dict[str, str]) -> list[str]:
    """Return a cell's assignments to the lab's names: `rank`, `check.ring`, `setattr(check, …)`.

    Local variables of functions do not count, and neither do the lab's own imports. `known` are the
    lab's imports from parlab, `own` the student's. Attributes of both belong to the lab.
    """
    found: dict[str, None] = {}
    for statement in statements_with_magics(source):
        for node in scope_nodes(statement):
            found |= dict.fromkeys(_names(node, known))
        for node in ast.walk(statement):
            found |= dict.fromkeys(_attributes(node, own | known))
    return list(found)


def calls_that_can_assign(source: str) -> list[str]:
    """Return a cell's calls that can assign to any name, such as `exec(…)`."""
    nodes = (node for s in statements_with_magics(source) for node in ast.walk(s))
    names = (getattr(node.func, "id", "") for node in nodes if isinstance(node, ast.Call))
    return list(dict.fromkeys(f"{name}(…)" for name in names if name in _UNNAMED))


def _names(node: ast.AST, known: dict[str, str]) -> list[str]:
    if isinstance(node, IMPORT):
        origins = imported_by(node).items()
        return [name for name, origin in origins if known.get(name, origin) != origin]
    names = names_bound_by(node)
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Del):
        names = [node.id]
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar):
        names = [node.name] if node.name else []
    elif isinstance(node, ast.Global):
        names = node.names
    return [name for name in names if name in known]


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
    """Return the cell without statements that only set the lab's attributes: `check.ring = …`."""
    lines = source.split("\n")
    for node in statements(source):
        targets = node.targets if isinstance(node, ast.Assign | ast.Delete) else []
        own = [t for t in targets if isinstance(t, ast.Attribute) and _root(t) in known]
        if targets and own == targets:
            lines[node.lineno - 1 : node.end_lineno] = [""] * (node.end_lineno - node.lineno + 1)
    return "\n".join(lines)


def start_of(lab: GradedLab) -> str:
    """Return the lab's own call of `cluster.start`; "" if it starts no ranks."""
    origins = _CLUSTER | imports(lab)
    calls = [call for cell in lab.cells for call in _rank_calls(cell.source, origins)]
    return ast.unparse(calls[0]) if calls else ""


def without_rank_calls(source: str, known: dict[str, str]) -> tuple[str, list[str]]:
    """Replace each call that starts or ends ranks with None. Return the cell, and these calls.

    New ranks would not have what earlier cells define.
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
    """Return the calls that start or end ranks, in order."""
    nodes = (node for statement in statements(source) for node in ast.walk(statement))
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    found = [call for call in calls if _origin(call.func, origins) in _RANK_CALLS]
    return sorted(found, key=lambda call: (call.lineno, call.col_offset))


def _origin(node: ast.AST, origins: dict[str, str]) -> str:
    """Return `parlab.cluster.start` for `cl.start`, if `cl` is `parlab.cluster`."""
    if isinstance(node, ast.Attribute):
        return f"{_origin(node.value, origins)}.{node.attr}"
    return origins.get(node.id, "") if isinstance(node, ast.Name) else ""
