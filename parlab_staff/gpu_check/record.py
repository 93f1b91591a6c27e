"""The record of a check, which is written as JSON after each cell."""

import json
import tempfile
import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from parlab.runtime.paths import write_atomically
from parlab_staff.gpu_check.outcome import Outcome


def writable(path: Path) -> None:
    """Create the folder of `path`. Raises OSError if it is not writable."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=path.parent):
        pass


class Record:
    """The results so far, which several threads may add to."""

    def __init__(self, path: Path, machine: dict[str, Any], command: str) -> None:
        self.path, self._lock = path, threading.Lock()
        self.content: dict[str, Any] = {
            "machine": machine,
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "command": command,
            "complete": False,
            "items": [],
            "benchmarks": [],
        }

    def resume(self) -> set[str]:
        """Keep the items of an earlier record that passed. Return their names.

        Raises ValueError if the file is not a record, or is from another machine.
        """
        if not self.path.exists():
            return set()
        try:
            stored = json.loads(self.path.read_text(encoding="utf-8"))
            same = stored["machine"] == self.content["machine"]
            kept = [item for item in stored["items"] if item["status"] == "passed"]
            benchmarks = stored["benchmarks"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{self.path} is no record of this check: {error}") from None
        if not same:
            raise ValueError(f"{self.path} is of another machine, or of other versions")
        self.content |= {"items": kept, "benchmarks": benchmarks}
        return {item["name"] for item in kept}

    def save(self, complete: bool = False) -> None:
        """Write the file. Raises OSError."""
        self.content["complete"] = complete
        write_atomically(self.path, json.dumps(self.content, indent=2, ensure_ascii=False) + "\n")

    def put(self, name: str, outcome: Outcome, seconds: float, **more: Any) -> None:
        """Add an item, or replace the item of the same name. Write the file. Raises OSError."""
        item = {"name": name, **outcome._asdict(), "seconds": round(seconds, 1), **more}
        self._put("items", item)

    def put_benchmark(self, row: dict[str, Any]) -> None:
        """Add a benchmark, or replace the benchmark of the same name. Write the file."""
        self._put("benchmarks", row)

    def _put(self, kind: str, row: dict[str, Any]) -> None:
        with self._lock:
            others = [one for one in self.content[kind] if one["name"] != row["name"]]
            self.content[kind] = [*others, row]
            self.save()
