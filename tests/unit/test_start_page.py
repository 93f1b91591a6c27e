"""JupyterLab's start page lists all labs, with the same facts as the labs themselves."""

import re
from pathlib import Path

import nbformat
import pytest

from parlab.runtime.paths import ROOT, numbered

LABS = [ROOT / "labs" / f"{source.stem}.ipynb" for source in numbered(ROOT / "solutions", ".py")]
ROW = re.compile(r"^\| \[(.+?)\]\((.+?\.ipynb)\) \| (.+) \| (.+) \| (.+) \|$", re.MULTILINE)
LINK = re.compile(r"\[(.+?)\]\(.+?\)")


def rows() -> dict[str, tuple[str, str, str]]:
    """Return each lab's name, time, and requirements on the start page, by its file."""
    page = (ROOT / "labs" / "START.md").read_text()
    return {file: (name, time, needs) for name, file, _, time, needs in ROW.findall(page)}


def test_the_page_lists_exactly_all_labs_in_order() -> None:
    assert list(rows()) == [lab.name for lab in LABS] != []


@pytest.mark.parametrize("lab", [pytest.param(lab, id=lab.stem) for lab in LABS])
def test_the_page_says_what_the_lab_says(lab: Path) -> None:
    first = nbformat.read(lab, as_version=4).cells[0].source
    title = re.search(r"^# Lab (.+)$", first, re.MULTILINE)
    header = dict(re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", first, re.MULTILINE))
    assert title and {"Time", "You need"} <= set(header), "a lab's first cell has these rows"
    needs = LINK.sub(r"\1", header["You need"])
    assert rows()[lab.name] == (title[1].replace(":", "", 1), header["Time"], needs)


@pytest.mark.parametrize("lab", [pytest.param(lab, id=lab.stem) for lab in LABS])
def test_a_lab_takes_as_long_as_its_exercises(lab: Path) -> None:
    cells = nbformat.read(lab, as_version=4).cells
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    time = re.search(r"^\| \*\*Time\*\* \| (\d+) minutes(: .+)? \|$", text, re.MULTILINE)
    minutes = re.findall(r"^\*Difficulty \d/5, (\d+) minutes\.\*$", text, re.MULTILINE)
    assert time and minutes
    total, parts = int(time[1]), time[2] or f": {time[1]} for exercises"
    found = re.fullmatch(
        r": (\d+) for exercises(?:, (\d+) for reading, (\d+) for the library)?", parts
    )
    assert found
    assert int(found[1]) == sum(map(int, minutes))
    assert total == sum(int(part or 0) for part in found.groups())
