"""The handout: everything that a student needs, and no solution or hidden check."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from parlab.runtime.paths import ROOT
from parlab_staff.book.source import BEGIN_FULL, END_FULL
from parlab_staff.course.checkout import Course, select
from parlab_staff.course.percent_source import read_lab
from parlab_staff.grading.graded_lab import find_lab
from parlab_staff.notebooks.make import OWN
from parlab_staff.release import write_handout, writing
from parlab_staff.release.leaks import leaks, secrets
from tests.support.authoring_course import TinyCourse

LABS = sorted(path.stem for path in (ROOT / "solutions").glob("[0-9][0-9]_*.py"))


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_handout("mpi", tmp_path_factory.mktemp("out") / "new" / "handout")


def files(folder: Path) -> dict[str, bytes]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def python(folder: Path, code: str) -> subprocess.CompletedProcess[str]:
    """Run code in a new process in the folder, which cannot import from this checkout."""
    alone = "import sys; sys.meta_path = [f for f in sys.meta_path if 'editable' not in repr(f)]"
    command = [sys.executable, "-B", "-c", f"{alone}\n{code}"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True)


def test_the_handout_has_one_lab_and_everything_it_needs(released: Path) -> None:
    named = set(files(released))
    assert {name for name in named if name.endswith(".ipynb")} == {"labs/01_mpi.ipynb"}
    lab = (released / "labs" / "01_mpi.ipynb").read_bytes()
    assert lab == (ROOT / "labs" / "01_mpi.ipynb").read_bytes()
    assert {"Makefile", "README.md", "LICENSE", "requirements.txt", "environment.yml"} <= named
    assert ".gitattributes" in named, "with it, scripts keep their line endings on Windows"
    assert {
        "parlab/data/mnist.npz",
        "parlab/setup/venv.py",
        "parlab/checks/mpi/__init__.py",
    } <= named
    for link in re.findall(r"\]\((\.\./[^)#]+)", lab.decode()):
        assert (released / "labs" / link).is_file(), link


def test_the_handout_has_no_files_of_the_instructor(released: Path) -> None:
    folders = {part for name in files(released) for part in Path(name).parts[:-1]}
    assert not folders & {"parlab_staff", "solutions", "tests", "__pycache__", ".venv"}


def reported(path: Path) -> str:
    """Return the text of a file or of a notebook's cells, with single spaces."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        text = "\n".join("".join(cell["source"]) for cell in json.loads(text)["cells"])
    return " ".join(text.split())


@pytest.mark.parametrize("lab", LABS)
def test_the_handout_has_no_solution_and_no_hidden_check(lab: str, tmp_path: Path) -> None:
    """This searches for the markers itself, without the code that releases labs."""
    texts = {
        path: reported(path)
        for path in write_handout(lab, tmp_path / "handout").rglob("*")
        if path.is_file() and path.suffix != ".npz"
    }
    source = (ROOT / "solutions" / f"{lab}.py").read_text()
    regions = re.findall(r"# BEGIN SOLUTION\n(.*?)# END SOLUTION", source, re.S)
    hidden = re.findall(r'# %% tags=\["hidden-check"\][^\n]*\n(.*?)\n# %%', source, re.S)
    hidden = [re.sub(r"^# %%px.*\n", "", text) for text in hidden]
    multi_line = [text for text in regions if len(text.strip().splitlines()) > 1]
    assert len(multi_line) >= 5 and len(hidden) >= 5
    expected = [
        json.dumps(value)
        for exercise in find_lab(lab).exercises
        for _, value in exercise.hidden.values()
    ]
    for secret in [*multi_line, *hidden, *expected]:
        words = " ".join(secret.split())
        assert [str(path) for path, text in texts.items() if words in text] == [], words


def test_a_leak_is_noticed_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = writing.lab_notebook

    def careless(lab):
        notebook = whole(lab)
        notebook.cells[0].source += next(c for c in lab.cells if c.role == "exercise").source
        return notebook

    monkeypatch.setattr(writing, "lab_notebook", careless)
    with pytest.raises(ValueError, match=r"labs/01_mpi\.ipynb holds solution 1 of 01_mpi, line"):
        write_handout("01_mpi", tmp_path / "handout")
    assert list(tmp_path.iterdir()) == []


def test_leaks_finds_the_secrets_in_the_sources() -> None:
    (lab,) = select(Course(ROOT).read(), ["mpi"])
    where = {line.split(" ")[0] for line in leaks(lab, ROOT / "solutions")}
    assert where == {"01_mpi.py", "01_mpi.ipynb"}
    assert len(secrets(lab)) >= 14


