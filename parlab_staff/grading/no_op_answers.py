"""Finds values of hidden checks that even an answer that does nothing displays.

These values earn no points. Such answers are made from each stub. They return None, 0, the first
argument, or zeros of its shape. They run once for a lab, after the reference, and each answer
replaces only its own exercise.
"""

import ast
import re

from nbformat import NotebookNode, v4

from parlab.runtime.source_code import statements
from parlab_staff.grading.compare import Place, right_at
from parlab_staff.grading.graded_lab import GradedExercise, GradedLab
from parlab_staff.grading.run import NotebookRun

RETURNED = ("None", "{first}", "{first} * 0", "0")
Worthless = dict[str, frozenset[Place]]  # by hidden check
_STUB = re.compile(r'^(\s*)raise NotImplementedError\("exercise \w+: not done yet"\)$')


def notebook(lab: GradedLab) -> NotebookNode:
    """Return the reference's cells, with hidden checks repeated on answers that do nothing."""
    cells = {cell.id: cell for cell in lab.cells}
    hidden = {list(e.hidden)[-1]: e for e in lab.exercises}
    made = v4.new_notebook()
    for cell in lab.cells:
        made.cells.append(v4.new_code_cell(cell.source, id=cell.id))
        if exercise := hidden.get(cell.id):
            for number, source in enumerate(answers(lab.stub_of(exercise))):
                made.cells.append(v4.new_code_cell(source, id=f"nothing-{number}-{exercise.cell}"))
                made.cells += [
                    v4.new_code_cell(cells[check].source, id=_id(number, check))
                    for check in exercise.hidden
                ]
            source = cells[exercise.cell].source
            made.cells.append(v4.new_code_cell(source, id=f"again-{exercise.cell}"))
    return made


def _id(number: int, check: str) -> str:
    return f"nothing-{number}-{check}"


def answers(stub: str) -> list[str]:
    """Return copies of the stub that return one of `RETURNED` instead of raising an error.

    If the stub does not raise, the test of the lab reports that.
    """
    lines = stub.split("\n")
    stubs = [number for number, line in enumerate(lines, 1) if _STUB.match(line)]
    if not stubs:
        return []
    firsts = {number: _first_argument(stub, number) for number in stubs}
    return list(dict.fromkeys(_returning(lines, firsts, returned) for returned in RETURNED))


def _returning(lines: list[str], firsts: dict[int, str | None], returned: str) -> str:
    """Return the lines with `return …`. Functions without an argument return None."""

    def value(number: int) -> str:
        first = firsts[number]
        return "None" if first is None else returned.format(first=first)

    return "\n".join(
        _STUB.sub(rf"\1return {value(number)}", line) if number in firsts else line
        for number, line in enumerate(lines, 1)
    )


def _first_argument(source: str, line: int) -> str | None:
    """Return the first argument of the innermost function with this line; None if it has none."""
    around = [
        node
        for statement in statements(source)
        for node in ast.walk(statement)
        if isinstance(node, ast.FunctionDef) and node.lineno <= line <= (node.end_lineno or line)
    ]
    function = max(around, key=lambda node: node.lineno, default=None)
    if function is None or function.name == "__init__":
        return None
    names = [a.arg for a in (*function.args.posonlyargs, *function.args.args) if a.arg != "self"]
    return names[0] if names else None


def worthless(lab: GradedLab, ran: NotebookRun) -> Worthless:
    """Return the places, by hidden check, where an answer that does nothing is right."""
    return {
        check: frozenset(
            place
            for number in range(len(RETURNED))
            for shown in _shown(ran, _id(number, check))
            for place, right in right_at(expected, shown).items()
            if right
        )
        for exercise in lab.exercises
        for check, (_, expected) in exercise.hidden.items()
    }


def _shown(ran: NotebookRun, cell: str) -> list:
    found = ran.cells.get(cell)
    return found.json if found and found.outcome == "ok" else []


def nothing_left(exercise: GradedExercise, found: Worthless) -> bool:
    """Return True if an answer that does nothing is right everywhere in a hidden check."""
    return any(
        set(right_at(expected, expected)) <= found.get(check, frozenset())
        for check, (_, expected) in exercise.hidden.items()
    )
