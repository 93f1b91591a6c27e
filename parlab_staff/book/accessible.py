"""Corrects the HTML of Sphinx, MyST-NB, and the theme, for screen readers and for line breaks."""

import re
from collections.abc import Callable
from typing import Any

from sphinx.application import Sphinx

CORRECTIONS = [
    # The text of a folded cell is its name: "Show the code".
    (re.compile(r'<summary aria-label="Toggle hidden content">'), "<summary>"),
    # Markdown writes an empty header cell if a column has no title.
    (re.compile(r'<th class="head">(\s*(?:<p>\s*</p>)?\s*)</th>'), r"<td>\1</td>"),
    (re.compile(r"<th>\s*</th>"), "<td></td>"),  # as pandas writes it
    # Roles that are deprecated, or that require other elements inside.
    (re.compile(r' role="(?:doc-biblioentry|list)"'), ""),
    # No line may begin with the comma or the period after a formula.
    (
        re.compile(r'(<span class="math notranslate nohighlight">[^<]*</span>[^\s<]+)'),
        r'<span class="with-formula">\1</span>',
    ),
]
_FOLDED_PART = re.compile(r"(>([^<>]+)</a><details[^>]*><summary)>")


def correct_page(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: object
) -> None:
    """Correct a page's HTML, and name the folded parts of the sidebar."""
    for wrong, right in CORRECTIONS:
        context["body"] = wrong.sub(right, context.get("body", ""))
    if made := context.get("generate_toctree_html"):
        context["generate_toctree_html"] = _with_names(made)


def _with_names(made: Callable[..., Any]) -> Callable[..., Any]:
    def named(**kwargs: Any) -> Any:  # called as the theme calls it, so that its cache is used
        found = made(**kwargs)
        if kwargs["kind"] != "sidebar":
            return found
        return _FOLDED_PART.sub(r'\1 aria-label="Pages of: \2">', str(found))

    return named
