"""Finds the answers in a submission, by what its cells define.

An answer is found by its cell's id, by the exercise key in the cell's metadata, or by the names
that the exercise asks for, in any cell. Editors lose ids and metadata, and people split, merge, and
move cells.
"""

import re
from dataclasses import dataclass, field, replace

from nbformat import NotebookNode

from parlab.runtime.notebook import cells_of
from parlab.runtime.source_code import bound_names, has_code, statements
from parlab_staff.grading import restore_names
from parlab_staff.grading.cells import added_definitions, pieces, same_code, without_calls
from parlab_staff.grading.graded_lab import GradedExercise, GradedLab
from parlab_staff.grading.reading import origin

CHECKS = "check"  # the name under which a lab imports its checks


class WrongLab(ValueError):
    """The notebook is of another lab; the text is for the student."""


@dataclass
class Matched:
    """The code that a student wrote, and where it runs.

    Attributes:
        answers: the source for each exercise's cell; None if there is none.
        untouched: keys of exercises whose answer is the stub as handed out.
        after: the student's own cells, by the cell of the lab that they follow; None is the start.
        before: the student's own cells, by the check that they precede.
        as_text: keys of exercises whose answer is in a cell of text.
        left_out: sentences for the student about code that does not run.
        notes: for the instructor.
    """

    answers: dict[str, str | None]
    untouched: set[str] = field(default_factory=set)
    after: dict[str | None, list[str]] = field(default_factory=dict)
    before: dict[str, list[str]] = field(default_factory=dict)
    as_text: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def given(self, key: str) -> bool:
        """Return True if the student wrote something for the exercise."""
        return self.answers[key] is not None and key not in self.untouched

    @property
    def before_start(self) -> bool:
        """True if a cell of the student comes before all cells of the lab."""
        return bool(self.after.get(None))


@dataclass(frozen=True)
class Piece:
    """One cell of a submission, or one of several cells that the student merged."""

    number: int  # of the notebook's cell, from 1
    source: str
    id: str  # "" for all but the first piece of a cell
    key: str  # the exercise in its metadata; "" if there is none
    is_code: bool


def match(lab: GradedLab, submitted: NotebookNode) -> Matched:
    """Find the code of a submission that runs, and where it runs. Raises WrongLab."""
    _same_lab(lab, submitted)
    matched = Matched({})
    found = _pieces(submitted)
    imported = restore_names.of_parlab([piece.source for piece in found if piece.is_code])
    matcher = _Matcher(lab, _without_the_labs_values(found, lab, imported, matched), imported)
    matched.answers = {e.key: matcher.answer(e) for e in lab.exercises}
    for exercise in lab.exercises:
        if same_code(matched.answers[exercise.key] or "", lab.stub_of(exercise)):
            matched.untouched.add(exercise.key)
        if matched.answers[exercise.key] is None:
            matched.notes.append(f"{exercise.key}: there is no code cell for it")
            if matcher.answered_as_text(exercise):
                matched.as_text.add(exercise.key)
    if origin(submitted).get("derived") not in (None, origin(lab.handed_out).get("derived")):
        matched.notes.append("from another release of the lab")
    matcher.place_own_cells(matched)
    return matched


def _pieces(submitted: NotebookNode) -> list[Piece]:
    found = []
    for number, cell in enumerate(submitted.cells, 1):
        is_code = cell.cell_type == "code"
        key = cell.metadata.get("exercise") if "exercise" in cell.metadata.get("tags", []) else ""
        for index, source in enumerate(pieces(cell.source) if is_code else [cell.source]):
            first = index == 0
            found.append(Piece(number, source, cell.id * first, (key or "") * first, is_code))
    return found


def _without_the_labs_values(
    found: list[Piece], lab: GradedLab, imported: dict[str, str], matched: Matched
) -> list[Piece]:
    """Return the pieces without assignments to attributes of the lab and of their own imports."""
    known = restore_names.imports(lab)
    kept = []
    for piece in found:
        if not piece.is_code:
            kept.append(piece)
            continue
        found_notes = restore_names.notes(piece.source, known, imported)
        matched.notes += [f"cell {piece.number} {note}" for note in found_notes]
        source = restore_names.without_attributes_assigned(piece.source, imported | known)
        kept.append(replace(piece, source=source))
    return kept


