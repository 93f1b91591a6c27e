"""Makes the contents of the playground's pages from the sources of labs and from `examples/`."""

import ast
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from markdown_it import MarkdownIt
from mdit_py_plugins.dollarmath import dollarmath_plugin

from parlab.runtime.notebook import Cell
from parlab.runtime.source_code import names_in
from parlab_staff.course.lab import Exercise, Lab
from parlab_staff.course.percent_source import read_lab
from parlab_staff.course.references import SOLUTIONS
from parlab_staff.course.solution_regions import stubbed, without_markers
from parlab_staff.play import formulas
from parlab_staff.play.formulas import Formula
from parlab_staff.play.tries import TRIES

# The labs with exercises that need only NumPy and messages. None means all exercises of the lab.
LABS: Mapping[str, tuple[str, ...] | None] = MappingProxyType(
    {
        "01_mpi": None,
        "03_zero": ("predict_stages", "predict_traffic"),
        "05_pipeline_parallel": (
            "predict_bubble", "gpipe", "one_f_one_b", "predict_live", "interleaved",
        ),
    }
)  # fmt: skip
EXAMPLES = Path(__file__).parent / "examples"
# Modules that a run does not need. The first one takes long to import.
_NOT_NEEDED = ("parlab.checks", "parlab.reference")
# Additional imports for programs of lab 05, because its own first cell needs torch.
_PIPELINE = """
from parlab.pipeline import Action, Deadlock, backward, bubble, forward, live
from parlab.pipeline import simulate, sizes, texts"""
_MAIN = 'if __name__ == "__main__":  # Run executes these lines, and Check skips them'


@dataclass(frozen=True)
class PlayPage:
    """One page. `data` is read by its scripts, and `text` is HTML."""

    name: str
    title: str
    text: str
    data: dict[str, Any] = field(repr=False)
    chapter: str
    reference: str = ""

    @property
    def is_exercise(self) -> bool:
        return bool(self.data.get("check"))

    @property
    def has_math(self) -> bool:
        return 'class="math' in self.text


def page_names() -> list[str]:
    """Return the names of all pages: the keys of exercises, and the examples."""
    keys = [one.key for name in LABS for one in played(_lab(name))]
    return [*keys, *(path.stem for path in _examples())]


def played(lab: Lab) -> list[Exercise]:
    """Return the exercises of a lab that have pages."""
    keys = LABS[lab.name]
    return [one for one in lab.exercises if keys is None or one.key in keys]


def play_pages(edition: str) -> list[PlayPage]:
    """Return the pages of an edition. The pages of the student edition contain no solution."""
    labs = list(map(_lab, LABS))
    exercises = [_exercise_page(lab, one, edition) for lab in labs for one in played(lab)]
    return [*exercises, *map(_example_page, _examples())]


def _exercise_page(lab: Lab, exercise: Exercise, edition: str) -> PlayPage:
    key = exercise.key
    title, text = _text_before(lab, exercise.cell)
    if key not in TRIES:
        raise ValueError(f"exercise {key}: add the lines that try it to parlab_staff/play/tries.py")
    attempt = TRIES[key]
    body = "\n".join(f"    {line}" if line else "" for line in attempt.code.splitlines())
    solution = without_markers(_code(exercise))
    ending = f"\n\n\n{_MAIN}\n{body}\n"
    needed = [one for one in lab.exercises if one.key in _names(exercise.cell) - {key}]
    data = {
        "name": key,
        "check": f"from parlab.checks import {lab.topic} as check\n{_check(exercise)}",
        "program": stubbed(_code(exercise), key) + ending,
        "setup": imports(lab),
        "needs": [
            {
                "name": one.key,
                "code": without_markers(_code(one)) if edition == "full" else None,
                "stub": stubbed(_code(one), one.key),
            }
            for one in needed
        ],
        **_formulas(attempt.formula),
    }
    reference = ""
    if edition == "full":
        reference = solution
        data["reference"] = solution + ending
    html = _html(f"{text}\n\n{attempt.note}")
    return PlayPage(key, title, html, data, lab.name, reference)


