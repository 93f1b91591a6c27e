"""Problems of a lab's source, with their file and line."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, order=True)
class Problem:
    """One thing that an author must fix; `line` counts from 1."""

    path: Path
    line: int
    text: str

    def shown(self, root: Path) -> str:
        """Return `solutions/01_mpi.py:123: text`, with the path relative to `root`."""
        path = self.path.relative_to(root) if self.path.is_relative_to(root) else self.path
        return f"{path.as_posix()}:{self.line}: {self.text}"


class AuthorError(ValueError):
    """A source cannot be used; `problems` says why."""

    def __init__(self, problems: list[Problem]) -> None:
        super().__init__("; ".join(f"{p.path.name}:{p.line}: {p.text}" for p in problems))
        self.problems = problems
