"""Notebooks with split, moved, deleted, and changed cells. Only the student's answers count."""

import copy as copying
import json
from pathlib import Path

import nbformat

from tests.grading.cases import Cases
from tests.grading.copies import Copy

case = Cases(add=3, total=4, mean=3)

NOTHING = "%%px\ndef add(a, b):\n    return a\n"


@case("passed", case.all)
def checks_deleted(copy: Copy, path: Path) -> None:
    copy.notebook.cells = [c for c in copy.cells if not c.id.startswith("check-")]


@case("partial", case.without("add"), notes="was changed", add="failed")
def checks_edited(copy: Copy, path: Path) -> None:
    copy.answer("add", NOTHING)
    copy.cell("check-add").source = "%%px\nprint('✓ add: of course')"


@case("partial", case.without("add"), add="failed")
def checks_as_text(copy: Copy, path: Path) -> None:
    copy.answer("add", NOTHING)
    for cell in copy.cells:
        if cell.id.startswith("check-"):
            cell.cell_type = "markdown"
            cell.pop("outputs", None), cell.pop("execution_count", None)


@case("passed", case.all)
def checks_duplicated(copy: Copy, path: Path) -> None:
    for cell in [c for c in copy.cells if c.id.startswith("check-")]:
        copy.cells.insert(copy.cells.index(cell), nbformat.v4.new_code_cell(cell.source))


@case("passed", case.all)
def a_text_of_the_lab_became_code(copy: Copy, path: Path) -> None:
    """The student changed the type of one of the lab's text cells, and wrote a helper there."""
    copy.answer("add", "%%px\ndef add(a, b):\n    return plus(a, b)\n")
    text = next(c for c in copy.cells if c.cell_type == "markdown")
    helper = nbformat.v4.new_code_cell("%%px\ndef plus(a, b):\n    return a + b\n", id=text.id)
    copy.cells[copy.cells.index(text)] = helper


@case("passed", case.all)
def reordered(copy: Copy, path: Path) -> None:
    copy.cells.reverse()


@case("passed", case.all)
def exercise_split(copy: Copy, path: Path) -> None:
    """A cell was split. In JupyterLab, the first half keeps the id; the other has no metadata."""
    head = "%%px\ndef plus(a, b):\n    return a + b\n"
    rest = "%%px\ndef add(a, b):\n    return plus(a, b)\n"
    copy.answer("add", head).insert(rest, before="check-add")


@case("passed", case.all)
def exercise_duplicated(copy: Copy, path: Path) -> None:
    """A copy of the cell below has a second try. The last definition counts."""
    copy.answer("add", NOTHING)
    second = copying.deepcopy(copy.cell("exercise-add"))
    second.id, second.source = "made-by-an-editor", copy.reference("add")
    copy.cells.insert(copy.cells.index(copy.cell("check-add")), second)


@case("partial", case.without("add"), says="Not done", add="missing")
def exercise_deleted(copy: Copy, path: Path) -> None:
    copy.cells.remove(copy.cell("exercise-add"))


@case("partial", case.without("add"), add="missing", says="in a Markdown or raw cell")
def exercise_as_text(copy: Copy, path: Path) -> None:
    cell = copy.cell("exercise-add")
    at = copy.cells.index(cell)
    copy.cells[at] = nbformat.v4.new_markdown_cell(cell.source, id=cell.id)


@case("passed", case.all)
def ids_lost(copy: Copy, path: Path) -> None:
    for number, cell in enumerate(copy.cells):
        cell.id = f"cell-{number}"


@case("passed", case.all)
def ids_shuffled(copy: Copy, path: Path) -> None:
    """An editor gave all cells new ids, and removed the metadata."""
    for number, cell in enumerate(copy.cells):
        cell.id, cell.metadata = f"{number}", {}


USES_A_HELPER = "%%px\ndef add(a, b):\n    return plus(a, b)\n"
HELPER = "%%px\ndef plus(a, b):\n    return a + b\n"


@case("passed", case.all, says="the lab's version ran instead", notes="was changed")
def imports_in_the_labs_cell(copy: Copy, path: Path) -> None:
    """The student added code that an answer needs to one of the lab's own cells."""
    [cell] = [c for c in copy.cells if c.source.startswith("%%px\nimport json")]
    cell.source += "\n\nimport operator as op\n\ndef plus(a, b):\n    return op.add(a, b)\n"
    copy.answer("add", USES_A_HELPER)


@case("passed", case.all)
def lab_begun_again(copy: Copy, path: Path) -> None:
    """The student's own cells repeat the lab's start and imports, and then define a helper."""
    [imports] = [c.source for c in copy.cells if c.source.startswith("%%px\nimport json")]
    for source in ("cluster.start(3)", imports, HELPER):
        copy.insert(source, before="exercise-add")
    copy.answer("add", USES_A_HELPER)


@case("passed", case.all)
def check_with_more(copy: Copy, path: Path) -> None:
    """A cell of the student calls a check, and defines a name that a later exercise needs."""
    copy.insert("%%px\none = 1\ncheck.add(add)", before="exercise-total")
    source = copy.reference("total").replace("result = 0", "result = one - 1")
    assert "one - 1" in source
    copy.answer("total", source)


@case("passed", case.all)
def own_helpers(copy: Copy, path: Path) -> None:
    """An exercise calls a function in one of the student's own cells."""
    copy.insert(HELPER, before="exercise-add").answer("add", USES_A_HELPER)


@case("passed", case.all)
def unknown_kernel(copy: Copy, path: Path) -> None:
    copy.notebook.metadata.kernelspec = {"name": "julia-1.9", "display_name": "Julia"}


@case("partial", case.without("add"), add="failed")
def told_to_skip(copy: Copy, path: Path) -> None:
    copy.answer("add", NOTHING + "# NBVAL_SKIP\n# NBVAL_RAISES_EXCEPTION\n")
    for cell in copy.cells:
        cell.metadata["tags"] = ["nbval-skip", "raises-exception", *cell.metadata.get("tags", [])]


@case("partial", case.without("add"), add="failed")
def outputs_pasted(copy: Copy, path: Path) -> None:
    """The code does nothing, but the cells have the outputs of the solution, with check marks."""
    copy.answer("add", NOTHING)
    stored = {c.id: c for c in copy.lab.solution.cells}
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs = copying.deepcopy(stored[cell.id].outputs)


@case("passed", case.all)
def files_beside(copy: Copy, path: Path) -> None:
    """The folder has files that pytest or Python would load."""
    folder = path.with_suffix("")
    folder.mkdir()
    (folder / "lab.ipynb").write_text(copy.text())
    (folder / "conftest.py").write_text("raise SystemExit('obeyed')")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --nonsense")
    for name in ("torch", "numpy", "sitecustomize"):
        (folder / f"{name}.py").write_text("raise SystemExit('obeyed')")


@case("passed", case.all)
def old_text_as_list(copy: Copy, path: Path) -> None:
    """Sources are lists of lines, as most editors write them, and all cells have other metadata."""
    notebook = json.loads(copy.text())
    for cell in notebook["cells"]:
        cell["metadata"] |= {"collapsed": 7, "slideshow": {"slide_type": None}}
        if not isinstance(cell["source"], list):
            cell["source"] = cell["source"].splitlines(keepends=True)
    path.write_text(json.dumps(notebook), encoding="utf-8")
