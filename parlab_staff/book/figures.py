"""Plotly figures in the book's pages: their data only, drawn by the book's own plotly.js."""

import html
import json
from collections.abc import Sequence
from typing import ClassVar

from docutils import nodes
from myst_nb.core.render import MimeData, MimeRenderPlugin, NbElementRenderer

from parlab.plots.interactive import MIME
from parlab_staff.book import alternatives

FIGURE_CLASS = "plotly-figure"


class PlotlyRenderer(MimeRenderPlugin):
    """Renders the outputs of `parlab.plots.show` for MyST-NB (an entry point of the package)."""

    mime_priority_overrides: ClassVar[Sequence[tuple[str, str, int | None]]] = [("*", MIME, 1)]

    @staticmethod
    def handle_mime(
        renderer: NbElementRenderer, data: MimeData, inline: bool
    ) -> list[nodes.Element] | None:
        if inline or data.mime_type != MIME:
            return None
        figure = data.content if isinstance(data.content, dict) else json.loads(data.content)
        return [nodes.raw("", figure_html(figure), format="html")]


def figure_html(figure: dict) -> str:
    """Return the HTML of a figure: its title as text, which wraps on a phone, and its data.

    `figure` is Plotly's JSON: `data`, `layout` and `config`.
    """
    layout = dict(figure["layout"])
    title = html.escape(layout.pop("title", {}).get("text", "").replace("<br>", " "), quote=True)
    description = html.escape(alternatives.of_plotly(figure), quote=True)
    slim = {"data": figure["data"], "layout": layout, "config": figure.get("config", {})}
    # "</script>" in a string must not end the element that holds the data.
    text = json.dumps(slim, separators=(",", ":"), sort_keys=True).replace("</", "<\\/")
    return (
        f'<figure class="{FIGURE_CLASS}">'
        f"<figcaption>{title}</figcaption>"
        f'<div class="plotly-canvas" role="img" aria-label="{description}"></div>'
        f'<script type="application/json">{text}</script>'
        "</figure>"
    )
