"""Puts a student's answers into the instructor's notebook."""

import ast
import re
from dataclasses import dataclass, field

from nbformat import NotebookNode, v4

from parlab.grading.master import (
    Exercise,
    Master,
    added_definitions,
    defined_names,
    is_check,
    released,
    statements,
)

_NBVAL = re.compile(r"^\s*#[#\s]*(NBVAL_\w+|PYTEST_VALIDATE_IGNORE_OUTPUT)\s*$")
# Calls of a check, as in the lab's cells: they are replaced by the lab's own.
_CHECK = re.compile(r"^check\.(\w+)\(", re.MULTILINE)
HELPER = "helper-"


@dataclass
class Rebuilt:
    """What runs for a submission.

    Attributes:
        notebook: only code cells, without outputs.
        answers: the student's source by exercise key; None where its cell is not there.
        untouched: keys whose source is the stub as handed out.
        before_start: whether a cell of the student comes before all of the lab's.
        notes: for the instructor.
    """

    notebook: NotebookNode
    answers: dict[str, str | None]
    untouched: set[str] = field(default_factory=set)
    before_start: bool = False
    notes: list[str] = field(default_factory=list)

    def given(self, key: str) -> bool:
        return self.answers[key] is not None and key not in self.untouched


class WrongLab(ValueError):
    """The notebook is of another lab; the text is for the student."""


def rebuild(master: Master, submitted: NotebookNode) -> Rebuilt:
    """The master's cells in the master's order, with the student's answers and helper cells.

    An answer is found by its cell's id, else by the exercise key in the cell's metadata, else by
    the exercise's names in its text: editors lose ids, and some lose metadata. Raises WrongLab.
    """
    _same_lab(master, submitted)
    owner = _Owners(master, submitted)
    answers = {e.key: owner.answer(e) for e in master.exercises}
    rebuilt = Rebuilt(v4.new_notebook(), answers)
    for exercise in master.exercises:
        if _same(answers[exercise.key] or "", master.stub_of(exercise)):
            rebuilt.untouched.add(exercise.key)
    if released(submitted).get("derived") not in (None, released(master.stub).get("derived")):
        rebuilt.notes.append("from another release of the lab")
    helpers = owner.helpers()
    rebuilt.before_start = bool(helpers.get(None))
    rebuilt.notes += owner.notes
    of_cell = {e.cell: e for e in master.exercises}
    cells = rebuilt.notebook.cells
    waiting = helpers.get(None, [])
    for cell in master.cells:
        if "hidden-check" not in cell.metadata.get("tags", []):
            # The student's copy has no hidden checks: they come directly after the visible ones.
            cells += waiting
            waiting = []
        exercise = of_cell.get(cell.id)
        source = cell.source
        if exercise is not None:
            answer = answers[exercise.key]
            source = master.stub_of(exercise) if answer is None else answer
        cells.append(_code(source, cell.id))
        waiting += helpers.get(cell.id, [])
    cells += waiting
    return rebuilt


def isolated(master: Master, rebuilt: Rebuilt, exercise: Exercise) -> NotebookNode:
    """The rebuilt notebook with the reference in all other exercises, and this one's checks."""
    reference = {cell.id: cell for cell in master.cells}
    others = {e.cell for e in master.exercises} - {exercise.cell}
    own = {*exercise.checks, *exercise.hidden}
    dropped = {cell.id for cell in master.cells if is_check(cell)} - own
    return v4.new_notebook(
        cells=[
            _code(reference[c.id].source if c.id in others else c.source, c.id)
            for c in rebuilt.notebook.cells
            if c.id not in dropped
        ]
    )


