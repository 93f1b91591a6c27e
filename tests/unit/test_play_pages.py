"""The pages of the playground, from the lab's source and the examples."""

import json
import re
from pathlib import Path

import pytest

from parlab_staff.course.percent_source import read_lab
from parlab_staff.course.references import SOLUTIONS
from parlab_staff.play import pages
from parlab_staff.play.build import as_script
from parlab_staff.play.formulas import EXAMPLES, MOST_RANKS
from parlab_staff.play.pages import LABS, play_pages, played
from parlab_staff.play.tries import TRIES

PLAYED = [read_lab(SOLUTIONS / f"{name}.py") for name in LABS]
KEYS = [one.key for lab in PLAYED for one in played(lab)]


def test_each_exercise_has_a_page_with_its_text_stub_and_check() -> None:
    made = {page.name: page for page in play_pages("full")}
    assert list(made)[: len(KEYS)] == KEYS
    for exercise in (one for lab in PLAYED for one in played(lab)):
        page = made[exercise.key]
        assert f'"exercise {exercise.key}: not done yet"' in page.data["program"]
        assert f"check.{exercise.key}({exercise.function_name})" in page.data["check"]
        assert f"def {exercise.function_name}(" in page.reference
        assert "SOLUTION" not in page.reference
        for code in (page.data["program"], page.data["setup"], page.data["check"]):
            compile(code, page.name, "exec")


def test_a_page_begins_with_its_own_exercise() -> None:
    [page] = (page for page in play_pages("full") if page.name == "ring_shift")
    assert page.title == "3. A deadlock"
    assert page.text.startswith("<p>Now write the shift around the ring")
    assert page.text.count("<summary>Hint") == 2


def test_the_student_edition_has_no_solution() -> None:
    text = "".join(one.cell.source for lab in PLAYED for one in played(lab))
    regions = re.findall(r"# BEGIN SOLUTION\n(.*?)# END SOLUTION", text, re.DOTALL)
    lines = {line.strip() for region in regions for line in region.splitlines()}
    long = {line for line in lines if len(line) > 30}
    full = json.dumps([page.data for page in play_pages("full")])
    found = {line for line in long if json.dumps(line)[1:-1] in full}
    assert len(found) > 0.9 * len(long), "this test would not see a solution"
    for page in play_pages("student"):
        assert page.reference == ""
        shown = json.dumps(page.data)
        hints = {line for line in found if line in page.text}
        assert not [line for line in found - hints if json.dumps(line)[1:-1] in shown], page.name


def test_an_exercise_gets_the_functions_that_it_calls() -> None:
    for edition in ("full", "student"):
        [page] = (page for page in play_pages(edition) if page.name == "ring_all_reduce")
        names = [one["name"] for one in page.data["needs"]]
        assert names == ["ring_reduce_scatter", "ring_all_gather"]
        assert all("not done yet" in one["stub"] for one in page.data["needs"])
        assert all((one["code"] is None) == (edition == "student") for one in page.data["needs"])


def test_formulas_have_numbers_for_all_ranks_that_a_reader_can_choose() -> None:
    assert set(TRIES) == set(KEYS)
    for page in play_pages("full"):
        assert len(page.data["costs"]) == (MOST_RANKS if page.data["formula"] else 0)
        for known in page.data["algorithms"].values():
            assert len(known["costs"]) == MOST_RANKS
    [page] = (page for page in play_pages("full") if page.name == "ring_all_reduce")
    assert page.data["costs"][3] == {"messages": 6, "bytes": 48}
    assert page.data["algorithms"]["Allreduce"]["costs"][3] == {"messages": 6, "bytes": 1.5}


def test_formulas_of_examples_belong_to_pages() -> None:
    made = {page.name: page.data["formula"] for page in play_pages("full")}
    assert {name: made[name] for name in EXAMPLES} == dict.fromkeys(
        EXAMPLES, "one message of S bytes"
    )


def test_an_example_needs_a_docstring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "01_mpi").mkdir()
    (tmp_path / "01_mpi" / "silent.py").write_text("print(rank)\n")
    monkeypatch.setattr(pages, "EXAMPLES", tmp_path)
    with pytest.raises(ValueError, match=r"silent.py: an example begins with a docstring"):
        play_pages("full")


def test_a_new_exercise_needs_lines_that_try_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "TRIES", {})
    with pytest.raises(ValueError, match=r"exercise ping_pong: add the lines .*tries\.py"):
        play_pages("full")


def test_a_program_cannot_end_the_script_that_contains_it() -> None:
    page = pages.PlayPage("name", "title", "", {"program": "print('</script>')"}, "01_mpi")
    assert "</script" not in as_script(page, {})
    assert json.loads(as_script(page, {}))["program"] == "print('</script>')"
