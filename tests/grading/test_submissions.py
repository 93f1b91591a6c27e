"""Finding submissions: which student a path belongs to, and which file counts."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from parlab_staff.grading.claiming import claim, strangers
from parlab_staff.grading.grader import Grader
from parlab_staff.grading.run import Limits
from parlab_staff.grading.submissions import Submission, find_submissions
from tests.grading.plain_lab import in_process_lab

LAB = "01_mpi"
DEEP = "ada/a/b/c/d/e/f/g/h/i/x.ipynb"


def make(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    return root


def students(root: Path, *paths: str) -> dict[str, str]:
    found = find_submissions([root / path for path in paths] or [root], LAB).submissions
    return {s.student: str(s.path.relative_to(root)) if s.path else s.problem for s in found}


@pytest.mark.parametrize(
    ("files", "given", "expected"),
    [
        (["ada.ipynb", "bob.ipynb"], [], {"ada": "ada.ipynb", "bob": "bob.ipynb"}),
        (["ada.ipynb"], [], {"ada": "ada.ipynb"}),
        (["ada/01_mpi.ipynb", "b/x.ipynb"], [], {"ada": "ada/01_mpi.ipynb", "b": "b/x.ipynb"}),
        (["ada/01_mpi.ipynb", "ada/notes.ipynb"], [], {"ada": "ada/01_mpi.ipynb"}),
        (["ada/01_mpi.ipynb"], ["ada"], {"ada": "ada/01_mpi.ipynb"}),
        (["ada/01_mpi.ipynb"], ["ada/01_mpi.ipynb"], {"ada": "ada/01_mpi.ipynb"}),
        (["ada/x.ipynb", "b/y.ipynb"], ["ada", "b"], {"ada": "ada/x.ipynb", "b": "b/y.ipynb"}),
        (["ada.ipynb", "bob/x.ipynb"], [], {"ada": "ada.ipynb", "bob": "bob/x.ipynb"}),
        (["a.ipynb", "._a.ipynb", "x.txt", ".ipynb_checkpoints/b.ipynb"], [], {"a": "a.ipynb"}),
        (["a.ipynb", ".vscode/settings.json", ".idea/x.xml"], [], {"a": "a.ipynb"}),
        (["ada.ipynb/x.ipynb", "b.ipynb"], [], {"ada.ipynb": "ada.ipynb/x.ipynb", "b": "b.ipynb"}),
        (["ada/labs/01_mpi.ipynb"], [], {"ada": "ada/labs/01_mpi.ipynb"}),
        (["ada/labs/01_mpi.ipynb"], ["ada"], {"ada": "ada/labs/01_mpi.ipynb"}),
        (["ada/labs/01_mpi.ipynb"], ["ada/labs"], {"ada": "ada/labs/01_mpi.ipynb"}),
        (["ada/labs/01_mpi.ipynb"], ["ada/labs/01_mpi.ipynb"], {"ada": "ada/labs/01_mpi.ipynb"}),
        (["labs/x.ipynb", "b/x.ipynb"], [], {"labs": "labs/x.ipynb", "b": "b/x.ipynb"}),
        ([DEEP, "b/x.ipynb"], [], {"ada": DEEP, "b": "b/x.ipynb"}),
        (["ada/.repo/labs/x.ipynb", "b/x.ipynb", "b/.cache/x.ipynb"], [],
         {"ada": "ada/.repo/labs/x.ipynb", "b": "b/x.ipynb"}),
        (["two\nlines.ipynb"], [], {"two\nlines": "two\nlines.ipynb"}),
        (["ada/repo/labs/01_mpi.ipynb", "ada/repo/labs/02_x.ipynb", "ada/repo/.git/x.ipynb"], [],
         {"ada": "ada/repo/labs/01_mpi.ipynb"}),
        (["a/01_mpi.ipynb.txt", "b/X.IPYNB", "c.ipynb.json", "D.Ipynb"], [],
         {"a": "a/01_mpi.ipynb.txt", "b": "b/X.IPYNB", "c": "c.ipynb.json", "D": "D.Ipynb"}),
        (["a/x.ipynb", "a/.ipynb_checkpoints/x.ipynb", "a/.venv/y.ipynb"], [], {"a": "a/x.ipynb"}),
    ],
)  # fmt: skip
def test_students(files: list[str], given: list[str], expected: dict, tmp_path: Path) -> None:
    assert students(make(tmp_path, *files), *given) == expected


@pytest.mark.parametrize(
    ("file", "student"),
    [
        ("Zoe\u0308.ipynb", "Zoë"),
        ("a\u200bda\u200e.ipynb", "ada"),
        ("\u061cada/x.ipynb", "ada"),
        ("نی\u200cما.ipynb", "نی\u200cما"),  # the joiner belongs to the spelling
        ("\u200b.ipynb", "\u200b"),
    ],
)
def test_names_are_composed_and_visible(file: str, student: str, tmp_path: Path) -> None:
    assert list(students(make(tmp_path, file))) == [student]


@pytest.mark.parametrize(
    ("files", "student", "problem"),
    [
        (["ada/x.ipynb", "ada/y.ipynb", "b/x.ipynb"], "ada", "it is not clear which notebook"),
        (["ada.ipynb", "ada/01_mpi.ipynb"], "ada", "it is not clear which of these counts: "),
        (["ada/notes.txt", "bob/x.ipynb"], "ada", "no notebook was handed in, only notes"),
        (["ada/a/x.ipynb", "ada/b/y.ipynb", "b/x.ipynb"], "ada",
         "it is not clear which notebook counts: a"),
        (["ada/a/01_mpi.ipynb", "ada/01_mpi.ipynb", "b/x.ipynb"], "ada",
         "it is not clear which notebook counts"),
        (["ada/lab.zip", "bob/x.ipynb"], "ada", "lab.zip is an archive: unpack it"),
        (["ada.zip", "bob.ipynb"], "ada", "ada.zip is an archive: unpack it"),
        (["ada.zip"], "ada", "ada.zip is an archive: unpack it"),
        (["two\nlines.zip", "bob.ipynb"], "two\nlines", "two\nlines.zip is an archive: unpack it"),
        (["ada.tar.gz", "bob.ipynb"], "ada", "ada.tar.gz is an archive: unpack it"),
        (["ada.ipynb.gz", "bob.ipynb"], "ada", "ada.ipynb.gz is an archive: unpack it"),
        (["ada/.ipynb_checkpoints/x.ipynb", "b/x.ipynb"], "ada",
         "the only notebooks are where tools keep theirs: .ipynb_checkpoints/x.ipynb"),
        (["ada/.repo/x.py", "bob/y.py"], "ada", "no notebook was handed in, only .repo/x"),
        ([f"ada/{'a/' * 120}x.ipynb", "b/x.ipynb"], "ada", "no notebook was handed in, only"),
        (["ada/x.py", "bob/y.py"], "ada", "no notebook was handed in, only x.py"),
    ],
)  # fmt: skip
def test_an_unclear_submission_is_reported(
    files: list, student: str, problem: str, tmp_path: Path
) -> None:
    assert students(make(tmp_path, *files))[student].startswith(problem)


def test_files_that_are_no_submission_are_listed(tmp_path: Path) -> None:
    names = ["a.ipynb", "b.ipynb", "c.pdf", "notes.txt", ".DS_Store", ".git/config"]
    root = make(tmp_path, *names, ".venv/lib/x.ipynb", "node_modules/y.ipynb")
    found = find_submissions([root], LAB)
    assert [s.student for s in found.submissions] == ["a", "b"]
    listed = [".venv", "c.pdf", "node_modules", "notes.txt"]
    assert [path.name for path in found.ignored] == listed


def claimed(root: Path, *roster: str) -> tuple[dict[str, str], list[str]]:
    """Return each student's file or problem, and the files that belong to no student."""
    found = find_submissions([root], LAB)
    claim(found, dict.fromkeys(roster, ""))
    assert all(s.given for s in found.submissions)
    theirs = {s.student: s.path.name if s.path else s.problem for s in found.submissions}
    return theirs, [path.name for path in found.ignored]


