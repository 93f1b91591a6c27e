"""Notebooks that were taken apart: what counts is what the student wrote in the exercises."""

import copy as copying
import json
from pathlib import Path

import nbformat

from tests.grading.cases import ALL, case, without
from tests.grading.small_lab import Copy

NOTHING = "%%px\ndef ring_shift(x, comm):\n    return x\n"


@case("passed", ALL)
def checks_deleted(copy: Copy, path: Path) -> None:
    copy.notebook.cells = [c for c in copy.cells if not c.id.startswith("check-")]


@case("partial", without("ring_shift"), notes="was changed", ring_shift="failed")
def checks_edited(copy: Copy, path: Path) -> None:
    copy.answer("ring_shift", NOTHING)
    copy.cell("check-ring_shift").source = "%%px\nprint('✓ ring_shift: of course')"


@case("partial", without("ring_shift"), ring_shift="failed")
def checks_as_text(copy: Copy, path: Path) -> None:
    copy.answer("ring_shift", NOTHING)
    for cell in copy.cells:
        if cell.id.startswith("check-"):
            cell.cell_type = "markdown"
            cell.pop("outputs", None), cell.pop("execution_count", None)


@case("passed", ALL)
def checks_duplicated(copy: Copy, path: Path) -> None:
    for cell in [c for c in copy.cells if c.id.startswith("check-")]:
        copy.cells.insert(copy.cells.index(cell), nbformat.v4.new_code_cell(cell.source))


@case("passed", ALL)
def reordered(copy: Copy, path: Path) -> None:
    copy.cells.reverse()


@case("passed", ALL)
def exercise_split(copy: Copy, path: Path) -> None:
    """In JupyterLab the first half keeps the id, and the second has none of the metadata."""
    head = "%%px\ndef shifted(comm):\n    return (comm.rank + 1) % comm.size\n"
    rest = (
        "%%px\ndef ring_shift(x, comm):\n    received = np.empty_like(x)\n"
        "    left = (comm.rank - 1) % comm.size\n"
        "    comm.Sendrecv(x, dest=shifted(comm), recvbuf=received, source=left)\n"
        "    return received\n"
    )
    copy.answer("ring_shift", head).insert(rest, before="check-ring_shift")


@case("passed", ALL)
def exercise_duplicated(copy: Copy, path: Path) -> None:
    """A first try, and below it the second, in a copy of the cell: the last definition holds."""
    copy.answer("ring_shift", NOTHING)
    second = copying.deepcopy(copy.cell("exercise-ring_shift"))
    second.id, second.source = "made-by-an-editor", copy.reference("ring_shift")
    copy.cells.insert(copy.cells.index(copy.cell("check-ring_shift")), second)


@case("partial", without("ring_shift"), says="Not done", ring_shift="missing")
def exercise_deleted(copy: Copy, path: Path) -> None:
    copy.cells.remove(copy.cell("exercise-ring_shift"))


@case("partial", without("ring_shift"), ring_shift="missing")
def exercise_as_text(copy: Copy, path: Path) -> None:
    cell = copy.cell("exercise-ring_shift")
    at = copy.cells.index(cell)
    copy.cells[at] = nbformat.v4.new_markdown_cell(cell.source, id=cell.id)


@case("passed", ALL)
def ids_lost(copy: Copy, path: Path) -> None:
    for number, cell in enumerate(copy.cells):
        cell.id = f"cell-{number}"


@case("passed", ALL)
def ids_shuffled(copy: Copy, path: Path) -> None:
    """An editor that numbers all cells anew, and keeps no metadata."""
    for number, cell in enumerate(copy.cells):
        cell.id, cell.metadata = f"{number}", {}


