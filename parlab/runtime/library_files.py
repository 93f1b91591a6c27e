"""Distinguishes files of Python and installed packages from the learner's own files."""

import re
from pathlib import Path

_PARLAB = str(Path(__file__).parents[1])
# Recognize them by their paths, not by this Python's settings, because ranks may be on other nodes.
_INSTALLED = re.compile(r"^<frozen |/(site|dist)-packages/|/lib(64)?/python3[.\d]*/")


def is_library(file: str) -> bool:
    """Return True if this file belongs to Python, an installed package, or parlab."""
    return bool(_INSTALLED.search(file)) or file.startswith(_PARLAB)
