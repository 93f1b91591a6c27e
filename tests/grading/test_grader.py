"""The grader itself: bad input, a lab that is not graded correctly, a full disk, no hardware."""

import json
import os
import shutil
import sys
from pathlib import Path

import nbformat
import pytest
from typer import Typer
from typer.testing import CliRunner

from parlab.setup import cli
from parlab_staff.grading import run as running
from parlab_staff.grading.graded_lab import GradedLab, find_lab
from parlab_staff.grading.match import match
from parlab_staff.grading.reading import parse
from parlab_staff.grading.rebuild import build
from parlab_staff.grading.results import ExerciseResult, GradeStatus, SubmissionResult
from parlab_staff.grading.run import Limits, run
from parlab_staff.grading.score import score
from parlab_staff.grading.store import Store
from tests.grading.copies import Copy
from tests.grading.grader_process import command, graded, results, stored, write_class
from tests.grading.plain_lab import make_course

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs("bubblewrap")]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> GradedLab:
    return make_course(tmp_path_factory.mktemp("course"))


@pytest.fixture
def handed_in(lab: GradedLab, tmp_path: Path) -> Path:
    return write_class(tmp_path / "class", lab)


@pytest.fixture(scope="module")
def parlab() -> Typer:
    """The command line, for tests that do not need a separate process."""
    cli.add_installed_commands()
    return cli.app


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["grade", "99_none", ".", "--out", "../out"], "no lab '99_none'"),
        (["grade", "gone/01_plain.ipynb", ".", "--out", "../out"], "does not exist"),
        (["grade", "01_mpi", "nowhere", "--out", "../out"], "nowhere does not exist"),
        (["grade", "01_mpi", ".", "--out", "../out", "--sandbox", "maybe"], "auto, bwrap, or none"),
        (["grade", "01_mpi", ".", "--out", "../out", "--late-policy", "some"], "late"),
        (["grade", "01_mpi", ".", "--out", "../out", "--due", "tomorrow"], "tomorrow"),
        (["grade", "01_mpi", ".", "--out", "../out", "--roster", "gone.csv"], "gone.csv"),
        (
            ["grade", "01_mpi", ".", "--out", "../out", "--roster", "../4711.csv"],
            "no submission is of a student in ../4711.csv. The submissions are called ada, and the "
            "roster has 4711, 4712.",
        ),
        (["grade", "01_mpi", ".", "--out", "../out", "--only", "nobody"], "nobody"),
        (["grade", "01_mpi", ".", "--out", "../out", "--jobs", "0"], "jobs"),
        (["grade", "01_mpi", ".", "--out", "./grades"], "is inside"),
        (["grade", "01_mpi", "ada.ipynb", "--out", "."], "is inside"),
        (["grade", "01_mpi", ".", "--out", "../file"], "Name a folder, new or of an earlier run"),
        (["grade", "01_mpi", ".", "--out", "/dev/null"], "cannot be written to: Not a directory"),
        (["grade", "01_mpi", ".", "--out", "../out", "--memory", "inf"], "memory"),
        (["grade", "01_mpi", ".", "--out", "../out", "--isolate"], "No such option"),
        (["grade", "01_mpi"], "Missing argument"),
        (["grade", "01_mpi", "."], "--out"),
    ],
)
def test_bad_input_ends_with_2_and_says_what_to_do(
    arguments: list[str],
    expected: str,
    parlab: Typer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "ada.ipynb").write_text("{}")
    (tmp_path / "file").touch()
    (tmp_path / "4711.csv").write_text("student\n4711\n4712\n", encoding="utf-8")
    monkeypatch.chdir(folder)
    ended = CliRunner().invoke(parlab, arguments)
    assert ended.exit_code == 2, ended.stderr
    assert expected in ended.stderr and "Traceback" not in ended.stderr


def test_without_bubblewrap_nothing_runs(lab: GradedLab, handed_in: Path, tmp_path: Path) -> None:
    env = os.environ | {"PATH": str(tmp_path)}
    ended = graded(command(lab, handed_in), env=env)
    assert ended.returncode == 2
    assert "apt-get install bubblewrap" in ended.stderr and "--sandbox none" in ended.stderr
    assert stored(handed_in) == set()


def test_a_lab_whose_reference_fails_is_refused(lab: GradedLab, handed_in: Path) -> None:
    """The stored values of a hidden check differ from the reference's values."""
    course = handed_in.parent / "other"
    shutil.copytree(lab.path.parents[1], course)
    path = course / "solutions" / lab.path.name
    notebook = nbformat.read(path, 4)
    [cell] = [c for c in notebook.cells if c.id == "hidden-check-add"]
    for output in cell.outputs:
        if "application/json" in output.get("data", {}):
            output.data["application/json"]["sums"][0] = 77
    nbformat.write(notebook, path)
    ended = graded(command(path, handed_in, "--jobs", "2"))
    assert ended.returncode == 3, ended.stderr
    assert "the reference, add" in ended.stderr and "nothing was graded" in ended.stderr
    assert stored(handed_in) == set()


