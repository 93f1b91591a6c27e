"""The small lab for the grader: its executed solution and stubs, derived like those of labs."""

from pathlib import Path

from parlab.runtime.paths import write_atomically
from parlab_staff.course.percent_source import read_lab
from parlab_staff.grading.graded_lab import GradedLab, find_lab
from parlab_staff.notebooks import make
from parlab_staff.notebooks.execute import execute

SOURCE = Path(__file__).with_name("01_small.py")


def make_course(root: Path, source: Path = SOURCE) -> GradedLab:
    """Write `solutions/01_small.ipynb`, executed, and `labs/01_small.ipynb` below `root`."""
    lab = read_lab(source)
    solution = make.solution_notebook(lab)
    (root / "solutions").mkdir(parents=True)
    execute(solution, lab, root / "solutions", lambda number, of: None)
    path = root / "solutions" / f"{lab.name}.ipynb"
    write_atomically(path, make.to_text(solution))
    handed_out = make.lab_notebook(lab)
    write_atomically(root / "labs" / path.name, make.to_text(handed_out))
    return find_lab(str(path))
