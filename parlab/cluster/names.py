"""What a restart of the ranks takes away: read from the cells that were run."""

import ast
from dataclasses import dataclass, field

from parlab.runtime.source_code import IMPORT, names_bound_by, scope_nodes, statements_with_magics


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
        for statement in statements_with_magics(code):
            for node in scope_nodes(statement):
                if not isinstance(node, IMPORT):
                    self.variables |= dict.fromkeys(names_bound_by(node))
                elif cut_off_at is None or statement.lineno < cut_off_at:
                    self.imports[ast.unparse(node)] = None

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
