"""Solutions run in a real kernel, but only if necessary."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest

from tests.conftest import wait_until
from tests.support.authoring_course import TinyCourse, cells_by_id

# A cell that records each run of the solutions.
TRACE = 'with open("../runs", "a") as file:\n    file.write("x")\n'


@pytest.fixture
def course(tmp_path: Path) -> TinyCourse:
    course = TinyCourse(tmp_path)
    course.edit("# %%\nadd(1, 1)\n", f"# %%\n{TRACE}\nadd(1, 1)\n")
    return course


def runs(course: TinyCourse) -> int:
    path = course.root / "runs"
    return len(path.read_text()) if path.exists() else 0


def test_solutions_are_stored_with_their_outputs(
    course: TinyCourse, capsys: pytest.CaptureFixture
) -> None:
    assert course.build() == 0
    printed = capsys.readouterr().out
    assert "labs/01_adding.ipynb: written\n" in printed
    assert "solutions/01_adding.ipynb: running 5 cells\n" in printed
    assert "solutions/01_adding.ipynb: ran 5 cells in " in printed

    cells = cells_by_id(course.solution)
    assert cells["check-add"].outputs[0].text == "✓ add: two numbers\n"
    assert cells["hidden-check-add"].outputs[0].data["application/json"] == {"sum": 23}
    assert cells["after-add-code-1"].outputs[0].data["text/plain"] == "2"
    counts = [c.execution_count for c in cells.values() if c.cell_type == "code"]
    assert counts == [1, 2, 3, 4, 5]
    assert course.build("--check") == 0
    assert runs(course) == 1


def test_nothing_of_the_run_itself_is_stored(course: TinyCourse) -> None:
    assert course.build() == 0
    notebook = nbformat.read(course.solution, as_version=4)
    assert all("execution" not in cell.metadata for cell in notebook.cells)
    assert "version" not in notebook.metadata.language_info
    assert "widgets" not in notebook.metadata
    assert str(course.root) not in course.solution.read_text()


def test_the_second_run_gives_the_same_bytes(course: TinyCourse) -> None:
    course.edit('print("started at", time.time())', 'print("started")')
    assert course.build() == 0
    first = course.solution.read_bytes()
    course.solution.unlink()
    assert course.build() == 0
    assert runs(course) == 2
    assert course.solution.read_bytes() == first


def test_only_what_changed_runs_again(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    assert course.build() == 0
    written = course.solution.read_bytes()
    capsys.readouterr()

    assert course.build() == 0
    assert runs(course) == 1
    assert course.solution.read_bytes() == written
    assert "up to date" in capsys.readouterr().out

    course.edit("which learners should find themselves", "which everybody knows")  # text alone
    assert course.build("--check") == 1
    assert course.build() == 0
    assert runs(course) == 1
    assert "everybody knows" in course.solution.read_text()
    assert course.build("--check") == 0

    course.edit("total = a + b", "total = b + a")
    assert course.build("--check") == 1
    assert course.build() == 0
    assert runs(course) == 2


def test_a_change_of_the_package_runs_the_lab_again(course: TinyCourse) -> None:
    room = course.root / "parlab" / "plots"
    room.mkdir()
    (room / "look.py").write_text("VALUE = 1\n")
    assert course.build() == 0
    (room / "look.py").write_text("VALUE = 2\n")
    assert course.build("--check") == 0  # nbval compares the outputs themselves
    assert course.build("--no-execute") == 0
    assert runs(course) == 1
    assert course.build() == 0
    assert runs(course) == 2
    assert course.build() == 0
    assert runs(course) == 2


def test_a_change_that_no_lab_shows_runs_no_lab(course: TinyCourse) -> None:
    assert course.build() == 0
    (course.root / "parlab" / "setup").mkdir()
    (course.root / "parlab" / "setup" / "table.py").write_text("VALUE = 1\n")
    assert course.build() == 0
    assert runs(course) == 1


def test_outputs_that_someone_changed_are_noticed(
    course: TinyCourse, capsys: pytest.CaptureFixture
) -> None:
    assert course.build() == 0
    notebook = json.loads(course.solution.read_text())
    [cell] = [c for c in notebook["cells"] if c["id"] == "check-add"]
    cell["outputs"][0]["text"] = ["✓ add: everything\n"]
    course.solution.write_text(json.dumps(notebook))
    assert course.build("--check") == 1
    assert "its outputs were changed after it ran" in capsys.readouterr().out
    assert course.build() == 0
    assert runs(course) == 2
    assert course.build("--check") == 0


def test_a_failing_cell_is_named_and_the_old_notebook_is_kept(
    course: TinyCourse, capsys: pytest.CaptureFixture
) -> None:
    assert course.build() == 0
    before = course.solution.read_bytes()
    capsys.readouterr()
    course.edit("total = a + b", "total = a - b")
    assert course.build() == 1
    printed = capsys.readouterr().out
    lines = course.source.read_text().splitlines()
    line = next(n for n, text in enumerate(lines, 1) if '["check"]' in text)
    assert f"solutions/01_adding.py:{line}: cell 3 of 5 fails: AssertionError" in printed
    assert "assert function(2, 3) == 5" in printed
    assert course.solution.read_bytes() == before


def test_a_kernel_that_dies_is_reported(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    course.edit("add(1, 1)\n", "import os\n\nos._exit(3)\n")
    assert course.build() == 1
    assert "cell 5 of 5 killed its kernel" in capsys.readouterr().out
    assert not course.solution.exists()


def test_a_missing_magic_is_a_failure(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    # IPython only prints a line to stderr. Only the reply says that the cell failed.
    course.edit("add(1, 1)\n", "# %no_such_magic\nadd(1, 1)\n")
    assert course.build() == 1
    assert "cell 5 of 5 fails: UsageError" in capsys.readouterr().out


def test_a_cell_that_should_fail_may(course: TinyCourse) -> None:
    course.edit(
        f"# %%\n{TRACE}\nadd(1, 1)\n",
        '# %% tags=["raises-exception"]\nadd(1, "1")\n',
    )
    assert course.build() == 0
    [output] = cells_by_id(course.solution)["after-add-code-1"].outputs
    assert output.ename == "TypeError"
    assert str(course.root) not in "".join(output.traceback)


def test_a_path_of_this_machine_is_an_error(
    course: TinyCourse, capsys: pytest.CaptureFixture
) -> None:
    folders = ("os.getcwd()", "sys.prefix", "os.path.expanduser('~')", "tempfile.gettempdir()")
    cells = "".join(f"# %%\nprint({folder} + '/x')\n" for folder in folders)
    course.edit("add(1, 1)\n", f"import os, sys, tempfile\n\n{cells}")
    assert course.build() == 1
    printed = capsys.readouterr().out
    assert printed.count("the output holds a path of this machine") == len(folders)


def test_a_hidden_check_must_give_json(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    course.edit('JSON({"sum": add(20, 3)})', "print(add(20, 3))")
    assert course.build() == 1
    assert "a hidden-check displays its values as JSON" in capsys.readouterr().out


def test_no_execute_writes_only_labs(course: TinyCourse, capsys: pytest.CaptureFixture) -> None:
    assert course.build("--no-execute") == 0
    assert course.lab.exists() and not course.solution.exists()
    assert "solutions/01_adding.ipynb: out of date, and not run" in capsys.readouterr().out
    assert runs(course) == 0


def test_check_changes_nothing(course: TinyCourse) -> None:
    assert course.build() == 0
    course.edit("total = a + b", "total = b + a")
    files = {p: p.read_bytes() for p in course.root.rglob("*") if p.is_file()}
    assert course.build("--check") == 1
    assert {p: p.read_bytes() for p in course.root.rglob("*") if p.is_file()} == files


def test_notebooks_without_a_source_are_reported(
    course: TinyCourse, capsys: pytest.CaptureFixture
) -> None:
    assert course.build() == 0
    course.lab.rename(course.lab.with_stem("02_gone"))
    (course.root / "labs" / "scratch.ipynb").write_text("my own")
    assert course.build() == 1
    printed = capsys.readouterr().out
    assert "labs/02_gone.ipynb: has no source 02_gone.py in solutions/; remove it" in printed
    assert "scratch" not in printed


def test_it_is_a_command(course: TinyCourse) -> None:
    command = [sys.executable, "-m", "parlab_staff.notebooks", "--root", str(course.root)]
    ran = subprocess.run([*command, "--no-execute"], capture_output=True, text=True, timeout=120)
    assert (ran.returncode, ran.stderr) == (0, "")
    ran = subprocess.run([*command, "--check"], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 1
    assert "solutions/01_adding.ipynb: is missing" in ran.stdout


def test_ctrl_c_stops_the_kernel_too(course: TinyCourse) -> None:
    started = course.root / "started"
    course.edit("add(1, 1)\n", "open('../started', 'w').close()\ntime.sleep(600)\n")
    command = [sys.executable, "-m", "parlab_staff.notebooks", "--root", str(course.root)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        wait_until(started.exists, 60, "the cell has started")
        kernel = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        printed, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    assert printed.endswith("stopped; what was written before is complete\n")
    assert kernel and not any(child.is_running() for child in kernel)
    assert course.lab.exists() and not course.solution.exists()
