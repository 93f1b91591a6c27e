"""Cells that do not end, use too much, or attack their kernel, in real kernels without ranks."""

import json
import subprocess
import sys

import pytest

from parlab_staff.grading.results import SubmissionResult
from tests.grading import cases_kernel, cases_running, cases_state
from tests.grading.cases import Case
from tests.grading.plain_lab import make_course

pytestmark = [pytest.mark.timeout(900), pytest.mark.needs("bubblewrap")]
CASES = [*cases_running.case, *cases_kernel.case, *cases_state.case]
# The cases that only `make test-all` grades: variants of others, right answers before wrong, and
# state that ends with its process as certainly as the hooks that another case leaves.
NIGHTLY = {
    *("kills_itself", "segfault", "sleeps", "prints_one_long_line", "writes_without_a_name"),
    *("takes_memory_as_files", "takes_memory_in_datagrams", "takes_memory_in_connections"),
    *("takes_shared_memory", "before_an_endless_loop_in_c"),
    *("exits_at_once", "endless_loop", "sends_endlessly", "warns", "late_thread"),
    *("litters_the_door", "patched_tracebacks", "forged_display_elsewhere"),
    *("before_threads", "before_memory"),
    *("before_seeds", "before_environment", "before_a_folder", "before_settings"),
    "before_open_files",
    *("missing_package", "sys_exit", "prints_for_ever"),
    *(case.name for case in cases_state.case if case.name.startswith("after_")),
}
assert {case.name for case in CASES} >= NIGHTLY
EACH_CASE = [
    pytest.param(case, id=case.name, marks=[pytest.mark.nightly] if case.name in NIGHTLY else [])
    for case in CASES
]
# These cases wait for the time limit of a cell, and the others must not reach it, even on a busy
# machine. A normal cell of this lab takes milliseconds, and a normal submission 200 MB. A kernel
# that quits may begin its next cell first.
ENDLESS = {
    *("endless_loop", "endless_and_deaf", "sleeps", "prints_for_ever", "quits"),
    *("before_an_endless_loop_in_c", "after_an_endless_loop_in_c"),
}
assert {case.name for case in CASES} >= ENDLESS
LIMITS = {
    "endless": ["--cell-timeout", "6", "--timeout", "400", "--memory", "0.5"],
    "other": ["--cell-timeout", "120", "--timeout", "400", "--memory", "0.5"],
}


@pytest.fixture(scope="module")
def results(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> dict[str, SubmissionResult]:
    """The results of all cases if nightly tests are selected, and otherwise of the others."""
    items = [item for item in request.session.items if item.path == request.path]
    every = any(item.get_closest_marker("nightly") for item in items)
    root = tmp_path_factory.mktemp("running")
    lab = make_course(root / "lab")
    chosen = [case for case in CASES if every or case.name not in NIGHTLY]
    graders = []
    for kind, limits in LIMITS.items():
        folder, out = root / kind, root / "out" / kind
        folder.mkdir()
        for case in chosen:
            if (case.name in ENDLESS) == (kind == "endless"):
                case.write(folder, lab)
        # The endless cases mostly wait, so these are more jobs than cores.
        arguments = ["grade", str(lab.path), str(folder), "--out", str(out), "--jobs", "3", *limits]
        start = [sys.executable, "-m", "parlab.setup.cli", *arguments]
        graders.append(
            subprocess.Popen(start, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        )
    printed = [grader.communicate(timeout=800)[1] for grader in graders]
    assert [grader.returncode for grader in graders] == [0, 0], printed
    found = {}
    for path in root.glob("out/*/results/*/result.json"):
        data = json.loads(path.read_text())
        data.pop("format")
        result = SubmissionResult.from_json(data)
        found[result.student] = result
    return found


@pytest.mark.parametrize("case", EACH_CASE)
def test_submission(results: dict[str, SubmissionResult], case: Case) -> None:
    case.verify(results[case.student])
