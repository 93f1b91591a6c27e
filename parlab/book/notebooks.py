"""Labs and solutions as pages: one title, a word to the reader, rank cells in colour."""

import re
from typing import Any

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
:::"""
_HEADING = re.compile(r"(#+) ")
_FENCE = re.compile(r"\s*(```|~~~|:::)")


def lab_page(notebook: dict[str, Any], page: str) -> dict[str, Any]:
    """The notebook of a lab as the book's page; `page` is its file's name without suffix."""
    return _page(notebook, _BEFORE_LAB.format(page=page))


def solutions_page(notebook: dict[str, Any], page: str) -> dict[str, Any]:
    """The notebook of solutions as the book's page: code folded, the grader's cells left out."""
    made = _page(notebook, _BEFORE_SOLUTIONS.format(page=page), "Solutions of ")
    # On the pages of book/ a folded cell is one that draws a figure: another prompt.
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
    cells, seen = [], 0
    for cell in notebook["cells"]:
        if cell["cell_type"] == "markdown":
            text, seen = _one_title("".join(cell["source"]), seen, before_title, word)
            cell = cell | {"source": text}
        cells.append(cell)
    language = notebook["metadata"].get("language_info", {}) | {"pygments_lexer": LEXER}
    metadata = notebook["metadata"] | {"language_info": language}
    return notebook | {"cells": cells, "metadata": metadata}


def _one_title(text: str, seen: int, before_title: str, word: str) -> tuple[str, int]:
    """The text with `word` under the notebook's first heading and all others one level lower.

    A notebook may have several headings of the first level, a page of the book has one: the theme
    makes the sidebar and the page's contents from it. `seen` counts the headings before this
    text; the count after it is returned too.
    """
    lines, fenced = [], False
    for line in text.splitlines():
        if _FENCE.match(line):
            fenced = not fenced
        heading = None if fenced else _HEADING.match(line)
        if heading and seen == 0:
            lines += [f"# {before_title}{line[heading.end() :]}", "", word]
        elif heading:
            lines.append(f"#{line}")
        else:
            lines.append(line)
        seen += heading is not None
    return "\n".join(lines), seen
