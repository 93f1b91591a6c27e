"""Replaces `IPython.display` for cells that run without IPython, and stores what they display."""

import sys
from types import ModuleType
from typing import Any

shown: list[Any] = []  # the JSON values that the current cell has displayed


class JSON:
    def __init__(self, data: Any) -> None:
        self.data = data


def display(*shown_objects: Any, **_: Any) -> None:
    shown.extend(one.data for one in shown_objects if isinstance(one, JSON))


def install() -> None:
    """Replace IPython's module: it may not be installed, and pictures are not needed here."""
    package, module = ModuleType("IPython"), ModuleType("IPython.display")
    package.__dict__.update(
        __path__=[],
        __version__="9.0.0",
        version_info=(9, 0, 0),
        display=module,
        get_ipython=lambda: None,
    )
    others = {name: _Ignored for name in ("HTML", "SVG", "Markdown", "Image")}
    module.__dict__.update(JSON=JSON, display=display, **others)
    sys.modules |= {"IPython": package, "IPython.display": module}


class _Ignored:
    def __init__(self, *_: Any, **__: Any) -> None:
        pass
