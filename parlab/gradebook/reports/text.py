"""Text of students, made harmless: what it says stays readable, what it could do is gone."""

from parlab.terminal import without_escapes

# How much of one message a report shows, in characters.
SHOWN = 8_000

# Written as Python would write them: control characters, what XML does not allow, and what turns
# the direction of the text behind it, so that it reads as something else.
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
    """`text` without terminal sequences and control characters; legal in UTF-8 and in XML."""
    text = text.encode("utf-8", "backslashreplace").decode()  # lone surrogates
    text = without_escapes(text).replace("\r\n", "\n").replace("\r", "\n")
    return text.translate(_ESCAPED)


def one_line(text: str) -> str:
    """As `plain`, with line ends and tabs escaped too."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")


def shown(text: str, limit: int = SHOWN) -> str:
    """As `plain`, without blank lines around it, cut after `limit` characters with their count."""
    text = plain(text).strip("\n")
    if len(text) <= limit:
        return text
    return f"{text[:limit]}\n… {len(text) - limit:,} more characters are not shown"


def first_line(text: str, limit: int = 200) -> str:
    """The first line that is not blank, cut after `limit` characters; "" where there is none."""
    line = next((line for line in plain(text).splitlines() if line.strip()), "").strip()
    return line if len(line) <= limit else f"{line[:limit]}…"
