"""The lab's own values, whatever a notebook assigns: what it imports from parlab, and its ranks."""

import ast
import re

from parlab.grading.cells import DEFINITION, of_the_module, statements
from parlab.grading.lab import GradedLab, is_check

_SETTERS = {"setattr", "delattr"}
# Calls by which a cell can assign what its syntax does not name.
_UNNAMED = {"exec", "eval", "globals", "locals", "vars", "get_ipython"}
_LINE_MAGICS = re.compile(r"^\s*%(?:px|time) (?P<code>.*)", re.MULTILINE)


def imports(lab: GradedLab) -> dict[str, str]:
    """What the lab's own cells import from parlab: `comm` → `from parlab.rank import comm`."""
    return {name: text for _, cell_imports in _by_magic(lab) for name, text in cell_imports.items()}


def restoring_cells(lab: GradedLab) -> list[str]:
    """Cells that give every such name its value again, on ranks and in the notebook."""
    found: dict[str, list[str]] = {}
    for magic, cell_imports in _by_magic(lab):
        found.setdefault(magic, []).extend(dict.fromkeys(cell_imports.values()))
    return ["\n".join([magic, *lines]).strip() for magic, lines in found.items() if lines]


def _by_magic(lab: GradedLab) -> list[tuple[str, dict[str, str]]]:
    """For each of the lab's own cells: `%%px` or "", and what it imports from parlab."""
    found = []
    exercises = {e.cell for e in lab.exercises}
    for cell in lab.cells:
        if cell.id in exercises or is_check(cell):
            continue
        names = {}
        for node in statements(cell.source):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("parlab"):
                text = {a.asname or a.name: _import(node.module, a) for a in node.names}
                names |= text
        found.append(("%%px" if cell.source.startswith("%%px") else "", names))
    return found


def _import(module: str | None, alias: ast.alias) -> str:
    return ast.unparse(ast.ImportFrom(module, [alias], 0))


def of_parlab(sources: list[str]) -> dict[str, str]:
    """What these cells import from parlab, as `imports`; of `import parlab.rank`, `parlab`."""
    found = {}
    for node in (n for source in sources for s in statements(source) for n in ast.walk(s)):
        if isinstance(node, ast.Import):
            modules = [a for a in node.names if a.name.partition(".")[0] == "parlab"]
            found |= {a.asname or "parlab": ast.unparse(ast.Import([a])) for a in modules}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "parlab":
            found |= {a.asname or a.name: _import(node.module, a) for a in node.names}
    return found


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
    if isinstance(node, ast.Import):
        names = [alias.asname or alias.name.partition(".")[0] for alias in node.names]
        return [name for name in names if name in known]
    if isinstance(node, ast.ImportFrom):
        pairs = [(alias.asname or alias.name, _import(node.module, alias)) for alias in node.names]
        return [name for name, text in pairs if known.get(name, text) != text]
    return []


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
    calls = [call for cell in lab.cells for call in _starts(cell.source)]
    return ast.unparse(calls[0]) if calls else ""


def with_start(source: str, wanted: str) -> tuple[str, list[str]]:
    """The cell with the lab's own call of `cluster.start`; and those calls that were others."""
    lines = source.split("\n")
    others = []
    for call in _starts(source):
        if ast.unparse(call) != wanted and wanted:
            others.append(ast.unparse(call))
            before, after = lines[call.lineno - 1], lines[call.end_lineno - 1]
            head = before.encode()[: call.col_offset].decode()
            tail = after.encode()[call.end_col_offset :].decode()
            gone = call.end_lineno - call.lineno
            lines[call.lineno - 1 : call.end_lineno] = [f"{head}{wanted}{tail}", *[""] * gone]
    return "\n".join(lines), others


def _starts(source: str) -> list[ast.Call]:
    return [
        node
        for statement in statements(source)
        for node in ast.walk(statement)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "cluster.start"
    ]
