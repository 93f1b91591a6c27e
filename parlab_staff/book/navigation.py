"""The way through the book: from a chapter to its lab to the next chapter."""

from typing import Any

from sphinx.application import Sphinx

PAGES = {"book": "Chapter", "labs": "Lab", "solutions": "Solutions"}


def leave_solutions_out(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Make "next" lead from a lab to the next chapter, and "previous" back to the lab.

    The page of solutions keeps its own two links.
    """
    relations = app.builder.relations  # parent, previous, and next page of each page
    for key, position in (("prev", 1), ("next", 2)):
        page = relations.get(pagename, [None] * 3)[position]
        if page and page.startswith("solutions/"):
            beyond = relations[page][position]
            context[key] = beyond and {
                "link": context["pathto"](beyond),
                "title": app.builder.render_partial(app.env.titles[beyond])["title"],
            }


def link_pages_of_chapter(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Pass this chapter's pages to `chapter-pages.html`: title, address, and if it is current."""
    folder, _, name = pagename.partition("/")
    found = [(f"{of}/{name}", title) for of, title in PAGES.items()]
    found = [(page, title) for page, title in found if page in app.env.found_docs]
    if folder in PAGES and len(found) > 1:
        context["chapter_pages"] = [
            (title, context["pathto"](page), page == pagename) for page, title in found
        ]
