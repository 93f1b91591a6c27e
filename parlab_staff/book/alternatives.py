"""What figures show, in words, for readers who do not see them.

A chapter gives its own figures better texts (`mystnb: image: alt:`). These texts are for those
of labs, and for Plotly's figures.
"""

import re
from collections.abc import Iterable
from typing import Any
from xml.etree import ElementTree

_KINDS = {"bar": "Bars", "scatter": "Curves", "heatmap": "Fields", "histogram": "Bars"}
_LABELS = 12  # more labels, such as one for each message, say little


def of_svg(svg: str) -> str:
    """Describe a figure that matplotlib wrote: it keeps each text of the figure as a comment."""
    parser = ElementTree.XMLParser(target=ElementTree.TreeBuilder(insert_comments=True))
    texts: dict[str, list[str]] = {"title": [], "x": [], "y": [], "legend": [], "label": []}
    for group, text in _texts(ElementTree.fromstring(svg, parser), ""):
        texts[group].append(_plain(text))
    return _sentences(
        [
            *texts["title"],
            _named("Horizontal axis", texts["x"]),
            _named("Vertical axis", texts["y"]),
            _named("Legend", texts["legend"]),
            _named("In the figure", texts["label"]),
        ]
    )


def of_plotly(figure: dict[str, Any]) -> str:
    """Describe a Plotly figure: its message, its axes, what is drawn, and its sliders."""
    layout, data = figure["layout"], figure["data"]
    kind = next(
        (_KINDS[of] for trace in data if (of := trace.get("type", "scatter")) in _KINDS), ""
    )
    axes = [layout.get(f"{name}axis", {}).get("title", {}).get("text", "") for name in "xy"]
    sliders = [
        slider.get("currentvalue", {}).get("prefix", "") for slider in layout.get("sliders", [])
    ]
    return _sentences(
        [
            layout.get("title", {}).get("text", ""),
            _named("Horizontal axis", axes[:1]),
            _named("Vertical axis", axes[1:]),
            _named(kind or "Drawn", (trace.get("name", "") for trace in data)),
            _named(
                "Sliders" if len(sliders) > 1 else "Slider", (text.rstrip(": ") for text in sliders)
            ),
        ]
    )


def _texts(element: ElementTree.Element, path: str) -> Iterable[tuple[str, str]]:
    """Yield the texts below an element of an SVG file, each with what it is in the figure."""
    path += f"/{element.get('id', '')}"
    for child in element:
        if child.tag is ElementTree.Comment:
            if "tick" not in path:
                yield _group(path), child.text or ""
        else:
            yield from _texts(child, path)


def _group(path: str) -> str:
    if "/legend" in path:
        return "legend"
    if axis := re.search(r"/matplotlib\.axis_(\d+)", path):
        return "x" if int(axis[1]) % 2 else "y"
    return "label" if "/axes_" in path else "title"


def _named(name: str, texts: Iterable[str]) -> str:
    different = [text for text in dict.fromkeys(map(_plain, texts)) if text]
    if not different:
        return ""
    more = "" if len(different) <= _LABELS else ", and more"
    return f"{name}: {', '.join(different[:_LABELS])}{more}"


def _plain(text: str) -> str:
    """Return a text without markup: HTML's as Plotly has it, or TeX's as matplotlib has it."""
    text = re.sub(r"<[^>]*>", " ", text)
    text = re.sub(r"\\mathdefault|\\mathrm|[${}]", "", text)
    return " ".join(text.split())


def _sentences(texts: Iterable[str]) -> str:
    return " ".join(f"{text.rstrip('.')}." for text in map(_plain, texts) if text)
