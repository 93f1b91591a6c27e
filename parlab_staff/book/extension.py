"""Sphinx extension: the book contains all scripts, and each page loads only those it needs."""

import itertools
import shutil
from functools import partialmethod
from importlib.resources import files
from pathlib import Path
from typing import Any

from docutils import nodes
from nbclient import NotebookClient
from plotly.offline import get_plotlyjs
from pybtex.backends.plaintext import Backend
from pybtex.plugin import register_plugin
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxRole

from parlab_staff.book.accessible import correct_page
from parlab_staff.book.figures import FIGURE_CLASS
from parlab_staff.book.lexer import RankCellLexer
from parlab_staff.book.navigation import leave_solutions_out, link_pages_of_chapter
from parlab_staff.book.notebooks import LEXER
from parlab_staff.play.pages import page_names

# SVG output draws its glyphs from this one file: no web fonts, which some browsers refuse to load
# from a folder on disk. "full" holds all TeX extensions, so that none is fetched later.
MATHJAX = "mathjax/tex-svg-full.js"
PLOTLY = "plotly.min.js"


class PlayRole(SphinxRole):
    """{play}`name`: a link to a page of the playground, which is written after the book."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        if self.text not in page_names():
            known = ", ".join(page_names())
            text = f"the playground has no page {self.text!r}; it has: {known}"
            return [], [self.inliner.reporter.warning(text, line=self.lineno)]
        address = "../" * self.env.docname.count("/") + f"play/{self.text}.html"
        return [nodes.reference("", "Run it here", refuri=address, classes=["run-here"])], []


def _write_scripts(app: Sphinx) -> None:
    static = Path(app.outdir) / "_static"
    (static / MATHJAX).parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(str(files("sphinx-mathjax-offline") / "static" / MATHJAX), static / MATHJAX)
    (static / PLOTLY).write_text(get_plotlyjs(), encoding="utf-8")


def _load_plotly(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    if f'class="{FIGURE_CLASS}"' in context.get("body", ""):
        app.builder.add_js_file(PLOTLY, defer="defer")
        app.builder.add_js_file("figures.js", defer="defer")


def _lead_to_the_file_that_people_edit(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Point the source and edit buttons of labs and solutions to `solutions/NN_topic.py`.

    The pages' own files are notebooks, which are derived from this source.
    """
    folder, _, name = pagename.partition("/")
    if folder not in ("labs", "solutions"):
        return
    groups = (group.get("buttons", []) for group in context["header_buttons"])
    for button in itertools.chain(*groups):
        if button.get("label") in ("source-file-button", "source-edit-button"):
            button["url"] = button["url"].replace(f"{pagename}.ipynb", f"solutions/{name}.py")


def kill_kernels() -> None:
    """Make this process kill the kernels of pages, which would take up to two seconds to end."""
    killing = partialmethod(NotebookClient.__init__, shutdown_kernel="immediate")
    NotebookClient.__init__ = killing  # type: ignore[method-assign,assignment]


def setup(app: Sphinx) -> dict[str, bool]:
    """Set up the extension. Sphinx calls this for each extension named in `_config.yml`."""
    # Otherwise, each citation searches all installed packages for this plugin.
    register_plugin("pybtex.backends", "plaintext", Backend, force=True)
    app.add_lexer(LEXER, RankCellLexer)
    app.add_role("play", PlayRole())
    app.connect("builder-inited", _write_scripts)
    app.connect("html-page-context", _load_plotly)
    app.connect("html-page-context", link_pages_of_chapter)
    app.connect("html-page-context", leave_solutions_out)
    # These change what the theme adds with priorities 500 and 501.
    app.connect("html-page-context", correct_page, priority=502)
    app.connect("html-page-context", _lead_to_the_file_that_people_edit, priority=502)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