def test_a_file_named_like_a_student_counts_as_handed_in(tmp_path: Path) -> None:
    """The roster identifies the student, so the file is reported, and the score is not 0."""
    names = ["ada.ipynb", "ada.pdf", "b.ipynb", "cy.pdf", "cy.txt", "eve.ipynb.docx", "Gil.PDF"]
    root = make(tmp_path, *names, "ann.lee.pdf", "notes.txt")
    theirs, ignored = claimed(root, "ada", "cy", "dee", "eve", "gil", "ann", "ann.lee")
    problem = "no notebook was handed in, only "
    expected_problems = {
        "cy": "cy.pdf",
        "eve": "eve.ipynb.docx",
        "gil": "Gil.PDF",
        "ann.lee": "ann.lee.pdf",
    }
    expected_problems = {student: problem + name for student, name in expected_problems.items()}
    assert theirs == {"ada": "ada.ipynb", "b": "b.ipynb"} | expected_problems
    assert list(theirs) == sorted(theirs)
    assert ignored == ["ada.pdf", "cy.txt", "notes.txt"]


@pytest.mark.parametrize(
    ("files", "roster", "expected"),
    [
        (["anna.ipynb"], ["Anna"], {"Anna": "anna.ipynb"}),
        (["Anna/x.ipynb"], ["anna ", "bo"], {"anna": "x.ipynb"}),
        (["anna.ipynb"], ["Anna", "anna"], {"anna": "anna.ipynb"}),
        (["anna.ipynb", "ANNA.ipynb"], ["ANNA"], {"ANNA": "ANNA.ipynb", "anna": "anna.ipynb"}),
        (["anna.ipynb", "ANNA.ipynb"], ["Anna"],
         {"ANNA": "ANNA.ipynb", "anna": "anna.ipynb",
          "Anna": "perhaps handed in under another name: ANNA, anna. If so, rename it to Anna"}),
        (["anna.ipynb"], ["Anna", "ANNA"],
         {"anna": "anna.ipynb",
          "Anna": "perhaps handed in under another name: anna. If so, rename it to Anna",
          "ANNA": "perhaps handed in under another name: anna. If so, rename it to ANNA"}),
    ],
)  # fmt: skip
def test_a_name_in_other_capitals_is_not_a_zero(
    files: list[str], roster: list[str], expected: dict, tmp_path: Path
) -> None:
    """It is assigned to the student if no other has such a name, and reported otherwise."""
    assert claimed(make(tmp_path, *files), *roster) == (expected, [])


