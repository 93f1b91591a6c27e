"""One command grades a class on ranks. The class includes attacks. SIGKILL ends the command once.

Every submission gets its expected result, regardless of what the others do.
"""

import csv
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path

import psutil
import pytest

from parlab_staff.grading.graded_lab import GradedLab
from parlab_staff.grading.results import SubmissionResult
from parlab_staff.grading.run import PREFIX
from parlab_staff.grading.store import Store
from tests.conftest import wait_until
from tests.grading import cases_hostile, cases_ranks
from tests.grading.cases import Case
from tests.grading.small_lab import make_course

CASES = [*cases_ranks.case, *cases_hostile.case]
# The cases that `make test` grades: an attack on the checks, on the files, on the processes, and on
# the reports, and mistakes on ranks.
ALWAYS = {
    *("patched_failures", "reads_the_solution", "kills_the_parent", "markup"),
    *("rank_exits", "half_done", "right", "pipe"),
}
assert {case.name for case in CASES} >= ALWAYS
EACH_CASE = [
    pytest.param(case, id=case.name, marks=[] if case.name in ALWAYS else [pytest.mark.nightly])
    for case in CASES
]

pytestmark = [pytest.mark.timeout(2400), pytest.mark.needs("bubblewrap")]
# A hidden check of the lab ends itself after 15 s. Other cells may take long on a busy machine.
LIMITS = ["--cell-timeout", "90", "--timeout", "600", "--memory", "3"]


@dataclass
class Graded:
    """The class's folder, and the grader's output."""

    lab: GradedLab
    cases: list[Case]
    folder: Path
    out: Path
    returned: int
    output: str
    graders: list[int]  # the process numbers of the graders of this class

    def results(self) -> dict[str, SubmissionResult]:
        found = {}
        for path in self.out.glob("results/*/result.json"):
            data = json.loads(path.read_text())
            data.pop("format")
            result = SubmissionResult.from_json(data)
            found[result.student] = result
        return found


def command(lab: GradedLab, folder: Path, out: Path, *more: str) -> list[str]:
    start = [sys.executable, "-m", "parlab.setup.cli", "grade", str(lab.path), str(folder)]
    return [*start, "--out", str(out), "--jobs", "3", *LIMITS, *more]


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Graded:
    """The graded class. The grader was killed once. Nightly runs grade all cases."""
    items = [item for item in request.session.items if item.path == request.path]
    every = any(item.get_closest_marker("nightly") for item in items)
    cases = [case for case in CASES if every or case.name in ALWAYS]
    root = tmp_path_factory.mktemp("grading")
    lab = make_course(root / "course")
    folder, out = root / "class", root / "out"
    folder.mkdir()
    for case in cases:
        case.write(folder, lab)
    (root / "roster.csv").write_text("student,name\nhalf_done,Half Done\nabsent,Not There\n")
    arguments = command(lab, folder, out, "--roster", str(root / "roster.csv"))
    env = os.environ | {"PARLAB_TEST_SECRET": "1"}
    log = root / "killed.log"
    with log.open("w") as file:
        killed = subprocess.Popen(arguments, env=env, stdout=file, stderr=subprocess.STDOUT)
    wait_until(
        lambda: (
            len(list(out.glob("results/*/result.json"))) >= len(cases) // 3
            or killed.poll() is not None
        ),
        600,
        "a third of the class is graded",
    )
    assert killed.poll() is None, f"the grader ended too early:\n{log.read_text()}"
    below = psutil.Process(killed.pid).children(recursive=True)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    psutil.wait_procs(below, timeout=30)
    assert [p for p in below if p.is_running()] == [], "processes outlive a grader that is killed"
    grader = subprocess.Popen(
        arguments, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        output, _ = grader.communicate(timeout=2000)
    finally:
        grader.kill()  # if it is late; otherwise, it has ended
    graders = [killed.pid, grader.pid]
    return Graded(lab, cases, folder, out, grader.returncode, output, graders)


def test_submissions_that_could_not_be_graded_are_reported(graded: Graded) -> None:
    assert graded.returned == 1, graded.output
    for case in graded.cases:
        named = f"not graded: {case.student}: " in graded.output
        assert named == (case.status == "grader_error"), graded.output


@pytest.mark.parametrize("case", EACH_CASE)
def test_submission(graded: Graded, case: Case) -> None:
    case.verify(graded.results()[case.student])


def test_the_gradebook_has_everyone(graded: Graded) -> None:
    text = (graded.out / "grades.csv").read_text(encoding="utf-8-sig")
    rows = {row["student"].removeprefix("'"): row for row in csv.DictReader(text.splitlines())}
    assert set(rows) == {case.student for case in graded.cases} | {"absent"}
    assert rows["absent"]["status"] == "missing" and rows["absent"]["total"] == "0"
    assert rows["half_done"]["name"] == "Half Done"
    for case in graded.cases:
        total = rows[case.student]["total"]
        assert total == ("" if case.points is None else f"{case.points:g}")
    assert not any(
        cell.startswith(("=", "+", "-", "@")) for row in rows.values() for cell in row.values()
    )


def test_no_report_runs_a_students_code(graded: Graded) -> None:
    pages = [*graded.out.glob("feedback/*.html"), graded.out / "summary.html"]
    assert len(pages) == len(graded.cases) + 2  # the summary, and the absent student

    class Tags(HTMLParser):
        def __init__(self) -> None:
            super().__init__()
            self.found: set[str] = set()

        def handle_starttag(self, tag: str, attrs: list) -> None:
            self.found.add(tag)

    for page in pages:
        text = page.read_text(encoding="utf-8")
        parser = Tags()
        parser.feed(text)
        assert "script" not in parser.found and "\x1b" not in text, page


def test_nothing_is_left_running(graded: Graded) -> None:
    # Other tests may grade at the same time, so search only for the folders of these graders.
    folders = [str(graded.out), *(f"{PREFIX}{grader}-" for grader in graded.graders)]

    def left() -> list[psutil.Process]:
        return [
            p
            for p in psutil.process_iter(["cmdline"])
            if any(folder in part for part in p.info["cmdline"] or [] for folder in folders)
        ]

    wait_until(lambda: left() == [], 60, f"processes have ended: {left()}")


def test_the_same_command_again_keeps_finished_results(graded: Graded) -> None:
    could_not = {case.student for case in graded.cases if case.points is None}
    paths = [Store(graded.out).path(name) for name in graded.results() if name not in could_not]
    before = {path: path.stat().st_mtime_ns for path in paths}
    roster = graded.folder.parent / "roster.csv"
    arguments = command(graded.lab, graded.folder, graded.out, "--roster", str(roster))
    again = subprocess.run(arguments, capture_output=True, text=True, timeout=120)
    assert again.returncode == 1
    assert {path: path.stat().st_mtime_ns for path in before} == before
