"""Reads how a lab's cells run, and their stored outputs, with only the standard library."""

import re
import shlex

from parlab.runtime.notebook import Cell

CELL_SECONDS = 60.0  # the time limit of a rank cell that does not set one
_HEADER = re.compile(r"\[(?:(all) ranks|ranks? ([\d, ]+))\](?: (.*))?")


def seconds(cell: Cell) -> float:
    """Return the time limit of a cell."""
    return float(_options(cell).get("--timeout", CELL_SECONDS))


def targets(cell: Cell) -> list[int] | None:
    """Return the ranks that run a cell; None for all."""
    ranks = _options(cell).get("--targets")
    return None if ranks is None else [int(rank) for rank in ranks.split(",")]


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
    """Return the lines of each rank from text such as `[ranks 0, 2] a line`."""
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