def test_a_lab_whose_stubs_earn_points_is_refused(lab: GradedLab, handed_in: Path) -> None:
    course = handed_in.parent / "other"
    shutil.copytree(lab.path.parents[1], course)
    path = course / "labs" / lab.path.name
    handed_out = nbformat.read(path, 4)
    [stub] = [c for c in handed_out.cells if c.id == "exercise-add"]
    [solved] = [c for c in lab.cells if c.id == "exercise-add"]
    stub.source = solved.source
    nbformat.write(handed_out, path)
    ended = graded(command(course / "solutions" / path.name, handed_in, "--jobs", "2"))
    assert ended.returncode == 3 and "the stub, add: 3" in ended.stderr, ended.stderr


@pytest.mark.nightly
def test_a_full_disk_loses_nothing(lab: GradedLab, handed_in: Path, tmp_path: Path) -> None:
    """The output folder is on a disk of 64 kB, which is full after the first result."""
    out, kept = tmp_path / "small", tmp_path / "kept"
    out.mkdir()
    kept.mkdir()
    inner = (
        f'head -c 52k /dev/zero > {out}/ballast; "$@"; code=$?; cp -a {out}/. {kept}; exit $code'
    )
    disk = ["bwrap", "--dev-bind", "/", "/", "--size", "65536", "--tmpfs", str(out)]
    arguments = command(lab, handed_in, "--jobs", "2")
    arguments[arguments.index("--out") + 1] = str(out)
    ended = graded([*disk, "--", "sh", "-c", inner, "sh", *arguments])
    assert ended.returncode == 1, ended.stderr
    assert "No space left" in ended.stderr and "Free some disk space" in ended.stderr
    whole = [json.loads(path.read_text()) for path in kept.glob("results/*/*")]
    assert len(whole) == 1, "one result was stored, and it is whole"


def test_a_result_that_cannot_be_written_leaves_the_earlier_one(tmp_path: Path) -> None:
    """A limit for the size of files stands for a disk that is full in the middle of a result."""
    exercises = [ExerciseResult("add", GradeStatus.PASSED, 3, 3)]
    result = SubmissionResult("ada", "01_plain", "", GradeStatus.PASSED, exercises)
    store = Store(tmp_path)
    store.save(result)
    code = (
        "import resource, signal, sys\n"
        "from pathlib import Path\n"
        "from parlab_staff.grading.store import Store\n"
        "store = Store(Path(sys.argv[1]))\n"
        "result = store.load('ada')\n"
        "result.message = 'long ' * 1000\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "store.save(result)\n"
    )
    ended = graded([sys.executable, "-c", code, str(tmp_path)])
    assert "File too large" in ended.stderr
    assert store.load("ada") == result
    assert [path.name for path in store.path("ada").parent.iterdir()] == ["result.json"]


def test_messages_that_need_too_much_memory_end_the_run(
    lab: GradedLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With this limit, even the process that reads a right answer's messages is too large."""
    monkeypatch.setattr(running, "MEMORY", 2**20)
    matched = match(lab, parse(Copy(lab).text().encode()))
    ran = run(build(lab, matched), Limits(cell_seconds=60, seconds=300), "bwrap")
    assert ran.ended == "it sent more than the grader has memory to read"


def test_a_wrong_correction_is_reported_before_anything_runs(
    lab: GradedLab, handed_in: Path
) -> None:
    out = handed_in.parent / "out"
    out.mkdir()
    for line, expected in (
        ("eve,add,1", "no submission of a student 'eve'"),
        ("ada,sum,1", "'sum'"),
    ):
        (out / "corrections.csv").write_text(f"student,exercise,points\n{line}\n")
        ended = graded(command(lab, handed_in))
        assert ended.returncode == 2 and expected in ended.stderr and "line 2" in ended.stderr
        assert stored(handed_in) == set()


def test_points_that_are_not_a_number_are_reported_with_their_cell(
    lab: GradedLab, tmp_path: Path
) -> None:
    course = tmp_path / "other"
    shutil.copytree(lab.path.parents[1], course)
    path = course / "solutions" / lab.path.name
    notebook = nbformat.read(path, 4)
    [check] = [c for c in notebook.cells if c.id == "check-add"]
    check.metadata.points = "two"
    nbformat.write(notebook, path)
    with pytest.raises(ValueError, match=r"01_plain\.ipynb: the check check-add: .* not 'two'"):
        find_lab(str(path))


def test_missing_hardware_is_not_a_zero(lab: GradedLab) -> None:
    """The lab's own first cell fails, as if the machine had too few devices."""
    matched = match(lab, parse(Copy(lab).text().encode()))
    notebook = build(lab, matched)
    notebook.cells[0].source = "raise RuntimeError('this lab needs 2 GPUs; there are 0')"
    ran = run(notebook, Limits(cell_seconds=60, seconds=300), "bwrap")
    scored = score(lab, matched, ran)
    assert [(e.status, e.points) for e in scored] == [("grader_error", None)] * 3
    assert "needs 2 GPUs" in scored[0].notes[0]


@pytest.mark.nightly
def test_without_a_sandbox_if_the_user_says_so(lab: GradedLab, handed_in: Path) -> None:
    (handed_in / "ada.ipynb").unlink()
    ended = graded(command(lab, handed_in, "--sandbox", "none", "--jobs", "2"))
    assert ended.returncode == 0, ended.stderr
    assert results(handed_in) == {"bob": 7, "cy": 0}