MOODLE = "_assignsubmission_file_"
ANNA, BO = "Anna Beispiel", "Bo Chen"


@pytest.mark.parametrize(
    ("files", "roster"),
    [
        # Moodle, with and without folders, and with a separate text
        ([f"{ANNA}_4711{MOODLE}/x.ipynb", f"{BO}_12{MOODLE}/01_mpi.ipynb"], {"a": ANNA, "b": BO}),
        ([f"{ANNA}_4711{MOODLE}01_mpi.ipynb", f"{BO}_12{MOODLE}x.ipynb"], {ANNA: "", BO: ""}),
        ([f"{ANNA}{MOODLE}/x.ipynb", f"{BO}_12{MOODLE}/x.ipynb"], {"Beispiel, Anna": "", "12": BO}),
        ([f"{ANNA}_4711{MOODLE}/x.ipynb", f"{BO}_12{MOODLE}/01_mpi.ipynb",
          f"{ANNA}_4711_assignsubmission_onlinetext/onlinetext.html"], {"4711": "", "12": ""}),
        # Canvas
        (["beispielanna_4711_52001_01_mpi.ipynb", "chenbo_LATE_12_52002_01_mpi-1.ipynb"],
         {"a": ANNA, "b": BO}),
        (["beispielanna_4711_52001_01_mpi.ipynb", "chenbo_12_52002_x.ipynb"],
         {"4711": "", "b": BO}),
        # GitHub Classroom
        (["01-mpi-anna-b/labs/01_mpi.ipynb", "01-mpi-bo/labs/01_mpi.ipynb"],
         {"Anna-B": ANNA, "bo": BO}),
        (["01-mpi-anna-main/x.ipynb", "01-mpi-bo-master/x.ipynb"], {"anna": ANNA, "bo": BO}),
        # PrairieLearn
        (["anna@uni.example_1_lab_1_1_01_mpi.ipynb", "bo@uni.example_1_lab_1_1_01_mpi.ipynb"],
         {"anna": "", "bo@uni.example": ""}),
    ],
)  # fmt: skip
def test_the_names_of_a_learning_platform_are_known(
    files: list[str], roster: dict[str, str], tmp_path: Path
) -> None:
    found = find_submissions([make(tmp_path, *files)], LAB)
    claim(found, roster)
    assert strangers(found, roster) == []
    paths = {s.student: str(s.path.relative_to(tmp_path)) for s in found.submissions}
    assert paths == dict(sorted(zip(roster, files, strict=False)))
    noted = [note for s in found.submissions for note in s.notes]
    assert len(noted) == len(files) - len(roster) and all("onlinetext" in note for note in noted)


