"""Makes the learner's copy and the solutions of a lab. Equal sources produce equal bytes."""

import hashlib
import json
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode, v4

from parlab.runtime.notebook import Cell
from parlab_staff.course.lab import Lab
from parlab_staff.course.solution_regions import stubbed, without_markers

# This has no versions, because they differ between the machines that derive the same notebook.
_METADATA = {
    "kernelspec": {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"},
    "language_info": {
        "codemirror_mode": {"name": "ipython", "version": 3},
        "file_extension": ".py",
        "mimetype": "text/x-python",
        "name": "python",
        "nbconvert_exporter": "python",
        "pygments_lexer": "ipython3",
    },
}
# The key in a notebook's metadata for the fingerprints of its source.
OWN = "parlab"


def lab_notebook(lab: Lab) -> NotebookNode:
    """Return the learner's copy: stubs for the solutions, no hidden checks, no outputs."""
    cells = []
    for cell in lab.cells:
        if cell.role in ("hidden-check", "solution"):
            continue
        source = cell.source
        if cell.role == "exercise":
            source = stubbed(source, cell.key or "")
        cells.append(_cell(cell, source, cell.tags))
    return _notebook(lab, cells)


def solution_notebook(lab: Lab) -> NotebookNode:
    """Return the complete lab without outputs; the book folds its solutions (`hide-input`)."""
    cells = []
    for cell in lab.cells:
        fold = cell.role in ("exercise", "solution") and cell.kind == "code"
        tags = list(dict.fromkeys([*cell.tags, *(["hide-input"] if fold else [])]))
        source = without_markers(cell.source) if cell.role == "exercise" else cell.source
        cells.append(_cell(cell, source, tags))
    notebook = _notebook(lab, cells)
    notebook.metadata[OWN]["code"] = code_digest(notebook)
    return notebook


def _cell(cell: Cell, source: str, tags: list[str]) -> NotebookNode:
    metadata = cell.metadata | ({"tags": tags} if tags else {})
    make = v4.new_code_cell if cell.kind == "code" else v4.new_markdown_cell
    return make(source, id=cell.id, metadata=metadata)


def _notebook(lab: Lab, cells: list[NotebookNode]) -> NotebookNode:
    metadata = json.loads(json.dumps(_METADATA)) | {OWN: {"lab": lab.name}}
    notebook = v4.new_notebook(cells=cells, metadata=metadata)
    notebook.metadata[OWN]["derived"] = text_digest(notebook)
    return notebook


def digest(value: Any) -> str:
    """Return a short fingerprint of a JSON value."""
    text = json.dumps(value, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def text_digest(notebook: NotebookNode) -> str:
    """Return a fingerprint of everything that people can type into the notebook."""
    return digest([[cell.cell_type, cell.source] for cell in notebook.cells])


def code_digest(notebook: NotebookNode) -> str:
    """Return a fingerprint of the code that runs when the notebook is executed."""
    return digest(
        [[c.source, "raises-exception" in c.metadata.get("tags", [])] for c in _code(notebook)]
    )


def outputs_digest(notebook: NotebookNode) -> str:
    """Return a fingerprint of the stored outputs."""
    return digest([[cell.execution_count, cell.outputs] for cell in _code(notebook)])


def _code(notebook: NotebookNode) -> list[NotebookNode]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def without_outputs(notebook: NotebookNode) -> NotebookNode:
    """Return a copy of the notebook as it was before it ran."""
    copy = nbformat.from_dict(json.loads(json.dumps(notebook)))
    for cell in copy.cells:
        if cell.cell_type == "code":
            cell.outputs, cell.execution_count = [], None
    for name in ("outputs", "package"):
        copy.metadata.get(OWN, {}).pop(name, None)
    return copy


def with_outputs_of(notebook: NotebookNode, executed: NotebookNode) -> NotebookNode:
    """Copy the outputs of another notebook with the same code into `notebook`. Return it."""
    for cell, ran in zip(_code(notebook), _code(executed), strict=True):
        cell.outputs, cell.execution_count = ran.outputs, ran.execution_count
    return notebook


def read(path: Path) -> NotebookNode | None:
    """Return a notebook of format 4; None if there is no file. Raises ValueError."""
    if not path.exists():
        return None
    try:
        notebook = v4.reads(path.read_text(encoding="utf-8"))
        text_digest(notebook)
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{path.name} is not a notebook: {error}") from None
    return notebook


def to_text(notebook: NotebookNode) -> str:
    nbformat.validate(notebook)
    return nbformat.writes(notebook, version=4) + "\n"
