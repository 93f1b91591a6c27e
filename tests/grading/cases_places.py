"""Right answers in unexpected places: in merged cells, in a check's cell, or inside other code."""

from collections.abc import Callable
from pathlib import Path

import nbformat

from tests.grading.cases import Cases
from tests.grading.cases_structure import HELPER, USES_A_HELPER, ids_shuffled
from tests.grading.copies import Copy

case = Cases(add=3, total=4, mean=3)


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
