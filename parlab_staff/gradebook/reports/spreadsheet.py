"""Cells of a spreadsheet, in which text is never a formula."""

import re

from parlab_staff.gradebook.reports.text import one_line

_FORMULA = re.compile(r"\s*[=+\-@\t\r＝＋－＠]")
# In many countries `;` separates cells, so a formula could start in the middle of a cell.
_SECOND_FORMULA = re.compile(r"(;\s*)(?=[=+\-@＝＋－＠])")


def cell(text: str) -> str:
    """Return `text` on one line, after a quote if a spreadsheet would read it as a formula.

    See OWASP, "CSV Injection".
    """
    quote = "'" if _FORMULA.match(text) else ""
    return quote + _SECOND_FORMULA.sub(r"\1'", one_line(text))
