"""Makes students' text harmless, and keeps it readable."""

from parlab.runtime.ansi import without_escapes

# The number of characters of a message that a report shows.
SHOWN = 8_000

# Characters that are escaped as in Python: control characters, characters that XML does not allow,
# and characters that change the direction of text.
_ESCAPED = {
    code: f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"
    for code in (
        *(code for code in range(32) if chr(code) not in "\n\t"),
        *range(0x7F, 0xA0),
        *range(0x202A, 0x202F),
        *range(0x2066, 0x206A),
        *(0xFFFE, 0xFFFF),
    )
}


def plain(text: str) -> str:
    """Return `text` without terminal sequences and control characters, valid in UTF-8 and XML."""
    text = text.encode("utf-8", "backslashreplace").decode()  # lone surrogates
    text = without_escapes(text).replace("\r\n", "\n").replace("\r", "\n")
    return text.translate(_ESCAPED)


def one_line(text: str) -> str:
    """Do what `plain` does, and escape line ends and tabs, too."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")


def shown(text: str, limit: int = SHOWN) -> str:
    """Do what `plain` does, and cut the text after `limit` characters."""
    text = plain(text).strip("\n")
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n… {len(text) - limit:,} more characters are not shown"


def first_line(text: str, limit: int = 200) -> str:
    """Return the first line that is not blank, cut after `limit` characters; "" if none."""
    line = next((line for line in plain(text).splitlines() if line.strip()), "").strip()
    return line if len(line) <= limit else f"{line[:limit]}…"
