"""Describes figures in words, for readers who do not see them.

Chapters set better texts for their own figures (`mystnb: image: alt:`). These texts are for the
figures of labs, and for Plotly's figures.
"""

import re
from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

_KINDS = {"bar": "Bars", "scatter": "Curves", "heatmap": "Colored cells", "histogram": "Bars"}
_LABELS = 12  # more labels, such as one for each message, say little


def of_svg(svg: str) -> str:
    """Describe a figure that matplotlib wrote. It writes each text of the figure as a comment."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    groups = ("title", "x", "x ticks", "y", "y ticks", "legend", "label")
    texts: dict[str, list[str]] = {group: [] for group in groups}
    for group, text in _texts(ElementTree.fromstring(svg, parser), ""):
        texts[group].append(_plain(text))
    return _sentences(
        [
            *texts["title"],
            _named("Horizontal axis", texts["x"] or _words(texts["x ticks"])),
            _named("Vertical axis", texts["y"] or _words(texts["y ticks"])),
            _named("Legend", texts["legend"]),
            _named("In the figure", texts["label"]),
        ]
    )


def of_plotly(figure: dict[str, Any]) -> str:
    """Describe a Plotly figure: its title, its axes, what is drawn, and its sliders.

    If it has sliders, describe the figure with the sliders at their start positions.
    """
    layout = figure["layout"]
    data = [
        trace
        for trace in figure["data"]
        if trace.get("visible") is not False and trace.get("opacity") != 0
    ]
    kind = next(
        (_KINDS[of] for trace in data if (of := trace.get("type", "scatter")) in _KINDS), ""
    )
    x, y = (_axis(layout.get(f"{name}axis", {}), data, name) for name in "xy")
    sliders = [
        slider.get("currentvalue", {}).get("prefix", "").rstrip(":= ")
        for slider in layout.get("sliders", [])
    ]
    return _sentences(
        [
            layout.get("title", {}).get("text", ""),
            _named("Horizontal axis", x),
            _named("Vertical axis", y),
            _named(kind or "Drawn", (trace.get("name", "") for trace in data)),
            _named("Sliders" if len(sliders) > 1 else "Slider", sliders),
        ]
    )


def _axis(axis: dict[str, Any], data: list[dict[str, Any]], name: str) -> list[str]:
    """Return the title of an axis. If it has none, return the texts along it."""
    if title := axis.get("title", {}).get("text", ""):
        return [title]
    along = axis.get("ticktext") or [text for trace in data for text in trace.get(name) or []]
    return _words([text for text in along if isinstance(text, str)])


def _words(texts: list[str]) -> list[str]:
    """Return the texts that contain a letter, and so are not only numbers."""
    return [text for text in texts if re.search(r"[^\W\d_]", text)]


def _texts(element: ElementTree.Element, path: str) -> Iterable[tuple[str, str]]:
    """Yield each text below an element of an SVG file, after its group, such as `legend`."""
    path += f"/{element.get('id', '')}"
    for child in element:
        if child.tag is ElementTree.Comment:
            yield _group(path), child.text or ""
        else:
            yield from _texts(child, path)


def _group(path: str) -> str:
    if "/legend" in path:
        return "legend"
    if axis := re.search(r"/matplotlib\.axis_(\d+)", path):
        return ("x" if int(axis[1]) % 2 else "y") + (" ticks" if "tick" in path else "")
    return "label" if "/axes_" in path else "title"


def _named(name: str, texts: Iterable[str]) -> str:
    """Return a list with semicolons, because a text such as "ring, no overlap" has commas."""
    different = [text for text in dict.fromkeys(map(_plain, texts)) if text]
    if not different:
        return ""
    more = "" if len(different) <= _LABELS else "; and more"
    return f"{name}: {'; '.join(different[:_LABELS])}{more}"


def _plain(text: str) -> str:
    """Return a text without markup: Plotly's HTML, or matplotlib's TeX."""
    text = re.sub(r"-<br>(?=[a-z])", "", text)  # a hyphenated word
    text = re.sub(r"<[^>]*>", " ", text)
    text = re.sub(r"\\mathdefault|\\mathrm|[${}]", "", text)
    return " ".join(text.split())


def _sentences(texts: Iterable[str]) -> str:
    return " ".join(f"{text.rstrip('.')}." for text in map(_plain, texts) if text)
