"""Compares what a cell displayed and printed with what the executed notebook stores."""

import json
import re
from itertools import zip_longest
from typing import Any

from parlab.runtime.notebook import Cell
from parlab_staff.gpu_check.cells import stored_lines, stored_values
from parlab_staff.gpu_check.outcome import STATUSES, worst

_NUMBER = re.compile(r"\d[\d,.]*(e[-+]?\d+)?")


def judge(cell: Cell, reports: list[dict[str, Any]], stored_ranks: int) -> dict[str, Any]:
    """Return the status of a cell that has ended on all ranks, and the reason for it.

    Args:
        stored_ranks: the number of ranks whose outputs the executed notebook stores.
    """
    ran = [(rank, one) for rank, one in enumerate(reports) if one["status"] != "idle"]
    statuses = {one["status"] for _, one in ran}
    # If any rank skipped a part of the cell, the cell did not pass.
    status = "skipped" if statuses == {"passed", "skipped"} else worst(statuses)
    if status != "passed":
        rank, first = next((r, one) for r, one in ran if one["status"] == status)
        return {"status": status, "why": f"rank {rank}: {first['why']}"}
    if len(reports) != stored_ranks:
        return {
            "status": "passed",
            "why": f"outputs not compared: stored ones are of {stored_ranks} ranks",
        }
    if found := differing_values(cell, reports):
        return {"status": "failed", "why": found}
    status, found = differing_text(cell, reports)
    return {"status": status, "why": found}


def differing_values(cell: Cell, reports: list[dict[str, Any]]) -> str:
    """Describe how displayed values differ from stored ones; "" if equal, or if none are stored."""
    stored = stored_values(cell)
    # Ranks that do not run the cell report no values.
    got = next((value for report in reports for value in report.get("values") or []), None)
    if stored is None or got == stored:
        return ""
    if not isinstance(got, dict) or got.keys() != stored.keys():
        return f"shows {_short(got)}, stored is {_short(stored)}"
    name = next(name for name, value in stored.items() if got[name] != value)
    for rank, (one, right) in enumerate(zip(got[name], stored[name], strict=True)):
        if one != right:
            return f"{name} of rank {rank} is {_short(one)}, stored is {_short(right)}"
    return f"{name} is {_short(got[name])}"


def differing_text(cell: Cell, reports: list[dict[str, Any]]) -> tuple[str, str]:
    """Compare the printed lines with the stored ones. Return the worst status and its reason."""
    found = [("passed", "")]
    stored = stored_lines(cell)
    if stored is not None and cell.role != "check":
        for rank, report in enumerate(reports):
            right = stored.get(rank, stored.get(-1, []))
            status, why = compared(report.get("text", []), right)
            found.append((status, why and f"rank {rank} {why}"))
    return max(found, key=lambda one: STATUSES.index(one[0]))


def compared(got: list[str], right: list[str]) -> tuple[str, str]:
    """Return a status and its reason: `differs` for missing lines or numbers, `failed` for words.

    Spaces are ignored, because the width of a column depends on its longest number.
    """
    got, right = ([" ".join(line.split()) for line in lines] for lines in (got, right))
    if got == right:
        return "passed", ""
    rest = iter(right)
    if all(line in rest for line in got):
        lacking = [line for line in right if line not in got]
        return "differs", f"does not print {lacking[0] if lacking else right[-1]!r}"
    pairs = zip_longest(got, right)
    one, other = next((one, other) for one, other in pairs if one != other)
    why = f"prints {_line(one)}, stored is {_line(other)}"
    words = [[_NUMBER.sub("0", line) for line in lines] for lines in (got, right)]
    return "differs" if words[0] == words[1] else "failed", why


def _line(line: str | None) -> str:
    return "nothing more" if line is None else repr(line)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else text[:200] + " …"