def _example_page(path: Path) -> PlayPage:
    """Read an example: its docstring is the text of the page, and its first line is the title."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    documentation = ast.get_docstring(tree)
    if not documentation:
        raise ValueError(f"{path.name}: an example begins with a docstring, the page's text")
    title, _, text = documentation.partition("\n")
    below = source.splitlines()[tree.body[0].end_lineno :]
    program = "\n".join(below).strip() + "\n"
    data = {
        "name": path.stem,
        "program": program,
        "setup": imports(_lab("01_mpi")),
        "needs": [],
        **_formulas(formulas.EXAMPLES.get(path.stem)),
    }
    return PlayPage(path.stem, title.rstrip("."), _html(text), data, chapter=path.parent.name)


def _formulas(formula: Formula | None) -> dict[str, Any]:
    """Return the formulas that the page shows next to the counts of messages."""
    algorithms = formulas.algorithms_of_collectives()
    if formula is None:
        return {"formula": "", "costs": [], "algorithms": algorithms}
    return {"formula": formula.text, "costs": formula.costs(), "algorithms": algorithms}


def _examples() -> list[Path]:
    return sorted(EXAMPLES.glob("*/*.py"))


def _code(exercise: Exercise) -> str:
    """Return the exercise's cell without its magic."""
    return exercise.cell.code.removeprefix("# %%px\n").strip()


def _names(cell: Cell) -> set[str]:
    return names_in(ast.parse(cell.code), ast.Load)


def _check(exercise: Exercise) -> str:
    """Return the lines of the check cells without their magics."""
    lines = (line for cell in exercise.checks for line in cell.source.splitlines())
    return "\n".join(line for line in lines if not line.startswith("%"))


@functools.cache
def _lab(name: str) -> Lab:
    return read_lab(SOLUTIONS / f"{name}.py")


def imports(lab: Lab) -> str:
    """Return the imports for programs of a lab. They come from lab 01: other labs need torch."""
    first = next(cell for cell in _lab("01_mpi").cells if "from mpi4py" in cell.source)
    kept = [one for one in ast.parse(first.code).body if not _is_unneeded(one)]
    more = _PIPELINE if lab.topic == "pipeline_parallel" else ""
    return "\n".join(map(ast.unparse, kept)) + more


def _is_unneeded(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.ImportFrom) and (statement.module or "") in _NOT_NEEDED


def _text_before(lab: Lab, cell: Cell) -> tuple[str, str]:
    """Return the title and the text of an exercise, from the Markdown cells above its cell.

    If the text's own cell has no heading, use the section's title, and leave out answers to earlier
    questions at the beginning.
    """
    above = [one for one in lab.cells[: lab.cells.index(cell)] if one.kind == "markdown"]
    text = above[-1].source
    found = list(re.finditer(r"^## (.+)$", text, re.MULTILINE))
    if found:
        return found[-1][1], text[found[-1].end() :].strip()
    headings = [re.findall(r"^## (.+)$", one.source, re.MULTILINE) for one in above]
    title = next(titles[-1] for titles in reversed(headings) if titles)
    return title, re.sub(r"\A\s*<details>.*?</details>", "", text, flags=re.DOTALL).strip()


def _html(text: str) -> str:
    """Return Markdown as HTML. MathJax finds formulas in its own delimiters."""
    markdown = MarkdownIt("commonmark", {"html": True}).enable("table")
    markdown.use(dollarmath_plugin, renderer=_formula)
    html = markdown.render(re.sub(r"\.\./(book|labs)/(\w+)\.(md|ipynb)", r"../\1/\2.html", text))
    return html.replace("<pre>", '<pre tabindex="0">')  # so that keys can scroll it


def _formula(content: str, options: dict[str, Any]) -> str:
    escaped = content.replace("&", "&amp;").replace("<", "&lt;")
    return f"\\[{escaped}\\]" if options["display_mode"] else f"\\({escaped}\\)"
