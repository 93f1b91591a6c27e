"""Links from the book to the playground."""

import io
import json
import re
from pathlib import Path

import pytest
from sphinx.application import Sphinx

from parlab.runtime.paths import ROOT
from parlab_staff.book.extension import PlayRole
from parlab_staff.book.notebooks import lab_page
from parlab_staff.book.site import Site
from parlab_staff.play.pages import LABS, page_names


def built(root: Path, text: str) -> tuple[str, str]:
    """Build a page in a folder of a small book. Return its HTML, and the warnings."""
    (root / "book").mkdir()
    (root / "book" / "page.md").write_text(text, encoding="utf-8")
    warnings = io.StringIO()
    app = Sphinx(
        root, None, root / "out", root / "trees", "html",
        {"extensions": "myst_parser", "root_doc": "book/page"}, io.StringIO(), warnings,
    )  # fmt: skip
    app.add_role("play", PlayRole(), override=True)
    app.build()
    return (root / "out" / "book" / "page.html").read_text(encoding="utf-8"), warnings.getvalue()


def test_a_link_leads_to_a_page_of_the_playground(tmp_path: Path) -> None:
    page, warnings = built(tmp_path, "# Title\n\n{play}`deadlock`\n")
    assert 'href="../play/deadlock.html">Run it here</a>' in page
    assert page.count("play/") == 1, "nothing else of the playground is on the page"
    assert warnings == ""


def test_a_link_to_no_page_is_a_warning_with_all_names(tmp_path: Path) -> None:
    _, warnings = built(tmp_path, "# Title\n\n{play}`dead_lock`\n")
    assert "page.md:3: WARNING: the playground has no page 'dead_lock'; it has:" in warnings
    assert all(name in warnings for name in page_names())


@pytest.mark.parametrize("lab", LABS)
def test_each_exercise_has_a_link_on_the_page_of_the_lab_but_not_in_the_notebook(lab: str) -> None:
    notebook = json.loads((ROOT / "labs" / f"{lab}.ipynb").read_text(encoding="utf-8"))
    cells = notebook["cells"]
    exercises = [cell for cell in cells if "exercise" in cell["metadata"].get("tags", [])]
    page = json.dumps(lab_page(notebook, lab, Site()))
    linked = re.findall(r"{play}`(\w+)`", page)
    keys = [cell["metadata"]["exercise"] for cell in exercises]
    assert linked == [key for key in keys if key in page_names()]
    assert linked == (keys if LABS[lab] is None else list(LABS[lab]))
    assert "{play}" not in json.dumps(notebook)
