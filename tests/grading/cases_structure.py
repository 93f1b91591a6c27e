"""Notebooks with split, merged, moved, and changed cells. Only the student's answers count."""

import copy as copying
import json
from collections.abc import Callable
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
    copy.answer("add", "# NBVAL_SKIP\n# NBVAL_RAISES_EXCEPTION\n" + NOTHING)
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


# Right answers in unexpected places


@case("passed", case.all)
def merged_with_its_check(copy: Copy, path: Path) -> None:
    """The answer and its check were merged (Shift+M) into one cell with the id of the first."""
    merge(copy, "exercise-add", "check-add")


@case("passed", case.all)
def merged_with_the_next_exercise(copy: Copy, path: Path) -> None:
    merge(copy, "exercise-add", "check-add", "exercise-total", "check-total")


@case("passed", case.all)
def merged_with_the_labs_imports(copy: Copy, path: Path) -> None:
    [imports] = [c for c in copy.cells if c.source.startswith("%%px\nimport json")]
    merge(copy, imports.id, "exercise-add")


def merge(copy: Copy, *ids: str) -> None:
    first, *rest = [copy.cell(cell_id) for cell_id in ids]
    first.source = "\n\n".join(cell.source for cell in (first, *rest))
    for cell in rest:
        copy.cells.remove(cell)


@case("passed", case.all)
def all_functions_in_the_first_cell(copy: Copy, path: Path) -> None:
    """The first cell has all functions. The other cells are unchanged, or deleted."""
    keys = ("add", "total", "mean")
    both = "\n\n".join(copy.reference(key).removeprefix("%%px\n") for key in keys)
    copy.answer("add", f"%%px\n{both}").stub("total")
    copy.cells.remove(copy.cell("exercise-mean"))


@case("passed", case.all)
def all_functions_in_the_last_cell(copy: Copy, path: Path) -> None:
    keys = ("add", "total", "mean")
    both = "\n\n".join(copy.reference(key).removeprefix("%%px\n") for key in keys)
    for key in keys:
        copy.stub(key)
    copy.cells.append(nbformat.v4.new_code_cell(f"%%px\n{both}"))


@case("passed", case.all, says="is a check, and was changed")
def helper_in_the_checks_cell(copy: Copy, path: Path) -> None:
    copy.answer("add", USES_A_HELPER)
    copy.cell("check-add").source = f"{HELPER}\ncheck.add(add)"


@case("passed", case.all)
def answer_in_the_checks_cell(copy: Copy, path: Path) -> None:
    copy.stub("add")
    copy.cell("check-add").source = f"{copy.reference('add')}\ncheck.add(add)"


@case("passed", case.all)
def helper_with_a_checks_id(copy: Copy, path: Path) -> None:
    """The student replaced the check's code with a helper that the exercise needs."""
    copy.answer("add", USES_A_HELPER)
    copy.cell("check-add").source = HELPER


@case("passed", case.all)
def lambda_without_ids(copy: Copy, path: Path) -> None:
    copy.answer("add", "%%px\nadd = lambda a, b: a + b")
    ids_shuffled(copy, path)


@case("passed", case.all)
def alias_without_ids(copy: Copy, path: Path) -> None:
    copy.answer("add", "%%px\nadd = plus").insert(HELPER, before="exercise-add")
    ids_shuffled(copy, path)


BROKEN_BY_BLACK = """\
%%px
def add(a, b):
    return (
        (a + b)
        % 10**9
        if a
        != None
        else b
    )
"""


@case("passed", case.all)
def lines_that_begin_as_magics(copy: Copy, path: Path) -> None:
    """Black put % and ! at the beginning of lines, where they are operators and not magics."""
    copy.answer("add", BROKEN_BY_BLACK)
    ids_shuffled(copy, path)


@case("passed", case.all)
def what_only_ipython_runs(copy: Copy, path: Path) -> None:
    copy.answer(
        "add", f"{copy.reference('add')}\nadd?\nhere = !echo it's here\n%env A=/b\n%cd -q /\n"
    )
    ids_shuffled(copy, path)