@pytest.mark.parametrize(
    ("files", "roster", "right_questions", "unknown"),
    [
        # two students with the same name, an unknown form, a name that is part of others
        ([f"{ANNA}_1{MOODLE}/x.ipynb", f"{ANNA}_2{MOODLE}/x.ipynb"], {"a": ANNA, "b": ANNA},
         {"a", "b"}, 2),
        (["Lab1 anna beispiel final.ipynb", "bo.ipynb"], {"a": ANNA, "bo": BO}, {"a"}, 1),
        ([f"Carl Other_4711{MOODLE}/x.ipynb", "bo.ipynb"], {"4711": ANNA, "bo": BO}, {"4711"}, 1),
        (["anna_hw.ipynb", "bo.ipynb"], {"anna": ANNA, "bo": BO}, {"anna"}, 1),
        (["lena-anna.ipynb", "bo.ipynb"], {"anna": "", "bo": BO}, {"anna"}, 1),
        (["anna-lena.ipynb", "anna-maria.ipynb"], {"lena": "", "bo": BO}, {"lena"}, 2),
        (["lena.ipynb", "bo.ipynb"], {"anna": "", "bo": BO}, set(), 1),
    ],
)  # fmt: skip
def test_a_name_that_may_be_a_students_is_reported(
    files: list[str],
    roster: dict[str, str],
    right_questions: set[str],
    unknown: int,
    tmp_path: Path,
) -> None:
    found = find_submissions([make(tmp_path, *files)], LAB)
    claim(found, roster)
    questions = {s.student for s in found.submissions if s.problem.startswith("perhaps handed in")}
    assert questions == right_questions
    assert len(strangers(found, roster)) == unknown


def test_a_linked_folder_is_reported(tmp_path: Path) -> None:
    """The student did hand in something, even if the grader does not follow the link."""
    root = make(tmp_path / "class", "a/x.ipynb")
    make(tmp_path / "elsewhere", "01_mpi.ipynb")
    (root / "b").symlink_to(tmp_path / "elsewhere")
    (root / "c").mkdir()
    (root / "c" / "labs").symlink_to(tmp_path / "elsewhere")
    found = {s.student: s for s in find_submissions([root], LAB).submissions}
    assert found["b"].given and "is a link" in found["b"].problem
    assert found["c"].given and "labs" in found["c"].problem


def test_a_folder_with_only_links_is_a_class(tmp_path: Path) -> None:
    """Each student is reported, and none counts as a student without a submission."""
    make(tmp_path / "elsewhere", "01_mpi.ipynb")
    root = tmp_path / "class"
    root.mkdir()
    for name in ("ada", "bob"):
        (root / name).symlink_to(tmp_path / "elsewhere")
    found = students(root)
    assert set(found) == {"ada", "bob"}
    assert all("is a link" in problem for problem in found.values())


def test_a_time_beyond_the_calendar_is_unknown(tmp_path: Path, monkeypatch) -> None:
    [found] = find_submissions([make(tmp_path, "ada.ipynb")], LAB).submissions
    assert found.submitted
    monkeypatch.setattr("os.lstat", lambda path: SimpleNamespace(st_mtime=1e15))
    assert found.submitted == ""


def test_a_path_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere does not exist"):
        find_submissions([tmp_path / "nowhere"], LAB)


def test_a_file_that_changed_is_graded_again(tmp_path: Path) -> None:
    submission = Submission("ada", tmp_path / "ada.ipynb")
    grader = Grader(in_process_lab(), Limits(), "none")
    keys = []
    for text in ("{}", "{ }"):
        submission.path.write_text(text)
        keys.append(grader.key_of(submission)["submission"])
    assert keys[0] != keys[1]
