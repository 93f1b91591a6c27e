"""What a restart of the ranks takes away: read from the cells that were run."""

import ast
from dataclasses import dataclass, field


@dataclass
class Names:
    """Imports and other names that rank cells made at their top level."""

    imports: dict[str, None] = field(default_factory=dict)  # statements, in order
    variables: dict[str, None] = field(default_factory=dict)

    def add(self, code: str) -> None:
        """Note a cell that was sent to the ranks; one that Python cannot parse adds nothing."""
        try:
            tree = ast.parse(code)
        except (SyntaxError, ValueError):
            return
        for statement in tree.body:
            if isinstance(statement, ast.Import | ast.ImportFrom):
                self.imports[ast.unparse(statement)] = None
            else:
                for name in _bound(statement):
                    self.variables[name] = None

    def forget_variables(self) -> list[str]:
        """The names that are gone with the processes that held them."""
        gone = list(self.variables)
        self.variables.clear()
        return gone


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
