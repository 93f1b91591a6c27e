"""The labs of a checkout: which there are, what is wrong with them, where their notebooks go."""

from dataclasses import dataclass
from pathlib import Path

from parlab.authoring.problems import AuthorError, Problem
from parlab.authoring.rules import problems_of
from parlab.authoring.source import NAME, Lab, read_lab
from parlab.labs import meant


@dataclass(frozen=True)
class Course:
    """The folder that holds `solutions/`, `labs/` and `parlab/`."""

    root: Path

    @property
    def solutions(self) -> Path:
        return self.root / "solutions"

    @property
    def labs(self) -> Path:
        return self.root / "labs"

    def lab_path(self, lab: Lab) -> Path:
        return self.labs / f"{lab.name}.ipynb"

    def solution_path(self, lab: Lab) -> Path:
        return self.solutions / f"{lab.name}.ipynb"

    def shown(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def read(self) -> list[Lab]:
        """All labs, by number."""
        return [read_lab(path) for path in sorted(self.solutions.glob("*.py"))]

    def orphans(self, labs: list[Lab]) -> list[Path]:
        """Derived notebooks whose source is gone."""
        names = {lab.name for lab in labs}
        found = [*self.labs.glob("*.ipynb"), *self.solutions.glob("*.ipynb")]
        return sorted(p for p in found if NAME.fullmatch(p.stem) and p.stem not in names)


def select(labs: list[Lab], wanted: list[str]) -> list[Lab]:
    """The labs that are meant: `01_mpi`, `mpi`, `01` or a path of one; all, without any.

    Raises ValueError for a word that means none.
    """
    chosen = {meant(word, [lab.name for lab in labs]) for word in wanted}
    return [lab for lab in labs if lab.name in chosen] if wanted else labs


def examine(course: Course, labs: list[Lab], selected: list[Lab]) -> None:
    """Raise AuthorError with everything that is wrong with the selected sources."""
    problems: list[Problem] = []
    for lab in selected:
        # Of two labs with the same key the later one is told, unless it is not selected.
        others = [o for o in labs if o is not lab and (o.path < lab.path or o not in selected)]
        problems += problems_of(lab, others, course.root / "parlab" / "checks")
    if problems:
        raise AuthorError(problems)
