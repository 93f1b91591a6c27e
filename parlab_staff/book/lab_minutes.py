"""How long each lab takes: the minutes in its first cell."""

import re
from pathlib import Path

from parlab.runtime.notebook import read_cells
from parlab.runtime.paths import ROOT, numbered

_TIME = re.compile(r"^\| \*\*Time\*\* \| (\d+) minutes", re.MULTILINE)


def lab_minutes(folder: Path = ROOT / "labs") -> dict[str, int]:
    """Return each lab's minutes by name, such as `01_mpi`. A test compares them with the exercises.

    Raises ValueError for a lab that does not state them.
    """
    minutes = {}
    for path in numbered(folder, ".ipynb"):
        stated = _TIME.search(read_cells(path)[0].source)
        if stated is None:
            raise ValueError(f"{path.name}: write `| **Time** | 110 minutes |` into its first cell")
        minutes[path.stem] = int(stated[1])
    return minutes
