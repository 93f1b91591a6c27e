"""The JSON that a check writes, anew after each item."""

import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parlab.files import write_atomically
from parlab.gpu_check.outcome import Outcome


def writable(path: Path) -> None:
    """Make the folder of `path`. OSError where no file can be made there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass


class Record:
    """What is known so far; `save` writes it."""

    def __init__(self, path: Path, machine: dict[str, Any], command: str) -> None:
        self.path = path
        self.told: dict[str, Any] = {
            "machine": machine,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command,
            "complete": False,
            "items": [],
            "benchmarks": [],
        }

    def resume(self) -> set[str]:
        """Take over what passed in the file that is there, if one is; the names.

        ValueError where it was measured on another machine, or is no record.
        """
        if not self.path.exists():
            return set()
        try:
            there = json.loads(self.path.read_text())
            same = there["machine"] == self.told["machine"]
            kept = [item for item in there["items"] if item["status"] == "passed"]
            benchmarks = there["benchmarks"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path} is no record of this check: {error}") from None
        if not same:
            raise ValueError(f"{self.path} is of another machine, or of other versions")
        self.told |= {"items": kept, "benchmarks": benchmarks}
        return {item["name"] for item in kept}

    def save(self, complete: bool = False) -> None:
        """Write it. OSError where that is not possible."""
        self.told["complete"] = complete
        write_atomically(self.path, json.dumps(self.told, indent=2, ensure_ascii=False) + "\n")

    def put(self, name: str, outcome: Outcome, seconds: float, **more: Any) -> None:
        """Enter an item, in place of what stands under its name."""
        item = {"name": name, **outcome._asdict(), "seconds": round(seconds, 1), **more}
        self.told["items"] = [i for i in self.told["items"] if i["name"] != name] + [item]

    def put_benchmark(self, row: dict[str, Any]) -> None:
        """Enter what a benchmark measured."""
        others = [one for one in self.told["benchmarks"] if one["name"] != row["name"]]
        self.told["benchmarks"] = [*others, row]
