"""Runs the grader's command in a process, and reads the results that it stored."""

import json
import subprocess
import sys
from pathlib import Path

from parlab_staff.grading.graded_lab import GradedLab
from tests.grading.copies import Copy

SECONDS = 600


def write_class(folder: Path, lab: GradedLab) -> Path:
    """Write submissions of three students into a new folder."""
    folder.mkdir()
    (folder / "ada.ipynb").write_text(Copy(lab).text())
    (folder / "bob.ipynb").write_text(Copy(lab).stub("mean").text())
    (folder / "cy.ipynb").write_text("{}")
    return folder


def command(lab: Path | GradedLab, folder: Path, *more: str) -> list[str]:
    path = lab.path if isinstance(lab, GradedLab) else lab
    start = [sys.executable, "-m", "parlab.setup.cli", "grade", str(path), str(folder)]
    return [*start, "--out", str(folder.parent / "out"), *more]


def graded(arguments: list[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run(arguments, capture_output=True, text=True, timeout=SECONDS, **options)


def results(folder: Path) -> dict[str, float]:
    found = {}
    for path in (folder.parent / "out").glob("results/*/result.json"):
        data = json.loads(path.read_text())
        points = [e["points"] for e in data["exercises"]]
        found[data["student"]] = None if None in points else sum(points)
    return found


def stored(folder: Path) -> set[str]:
    return {p.parent.name for p in (folder.parent / "out").glob("results/*/result.json")}
