"""Reads how a lab's cells run, and their stored outputs, with only the standard library."""

import re
import shlex
from collections.abc import Iterable

from parlab.runtime.notebook import Cell

CELL_SECONDS = 60.0  # the time limit of a rank cell that does not set one
DEFAULT_RANKS = 4  # the number that `cluster.start()` starts
_START = re.compile(r"\bcluster\.start\((\d+)\)")
_HEADER = re.compile(r"\[(?:(all) ranks|ranks? ([\d, -]+))\](?: (.*))?")


def seconds(cell: Cell) -> float:
    """Return the time limit of a cell."""
    return float(_options(cell).get("--timeout", CELL_SECONDS))


def targets(cell: Cell) -> list[int] | None:
    """Return the ranks that run a cell; None for all."""
    ranks = _options(cell).get("--targets")
    return None if ranks is None else [int(rank) for rank in ranks.split(",")]


def named_ranks(cells: Iterable[Cell]) -> int | None:
    """Return the number of ranks in a lab's `cluster.start(8)`; None for `cluster.start()`."""
    found = (_START.search(cell.code) for cell in cells if cell.kind == "code")
    return next((int(match[1]) for match in found if match), None)


def _options(cell: Cell) -> dict[str, str]:
    words = shlex.split(cell.source.partition("\n")[0])[1:] if cell.on_ranks else []
    return dict(zip(words[::2], words[1::2], strict=True))


def stored_values(cell: Cell) -> dict[str, list] | None:
    """Return the values by rank that a hidden check displayed; None for other cells."""
    return next(iter(cell.displayed), None) if cell.role == "hidden-check" else None


def stored_lines(cell: Cell) -> dict[int, list[str]] | None:
    """Return the lines that each rank printed, with key -1 for lines of all ranks.

    Return None if another run may print other lines.
    """
    if "nbval-ignore-output" in cell.tags:
        return None
    streams = [output for output in cell.outputs if output.get("name") == "stdout"]
    return printed("".join("".join(stream["text"]) for stream in streams))


def printed(text: str) -> dict[int, list[str]]:
    """Return the lines of each rank from text such as `[ranks 0, 2-4] a line`."""
    lines: dict[int, list[str]] = {}
    ranks: list[int] = []
    for line in text.splitlines():
        if header := _HEADER.fullmatch(line):
            every, some, line = header.groups()
            ranks = [-1] if every else _numbers(some)
        if line is not None:
            for rank in ranks:
                lines.setdefault(rank, []).append(line)
    return lines


def _numbers(text: str) -> list[int]:
    """Return the ranks in a text such as `0, 2-4`."""
    runs = [part.partition("-") for part in text.split(", ")]
    return [n for first, _, last in runs for n in range(int(first), int(last or first) + 1)]