@case("passed", case.all)
def a_magic_in_a_docstring(copy: Copy, path: Path) -> None:
    head, text, body = copy.reference("add").partition('"""The sum')
    copy.answer(
        "add", f'{head}"""\n%%px runs it on the ranks, %%bash does not:\n%%bash\nThe sum{body}'
    )
    assert text
    merge(copy, "exercise-add", "check-add", "exercise-total", "check-total")


def without_ids(source: str) -> Callable[[Copy, Path], None]:
    """Return a case whose answer to `add` can only be found by the name that it defines."""

    def build(copy: Copy, path: Path) -> None:
        copy.answer("add", f"%%px\n{source}")
        ids_shuffled(copy, path)

    return build


DEEPER = {
    "in_an_if": "if True:\n    def add(a, b):\n        return a + b\n",
    "in_a_try": "try:\n    from operator import nothing as add\n"
    "except ImportError:\n    add = lambda a, b: a + b\n",
    "in_a_with": "import contextlib\nwith contextlib.suppress(OSError):\n"
    "    from operator import add\n",
    "by_a_walrus": "(add := lambda a, b: a + b)(1, 2)",
}
for name, source in DEEPER.items():
    build = without_ids(source)
    build.__name__ = f"defined_{name}"
    case("passed", case.all)(build)


@case("passed", case.all)
def names_of_other_scopes(copy: Copy, path: Path) -> None:
    """Local variables of functions and comprehensions have the exercises' names."""
    copy.insert(
        "%%px\ndef mine():\n    add = 1\n    return [total for total in (1, 2)]\n"
        "[mean for mean in (1, 2)]",
        before="check-mean",
    )
    ids_shuffled(copy, path)


@case("passed", case.all)
def check_with_a_shell_line(copy: Copy, path: Path) -> None:
    """A later answer needs a variable from a cell with a check's call and a shell command."""
    copy.insert("!true\none = 1\ncheck.add(add)", before="exercise-total")
    copy.answer("total", copy.reference("total").replace("result = 0", "result = one - 1"))


@case("passed", case.all)
def check_in_the_exercises_cell(copy: Copy, path: Path) -> None:
    copy.answer("add", f"{copy.reference('add')}\n\ncheck.add(\n    add,\n)\nprint('mine')")


@case("passed", case.all)
def a_file_of_its_own(copy: Copy, path: Path) -> None:
    """The answer is in a %%writefile cell, which defines nothing in the notebook."""
    copy.insert("%%writefile /dev/null\ndef add(a, b):\n    return 0", before="check-add")


@case("partial", case.without("add"), says="SyntaxError", add="error")
def broken_answer_beside_a_draft(copy: Copy, path: Path) -> None:
    """Another cell has a draft, but the exercise's own cell counts, which has an error."""
    copy.insert("%%px\ndef add(a, b):\n    return b\n", before="exercise-add")
    copy.answer("add", "%%px\ndef add(a, b)\n    return a + b\n")


# Values of the wrong kind


def returns(copy: Copy, expression: str) -> None:
    copy.answer("add", f"%%px\ndef add(a, b):\n    return {expression}\n")


@case("partial", case.without("add"), add="failed")
def not_a_number(copy: Copy, path: Path) -> None:
    returns(copy, "float('nan')")


@case("partial", case.without("add"), add="failed")
def wrong_shape(copy: Copy, path: Path) -> None:
    returns(copy, "[[a + b]]")


@case("partial", case.without("add"), add="failed")
def complex_numbers(copy: Copy, path: Path) -> None:
    returns(copy, "a + b + 1j")


@case("partial", case.without("add"), add="failed", notes="the check passed")
def equal_to_all(copy: Copy, path: Path) -> None:
    """It returns a value that claims to equal any other."""
    copy.answer(
        "add",
        "%%px\nclass Liar(int):\n    def __eq__(self, other): return True\n"
        "    def __hash__(self): return 0\n"
        "def add(a, b):\n    return Liar(0)\n",
    )


