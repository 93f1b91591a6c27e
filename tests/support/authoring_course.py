"""A small course in a temporary folder, for the tests of `parlab_staff.notebooks`."""

from dataclasses import dataclass
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from parlab_staff.notebooks import main

SOURCE = '''\
# %% [markdown]
# # Lab 01: Adding
#
# With $a + b$, and a table:
#
# | a | b |
# |---|---|
# | 1 | 2 |

# %% tags=["nbval-ignore-output"]
import time

print("started at", time.time())

# %% [markdown]
# ## 1. Add
#
# <details><summary>Hint 1</summary>
# Python has an operator for this.
# </details>


# %% tags=["exercise"] exercise="add"
def add(a: int, b: int) -> int:
    """The sum of `a` and `b`."""
    if a is None:
        # BEGIN SOLUTION
        return b
        # END SOLUTION
    # BEGIN SOLUTION
    total = a + b  # the secret of adding

    return total
    # END SOLUTION


# %% tags=["check"] exercise="add" points=3
class check:
    """Stands for the module of checks."""

    @staticmethod
    def add(function) -> None:
        assert function(2, 3) == 5
        print("✓ add: two numbers")


check.add(add)

# %% tags=["hidden-check"] exercise="add" points=1.5
from IPython.display import JSON

JSON({"sum": add(20, 3)})

# %% [markdown] tags=["solution"]
# Adding is commutative, which learners should find themselves.

# %%
add(1, 1)
'''


@dataclass
class TinyCourse:
    """A checkout with one lab, `01_adding`."""

    root: Path
    topic: str = "adding"

    def __post_init__(self) -> None:
        (self.root / "solutions").mkdir()
        (self.root / "labs").mkdir()
        checks = self.root / "parlab" / "checks"
        checks.mkdir(parents=True)
        (checks / f"{self.topic}.py").write_text("def add(function): ...\n")
        self.source.write_text(SOURCE)

    @property
    def source(self) -> Path:
        return self.root / "solutions" / f"01_{self.topic}.py"

    @property
    def lab(self) -> Path:
        return self.root / "labs" / f"01_{self.topic}.ipynb"

    @property
    def solution(self) -> Path:
        return self.root / "solutions" / f"01_{self.topic}.ipynb"

    def build(self, *arguments: str) -> int:
        """Run `parlab notebooks`. Return its exit code."""
        return main([*arguments, "--root", str(self.root)])

    def edit(self, old: str, new: str) -> None:
        """Replace a text that occurs once in the source."""
        text = self.source.read_text()
        assert text.count(old) == 1, old
        self.source.write_text(text.replace(old, new))


def cells_by_id(path: Path) -> dict[str, NotebookNode]:
    """Return the cells of a valid notebook, by id."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    return {cell.id: cell for cell in notebook.cells}
