"""The grader itself: bad input, interruptions, a full disk, a master that does not prove itself."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest

from parlab.grading.master import Master
from parlab.grading.running import Limits, run
from tests.conftest import wait_until
from tests.grading.small_lab import Copy, make_course

pytestmark = pytest.mark.timeout(900)
SECONDS = 600


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Master:
    return make_course(tmp_path_factory.mktemp("course"))


@pytest.fixture(scope="module")
def proved(master: Master, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An output folder in which the lab has proved itself, and nobody is graded."""
    folder = tmp_path_factory.mktemp("proved") / "class"
    folder.mkdir()
    (folder / "nobody.ipynb").write_text("{}")
    assert graded(command(master, folder, "--jobs", "2")).returncode == 0
    [result] = (folder.parent / "out").glob("results/nobody")
    shutil.rmtree(result)
    return folder.parent / "out"


@pytest.fixture
def handed_in(master: Master, tmp_path: Path) -> Path:
    folder = tmp_path / "class"
    folder.mkdir()
    (folder / "ada.ipynb").write_text(Copy(master).text())
    (folder / "bob.ipynb").write_text(Copy(master).stub("ring_all_reduce").text())
    (folder / "cy.ipynb").write_text("{}")
    return folder


def command(master: Path | Master, folder: Path, *more: str) -> list[str]:
    path = master.path if isinstance(master, Master) else master
    start = [sys.executable, "-m", "parlab.cli", "grade", str(path), str(folder)]
    return [*start, "--out", str(folder.parent / "out"), *more]


def graded(asked: list[str], **options) -> subprocess.CompletedProcess:
    return subprocess.run(asked, capture_output=True, text=True, timeout=SECONDS, **options)


def results(folder: Path) -> dict[str, float]:
    found = {}
    for path in (folder.parent / "out").glob("results/*/result.json"):
        data = json.loads(path.read_text())
        points = [e["points"] for e in data["exercises"]]
        found[data["student"]] = None if None in points else sum(points)
    return found


def stored(folder: Path) -> set[str]:
    return {p.parent.name for p in (folder.parent / "out").glob("results/*/result.json")}


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        (["grade", "99_none", ".", "--out", "out"], "no lab '99_none'"),
        (["grade", "gone/01_small.ipynb", ".", "--out", "out"], "does not exist"),
        (["grade", "01_mpi", "nowhere", "--out", "out"], "nowhere does not exist"),
        (["grade", "01_mpi", ".", "--out", "out", "--sandbox", "maybe"], "auto, bwrap or none"),
        (["grade", "01_mpi", ".", "--out", "out", "--late-policy", "some"], "late"),
        (["grade", "01_mpi", ".", "--out", "out", "--due", "tomorrow"], "tomorrow"),
        (["grade", "01_mpi", ".", "--out", "out", "--roster", "gone.csv"], "gone.csv"),
        (["grade", "01_mpi", ".", "--out", "out", "--only", "nobody"], "nobody"),
        (["grade", "01_mpi", ".", "--out", "out", "--jobs", "0"], "jobs"),
        (["grade", "01_mpi"], "Missing argument"),
        (["grade", "01_mpi", "."], "--out"),
    ],
)
def test_bad_input_ends_with_2_and_says_what_to_do(
    asked: list[str], says: str, tmp_path: Path
) -> None:
    (tmp_path / "ada.ipynb").write_text("{}")
    ended = graded([sys.executable, "-m", "parlab.cli", *asked], cwd=tmp_path)
    assert ended.returncode == 2, ended.stderr
    assert says in ended.stderr and "Traceback" not in ended.stderr


def test_without_bubblewrap_nothing_runs(master: Master, handed_in: Path, tmp_path: Path) -> None:
    env = os.environ | {"PATH": str(tmp_path)}
    ended = graded(command(master, handed_in), env=env)
    assert ended.returncode == 2
    assert "apt-get install bubblewrap" in ended.stderr and "--sandbox none" in ended.stderr
    assert stored(handed_in) == set()


