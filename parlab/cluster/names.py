"""What a restart of the ranks takes away: read from the cells that were run."""

import ast
from dataclasses import dataclass, field

from IPython.core.inputtransformer2 import TransformerManager


@dataclass
class Names:
    """Imports and other names that rank cells made at their top level."""

    imports: dict[str, None] = field(default_factory=dict)  # statements, in order
    variables: dict[str, None] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)  # what import errors said in the lab's own cells

    def add(self, code: str, cut_off_at: int | None = None) -> None:
        """Note a cell that ran on the ranks; one that Python cannot parse adds nothing.

        Imports are noted as far as the line `cut_off_at`, where the cell was ended in the midst of
        one: it may be one that never ends.
        """
        try:
            tree = ast.parse(TransformerManager().transform_cell(code))
        except (SyntaxError, ValueError):
            return
        for statement in tree.body:
            inner = _code_of_magic(statement)
            if inner is not None:
                self.add(inner)
                continue
            if cut_off_at is None or statement.lineno < cut_off_at:
                for made in _imports(statement):
                    self.imports[ast.unparse(made)] = None
            for name in _bound(statement):
                self.variables[name] = None

    def forget_imports(self, failed: list[tuple[str, str, str]]) -> list[str]:
        """Forget imports that failed as they were made again; what to tell of them.

        Each is a statement with its error's kind and text. One that failed in the lab as well, with
        the same error, is known.
        """
        for statement, _, _ in failed:
            self.imports.pop(statement, None)
        return [
            f"`{one}` ({kind}: {text})" for one, kind, text in failed if text not in self.missing
        ]

    def forget_variables(self) -> list[str]:
        """The names that are gone with the processes that held them."""
        gone = list(self.variables)
        self.variables.clear()
        return gone


def _imports(statement: ast.stmt) -> list[ast.stmt]:
    """The imports that a top-level statement makes: itself, or those inside `if`, `try`, `with`."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return [statement]
    if not isinstance(statement, ast.If | ast.Try | ast.With):
        return []
    inside = [node for node in ast.iter_child_nodes(statement) if isinstance(node, ast.stmt)]
    for handler in getattr(statement, "handlers", []):
        inside += handler.body
    return [made for node in inside for made in _imports(node)]


def _code_of_magic(statement: ast.stmt) -> str | None:
    """The code that `%time`, `%%time` and the like run in the namespace of the cell."""
    match statement:
        case ast.Expr(
            value=ast.Call(
                func=ast.Attribute(attr="run_line_magic" | "run_cell_magic"),
                args=[ast.Constant(value="time" | "prun" | "capture"), *texts],
            )
        ) if texts and isinstance(texts[-1], ast.Constant):
            return str(texts[-1].value)
    return None


class _Bound(ast.NodeVisitor):
    """Collects the names that a top-level statement binds in the namespace of the cell."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.names.append(node.id)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.ClassDef) -> None:
        self.names.append(node.name)  # its body binds names of its own

    visit_ClassDef = visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ListComp(self, node: ast.AST) -> None:
        """A comprehension's variable is its own."""

    visit_SetComp = visit_DictComp = visit_GeneratorExp = visit_Lambda = visit_ListComp


def _bound(statement: ast.stmt) -> list[str]:
    visitor = _Bound()
    visitor.visit(statement)
    return visitor.names