def test_cells_for_instructors_are_secret(tmp_path: Path) -> None:
    lab = read_lab(TinyCourse(tmp_path).source)
    (tmp_path / "handout").mkdir()
    (tmp_path / "handout" / "notes.md").write_text(
        "Adding is commutative, which learners should find themselves."
    )
    (found,) = leaks(lab, tmp_path / "handout")
    assert found.startswith("notes.md holds the solution of 01_adding, line")


def test_a_lab_that_is_not_up_to_date_is_not_released(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    printed = "labs/01_mpi.ipynb: differs from solutions/01_mpi.py; run `make notebooks`"
    monkeypatch.setattr(writing, "differences", lambda course, lab: [printed])
    with pytest.raises(ValueError, match=r"is not released: labs/01_mpi\.ipynb: differs"):
        write_handout("01", tmp_path / "handout")


def test_the_stamp_says_which_version_of_the_lab_it_is(released: Path) -> None:
    stamp = json.loads((released / "release.json").read_text())
    notebook = json.loads((released / "labs" / "01_mpi.ipynb").read_text())
    assert list(stamp) == ["lab", "derived", "parlab", "date"]
    assert stamp["lab"] == "01_mpi"
    assert stamp["derived"] == notebook["metadata"][OWN]["derived"]


@pytest.mark.nightly
def test_releasing_twice_gives_the_same_bytes(released: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    one, other = files(released), files(write_handout("01_mpi", tmp_path / "empty"))
    assert list(tmp_path.iterdir()) == [tmp_path / "empty"]
    one.pop("release.json"), other.pop("release.json")
    assert one == other


def test_a_link_to_an_empty_folder_is_filled(released: Path, tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    write_handout("mpi", tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert files(tmp_path / "disk").keys() == files(released).keys()


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for taken in (tmp_path, tmp_path / "notes.txt"):
        with pytest.raises(ValueError, match="not an empty folder"):
            write_handout("mpi", taken)
    assert files(tmp_path) == {"notes.txt": b"mine"}


def test_an_unknown_lab_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the labs are: 01_mpi, "):
        write_handout("99_nothing", tmp_path / "handout")


def test_python_imports_from_the_handout_and_finds_no_solutions(released: Path) -> None:
    code = """if True:
        from IPython.core.interactiveshell import InteractiveShell
        import parlab.cluster, parlab.checks.mpi, parlab.data
        from parlab.reference import NoReference, use_reference
        InteractiveShell.instance()
        print(parlab.cluster.__file__, len(parlab.data.mnist("test", limit=7)[0]))
        try:
            use_reference("ping_pong")
        except NoReference as told:
            print(told)"""
    ran = python(released, code)
    first, second = ran.stdout.splitlines()
    assert first == f"{released / 'parlab' / 'cluster' / '__init__.py'} 7", ran.stderr
    assert "this copy of the course comes without solutions" in second


def test_the_handouts_commands_are_those_of_a_student(released: Path) -> None:
    command = "from parlab.setup.cli import main; main()"
    printed = python(released, f"import sys; sys.argv[1:] = ['--help']; {command}").stdout
    assert set(re.findall(r"^│ ([a-z]+)  ", printed, re.MULTILINE)) == {"lab", "doctor", "profile"}
    words = "['grade', '01', 'class', '--out', 'grades']"
    refused = python(released, f"import sys; sys.argv[1:] = {words}; {command}")
    assert refused.returncode == 2
    assert "No such command 'grade'" in refused.stderr


def test_the_handouts_makefile_has_only_targets_that_work(released: Path) -> None:
    # This test may run below a make, whose variables would change the output of the inner one.
    env = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    printed = subprocess.run(
        ["make", "help"], cwd=released, env=env, capture_output=True, text=True
    )
    listed = {line.split()[0] for line in printed.stdout.splitlines()[1:]}
    assert listed == {"help", "setup", "lab", "doctor", "clean"}
    named = re.findall(r"(?:`|^    )make ([a-z]+)", (released / "README.md").read_text(), re.M)
    named += re.findall(r"`make ([a-z]+)", (released / "labs" / "START.md").read_text())
    assert {"lab", "doctor"} <= set(named) <= listed


def test_the_handouts_chapter_is_that_of_the_students_edition(released: Path) -> None:
    chapter = (ROOT / "book" / "01_mpi.md").read_text(encoding="utf-8")
    full_only = re.findall(f"{BEGIN_FULL}\n(.+?){END_FULL}\n", chapter, re.DOTALL)
    given = (released / "book" / "01_mpi.md").read_text(encoding="utf-8")
    assert full_only and not any(text in given for text in full_only)


def test_the_handouts_pages_link_to_its_lab(released: Path) -> None:
    start = (released / "labs" / "START.md").read_text()
    assert re.findall(r"\((\w+\.ipynb)\)", start) == ["01_mpi.ipynb"]
    readme = (released / "README.md").read_text()
    assert readme.startswith("# Lab 01: Message passing\n")
    assert "`labs/01_mpi.ipynb`" in readme
