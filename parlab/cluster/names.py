"""Collects the names that cells define on the ranks, which a restart of the ranks removes."""

import ast
from dataclasses import dataclass, field

from parlab.runtime.source_code import IMPORT, names_bound_by, scope_nodes, statements_with_magics


@dataclass
class Names:
    """The imports and other names that rank cells defined at their top level."""

    imports: dict[str, None] = field(default_factory=dict)  # statements, in order
    variables: dict[str, None] = field(default_factory=dict)
    missing: set[str] = field(default_factory=set)  # messages of import errors in the lab's cells

    def add(self, code: str, cut_off_at: int | None = None) -> None:
        """Add the names of a cell that ran on the ranks. Ignore a cell that Python cannot parse.

        If the cell was stopped during an import, `cut_off_at` is the line of that import. It and
        later imports are not added, because it may never end.
        """
        for statement in statements_with_magics(code):
            for node in scope_nodes(statement):
                if not isinstance(node, IMPORT):
                    self.variables |= dict.fromkeys(names_bound_by(node))
                elif cut_off_at is None or statement.lineno < cut_off_at:
                    self.imports[ast.unparse(node)] = None

    def forget_imports(self, failed: list[tuple[str, str, str]]) -> list[str]:
        """Forget imports that failed when they were run again. Return messages about them.

        Each entry of `failed` is a statement, and the type and text of its error. There is no
        message for an import that failed with the same error in the lab.
        """
        for statement, _, _ in failed:
            self.imports.pop(statement, None)
        return [
            f"`{one}` ({kind}: {text})" for one, kind, text in failed if text not in self.missing
        ]

    def forget_variables(self) -> list[str]:
        """Forget all variables, because their processes have ended, and return their names."""
        gone = list(self.variables)
        self.variables.clear()
        return gone