class _Matcher:
    """Finds the cell of the lab to which each piece of a submission corresponds."""

    def __init__(self, lab: GradedLab, submitted: list[Piece], imported: dict[str, str]) -> None:
        self.lab = lab
        self.start = restore_names.start_of(lab)
        self.from_parlab = imported | restore_names.imports(lab)
        self.rank_calls: dict[int, dict[str, None]] = {}  # calls that do not run, by cell number
        self.pieces = submitted
        self.by_id = {cell.id: cell for cell in cells_of(lab.solution)}
        self.runs = {cell.id for cell in lab.cells}
        self.exercise_cells = {e.cell for e in lab.exercises}
        self.answering: dict[int, str] = {}  # index of a piece → the exercise's cell
        self.lab_cell: dict[int, str] = {}  # index of a piece → the lab's cell that it is
        for index, piece in enumerate(self.pieces):
            if piece.id in self.by_id and piece.id not in self.lab_cell.values():
                self.lab_cell[index] = piece.id
        self._find_copies()

    def _find_copies(self) -> None:
        """Find cells without a known id that equal a cell of the lab, or an exercise's stub.

        A second copy of a cell that is not a check counts as the student's own, because later cells
        may need it.
        """
        given = {c.source.strip(): c.id for c in self.lab.handed_out.cells}
        graded = {c.id for c in self.lab.cells if c.is_check} | self.exercise_cells
        for index, piece in enumerate(self.pieces):
            cell = given.get(piece.source.strip())
            if cell is None or index in self.lab_cell:
                continue
            if cell in graded or cell not in self.lab_cell.values():
                self.lab_cell[index] = cell

    def answer(self, exercise: GradedExercise) -> str | None:
        """Return the student's source for an exercise; None if no cell is an answer to it."""
        own = self._own_cell(exercise)
        index = own if own is not None and self._answers(own, exercise) else None
        if index is None:
            index = self._defining(exercise)
        index = own if index is None else index
        if index is None:
            return None
        self.answering.setdefault(index, exercise.cell)
        if self.lab_cell.get(index) == exercise.cell:
            self.answering[index] = exercise.cell
        return self._to_run(self.pieces[index])

    def _to_run(self, piece: Piece, given: str = "") -> str:
        """Return the code of a piece without its calls of checks and of `cluster`.

        `given` is the source of the lab's cell that the student changed. Calls in it are not
        reported, because the lab wrote them.
        """
        source = without_calls(piece.source, CHECKS)
        if not self.start:
            return source
        source, calls = restore_names.without_rank_calls(source, self.from_parlab)
        if others := [call for call in calls if call not in given]:
            self.rank_calls.setdefault(piece.number, {}).update(dict.fromkeys(others))
        return source

    def _own_cell(self, exercise: GradedExercise) -> int | None:
        """Find the code cell with the exercise's id, or with its key, or a copy of its stub."""
        ways = (
            lambda i, p: p.id == exercise.cell,
            lambda i, p: p.key == exercise.key and i not in self.lab_cell,
            lambda i, p: self.lab_cell.get(i) == exercise.cell,
            lambda i, p: (
                i not in self.lab_cell and f"exercise {exercise.key}: not done yet" in p.source
            ),
        )
        for way in ways:
            for index, piece in enumerate(self.pieces):
                if piece.is_code and way(index, piece):
                    return index
        return None

    def _answers(self, index: int, exercise: GradedExercise) -> bool:
        """Return True if a cell is an answer: it was changed, and defines the exercise's names.

        A cell that is not valid Python also counts, because the student should see its error.
        """
        source = self.pieces[index].source
        if same_code(source, self.lab.stub_of(exercise)):
            return False
        broken = has_code(source) and not statements(source)
        return broken or exercise.names <= bound_names(source)

    def answered_as_text(self, exercise: GradedExercise) -> bool:
        """Return True if a Markdown or raw cell would be an answer if it were code."""
        return any(
            not piece.is_code
            and all(re.search(rf"(def|class) {name}\b", piece.source) for name in exercise.names)
            and not same_code(piece.source, self.lab.stub_of(exercise))
            for piece in self.pieces
        )

    def _defining(self, exercise: GradedExercise) -> int | None:
        """Find the last cell anywhere that defines all names of the exercise."""
        given = {cell.source.strip() for cell in self.lab.handed_out.cells}
        found = None
        for index, piece in enumerate(self.pieces):
            names = bound_names(piece.source) if piece.is_code else frozenset()
            if exercise.names and exercise.names <= names and piece.source.strip() not in given:
                found = index
        return found

    def place_own_cells(self, matched: Matched) -> None:
        """Add the other code that runs: everything that the student wrote in other cells."""
        after: str | None = None
        for index, piece in enumerate(self.pieces):
            cell = self.answering.get(index) or self.lab_cell.get(index)
            if index not in self.answering:
                self._place(piece, self.lab_cell.get(index), after, matched)
            after = cell if cell in self.runs else after
        for number, calls in self.rank_calls.items():
            sentence = f"calls {', '.join(calls)}, which did not run"
            matched.notes.append(f"cell {number} {sentence}")
            matched.left_out.append(
                f"Cell {number} of your notebook {sentence}: the grader keeps the ranks that the "
                f"lab starts with {self.start}."
            )

    def _place(self, piece: Piece, cell: str | None, after: str | None, matched: Matched) -> None:
        if cell is None or cell in self.exercise_cells:
            source = self._to_run(piece) if piece.is_code else ""
            is_stub = cell is not None and same_code(piece.source, self._given(cell))
            if not is_stub and has_code(source):
                matched.after.setdefault(after, []).append(source)
            return
        given = self._given(cell)
        if same_code(piece.source, given) and (piece.is_code or self.by_id[cell].kind != "code"):
            return
        if cell not in self.runs:  # text that became code, or a cell that fails on purpose
            if added := piece.is_code and added_definitions(self._to_run(piece, given), given):
                matched.after.setdefault(after, []).append(added)
            return
        matched.notes.append(f"cell {cell} was changed; the lab's own ran in its place")
        if not piece.is_code:
            return
        if self.by_id[cell].is_check:
            source = self._to_run(piece)
            if has_code(source):
                matched.before.setdefault(cell, []).append(source)
            matched.left_out.append(
                f"Cell {piece.number} of your notebook is a check, and was changed: it ran as "
                "handed out, after your own code there."
            )
            return
        if added := added_definitions(self._to_run(piece, given), given):
            matched.after.setdefault(cell, []).append(added)
        matched.left_out.append(
            f"Cell {piece.number} of your notebook belongs to the lab, and was changed: the lab's "
            "version ran instead, with the imports, functions, and classes that you added."
        )

    def _given(self, cell: str) -> str:
        """Return the source of the lab's cell as it was handed out."""
        found = next((c.source for c in self.lab.handed_out.cells if c.id == cell), None)
        return self.by_id[cell].source if found is None else found


def _same_lab(lab: GradedLab, submitted: NotebookNode) -> None:
    name = origin(submitted).get("lab")
    known = {e.cell for e in lab.exercises} | {e.key for e in lab.exercises}
    names = {name for e in lab.exercises for name in e.names}
    is_this_lab = any(
        cell.id in known
        or cell.metadata.get("exercise") in known
        or (cell.cell_type == "code" and bool(names & bound_names(cell.source)))
        for cell in submitted.cells
    )
    if is_this_lab:
        return
    if name == lab.name:
        raise WrongLab(
            f"this is lab {name}, and none of its exercises is in it. Hand in the notebook with "
            "the cells in which you did them"
        )
    of = f"it is lab {name}" if isinstance(name, str) else "none of the lab's exercises is in it"
    raise WrongLab(f"this is not lab {lab.name}: {of}")
