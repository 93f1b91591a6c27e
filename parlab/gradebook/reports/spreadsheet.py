"""Cells of a spreadsheet: text stays text, and is never a formula."""

import re

from parlab.gradebook.reports.text import one_line

_FORMULA = re.compile(r"\s*[=+\-@\t\r＝＋－＠]")
# Where `;` parts cells, as in many countries, a formula could start in the middle of ours.
_SECOND_FORMULA = re.compile(r"(;\s*)(?=[=+\-@＝＋－＠])")


def cell(text: str) -> str:
    """`text` on one line, with a quote before it where a spreadsheet would take it for a formula.

    See OWASP, "CSV Injection".
    """
    quote = "'" if _FORMULA.match(text) else ""
    return quote + _SECOND_FORMULA.sub(r"\1'", one_line(text))