def test_a_master_that_does_not_prove_itself(master: Master, handed_in: Path) -> None:
    """The stored values of a hidden check are not what the reference gives."""
    course = handed_in.parent / "other"
    shutil.copytree(master.path.parents[1], course)
    path = course / "solutions" / master.path.name
    notebook = nbformat.read(path, 4)
    [cell] = [c for c in notebook.cells if c.id == "hidden-check-ring_shift"]
    for output in cell.outputs:
        if "application/json" in output.get("data", {}):
            output.data["application/json"]["received"][0][0] = 77
    nbformat.write(notebook, path)
    ended = graded(command(path, handed_in, "--jobs", "2"))
    assert ended.returncode == 3, ended.stderr
    assert "the reference, ring_shift" in ended.stderr and "nothing was graded" in ended.stderr
    assert stored(handed_in) == set()


def test_stubs_that_earn_points_are_no_proof(master: Master, handed_in: Path) -> None:
    course = handed_in.parent / "other"
    shutil.copytree(master.path.parents[1], course)
    path = course / "labs" / master.path.name
    lab = nbformat.read(path, 4)
    [stub] = [c for c in lab.cells if c.id == "exercise-ring_shift"]
    [solved] = [c for c in master.cells if c.id == "exercise-ring_shift"]
    stub.source = solved.source
    nbformat.write(lab, path)
    ended = graded(command(course / "solutions" / path.name, handed_in, "--jobs", "2"))
    assert ended.returncode == 3 and "the stub, ring_shift: 3" in ended.stderr, ended.stderr


