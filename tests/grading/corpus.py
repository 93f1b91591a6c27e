"""All submissions that test the grader: slips, odd files, endless code, and attacks.

`make test-all` grades each of them. The page for instructors shows what this module prints.
"""

import inspect
import tempfile
from pathlib import Path

from parlab_staff.grading.submissions import find_submissions
from tests.grading import (
    cases_files,
    cases_folders,
    cases_hostile,
    cases_kernel,
    cases_places,
    cases_ranks,
    cases_running,
    cases_state,
    cases_structure,
    cases_values,
)
from tests.grading.cases import Case
from tests.grading.plain_lab import InProcess, in_process_lab

# The cases by kind. Cases of the first two kinds can run in one process, without a sandbox.
KINDS: dict[str, list[Case]] = {
    "files and names": [*cases_files.case, *cases_folders.case],
    "edits of the notebook": [*cases_structure.case, *cases_places.case, *cases_values.case],
    "cells that end or take too much": cases_running.case,
    "state that an answer leaves": cases_state.case,
    "mistakes on ranks": cases_ranks.case,
    "attacks on the kernel": cases_kernel.case,
    "attacks on checks and ranks": cases_hostile.case,
}
# Parts of names whose spelling as a phrase differs.
WORDS = {
    **{f"the_{owner}s_": f"the {owner}'s " for owner in ("lab", "check", "exercise")},
    **{"a_checks_": "a check's ", "utf_16": "UTF-16", "newer_python": "newer Python"},
    **{"loop_in_c": "loop in C", "ast_transformer": "AST transformer", "for_ever": "forever"},
}
IN_PROCESS = ("files and names", "edits of the notebook")


def wrongly_graded(kind: str) -> list[str]:
    """Grade the submissions of a kind in this process. Return those with an unexpected result."""
    grader = InProcess(in_process_lab())
    wrong = []
    for case in KINDS[kind]:
        with tempfile.TemporaryDirectory() as folder:
            case.write(Path(folder), grader.lab)
            [submission] = find_submissions([Path(folder)], grader.lab.name).submissions
            try:
                case.verify(grader.grade(submission))
            except AssertionError:
                wrong.append(case.name)
    return wrong


def summary() -> str:
    """Return a row for each kind, in Markdown. This grades the first kinds."""
    rows = ["| What is handed in | Submissions | Graded as they must be |", "|:--|--:|:--|"]
    for kind, cases in KINDS.items():
        graded = "by `make test-all`, in the sandbox"
        if kind in IN_PROCESS:
            right = len(cases) - len(wrongly_graded(kind))
            graded = f"{right} of {len(cases)}, while this page was made"
        rows.append(f"| {kind} | {len(cases)} | {graded} |")
    return "\n".join(rows)


def table() -> str:
    """Return a row with the expected result of each submission, in Markdown."""
    rows = ["| Submission | What it does | Status | Points |", "|:--|:--|:--|--:|"]
    for kind, cases in KINDS.items():
        rows.append(f"| **{kind}** | | | |")
        for case in cases:
            what = (inspect.getdoc(case.build) or "").partition("\n\n")[0].replace("\n", " ")
            points = "none" if case.points is None else f"{case.points:g}"
            name = _title(case.name)
            rows.append(f"| {name} | {_cell(what)} | `{case.status}` | {points} |")
    return "\n".join(rows)


def _title(name: str) -> str:
    """Return the name of a case as a phrase: a name in Python has no apostrophes or capitals."""
    for word, written in WORDS.items():
        name = name.replace(word, written)
    return name.replace("_", " ")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    print(f"{summary()}\n\n````{{dropdown}} What each submission must get\n{table()}\n````")
