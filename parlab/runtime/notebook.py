"""The cells of a notebook, and the role of each in a lab. Needs only the standard library."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROLES = ("exercise", "check", "hidden-check", "solution")


@dataclass(frozen=True)
class Cell:
    """One cell of a lab.

    Attributes:
        id: the same in the lab, its solutions, and its source.
        kind: "code" or "markdown".
        source: as in a notebook, with magics.
        metadata: `tags`, `exercise`, `points`.
        outputs: as stored in a notebook; none in a lab's source.
        line: the number of its `# %%` line in a lab's source, counted from 1. 0 in a notebook.
    """

    id: str
    kind: str
    source: str
    metadata: Mapping[str, Any]
    outputs: tuple[Mapping[str, Any], ...] = ()
    line: int = 0

    @property
    def tags(self) -> list[str]:
        return self.metadata.get("tags", [])

    @property
    def role(self) -> str | None:
        return next((role for role in ROLES if role in self.tags), None)

    @property
    def is_check(self) -> bool:
        return self.role in ("check", "hidden-check")

    @property
    def key(self) -> str | None:
        """The exercise to which the cell belongs."""
        key = self.metadata.get("exercise")
        return key if isinstance(key, str) else None

    @property
    def on_ranks(self) -> bool:
        return self.source.startswith("%%px")

    @property
    def code(self) -> str:
        """The source as Python, with magics as comments."""
        lines = self.source.split("\n")
        return "\n".join(f"# {line}" if line.startswith(("%", "!")) else line for line in lines)

    @property
    def displayed(self) -> list[Any]:
        """The values that the cell displayed as JSON."""
        data = (output.get("data", {}) for output in self.outputs)
        return [one["application/json"] for one in data if "application/json" in one]


def cells_of(notebook: Mapping[str, Any]) -> list[Cell]:
    """Return the cells of a notebook, given as JSON."""
    return [
        Cell(
            cell.get("id", ""),
            cell["cell_type"],
            "".join(cell["source"]),
            cell["metadata"],
            tuple(cell.get("outputs", ())),
        )
        for cell in notebook["cells"]
    ]


def read_cells(path: Path) -> list[Cell]:
    """Return the cells of the notebook in this file.

    Raises OSError, or if it is not a notebook, ValueError, KeyError, TypeError, or AttributeError.
    """
    return cells_of(json.loads(path.read_text(encoding="utf-8")))
