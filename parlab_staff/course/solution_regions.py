"""Solution regions: the lines between `# BEGIN SOLUTION` and `# END SOLUTION`."""

import re
from dataclasses import dataclass

_MARKER = re.compile(r"^(?P<indent>[ \t]*)#+ ?(?P<word>BEGIN|END) SOLUTION\s*$")
# A marker with a typo would leave a solution in the learner's copy.
_ALMOST = re.compile(r"#.*\b(begin|end)[\s_-]*solutions?\b", re.IGNORECASE)


@dataclass(frozen=True)
class Region:
    """Lines `begin` … `end` of a cell, counted from 0, both markers included."""

    begin: int
    end: int
    indent: str


def is_marker(line: str) -> bool:
    return _MARKER.match(line) is not None


def find_regions(lines: list[str]) -> tuple[list[Region], list[tuple[int, str]]]:
    """Return the regions of a cell's lines, and their problems as (line from 0, text)."""
    regions: list[Region] = []
    problems: list[tuple[int, str]] = []
    begin: tuple[int, str] | None = None
    for number, line in enumerate(lines):
        marker = _MARKER.match(line)
        if marker is None:
            if _ALMOST.search(line):
                text = "write markers as a line of their own: # BEGIN SOLUTION, # END SOLUTION"
                problems.append((number, text))
        elif marker["word"] == "BEGIN":
            if begin is not None:
                problems.append((number, "BEGIN SOLUTION inside a region: regions do not nest"))
            else:
                begin = number, marker["indent"]
        elif begin is None:
            problems.append((number, "END SOLUTION without BEGIN SOLUTION"))
        else:
            region = Region(begin[0], number, begin[1])
            problems += _problems_of(region, marker["indent"], lines)
            regions.append(region)
            begin = None
    if begin is not None:
        problems.append((begin[0], "BEGIN SOLUTION without END SOLUTION in the same cell"))
    return regions, problems


def _problems_of(region: Region, end_indent: str, lines: list[str]) -> list[tuple[int, str]]:
    problems = []
    if end_indent != region.indent:
        problems.append((region.end, "END SOLUTION is not indented as its BEGIN SOLUTION"))
    if not "".join(lines[region.begin + 1 : region.end]).strip():
        problems.append((region.begin, "nothing between BEGIN SOLUTION and END SOLUTION"))
    return problems


def stubbed(source: str, key: str) -> str:
    """Return the source with each region replaced by an error that names the exercise `key`."""
    lines = source.split("\n")
    for region in reversed(find_regions(lines)[0]):
        stub = f'{region.indent}raise NotImplementedError("exercise {key}: not done yet")'
        lines[region.begin : region.end + 1] = [stub]
    return "\n".join(lines)


def without_markers(source: str) -> str:
    """Return the source with its solutions, but without the lines that mark them."""
    return "\n".join(line for line in source.split("\n") if not is_marker(line))
