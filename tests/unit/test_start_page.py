"""JupyterLab's start page lists all labs, with the same facts as the labs themselves."""

import re
from pathlib import Path

import nbformat
import pytest

from parlab.runtime.paths import ROOT, numbered
from parlab_staff.book.lab_minutes import lab_minutes

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
    time = re.search(r"^\| \*\*Time\*\* \| (\d+) minutes(.+) \|$", text, re.MULTILINE)
    minutes = re.findall(r"^\*Difficulty \d/5, (\d+) minutes\.\*$", text, re.MULTILINE)
    assert time and minutes
    parts = r": (\d+) for exercises, (\d+) for reading, (\d+) for the library"
    found = re.fullmatch(parts, time[2])
    assert found
    assert int(found[1]) == sum(map(int, minutes))
    assert int(time[1]) == sum(map(int, found.groups()))


def test_the_books_map_shows_the_minutes_of_the_page() -> None:
    stated = {file.removesuffix(".ipynb"): time for file, (_, time, _) in rows().items()}
    minutes = lab_minutes()
    assert list(minutes) == list(stated)
    assert all(stated[lab].startswith(f"{of} minutes") for lab, of in minutes.items())
    index = (ROOT / "book" / "index.md").read_text()
    assert all(f"Lab: {{glue:text}}`lab_{lab[:2]}` minutes" in index for lab in minutes)


def test_a_lab_without_its_time_is_named(tmp_path: Path) -> None:
    cell = nbformat.v4.new_markdown_cell("# Lab 01: Walking")
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), tmp_path / "01_walk.ipynb")
    with pytest.raises(ValueError, match=r"01_walk\.ipynb: write"):
        lab_minutes(tmp_path)
