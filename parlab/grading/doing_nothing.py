"""Which values of hidden checks an answer that does nothing shows as well: they are worth nothing.

Two such answers are made of each stub: one returns None, one its first argument. They run once for
a lab, after the reference, each in place of its exercise alone.
"""

import ast
import re

from nbformat import NotebookNode, v4

from parlab.grading.cells import statements
from parlab.grading.comparing import Place, right_at
from parlab.grading.lab import Exercise, GradedLab
from parlab.grading.running import NotebookRun

Worthless = dict[str, frozenset[Place]]  # by hidden check
_STUB = re.compile(r'^(\s*)raise NotImplementedError\("exercise \w+: not done yet"\)$')


def notebook(lab: GradedLab) -> NotebookNode:
    """The reference's cells; after each exercise's hidden checks, those with what does nothing."""
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
    """The stub with `return None`, and with its functions' first arguments, where it raises.

    None where it does not raise: that is no stub, and the proof says so.
    """
    lines = stub.split("\n")
    stubs = [number for number, line in enumerate(lines, 1) if _STUB.match(line)]
    if not stubs:
        return []
    firsts = {number: _first_argument(stub, number) for number in stubs}
    return list(dict.fromkeys(_returning(lines, found) for found in (dict.fromkeys(stubs), firsts)))


def _returning(lines: list[str], values: dict[int, str | None]) -> str:
    return "\n".join(
        _STUB.sub(rf"\1return {values[number]}", line) if number in values else line
        for number, line in enumerate(lines, 1)
    )


def _first_argument(source: str, line: int) -> str | None:
    """Of the innermost function that has `line`: its first argument; None where it has none."""
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
    """The places, by hidden check, where an answer that does nothing is right."""
    return {
        check: frozenset(
            place
            for number in range(2)
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


def nothing_left(exercise: Exercise, found: Worthless) -> bool:
    """Whether a hidden check of the exercise shows nothing but what doing nothing shows."""
    return any(
        set(right_at(expected, expected)) <= found.get(check, frozenset())
        for check, (_, expected) in exercise.hidden.items()
    )
