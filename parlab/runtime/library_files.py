"""Which files are of Python and of installed packages; all others are the learner's."""

import re
from pathlib import Path

_PARLAB = str(Path(__file__).parents[1])
# By their paths and not by this Python's settings: ranks may run on another node.
_INSTALLED = re.compile(r"^<frozen |/(site|dist)-packages/|/lib(64)?/python3[.\d]*/")


def is_library(file: str) -> bool:
    """Return whether code of this file belongs to Python, an installed package, or parlab."""
    return bool(_INSTALLED.search(file)) or file.startswith(_PARLAB)
