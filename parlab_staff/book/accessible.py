"""Corrects what Sphinx, MyST-NB, and the theme write: for screen readers, and where lines break."""

import re
from collections.abc import Callable
from typing import Any

from sphinx.application import Sphinx

CORRECTIONS = [
    # The text of a folded cell is its name: "Show the code".
    (re.compile(r'<summary aria-label="Toggle hidden content">'), "<summary>"),
    # Markdown makes an empty head where a table has no words.
    (re.compile(r'<th class="head">(\s*(?:<p>\s*</p>)?\s*)</th>'), r"<td>\1</td>"),
    (re.compile(r"<th>\s*</th>"), "<td></td>"),  # as pandas writes it
    # Roles that are out of use, or need other elements in them.
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
    """Correct a page's text, and give the sidebar's folded parts names."""
    for wrong, right in CORRECTIONS:
        context["body"] = wrong.sub(right, context.get("body", ""))
    if made := context.get("generate_toctree_html"):
        context["generate_toctree_html"] = _with_names(made)


def _with_names(made: Callable[..., Any]) -> Callable[..., Any]:
    def named(**kwargs: Any) -> Any:  # as the theme's templates call it, so that its cache is used
        found = made(**kwargs)
        if kwargs["kind"] != "sidebar":
            return found
        return _FOLDED_PART.sub(r'\1 aria-label="Pages of: \2">', str(found))

    return named