class _Owners:
    """Which cell of the master each cell of a submission is."""

    def __init__(self, master: Master, submitted: NotebookNode) -> None:
        self.master = master
        self.cells = submitted.cells
        self.by_id = {cell.id: cell for cell in master.notebook.cells}
        # Of exercises the stub: a copy of the right answer may stand anywhere, and counts.
        self.by_source = {c.source.strip(): c.id for c in master.stub.cells}
        # Cells of which a copy is nothing of the student's own.
        self.graded = {c.id for c in master.cells if is_check(c)}
        self.graded |= {e.cell for e in master.exercises}
        self.taken: dict[int, str] = {}  # index of a submitted cell → id of the master's
        self.notes: list[str] = []
        for index, cell in enumerate(self.cells):
            if cell.id in self.by_id and cell.id not in self.taken.values():
                self.taken[index] = cell.id

    def answer(self, exercise: Exercise) -> str | None:
        """The student's source; None where no cell is one."""
        for way in (self._with_id, self._with_key, self._with_names):
            for index, cell in enumerate(self.cells):
                if way(index, cell, exercise) and cell.cell_type == "code":
                    self.taken[index] = exercise.cell
                    return cell.source
        self.notes.append(f"{exercise.key}: there is no code cell for it")
        return None

    def _with_id(self, index: int, cell: NotebookNode, exercise: Exercise) -> bool:
        return cell.id == exercise.cell

    def _with_key(self, index: int, cell: NotebookNode, exercise: Exercise) -> bool:
        tagged = "exercise" in cell.metadata.get("tags", [])
        return index not in self.taken and tagged and cell.metadata.get("exercise") == exercise.key

    def _with_names(self, index: int, cell: NotebookNode, exercise: Exercise) -> bool:
        if index in self.taken or _calls_a_check(cell):
            return False
        names = defined_names(cell.source)
        stub = f"exercise {exercise.key}: not done yet"
        return exercise.names <= names if exercise.names and names else stub in cell.source

    def helpers(self) -> dict[str | None, list[NotebookNode]]:
        """The student's own cells, by the master's cell that they come after; None: first."""
        found: dict[str | None, list[NotebookNode]] = {}
        runs = {cell.id for cell in self.master.cells}
        after: str | None = None
        for index, cell in enumerate(self.cells):
            own, source = self._own(index, cell), cell.source
            if own is not None:
                source = self._added(cell, own)
                after = own if own in runs else after
            elif cell.cell_type != "code" or _calls_a_check(cell):
                continue
            if source.strip():
                number = sum(map(len, found.values()))
                found.setdefault(after, []).append(_code(source, f"{HELPER}{number}"))
        return found

    def _own(self, index: int, cell: NotebookNode) -> str | None:
        """The id of the lab's cell that this is; a second copy of one is the student's own."""
        own = self.taken.get(index) or self.by_source.get(cell.source.strip())
        if index in self.taken or own not in self.taken.values() or own in self.graded:
            if own is not None:
                self.taken[index] = own
            return own
        return None

    def _added(self, cell: NotebookNode, own: str) -> str:
        """What the student added to a cell of the lab that grades nothing: imports, definitions.

        Where the cell was changed, this is said: the lab's own runs in its place.
        """
        master = self.by_id[own]
        if "exercise" in master.metadata.get("tags", []) or master.cell_type != "code":
            return ""
        if _same(cell.source, master.source) and cell.cell_type == "code":
            return ""
        self.notes.append(f"cell {own} was changed; the lab's own ran in its place")
        if is_check(master) or cell.cell_type != "code":
            return ""
        return added_definitions(cell.source, master.source)


def _calls_a_check(cell: NotebookNode) -> bool:
    """Whether a cell without a known id is one of the lab's checks, edited or copied.

    One that also sets or imports something is the student's own.
    """
    if cell.cell_type != "code" or not _CHECK.search(cell.source):
        return False
    return all(isinstance(node, ast.Expr) for node in statements(cell.source))


def _code(source: str, cell_id: str) -> NotebookNode:
    return v4.new_code_cell(_without_nbval(source), id=cell_id)


def _without_nbval(source: str) -> str:
    """Comments that steer nbval are not for those who are graded."""
    return "\n".join(line for line in source.split("\n") if not _NBVAL.match(line))


def _same(one: str, other: str) -> bool:
    strip = [line.rstrip() for line in one.strip().split("\n")]
    return strip == [line.rstrip() for line in other.strip().split("\n")]


def _same_lab(master: Master, submitted: NotebookNode) -> None:
    lab = released(submitted).get("lab")
    known = {e.cell for e in master.exercises} | {e.key for e in master.exercises}
    names = {name for e in master.exercises for name in e.names}
    is_ours = any(
        cell.id in known
        or cell.metadata.get("exercise") in known
        or bool(names & defined_names(cell.source))
        for cell in submitted.cells
    )
    if is_ours:
        return
    of = f"it is lab {lab}" if isinstance(lab, str) else "none of the lab's exercises is in it"
    raise WrongLab(f"this is not lab {master.name}: {of}")
