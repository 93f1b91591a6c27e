"""The rules for a lab's source, so that a learner's copy can be made and graded."""

import ast
import difflib
import re
from collections.abc import Callable
from pathlib import Path

from parlab.runtime.notebook import ROLES, Cell
from parlab.runtime.source_code import bound_names
from parlab_staff.course.lab import TIMED, Lab
from parlab_staff.course.problems import Problem
from parlab_staff.course.solution_regions import find_regions, is_marker, stubbed

# Tags of Jupyter Book and nbval that a source may use in addition to the roles.
HOUSE_TAGS = (
    "hide-cell",
    "hide-input",
    "hide-output",
    "nbval-ignore-output",
    "raises-exception",
    "remove-cell",
    "remove-input",
    "remove-output",
)
_METADATA = ("tags", "exercise", "points")
_SNAKE_CASE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
# A cell's id is made from its key, and the notebook format allows 64 characters for it.
_LONGEST_KEY = 40
LONGEST_GIVEN = 20  # lines; a longer cell hides its idea
_CHECKS = ("check", "hidden-check")

Report = Callable[[int, str], None]


def problems_of(lab: Lab, others: list[Lab], checks: Path) -> list[Problem]:
    """Return everything that is wrong with a source, in the order of its lines.

    Args:
        others: the course's other labs. A key must be unique among all labs.
        checks: the folder of `parlab.checks`. Its modules are read but not imported, because
            that would start MPI.
    """
    found = list(lab.problems)

    def report(line: int, text: str) -> None:
        found.append(Problem(lab.path, line, text))

    _python(lab, report)
    for cell in lab.cells:
        _metadata(cell, report)
        _regions(cell, report)
        _folds(cell, report)
    _exercises(lab, report)
    _keys_elsewhere(lab, others, report)
    _check_functions(lab, checks / f"{lab.topic}.py", report)
    return sorted(set(found))


def _python(lab: Lab, report: Report) -> None:
    # Compile the whole file, in which magics and Markdown are comments.
    if error := _syntax_error(lab.text):
        report(error.lineno or 1, f"not Python: {error.msg}")


