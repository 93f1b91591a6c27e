"""Reads what `make gpu-check` measured on a GPU, for the page of chapter 07."""

import json
from pathlib import Path
from typing import Any

from parlab.runtime.paths import ROOT

FILE = ROOT / "benchmarks" / "recordings" / "gpu.json"


def gpu_record(file: Path = FILE) -> dict[str, Any] | None:
    """Return the stored record; None if there is none, or if it has no benchmark."""
    if not file.exists():
        return None
    record = json.loads(file.read_text(encoding="utf-8"))
    return record if record["benchmarks"] else None


def measured_table(record: dict[str, Any]) -> str:
    """Return a Markdown table with the ratios of the times of the lab's kernels and of others.

    If a kernel is compared with a copy of the same number of bytes, the inverse of the ratio is its
    share of the device's copy rate.
    """
    rows = [
        "| work | compared with | ratio of times | share of the copy rate |",
        "|---|---|---|---|",
    ]
    for of in record["benchmarks"]:
        low, high = of["spread"]
        share = of.get("share_of_copy_rate")
        rows.append(
            f"| {of['work']} | {of['peer']} | {of['ratio']:.2f} ({low:.2f} to {high:.2f}) | "
            f"{'' if share is None else f'{share:.0%}'} |"
        )
    return "\n".join(rows)


def machine_of(record: dict[str, Any]) -> str:
    """Return the machine, the date, and the command of a record, in one line."""
    machine = record["machine"]
    named = (
        ", ".join(f"{name} {value}" for name, value in machine.items())
        if isinstance(machine, dict)
        else str(machine)
    )
    return f"{named}; {record['date']}; `{record['command']}`"
