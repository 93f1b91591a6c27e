"""What a program writes for a terminal, and not for its reader."""

import re

# Titles and links; colours and the cursor; the short sequences; an escape that starts none.
_ESCAPES = re.compile(
    r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b[@-Z\\^_]|\x1b"
)


def without_escapes(text: str) -> str:
    """`text` without ANSI escape sequences: colours, movements of the cursor, titles, links."""
    return _ESCAPES.sub("", text)
