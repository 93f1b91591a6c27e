"""The labs of a checkout, their problems, and the paths of their notebooks."""

from dataclasses import dataclass
from pathlib import Path

from parlab_staff.course.lab import NAME, Lab, lab_name
from parlab_staff.course.percent_source import read_lab
from parlab_staff.course.problems import AuthorError, Problem
from parlab_staff.course.rules import problems_of


@dataclass(frozen=True)
class Course:
    """The folder that holds `solutions/`, `labs/`, and `parlab/`."""

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
        """Return all labs, by number."""
        return [read_lab(path) for path in sorted(self.solutions.glob("*.py"))]

    def orphans(self, labs: list[Lab]) -> list[Path]:
        """Return the derived notebooks that no longer have a source."""
        names = {lab.name for lab in labs}
        found = [*self.labs.glob("*.ipynb"), *self.solutions.glob("*.ipynb")]
        return sorted(p for p in found if NAME.fullmatch(p.stem) and p.stem not in names)


def select(labs: list[Lab], wanted: list[str]) -> list[Lab]:
    """Return the labs for these words, such as `01_mpi`, `mpi`, `01`, or a path, or else all labs.

    Raises ValueError for a word that matches no lab.
    """
    chosen = {lab_name(word, [lab.name for lab in labs]) for word in wanted}
    return [lab for lab in labs if lab.name in chosen] if wanted else labs


def examine(course: Course, labs: list[Lab], selected: list[Lab]) -> None:
    """Raise AuthorError with everything that is wrong with the selected sources."""
    problems: list[Problem] = []
    for lab in selected:
        # Of two labs with the same key, report the later one, unless it is not selected.
        others = [o for o in labs if o is not lab and (o.path < lab.path or o not in selected)]
        problems += problems_of(lab, others, course.root / "parlab" / "checks")
    if problems:
        raise AuthorError(problems)
