"""Searches a handout for solutions and hidden checks."""

import json
from pathlib import Path

from parlab_staff.course.lab import Lab
from parlab_staff.course.solution_regions import find_regions


def leaks(lab: Lab, folder: Path) -> list[str]:
    """Return one line for each file in `folder` that contains text that students must not see."""
    secret = secrets(lab)
    return [
        f"{path.relative_to(folder)} holds {what}"
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.suffix != ".npz"
        for what, text in secret.items()
        if text in _text_of(path)
    ]


def secrets(lab: Lab) -> dict[str, str]:
    """Return texts from solutions and hidden checks, with one space between words.

    Solutions of one line are left out, because the same line may occur elsewhere.
    """
    found = {}
    for cell in lab.cells:
        where = f"of {lab.name}, line {cell.line}"
        lines = cell.source.split("\n")
        for number, region in enumerate(find_regions(lines)[0], 1):
            inner = [line for line in lines[region.begin + 1 : region.end] if line.strip()]
            if len(inner) > 1:
                found[f"solution {number} {where}"] = _words("\n".join(inner))
        if cell.role in ("hidden-check", "solution"):
            own = [line for line in lines if not line.startswith("%%")]
            found[f"the {cell.role} {where}"] = _words("\n".join(own))
    return found


def _text_of(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return _words(text)


def _words(text: str) -> str:
    return " ".join(text.split())