@case("passed", ALL, notes="was changed")
def imports_in_the_labs_cell(copy: Copy, path: Path) -> None:
    """What a student adds to a cell of the lab's own is there when it is called."""
    [cell] = [c for c in copy.cells if c.source.startswith("%%px\nimport numpy")]
    cell.source += (
        "\n\nimport operator as op\n\ndef wrapped(n, size):\n    return op.mod(n, size)\n"
    )
    source = copy.reference("ring_shift").replace(
        "(comm.rank + 1) % comm.size", "wrapped(comm.rank + 1, comm.size)"
    )
    assert "wrapped" in source
    copy.answer("ring_shift", source)


@case("passed", ALL)
def fresh_ranks(copy: Copy, path: Path) -> None:
    """Ranks of the student's own, then a copy of the lab's imports, and a helper behind it."""
    [imports] = [c.source for c in copy.cells if c.source.startswith("%%px\nimport numpy")]
    helper = "%%px\ndef right_of(comm):\n    return (comm.rank + 1) % comm.size\n"
    for source in ("cluster.start(3)", imports, helper):
        copy.insert(source, before="exercise-ring_shift")
    source = copy.reference("ring_shift").replace("dest=right", "dest=right_of(comm)")
    copy.answer("ring_shift", source)


@case("passed", ALL)
def check_with_more(copy: Copy, path: Path) -> None:
    """A try of the student's own, in whose cell a later exercise finds what it needs."""
    copy.insert("%%px\none = 1\ncheck.ring_shift(ring_shift)", before="exercise-ring_all_gather")
    source = copy.reference("ring_all_gather")
    copy.answer("ring_all_gather", source.replace("range(size - 1)", "range(size - 1 * one)"))
    assert "1 * one" in copy.cell("exercise-ring_all_gather").source


@case("passed", ALL)
def own_helpers(copy: Copy, path: Path) -> None:
    """A function in a cell of the student's own, which an exercise calls."""
    copy.insert("%%px\ndef right_of(comm):\n    return (comm.rank + 1) % comm.size\n",
                before="exercise-ring_shift")  # fmt: skip
    source = copy.reference("ring_shift").replace("dest=right", "dest=right_of(comm)")
    assert "right_of" in source
    copy.answer("ring_shift", source)


@case("passed", ALL)
def unknown_kernel(copy: Copy, path: Path) -> None:
    copy.notebook.metadata.kernelspec = {"name": "julia-1.9", "display_name": "Julia"}


@case("partial", without("ring_shift"), ring_shift="failed")
def told_to_skip(copy: Copy, path: Path) -> None:
    copy.answer("ring_shift", "# NBVAL_SKIP\n# NBVAL_RAISES_EXCEPTION\n" + NOTHING)
    for cell in copy.cells:
        cell.metadata["tags"] = ["nbval-skip", "raises-exception", *cell.metadata.get("tags", [])]


@case("partial", without("ring_shift"), ring_shift="failed")
def outputs_pasted(copy: Copy, path: Path) -> None:
    """The outputs of the solution, check marks and all, beside code that does nothing."""
    copy.answer("ring_shift", NOTHING)
    stored = {c.id: c for c in copy.master.notebook.cells}
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs = copying.deepcopy(stored[cell.id].outputs)


@case("passed", ALL)
def files_beside(copy: Copy, path: Path) -> None:
    """Files that pytest, or Python in this folder, would obey."""
    folder = path.with_suffix("")
    folder.mkdir()
    (folder / "lab.ipynb").write_text(copy.text())
    (folder / "conftest.py").write_text("raise SystemExit('obeyed')")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --nonsense")
    for name in ("torch", "numpy", "sitecustomize"):
        (folder / f"{name}.py").write_text("raise SystemExit('obeyed')")


@case("passed", ALL)
def old_text_as_list(copy: Copy, path: Path) -> None:
    """Sources as lists of lines, as most editors write them, and unknown metadata everywhere."""
    notebook = json.loads(copy.text())
    for cell in notebook["cells"]:
        cell["metadata"] |= {"collapsed": 7, "slideshow": {"slide_type": None}}
        if not isinstance(cell["source"], list):
            cell["source"] = cell["source"].splitlines(keepends=True)
    path.write_text(json.dumps(notebook))
