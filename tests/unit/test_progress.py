"""A learner's progress is stored next to the labs, and shown on the start page."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from parlab import progress, reference
from parlab.runtime.paths import ROOT
from parlab.setup.jupyterlab.contents import with_progress


def cell(kind: str, source: str, **metadata: object) -> dict:
    return {"cell_type": kind, "source": source, "metadata": metadata}


def write_lab(folder: Path, name: str, title: str, **headings: str) -> None:
    cells = [cell("markdown", f"# {title}")]
    for i, (key, heading) in enumerate(headings.items(), 1):
        number = f"{i}" if i == 1 else "1b"
        cells.append(cell("markdown", f"before\n## {number}. {heading}\nafter"))
        cells += [cell("code", "", tags=[tag], exercise=key) for tag in ("exercise", "check")]
    (folder / f"{name}.ipynb").write_text(json.dumps({"cells": cells}))


@pytest.fixture
def labs(tmp_path: Path) -> Path:
    """A learner's folder with two labs."""
    (tmp_path / "START.md").touch()
    write_lab(tmp_path, "01_walk", "Lab 01: Walking", stand="Standing", step="One step")
    write_lab(tmp_path, "02_run", "Lab 02: Running", run="Running")
    return tmp_path


def test_a_pass_is_kept_and_counted_in_its_own_lab(labs: Path) -> None:
    assert progress.record("step", labs) == "1 of 2 done in lab 01_walk"
    assert progress.record("step", labs) == "1 of 2 done in lab 01_walk"
    assert progress.record("stand", labs) == "2 of 2 done in lab 01_walk"
    walk, run = progress.labs(labs)  # read only from the disk, like after a restart
    assert (walk.done, run.done) == ({"step", "stand"}, frozenset())


def test_all_exercises_are_named_and_marked(labs: Path) -> None:
    progress.record("step", labs)
    walk, run = progress.labs(labs)
    assert (walk.bar, walk.count, walk.marked) == ("■□", "1 of 2", "○ Standing, ✓ One step")
    assert (run.bar, run.count, run.marked) == ("□", "0 of 1", "○ Running")


def test_a_lab_is_known_by_its_name_in_jupyterlab(
    labs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("JPY_SESSION_NAME", raising=False)
    assert progress.line(labs) is None
    monkeypatch.setenv("JPY_SESSION_NAME", str(labs / "02_run.ipynb"))
    assert progress.line(labs) == "0 of 1 done: ○ Running"


def test_no_progress_is_stored_for_unknown_exercises_or_folders(labs: Path, tmp_path: Path) -> None:
    assert progress.record("../escape", labs) is None
    assert progress.record("unknown", labs) is None
    (labs / "START.md").unlink()
    assert progress.record("step", labs) is None
    assert not (labs / ".progress").exists()


def test_unreadable_or_unwritable_progress_does_not_fail_a_check(labs: Path) -> None:
    (labs / "03_torn.ipynb").write_text('{"cells": [')
    write_lab(labs, "01_walk-Copy1", "Lab 01: Walking", step="One step")
    assert [lab.path.stem for lab in progress.labs(labs)] == ["01_walk", "02_run"]
    (labs / ".progress").write_text("a file where a folder should be")
    assert progress.record("step", labs) is None


def test_two_processes_lose_nothing(labs: Path) -> None:
    code = "import sys; from parlab import progress; print(progress.record(sys.argv[1]))"
    started = [
        subprocess.Popen([sys.executable, "-c", code, key], cwd=labs, stdout=subprocess.DEVNULL)
        for key in ("step", "stand")
    ]
    assert [process.wait() for process in started] == [0, 0]
    assert progress.labs(labs)[0].done == {"step", "stand"}


def test_a_pass_with_the_reference_does_not_count_as_done(
    labs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(reference._put, "step", {})
    assert progress.record("step", labs) is None
    assert progress.record("stand", labs) == "1 of 2 done in lab 01_walk"


def test_the_start_page_shows_a_bar_in_the_row_of_each_lab(labs: Path) -> None:
    page = "| [01 Walking](01_walk.ipynb) | 5 minutes |\n| [03 Flying](03_fly.ipynb) | none |\n"
    progress.record("step", labs)
    shown = with_progress(page, labs)
    assert shown.replace("\xa0", " ") == page.replace(".ipynb) | 5", ".ipynb) ■□ 1 of 2 | 5")
    progress.record("stand", labs)  # even if someone saved the shown page
    assert with_progress(shown, labs) == shown.replace("■□\xa01", "■■\xa02")


def test_every_lab_on_the_start_page_gets_its_bar() -> None:
    shown = with_progress((ROOT / "labs" / "START.md").read_text(), ROOT / "labs")
    for lab in progress.labs(ROOT / "labs"):
        assert f"({lab.path.name}) {lab.bar} {lab.count} |" in shown.replace("\xa0", " ")


def test_every_exercise_of_the_course_is_known() -> None:
    for lab in progress.labs(ROOT / "labs"):
        cells = json.loads(lab.path.read_text())["cells"]
        tagged = [c["metadata"] for c in cells if "exercise" in c["metadata"].get("tags", [])]
        assert list(lab.exercises) == [metadata["exercise"] for metadata in tagged] != []
        assert all(heading != key for key, heading in lab.exercises.items())