# The lab's own values


@case("partial", case.without("add"), add="failed", notes="assigns to show_units")
def assigns_to_what_the_lab_imports(copy: Copy, path: Path) -> None:
    """It replaces `show_units`, which the hidden check calls to show values."""
    copy.insert("%%px\nshow_units = lambda number: '26 bytes'", before="exercise-add")
    copy.answer("add", "%%px\ndef add(a, b):\n    return 1\n")


@case("passed", case.all, notes="assigns to show_units")
def assigns_without_gain(copy: Copy, path: Path) -> None:
    """It assigns to names of the lab, which get their values back before each check."""
    copy.insert("%%px\nshow_units = None", before="exercise-add")


@case("passed", case.all, notes="assigns to show_units.fine")
def assigns_an_attribute(copy: Copy, path: Path) -> None:
    copy.insert("%%px\nshow_units.fine = 1\none = 1", before="exercise-add")
    copy.answer("add", copy.reference("add").replace("a + b", "a + b * one"))


EXEC = "calls exec(…), which can assign to the lab's names"


@case("partial", case.without("add"), add="failed", notes=EXEC)
def assigns_by_a_text(copy: Copy, path: Path) -> None:
    copy.insert("%%px\nexec(\"show_units = lambda number: '26 bytes'\")", before="exercise-add")
    copy.answer("add", "%%px\ndef add(a, b):\n    return 1\n")


@case("passed", case.all)
def assigns_unseen(copy: Copy, path: Path) -> None:
    """It assigns to names of the lab in a way that the grader cannot find in its code."""
    copy.insert("%%px\nrun = exec\nrun('show_units = None')", before="exercise-add")
    copy.answer("add", "%%px\nshow_units(1)\n" + copy.reference("add").removeprefix("%%px\n"))


@case("passed", case.all, notes="assigns to show_units")
def assigns_in_a_line(copy: Copy, path: Path) -> None:
    copy.insert("%px show_units = None", before="exercise-add")


@case("passed", case.all, notes="assigns to show_units")
def assigns_an_error(copy: Copy, path: Path) -> None:
    source = "%%px\ntry:\n    1 / 0\nexcept ZeroDivisionError as show_units:\n    pass"
    copy.insert(source, before="exercise-add")


@case("passed", case.all, notes="assigns to parlab.units.fine, units.fine")
def assigns_where_it_comes_from(copy: Copy, path: Path) -> None:
    """It assigns to an attribute of the lab's module. The grader does not run the assignment."""
    source = "%%px\nimport parlab.units\nfrom parlab import units\n"
    source += "parlab.units.fine = 1\nunits.fine = 1"
    copy.insert(source, before="exercise-add")


@case("passed", case.all, says="says cluster.start(2)", notes="says cluster.start(2)")
def other_ranks(copy: Copy, path: Path) -> None:
    """It starts another number of ranks, which the last hidden check would show."""
    copy.insert("cluster.start(2)", before="exercise-add")


@case("passed", case.all, says="says cluster.start(2)")
def other_ranks_above_a_long_line(copy: Copy, path: Path) -> None:
    copy.insert("cluster.start(2)\nrest = (\n    7\n    % 2\n)", before="exercise-add")


@case("passed", case.all)
def local_names(copy: Copy, path: Path) -> None:
    """Its local variables and parameters have names of the lab."""
    copy.answer("add", "%%px\ndef add(a, b):\n    show_units = a\n    return show_units + b\n")


@case("partial", 3, says="It builds on total, which is not right", notes="because of total",
      total="error", mean="failed")  # fmt: skip
def builds_on_what_is_wrong(copy: Copy, path: Path) -> None:
    copy.answer("total", "%%px\ndef total(values)\n    return sum(values)\n")
