"""The labs of this repository are derived from their sources, and contain no solutions."""

import itertools
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from parlab.runtime.paths import ROOT, numbered
from parlab_staff.notebooks import main

SOURCES = numbered(ROOT / "solutions", ".py")
LABS = [pytest.param(path, id=path.stem) for path in SOURCES]
# Shorter lines ("return x", "else:") occur in any program.
NONTRIVIAL = 16


def test_there_are_labs() -> None:
    assert SOURCES


def test_labs_and_solutions_are_current(capsys: pytest.CaptureFixture) -> None:
    code = main(["--check"])
    assert code == 0, capsys.readouterr().out


def nontrivial(line: str) -> bool:
    return len(line) >= NONTRIVIAL and not line.startswith("raise NotImplementedError")


def solutions_and_rest(source: str) -> tuple[list[list[str]], list[str]]:
    """Return the lines of each solution region, and the lines that a learner may see.

    This does not use the code that derives the labs, because it tests that code.
    """
    regions: list[list[str]] = []
    rest: list[str] = []
    hidden = inside = False
    for line in source.splitlines():
        text = line.strip()
        if text.startswith("# %%") and not text.startswith("# %%px"):
            hidden = '"hidden-check"' in text or '"solution"' in text
            if hidden:
                regions.append([])
        if text == "# BEGIN SOLUTION":
            inside = True
            regions.append([])
        elif text == "# END SOLUTION":
            inside = False
        elif inside or hidden:
            regions[-1].append(text)
        else:
            rest.append(text)
    return regions, rest


def all_text(value: object) -> list[str]:
    """Return every line of every string in a JSON value, including keys."""
    if isinstance(value, str):
        return [line.strip() for line in value.splitlines()]
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in all_text(part)]
    if isinstance(value, list):
        return [text for item in value for text in all_text(item)]
    return []


@pytest.mark.parametrize("source", LABS)
def test_no_line_of_a_solution_is_in_the_lab(source: Path) -> None:
    regions, rest = solutions_and_rest(source.read_text(encoding="utf-8"))
    assert regions
    lab = Counter(all_text(json.loads((ROOT / "labs" / f"{source.stem}.ipynb").read_text())))
    # A line may also occur in given code, outside of the regions. Then it occurs only that often.
    given = Counter(rest)
    leaked = {
        line
        for region in regions
        for line in region
        if nontrivial(line) and lab[line] > given[line]
    }
    assert not leaked


@pytest.mark.parametrize("source", LABS)
def test_no_two_lines_of_a_solution_follow_each_other_in_the_lab(source: Path) -> None:
    regions, _ = solutions_and_rest(source.read_text(encoding="utf-8"))
    lines = all_text(json.loads((ROOT / "labs" / f"{source.stem}.ipynb").read_text()))
    pairs = set(itertools.pairwise(lines))
    leaked = {
        pair
        for region in regions
        for pair in itertools.pairwise(region)
        if nontrivial(pair[0]) and nontrivial(pair[1]) and pair in pairs
    }
    assert not leaked


@pytest.mark.parametrize("source", LABS)
def test_labs_have_no_markers_hidden_checks_or_outputs(source: Path) -> None:
    lab = json.loads((ROOT / "labs" / f"{source.stem}.ipynb").read_text())
    for cell in lab["cells"]:
        assert not set(cell["metadata"].get("tags", [])) & {"hidden-check", "solution"}
        assert not re.search(r"(BEGIN|END) SOLUTION", "".join(cell["source"]))
        assert not cell.get("outputs") and cell.get("execution_count") is None


@pytest.mark.parametrize("source", LABS)
def test_every_exercise_is_a_stub(source: Path) -> None:
    lab = json.loads((ROOT / "labs" / f"{source.stem}.ipynb").read_text())
    keys = re.findall(
        r'^# %%.*"exercise".* exercise="(\w+)"', source.read_text(encoding="utf-8"), re.M
    )
    assert keys
    sources = {
        cell["metadata"]["exercise"]: "".join(cell["source"])
        for cell in lab["cells"]
        if "exercise" in cell["metadata"].get("tags", [])
    }
    assert list(sources) == keys
    for key, text in sources.items():
        assert f'raise NotImplementedError("exercise {key}: not done yet")' in text