def _syntax_error(text: str) -> SyntaxError | None:
    try:
        compile(text, "", "exec", ast.PyCF_ONLY_AST | ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    except SyntaxError as error:
        return error
    except ValueError as error:  # a null byte
        return SyntaxError(str(error))
    return None


def _metadata(cell: Cell, report: Report) -> None:
    for name in cell.metadata:
        if name not in _METADATA:
            report(cell.line, f"unknown {name!r}{_suggestion(name, _METADATA)}")
    if cell.kind not in ("code", "markdown"):
        report(cell.line, f"a {cell.kind} cell: labs have code and Markdown cells")
    if not cell.source.strip():
        report(cell.line, "an empty cell")
    known = (*ROLES, *HOUSE_TAGS, TIMED)
    for tag in cell.tags:
        if tag not in known:
            report(cell.line, f"unknown tag {tag!r}{_suggestion(tag, known)}")
    roles = [tag for tag in cell.tags if tag in ROLES]
    if len(roles) > 1:
        report(cell.line, f"one role a cell, not {' and '.join(roles)}")
    _role(cell, report)


def _suggestion(name: str, known: tuple[str, ...]) -> str:
    close = difflib.get_close_matches(name, known, n=1)
    return f": did you mean {close[0]!r}?" if close else f"; known are {', '.join(known)}"


def _role(cell: Cell, report: Report) -> None:
    role = cell.role
    if role in ("exercise", *_CHECKS):
        if cell.kind != "code":
            report(cell.line, f"the tag {role!r} on a {cell.kind} cell")
        _key(cell, report)
    elif "exercise" in cell.metadata:
        report(cell.line, f"exercise= without the tag {', '.join(ROLES[:2])} or {ROLES[2]}")
    if TIMED in cell.tags and role != "exercise":
        report(cell.line, f"the tag {TIMED!r} belongs to an exercise")
    if role in _CHECKS:
        points = cell.metadata.get("points")
        if "points" not in cell.metadata:
            report(cell.line, f"a {role} has points: add points=1")
        elif isinstance(points, bool) or not isinstance(points, int | float) or points < 0:
            report(cell.line, f"points must be a number of at least 0, not {points!r}")
        elif role == "hidden-check" and points == 0:
            report(cell.line, "a hidden-check without points is not compared: give it some")
        # The grader and nbval must see that a check ran, and what it printed.
        for tag in set(cell.tags) & {"nbval-ignore-output", "raises-exception"}:
            report(cell.line, f"a {role} cannot be tagged {tag!r}: its output counts")
    elif "points" in cell.metadata:
        report(cell.line, "points belong to the check of an exercise")
    if role is None and cell.kind == "code":
        lines = len([line for line in cell.source.splitlines() if not line.startswith("%%")])
        if lines > LONGEST_GIVEN:
            report(
                cell.line,
                f"a cell of {lines} lines that learners only run: split it, or move code into "
                f"parlab, so that it has {LONGEST_GIVEN} lines at most",
            )


def _key(cell: Cell, report: Report) -> None:
    key = cell.metadata.get("exercise")
    if key is None:
        report(cell.line, f'which exercise? add exercise="its_name" to this {cell.role}')
    elif not isinstance(key, str) or not _SNAKE_CASE.fullmatch(key):
        report(cell.line, f"exercise={key!r} is not snake_case")
    elif len(key) > _LONGEST_KEY:
        report(cell.line, f"exercise={key!r} is longer than {_LONGEST_KEY} characters")


def _regions(cell: Cell, report: Report) -> None:
    lines = cell.code.split("\n")
    if cell.role != "exercise" or cell.kind != "code":
        for number, line in enumerate(lines if cell.kind == "code" else cell.source.split("\n")):
            if is_marker(line) or is_marker(f"# {line}"):
                report(cell.line + 1 + number, "a solution's marker outside an exercise cell")
        return
    regions, problems = find_regions(lines)
    for number, text in problems:
        report(cell.line + 1 + number, text)
    if problems:
        return
    if not regions:
        report(cell.line, "an exercise without # BEGIN SOLUTION … # END SOLUTION")
    for region in regions:
        if not region.indent:
            # The stub would stop the cell before it defines what the check calls.
            text = "a region at the cell's top level: put it into a function or class"
            report(cell.line + 1 + region.begin, text)
    if regions and not _syntax_error("\n".join(lines)):
        error = _syntax_error(stubbed("\n".join(lines), cell.key or "key"))
        if error:
            text = f"without its regions this cell is not Python ({error.msg}): "
            report(cell.line + 1 + regions[0].begin, text + "a region is whole statements")


def _folds(cell: Cell, report: Report) -> None:
    """Report folds without blank lines around them: JupyterLab would show their text unfolded."""
    if cell.kind != "markdown":
        return
    lines = cell.source.split("\n")
    for number, line in enumerate(lines):
        above = lines[number - 1] if number else ""
        below = lines[number + 1] if number + 1 < len(lines) else ""
        if line.startswith("<details") and above.strip():
            report(cell.line + 1 + number, "<details> needs an empty line above it")
        if line.rstrip().endswith("</details>") and below.strip():
            report(cell.line + 1 + number, "</details> needs an empty line below it")


def _exercises(lab: Lab, report: Report) -> None:
    first: dict[str, Cell] = {}
    for cell in lab.cells:
        if cell.role == "exercise" and cell.key:
            if cell.key in first:
                text = f"exercise {cell.key!r} again: it is at line {first[cell.key].line}"
                report(cell.line, text)
            first.setdefault(cell.key, cell)
    for cell in lab.cells:
        if cell.role in _CHECKS and cell.key:
            exercise = first.get(cell.key)
            if exercise is None:
                text = f"a {cell.role} of {cell.key!r}, and no such exercise in this lab"
                report(cell.line, text + _close(cell.key, list(first)))
            elif exercise.line > cell.line:
                text = f"a {cell.role} of {cell.key!r} before its exercise, at {exercise.line}"
                report(cell.line, text)
    _checked(lab, first, report)


def _checked(lab: Lab, exercises: dict[str, Cell], report: Report) -> None:
    """Report exercises without a check, and those with points without a hidden check.

    A check runs in the student's process, whose code can print what a check prints.
    """
    points = {cell.key: cell.metadata.get("points") for cell in lab.cells if cell.role == "check"}
    confirmed = {cell.key for cell in lab.cells if cell.role == "hidden-check"}
    for key, cell in exercises.items():
        if key not in points:
            report(cell.line, f"exercise {key!r} has no check")
        elif points[key] != 0 and key not in confirmed:
            text = f"exercise {key!r} has points and no hidden check: add one, since code can print"
            report(cell.line, f"{text} what a check prints")


def _close(key: str, known: list[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1)
    return f": did you mean {close[0]!r}?" if close else ""


def _keys_elsewhere(lab: Lab, others: list[Lab], report: Report) -> None:
    for other in others:
        for exercise in other.exercises:
            if own := lab.exercise(exercise.key):
                text = (
                    f"exercise {exercise.key!r} is also in {other.path.name}:{exercise.cell.line}"
                )
                report(own.cell.line, text)


def _check_functions(lab: Lab, module: Path, report: Report) -> None:
    checks = [cell for cell in lab.cells if cell.role == "check" and cell.key]
    if not checks:
        return
    name = f"parlab.checks.{lab.topic}"
    known = _defined(module)
    if known is None:
        report(checks[0].line, f"there is no module {name}, or it is not Python")
        return
    for cell in checks:
        if cell.key not in known:
            text = f"{name} has no function {cell.key!r}{_close(cell.key or '', sorted(known))}"
            report(cell.line, text)
        elif cell.key not in _called(cell.code):
            report(cell.line, f"this check of {cell.key!r} does not call check.{cell.key}(…)")


def _defined(module: Path) -> frozenset[str] | None:
    """Return the functions that a module defines or imports; None if it cannot be read."""
    package = module.with_suffix("") / "__init__.py"
    path = module if module.exists() else package
    if not path.exists() or _syntax_error(text := path.read_text(encoding="utf-8")):
        return None
    return bound_names(text)


def _called(code: str) -> set[str]:
    """Return the names of the functions and methods that the code calls."""
    if _syntax_error(code):
        return set()
    calls = [node.func for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Call)]
    return {f.attr for f in calls if isinstance(f, ast.Attribute)} | {
        f.id for f in calls if isinstance(f, ast.Name)
    }
