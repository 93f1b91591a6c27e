"""Removes the escape sequences that programs write to control a terminal."""

import re

# In this order: titles and links; colors and cursor movements; short sequences; a single escape.
_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[ -/]*[0-~]|\x1b"
)


def without_escapes(text: str) -> str:
    """Return `text` without ANSI escape sequences: colors, cursor movements, titles, links."""
    return _ESCAPES.sub("", text)
