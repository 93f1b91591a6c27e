"""The corpus has every submission of the tests, and its table has their expected results."""

import importlib
from pathlib import Path

import pytest

from tests.grading import corpus, test_class, test_running, test_structure
from tests.grading.cases import Case


def all_cases() -> list[Case]:
    return [case for cases in corpus.KINDS.values() for case in cases]


def test_the_corpus_has_all_files_of_cases() -> None:
    names = [path.stem for path in sorted(Path(__file__).parent.glob("cases_*.py"))]
    files = [importlib.import_module(f"tests.grading.{name}").case for name in names]
    assert {id(case) for cases in files for case in cases} == {id(case) for case in all_cases()}


def test_every_submission_of_the_corpus_is_graded_by_a_test() -> None:
    graded = [*test_structure.CASES, *test_running.CASES, *test_class.CASES]
    assert {id(case) for case in graded} == {id(case) for case in all_cases()}


def test_the_table_has_a_row_for_each_submission() -> None:
    rows = corpus.table().splitlines()
    assert len(rows) == 2 + len(corpus.KINDS) + len(all_cases())
    assert "| rank exits | A rank ends. All ranks are replaced" in corpus.table()


def test_a_submission_that_is_graded_wrongly_lowers_the_rate(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [kind, *_] = corpus.IN_PROCESS
    few = corpus.KINDS[kind][:3]
    monkeypatch.setattr(corpus, "KINDS", {kind: few})
    assert "| 3 of 3, while" in corpus.summary()
    monkeypatch.setattr(few[1], "points", 77.0)
    assert corpus.wrongly_graded(kind) == [few[1].name]
    assert "| 2 of 3, while" in corpus.summary()
