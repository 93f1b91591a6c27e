"""Several runs of the grader for one class: after an end, at the same time, or after changes."""

import csv
import os
import shutil
import signal
import subprocess
from pathlib import Path

import nbformat
import psutil
import pytest

from parlab_staff.grading.graded_lab import GradedLab
from parlab_staff.grading.grader import Grader
from parlab_staff.grading.run import Limits
from parlab_staff.grading.submissions import Submission
from tests.conftest import wait_until
from tests.grading.copies import Copy
from tests.grading.grader_process import SECONDS, command, graded, results, stored, write_class
from tests.grading.plain_lab import make_course

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs("bubblewrap")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> GradedLab:
    return make_course(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="module")
def proved(lab: GradedLab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder with a passed test of the lab, and without graded students."""
    folder = tmp_path_factory.mktemp("proved") / "class"
    folder.mkdir()
    (folder / "nobody.ipynb").write_text("{}")
    assert graded(command(lab, folder, "--jobs", "2")).returncode == 0
    [result] = (folder.parent / "out").glob("results/nobody")
    shutil.rmtree(result)
    return folder.parent / "out"


@pytest.fixture
def handed_in(lab: GradedLab, tmp_path: Path) -> Path:
    return write_class(tmp_path / "class", lab)


@pytest.fixture
def endless(lab: GradedLab, handed_in: Path) -> Path:
    """A submission that keeps the grader busy, after the others, until a cell's time limit."""
    path = handed_in / "zoe.ipynb"
    path.write_text(Copy(lab).insert("while True:\n    pass", before="exercise-add").text())
    return path


def test_ctrl_c_keeps_what_was_graded(
    lab: GradedLab, handed_in: Path, endless: Path, proved: Path
) -> None:
    shutil.copytree(proved, handed_in.parent / "out")
    grader = subprocess.Popen(
        command(lab, handed_in), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until(lambda: len(stored(handed_in)) >= 1, SECONDS, "one is graded")
    below = psutil.Process(grader.pid).children(recursive=True)
    grader.send_signal(signal.SIGINT)
    _, printed = grader.communicate(timeout=SECONDS)
    assert grader.returncode == 130 and "Run the same command to continue" in printed
    assert [p for p in below if p.is_running()] == []
    before = stored(handed_in)
    endless.unlink()
    again = graded(command(lab, handed_in))
    assert again.returncode == 0, again.stderr
    assert "(graded before)" in again.stderr and before <= stored(handed_in)
    assert results(handed_in) == {"ada": 10, "bob": 7, "cy": 0}


def test_two_graders_on_one_folder(lab: GradedLab, handed_in: Path, endless: Path) -> None:
    first = subprocess.Popen(command(lab, handed_in), stderr=subprocess.DEVNULL)
    try:
        lock = handed_in.parent / "out" / ".lock"
        wait_until(lambda: lock.exists() and _is_locked(lock), SECONDS, "the first one works")
        second = graded(command(lab, handed_in))
        assert second.returncode == 2 and "another grader works" in second.stderr
    finally:
        first.terminate()
        assert first.wait(SECONDS) == 130


def _is_locked(path: Path) -> bool:
    import fcntl

    with open(path, "w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


@pytest.mark.parametrize(
    ("limits", "sandbox"), [(Limits(cell_seconds=5), "none"), (Limits(), "bwrap")]
)
def test_results_with_other_options_are_not_kept(
    lab: GradedLab, handed_in: Path, limits: Limits, sandbox: str
) -> None:
    submission = Submission("ada", handed_in / "ada.ipynb")
    one, other = Grader(lab, Limits(), "none"), Grader(lab, limits, sandbox)
    assert one.key_of(submission) == Grader(lab, Limits(), "none").key_of(submission)
    assert one.key_of(submission) != other.key_of(submission)


def test_a_changed_lab_is_reported_and_graded_again(lab: GradedLab, handed_in: Path) -> None:
    course, out = handed_in.parent / "other", handed_in.parent / "out"
    shutil.copytree(lab.path.parents[1], course)
    path = course / "solutions" / lab.path.name
    for name in ("bob", "cy"):
        (handed_in / f"{name}.ipynb").unlink()
    unchanged = path.read_text(encoding="utf-8")
    for _ in range(5):  # again if the grader was done before this process changed the lab
        shutil.rmtree(out, ignore_errors=True)
        path.write_text(unchanged, encoding="utf-8")
        grader = subprocess.Popen(
            command(path, handed_in, "--jobs", "2"), stderr=subprocess.PIPE, text=True
        )
        proof = out / "results" / "proof.json"
        wait_until(
            lambda p=proof, g=grader: p.exists() or g.poll() is not None, SECONDS, "the lab's proof"
        )
        notebook = nbformat.read(path, 4)
        [check] = [c for c in notebook.cells if c.id == "check-add"]
        check.metadata.points = 5
        nbformat.write(notebook, path)
        in_time = not stored(handed_in)
        _, printed = grader.communicate(timeout=SECONDS)
        if in_time:
            break
    assert grader.returncode == 0 and "changed during grading" in printed
    assert results(handed_in) == {"ada": 10}
    assert graded(command(path, handed_in, "--jobs", "2")).returncode == 0
    assert results(handed_in) == {"ada": 13}


def test_grading_one_student_again_keeps_the_others_in_the_reports(
    lab: GradedLab, handed_in: Path, proved: Path
) -> None:
    """This also holds if options changed. The reports keep students without a submission."""
    shutil.copytree(proved, handed_in.parent / "out")
    for name in ("ada", "bob", "cy", "dee"):
        (handed_in / f"{name}.ipynb").write_text("{}")
    roster = handed_in.parent / "roster.csv"
    roster.write_text("student\nada\nabsent\n")
    arguments = command(lab, handed_in, "--roster", str(roster), "--jobs", "2")
    assert graded(arguments).returncode == 0
    assert rows(handed_in) == {"ada", "bob", "cy", "dee", "absent"}
    (handed_in / "new.ipynb").write_text("{}")
    ended = graded([*arguments, "--only", "ada", "--cell-timeout", "99"])
    assert ended.returncode == 0 and "not graded yet: 1. Run" in ended.stdout
    assert rows(handed_in) == {"ada", "bob", "cy", "dee", "absent"}
    summary = (handed_in.parent / "out" / "summary.html").read_text()
    assert summary.count("since then changed: options") == 3


@pytest.mark.nightly
def test_a_file_named_like_a_student_on_the_roster_is_not_a_zero(
    lab: GradedLab, handed_in: Path, proved: Path
) -> None:
    shutil.copytree(proved, handed_in.parent / "out")
    (handed_in / "Erin.ipynb.pdf").write_text("%PDF")
    roster = handed_in.parent / "roster.csv"
    roster.write_text("student\nabsent\nerin\n")
    ended = graded(command(lab, handed_in, "--roster", str(roster), "--jobs", "2"))
    assert (
        ended.returncode == 1 and "no notebook was handed in, only Erin.ipynb.pdf" in ended.stderr
    )
    assert "3 submissions belong to no student on the roster: ada, bob, cy." in ended.stderr
    feedback = (handed_in.parent / "out" / "feedback" / "absent.md").read_text(encoding="utf-8")
    assert "no submission was found under the name absent" in feedback
    found = grades(handed_in)
    assert [found[one]["status"] for one in ("absent", "erin")] == ["missing", "grader_error"]
    assert [found[one]["total"] for one in ("absent", "erin")] == ["0", ""]


def grades(folder: Path) -> dict[str, dict[str, str]]:
    text = (folder.parent / "out" / "grades.csv").read_text(encoding="utf-8-sig")
    return {row["student"]: row for row in csv.DictReader(text.splitlines())}


def rows(folder: Path) -> set[str]:
    return set(grades(folder))


def test_corrections_by_hand_survive_regrading(
    lab: GradedLab, handed_in: Path, proved: Path
) -> None:
    shutil.copytree(proved, handed_in.parent / "out")
    (handed_in / "ada.ipynb").unlink()
    (handed_in / "bob.ipynb").unlink()
    assert graded(command(lab, handed_in)).returncode == 0
    out = handed_in.parent / "out"
    with open(out / "corrections.csv", "a", encoding="utf-8") as file:
        file.write("cy,add,2,came by mail\n")
    for more in ([], ["--force"]):
        assert graded(command(lab, handed_in, *more)).returncode == 0
        text = (out / "grades.csv").read_text(encoding="utf-8-sig")
        assert '"cy","","2"' in text, text
    assert results(handed_in) == {"cy": 0}, "a result holds what the grader found"


def test_a_stored_result_gets_the_files_current_time(
    lab: GradedLab, handed_in: Path, proved: Path
) -> None:
    """A file that was graded as late is no longer late after it gets its true time."""
    shutil.copytree(proved, handed_in.parent / "out")
    (handed_in / "ada.ipynb").unlink()
    (handed_in / "bob.ipynb").unlink()
    late = []
    for _ in range(2):
        ended = graded(command(lab, handed_in, "--due", "2001-01-01"))
        assert ended.returncode == 0, ended.stderr
        grades = handed_in.parent / "out" / "grades.csv"
        late.append(" late" in grades.read_text(encoding="utf-8-sig").split("\n", 1)[1])
        os.utime(handed_in / "cy.ipynb", (0, 0))
    assert late == [True, False]
