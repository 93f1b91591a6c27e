"""Checks reject every wrong answer, each with the message that it must get."""

import json
from functools import cache
from pathlib import Path

import pytest

from parlab import mpirun
from tests.wrong_answers.runner import FOLDER, fragment, load, wrong_answers

TOPICS = sorted(
    folder.name for folder in FOLDER.iterdir() if folder.is_dir() and any(folder.glob("*/*.py"))
)
RANKS = 4
SECONDS = 280


@cache
def messages(topic: str, results_file: Path) -> tuple[dict[str, str | None], str]:
    """What the topic's checks said, from one run on real ranks, and the run's own output."""
    finished = mpirun.run(
        RANKS,
        str(FOLDER / "runner.py"),
        topic,
        str(results_file),
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    said = json.loads(results_file.read_text()) if results_file.exists() else {}
    return said, finished.stdout[-2000:] + finished.stderr[-6000:]


@pytest.mark.parametrize(
    ("topic", "name"), [(topic, name) for topic in TOPICS for name in wrong_answers(topic)]
)
def test_wrong_answer(topic: str, name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.getbasetemp()
    said, output = messages(topic, folder / f"wrong_answers_{topic}.json")
    assert name in said, f"the run ended before this answer:\n{output}"
    assert said[name] is not None, "the check let this mistake pass"
    assert fragment(load(topic, name)) in said[name]


@pytest.mark.parametrize("topic", TOPICS)
def test_at_least_three_for_each_exercise(topic: str) -> None:
    mistakes: dict[str, int] = {}
    for name in wrong_answers(topic):
        exercise = name.split("/")[0]
        mistakes[exercise] = mistakes.get(exercise, 0) + 1
    assert min(mistakes.values()) >= 3, mistakes
