"""Labs and solutions as pages: one title, a note to the reader, rank cells in color."""

import html
import re
from typing import Any

from parlab_staff.book import alternatives
from parlab_staff.book.site import Site
from parlab_staff.play.pages import page_names

# The name under which extension.py registers RankCellLexer.
LEXER = "ipython-ranks"

_BEFORE_SOLUTIONS = """\
:::{{admonition}} This page holds the solutions
:class: warning
Do the [lab](../labs/{page}.ipynb) first: a check tells you what is wrong, a solution only what is
right. Each solution is folded; what it prints when it runs on ranks is shown under it.
:::"""
_BEFORE_LAB = """\
:::{{tip}}
Read it here, and work in JupyterLab: `make lab` opens this notebook with everything it needs.
The [chapter](../book/{page}.md) explains what you build.
:::

<p class="launch">{buttons}</p>"""
# The download is the lab's own notebook; see `_offer_original_notebooks`.
_DOWNLOAD = (
    '<a class="{kind}" href="../_sources/labs/{page}.ipynb" download>Download the notebook</a>'
)
_OPEN = '<a class="{kind}" href="{address}">Open in {service}</a>'
_FIRST, _OTHER = "sd-btn sd-btn-primary", "sd-btn sd-btn-outline-primary"
_HEADING = re.compile(r"(#+) ")
_FENCE = re.compile(r"\s*(```|~~~|:::)")


def lab_page(notebook: dict[str, Any], page: str, site: Site) -> dict[str, Any]:
    """Return a lab's notebook as a page of the book; `page` is its file's name without suffix."""
    made = _page(notebook, _BEFORE_LAB.format(page=page, buttons=_launch_buttons(page, site)))
    names = page_names()
    made["cells"] = [one for cell in made["cells"] for one in _with_link(cell, names)]
    return made


def _with_link(cell: dict[str, Any], names: list[str]) -> list[dict[str, Any]]:
    """Return the cell, after a link to the page of its exercise if there is one."""
    key = cell["metadata"].get("exercise")
    if key not in names or "exercise" not in cell["metadata"].get("tags", []):
        return [cell]
    text = f"{{play}}`{key}` if you want to do this exercise in your browser."
    link = {"cell_type": "markdown", "id": f"play-{key}", "metadata": {}, "source": text}
    return [link, cell]


def _launch_buttons(page: str, site: Site) -> str:
    """Return buttons that open a lab elsewhere, and one that downloads it."""
    opening = [
        _OPEN.format(kind=_FIRST, address=html.escape(address), service=service)
        for service, address in site.launchers(page).items()
    ]
    kind = _OTHER if opening else _FIRST
    return " ".join([*opening, _DOWNLOAD.format(kind=kind, page=page)])


def solutions_page(notebook: dict[str, Any], page: str) -> dict[str, Any]:
    """Return the solutions as a page of the book: code folded, without the grader's cells."""
    made = _page(notebook, _BEFORE_SOLUTIONS.format(page=page), "Solutions of ")
    # On the pages of book/, a folded cell draws a figure and has another prompt.
    made["metadata"]["mystnb"] = {
        "code_prompt_show": "Show the reference solution",
        "code_prompt_hide": "Hide the reference solution",
    }
    for cell in made["cells"]:
        tags = cell["metadata"].get("tags", [])
        if "hidden-check" in tags:  # values for the grader, as JSON
            cell["metadata"]["tags"] = [*tags, "remove-cell"]
    return made


def _page(notebook: dict[str, Any], word: str, before_title: str = "") -> dict[str, Any]:
    cells, headings = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text, headings = _one_title("".join(cell["source"]), headings, before_title, word)
            cell = cell | {"source": text}
        cells.append(_described(cell))
    language = notebook["metadata"].get("language_info", {}) | {"pygments_lexer": LEXER}
    metadata = notebook["metadata"] | {"language_info": language}
    return notebook | {"cells": cells, "metadata": metadata}


def _described(cell: dict[str, Any]) -> dict[str, Any]:
    """Return the cell. If it shows a figure without a description, add a description."""
    drawn = [
        "".join(output["data"]["image/svg+xml"])
        for output in cell.get("outputs", [])
        if "image/svg+xml" in output.get("data", {})
    ]
    if not drawn:
        return cell
    image = {"image": {"alt": " ".join(map(alternatives.of_svg, drawn))}}
    return cell | {"metadata": {"mystnb": image} | cell["metadata"]}


def _one_title(text: str, headings: int, before_title: str, word: str) -> tuple[str, int]:
    """Return the text with `word` below the notebook's first heading, and the count of headings.

    All other headings are one level lower. A notebook may have several headings of the first level,
    but a page of the book has only one, from which the theme makes the sidebar and the page's
    contents. `headings` counts the headings before this text.
    """
    lines, fenced = [], False
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        heading = None if fenced else _HEADING.match(line)
        if heading and headings == 0:
            lines += [f"# {before_title}{line[heading.end() :]}", "", word]
        elif heading:
            lines.append(f"#{line}")
        else:
            lines.append(line)
        headings += heading is not None
    return "\n".join(lines), headings
