"""A lab's cells, and what they gave, from its executed notebook: the standard library alone."""

import json
import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CELL_SECONDS = 60.0  # a rank cell's deadline, unless it states another
_HEADER = re.compile(r"\[(?:(all) ranks|ranks? ([\d, ]+))\](?: (.*))?")


@dataclass(frozen=True)
class Cell:
    """A code cell.

    Attributes:
        id: its name, the same in every version of the lab.
        role: `exercise`, `check`, `hidden-check`, or "" for any other.
        key: the exercise it belongs to, or "".
        on_ranks: whether it runs on the ranks (`%%px`), or in the notebook.
        targets: the ranks that run it; None for all.
        seconds: its deadline.
        source: the code, without the line of `%%px`.
        values: what a hidden check showed, as JSON; None for other cells.
        text: what each rank printed, by rank; None where that need not repeat. -1 is every rank.
        raises: whether it is there to fail, as a deadlock on purpose.
    """

    id: str
    role: str
    key: str
    on_ranks: bool
    targets: tuple[int, ...] | None
    seconds: float
    source: str
    values: Any
    text: dict[int, list[str]] | None
    raises: bool


def read(notebook: Path) -> list[Cell]:
    """The code cells of an executed notebook, in order."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [_cell(cell) for cell in cells if cell["cell_type"] == "code"]


def _cell(cell: dict[str, Any]) -> Cell:
    source, tags = "".join(cell["source"]), cell["metadata"].get("tags", [])
    first, _, body = source.partition("\n")
    on_ranks = first.startswith("%%px")
    options = _options(first) if on_ranks else {}
    targets = options.get("--targets")
    return Cell(
        id=cell["id"],
        role=next((role for role in ("exercise", "check", "hidden-check") if role in tags), ""),
        key=cell["metadata"].get("exercise", ""),
        on_ranks=on_ranks,
        targets=None if targets is None else tuple(map(int, targets.split(","))),
        seconds=float(options.get("--timeout", CELL_SECONDS)),
        source=body if on_ranks else source,
        values=next(_shown(cell["outputs"]), None) if "hidden-check" in tags else None,
        text=None if "nbval-ignore-output" in tags else printed(_streams(cell["outputs"])),
        raises="raises-exception" in tags,
    )


def _options(line: str) -> dict[str, str]:
    words = shlex.split(line)[1:]
    return dict(zip(words[::2], words[1::2], strict=True))


def _shown(outputs: list[dict[str, Any]]) -> Iterator[Any]:
    for output in outputs:
        if "application/json" in output.get("data", {}):
            yield output["data"]["application/json"]


def _streams(outputs: list[dict[str, Any]]) -> str:
    return "".join("".join(o["text"]) for o in outputs if o.get("name") == "stdout")


def printed(text: str) -> dict[int, list[str]]:
    """The lines of each rank, where `text` groups them by ranks, as `[ranks 0, 2] a line`."""
    lines: dict[int, list[str]] = {}
    ranks: list[int] = []
    for line in text.splitlines():
        if header := _HEADER.fullmatch(line):
            every, some, line = header.groups()
            ranks = [-1] if every else [int(rank) for rank in some.split(",")]
        if line is not None:
            for rank in ranks:
                lines.setdefault(rank, []).append(line)
    return lines