def test_ctrl_c_keeps_what_was_graded(master: Master, handed_in: Path, proved: Path) -> None:
    shutil.copytree(proved, handed_in.parent / "out")
    grader = subprocess.Popen(
        command(master, handed_in), stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    wait_until(lambda: len(stored(handed_in)) == 1, SECONDS, "one is graded")
    below = psutil.Process(grader.pid).children(recursive=True)
    grader.send_signal(signal.SIGINT)
    _, said = grader.communicate(timeout=60)
    assert grader.returncode == 130 and "goes on from there" in said
    assert [p for p in below if p.is_running()] == []
    before = stored(handed_in)
    again = graded(command(master, handed_in))
    assert again.returncode == 0, again.stderr
    assert "(graded before)" in again.stderr and before < stored(handed_in)
    assert results(handed_in) == {"ada": 14, "bob": 11, "cy": 0}


def test_two_graders_on_one_folder(master: Master, handed_in: Path) -> None:
    first = subprocess.Popen(command(master, handed_in), stderr=subprocess.DEVNULL)
    try:
        lock = handed_in.parent / "out" / ".lock"
        wait_until(lambda: lock.exists() and _is_locked(lock), 60, "the first one works")
        second = graded(command(master, handed_in))
        assert second.returncode == 2 and "another grader works" in second.stderr
    finally:
        first.terminate()
        assert first.wait(60) == 130


def _is_locked(path: Path) -> bool:
    import fcntl

    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError:
            return True
    return False


def test_a_full_disk_loses_nothing(master: Master, handed_in: Path, tmp_path: Path) -> None:
    """The output folder is on a disk of 64 kB, which is full after the first result."""
    out, kept = tmp_path / "small", tmp_path / "kept"
    out.mkdir()
    kept.mkdir()
    inner = (
        f'head -c 52k /dev/zero > {out}/ballast; "$@"; code=$?; cp -a {out}/. {kept}; exit $code'
    )
    disk = ["bwrap", "--dev-bind", "/", "/", "--size", "65536", "--tmpfs", str(out)]
    asked = command(master, handed_in, "--jobs", "2")
    asked[asked.index("--out") + 1] = str(out)
    ended = graded([*disk, "--", "sh", "-c", inner, "sh", *asked])
    assert ended.returncode == 1, ended.stderr
    assert "No space left" in ended.stderr and "make room" in ended.stderr
    whole = [json.loads(path.read_text()) for path in kept.glob("results/*/*")]
    assert len(whole) == 1, "one result was stored, and it is whole"


def test_a_master_that_changes_is_told_and_regrades(master: Master, handed_in: Path) -> None:
    course = handed_in.parent / "other"
    shutil.copytree(master.path.parents[1], course)
    path = course / "solutions" / master.path.name
    for name in ("bob", "cy"):
        (handed_in / f"{name}.ipynb").unlink()
    grader = subprocess.Popen(
        command(path, handed_in, "--jobs", "2"), stderr=subprocess.PIPE, text=True
    )
    proof = handed_in.parent / "out" / "results" / "proof.json"
    wait_until(proof.exists, SECONDS, "the lab has proved itself")
    notebook = nbformat.read(path, 4)
    [check] = [c for c in notebook.cells if c.id == "check-ring_shift"]
    check.metadata.points = 5
    nbformat.write(notebook, path)
    _, said = grader.communicate(timeout=SECONDS)
    assert grader.returncode == 0 and "changed while it graded" in said
    assert results(handed_in) == {"ada": 14}
    assert graded(command(path, handed_in, "--jobs", "2")).returncode == 0
    assert results(handed_in) == {"ada": 17}


def test_isolate_makes_a_mistake_cost_once(master: Master, handed_in: Path, proved: Path) -> None:
    """The last exercise is right, and builds on one that is not."""
    shutil.copytree(proved, handed_in.parent / "out")
    copy = Copy(master).answer(
        "ring_all_gather", "%%px\ndef ring_all_gather(x, comm):\n    raise KeyError('mine')\n"
    )
    for path in handed_in.iterdir():
        path.unlink()
    (handed_in / "dee.ipynb").write_text(copy.text())
    assert graded(command(master, handed_in, "--jobs", "2")).returncode == 0
    assert results(handed_in) == {"dee": 7}
    assert graded(command(master, handed_in, "--jobs", "2", "--isolate")).returncode == 0
    assert results(handed_in) == {"dee": 10}


def test_corrections_by_hand_survive_regrading(
    master: Master, handed_in: Path, proved: Path
) -> None:
    shutil.copytree(proved, handed_in.parent / "out")
    (handed_in / "ada.ipynb").unlink()
    (handed_in / "bob.ipynb").unlink()
    assert graded(command(master, handed_in)).returncode == 0
    out = handed_in.parent / "out"
    with open(out / "corrections.csv", "a") as file:
        file.write("cy,ring_shift,2,came by mail\n")
    for more in ([], ["--force"]):
        assert graded(command(master, handed_in, *more)).returncode == 0
        text = (out / "grades.csv").read_text(encoding="utf-8-sig")
        assert '"cy","","2"' in text, text
    assert results(handed_in) == {"cy": 0}, "a result holds what the grader found"


def test_the_time_of_a_stored_result_is_the_files(
    master: Master, handed_in: Path, proved: Path
) -> None:
    """Copied again with its true time, a file that was graded as late no longer is."""
    shutil.copytree(proved, handed_in.parent / "out")
    (handed_in / "ada.ipynb").unlink()
    (handed_in / "bob.ipynb").unlink()
    late = []
    for _ in range(2):
        ended = graded(command(master, handed_in, "--due", "2001-01-01"))
        assert ended.returncode == 0, ended.stderr
        grades = handed_in.parent / "out" / "grades.csv"
        late.append(" late" in grades.read_text(encoding="utf-8-sig").split("\n", 1)[1])
        os.utime(handed_in / "cy.ipynb", (0, 0))
    assert late == [True, False]


def test_what_the_machine_lacks_is_no_zero(master: Master) -> None:
    """The lab's own first cell fails, as with too few devices: the student is not to blame."""
    from parlab.grading.reading import parse
    from parlab.grading.rebuilding import rebuild
    from parlab.grading.scoring import score

    rebuilt = rebuild(master, parse(Copy(master).text().encode()))
    rebuilt.notebook.cells[0].source = "raise RuntimeError('this lab needs 2 GPUs; there are 0')"
    ran = run(rebuilt.notebook, Limits(cell_seconds=60, seconds=300), "bwrap")
    scored = score(master, rebuilt, ran)
    assert [(e.status, e.points) for e in scored] == [("grader_error", None)] * 4
    assert "needs 2 GPUs" in scored[0].notes[0]


def test_without_a_sandbox_where_the_user_says_so(master: Master, handed_in: Path) -> None:
    (handed_in / "ada.ipynb").unlink()
    ended = graded(command(master, handed_in, "--sandbox", "none", "--jobs", "2"))
    assert ended.returncode == 0, ended.stderr
    assert results(handed_in) == {"bob": 11, "cy": 0}
