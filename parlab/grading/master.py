"""The instructor's side of a lab: the executed solution, and the stubs that were handed out."""

import ast
import contextlib
import json
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nbformat import NotebookNode

from parlab.authoring.notebooks import OWN, digest, read
from parlab.venv import ROOT

TELLING = 12  # characters, of a line that tells what a hidden check does


@dataclass(frozen=True)
class Exercise:
    """One exercise: its cell, and the cells that say whether it is right.

    Attributes:
        key: its name everywhere.
        names: the functions and classes that the reference defines.
        checks: points of each visible check, by cell id.
        hidden: (points, expected values) of each hidden check, by cell id.
    """

    key: str
    cell: str
    names: frozenset[str]
    checks: dict[str, float] = field(default_factory=dict)
    hidden: dict[str, tuple[float, Any]] = field(default_factory=dict)

    @property
    def of(self) -> float:
        return sum(self.checks.values()) + sum(points for points, _ in self.hidden.values())


@dataclass(frozen=True)
class Master:
    """A lab as the grader knows it; read once, so that a whole batch meets the same one."""

    name: str
    path: Path
    notebook: NotebookNode
    stub: NotebookNode

    @cached_property
    def digest(self) -> str:
        return digest([self.notebook, self.stub])

    @cached_property
    def exercises(self) -> list[Exercise]:
        """In the lab's order."""
        found: dict[str, Exercise] = {}
        for cell in self.cells:
            key, tags = cell.metadata.get("exercise"), cell.metadata.get("tags", [])
            if "exercise" in tags:
                found[key] = Exercise(key, cell.id, defined_names(cell.source))
            elif "check" in tags and key in found:
                found[key].checks[cell.id] = points_of(cell)
            elif "hidden-check" in tags and key in found:
                found[key].hidden[cell.id] = (points_of(cell), self._expected(cell))
        return [e for e in found.values() if e.of]

    @cached_property
    def cells(self) -> list[NotebookNode]:
        """The code cells to run.

        What comes after the last check grades nothing, and a cell that fails on purpose defines
        nothing: a lab's deadlocks would be waited for once a student.
        """
        code = [c for c in self.notebook.cells if c.cell_type == "code" and not _shows_error(c)]
        checks = [i for i, cell in enumerate(code) if is_check(cell)]
        return code[: checks[-1] + 1] if checks else []

    @cached_property
    def hidden_lines(self) -> frozenset[str]:
        """The lines of hidden checks that tell something, and that no student was given."""
        hidden = [c.source for c in self.cells if "hidden-check" in c.metadata.get("tags", [])]
        lines = {line.strip() for source in hidden for line in source.split("\n")}
        given = {line.strip() for cell in self.stub.cells for line in cell.source.split("\n")}
        return frozenset(line for line in lines - given if len(line) >= TELLING)

    def stub_of(self, exercise: Exercise) -> str:
        """The source of the exercise's cell as it was handed out."""
        return next((c.source for c in self.stub.cells if c.id == exercise.cell), "")

    def _expected(self, cell: NotebookNode) -> Any:
        shown = [o.data["application/json"] for o in cell.outputs if _is_json(o)]
        if len(shown) != 1:
            raise ValueError(
                f"{self.path.name}: the hidden check {cell.id} has {len(shown)} stored results "
                "where one is needed: run `make notebooks`"
            )
        return shown[0]


def find_master(lab: str, root: Path = ROOT) -> Master:
    """The lab that is meant by `01_mpi`, `01`, `mpi`, or by the path of an executed solution.

    Raises ValueError where there is none, or where it cannot grade.
    """
    path = Path(lab)
    if path.suffix != ".ipynb":
        known = sorted(root.glob("solutions/[0-9][0-9]_*.ipynb"))
        found = [p for p in known if lab in (p.stem, p.stem[:2], p.stem[3:])]
        if not found:
            names = ", ".join(p.stem for p in known) or "none here: the solutions are not in it"
            raise ValueError(f"there is no lab {lab!r} to grade; the labs are: {names}")
        path = found[0]
    elif not path.is_file():
        raise ValueError(f"{path} does not exist: LAB is a lab's name, or its executed solution")
    stub = path.resolve().parents[1] / "labs" / path.name
    notebook = read(path)
    handed_out = read(stub)
    if notebook is None or handed_out is None:
        raise ValueError(f"{stub} is missing: run `make notebooks`")
    master = Master(path.stem, path.resolve(), notebook, handed_out)
    if not master.exercises:
        raise ValueError(f"{path.name} has no check with points: there is nothing to grade")
    return master


def _shows_error(cell: NotebookNode) -> bool:
    return "raises-exception" in cell.metadata.get("tags", [])


def is_check(cell: NotebookNode) -> bool:
    return bool({"check", "hidden-check"} & set(cell.metadata.get("tags", [])))


def points_of(cell: NotebookNode) -> float:
    return float(cell.metadata.get("points", 0))


DEFINITION = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def statements(source: str) -> list[ast.stmt]:
    """The statements of a cell, without magics; none where it is not Python."""
    body = "\n".join("" if line.startswith("%") else line for line in source.split("\n"))
    try:
        return ast.parse(body).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def defined_names(source: str) -> frozenset[str]:
    """Functions and classes that a cell defines; none where it is not Python."""
    return frozenset(node.name for node in statements(source) if isinstance(node, DEFINITION))


def added_definitions(source: str, original: str) -> str:
    """A cell with the imports, functions and classes that `original` has not; "" without any."""
    known, names = {ast.unparse(node) for node in statements(original)}, defined_names(original)
    added = []
    for node in statements(source):
        is_new = isinstance(node, DEFINITION) and node.name not in names
        if is_new or isinstance(node, ast.Import | ast.ImportFrom):
            with contextlib.suppress(RecursionError):
                added.append(ast.unparse(node))
    added = [text for text in added if text not in known]
    magic = [line for line in source.strip().split("\n")[:1] if line.startswith("%%")]
    return "\n".join(magic + added) if added else ""


def _is_json(output: NotebookNode) -> bool:
    return "application/json" in output.get("data", {})


def released(notebook: NotebookNode) -> dict[str, Any]:
    """What a copy of a lab says of itself: {"lab": …, "derived": fingerprint}; {} for none."""
    own = notebook.metadata.get(OWN)
    return json.loads(json.dumps(own)) if isinstance(own, dict) else {}
