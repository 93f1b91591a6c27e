"""The small lab as graders have it: executed solution and stubs, made by the real authoring."""

from pathlib import Path

from parlab.authoring import notebooks
from parlab.authoring.running import execute
from parlab.authoring.source import read_lab
from parlab.files import write_atomically
from parlab.grading.lab import GradedLab, find_lab

SOURCE = Path(__file__).with_name("01_small.py")


def make_course(root: Path, source: Path = SOURCE) -> GradedLab:
    """Write `solutions/01_small.ipynb`, executed, and `labs/01_small.ipynb` below `root`."""
    lab = read_lab(source)
    solution = notebooks.solution_notebook(lab)
    (root / "solutions").mkdir(parents=True)
    execute(solution, lab, root / "solutions", lambda number, of: None)
    path = root / "solutions" / f"{lab.name}.ipynb"
    write_atomically(path, notebooks.to_text(solution))
    handed_out = notebooks.lab_notebook(lab)
    write_atomically(root / "labs" / path.name, notebooks.to_text(handed_out))
    return find_lab(str(path))
