"""What `make gpu-check` measured on a GPU, for the page of chapter 07; nothing where none was."""

import json
from pathlib import Path
from typing import Any

from parlab.files import ROOT

FILE = ROOT / "benchmarks" / "recordings" / "gpu.json"


def gpu_record(file: Path = FILE) -> dict[str, Any] | None:
    """The record that was kept; None where there is none, or where it has no benchmark."""
    if not file.exists():
        return None
    record = json.loads(file.read_text(encoding="utf-8"))
    return record if record["benchmarks"] else None


def measured_table(record: dict[str, Any]) -> str:
    """The lab's kernels beside others, as a table in Markdown: ratios of times, with their spread.

    Where a copy of as many bytes is the other, its inverse is the share of the device's copy rate.
    """
    rows = ["| work | beside | ratio of times | share of the copy rate |", "|---|---|---|---|"]
    for of in record["benchmarks"]:
        low, high = of["spread"]
        share = of.get("share_of_copy_rate")
        rows.append(
            f"| {of['work']} | {of['peer']} | {of['ratio']:.2f} ({low:.2f} to {high:.2f}) | "
            f"{'' if share is None else f'{share:.0%}'} |"
        )
    return "\n".join(rows)


def machine_of(record: dict[str, Any]) -> str:
    """The machine, the date and the command of a record, in a line."""
    machine = record["machine"]
    named = (
        ", ".join(f"{name} {value}" for name, value in machine.items())
        if isinstance(machine, dict)
        else str(machine)
    )
    return f"{named}; {record['date']}; `{record['command']}`"
