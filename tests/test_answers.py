"""The checks say of every kept answer what they must say, and every mistake has its answer."""

import importlib
import inspect
from collections.abc import Callable
from functools import cache

import pytest

from parlab.answers.answers import Answer
from parlab.answers.collected import answers_to, exercises
from parlab.answers.ranks import REFERENCE, Verdict, run
from parlab.answers.references import topic_of
from parlab.checks.mistakes import COMMON

RANKS = 4
TIMED = "ping_pong"  # its check tells mistakes apart by the clock, which other tests disturb
FEWEST_WRONG, FEWEST_RIGHT = 5, 5

KEPT = exercises()  # a missing file of answers is an error


def beside(topic: str, *values: object, name: str) -> object:
    """A test's parameters; each topic has ranks of its own, and runs beside the others."""
    group = "clock" if topic == topic_of(TIMED) else f"answers/{topic}"
    return pytest.param(*values, id=name, marks=pytest.mark.xdist_group(group))


ANSWERS = [
    beside(topic, answer, name=f"{key}-{answer.name}")
    for topic, key in KEPT
    for answer in answers_to(key)
]
EXERCISES = [beside(topic, topic, key, name=f"{topic}-{key}") for topic, key in KEPT]


@cache
def verdicts(topic: str, keys: tuple[str, ...]) -> dict[tuple[str, str], Verdict]:
    """What the checks of these exercises say, from one run on real ranks."""
    wanted = [(key, REFERENCE) for key in keys]
    wanted += [(key, answer.name) for key in keys for answer in answers_to(key)]
    said = run(RANKS, wanted, fixed=True, seconds=1200)
    return {(verdict.exercise, verdict.answer): verdict for verdict in said}


@pytest.fixture
def verdict(request: pytest.FixtureRequest) -> Callable[[str, str], Verdict]:
    """What is said of an exercise's answer. Ranks run what is selected, as with `-k ring_shift`."""
    selected = {_key(item) for item in request.session.items if item.path == request.path}

    def said(key: str, answer: str) -> Verdict:
        topic = next(topic for topic, other in KEPT if other == key)
        keys = tuple(other for t, other in KEPT if t == topic and other in selected)
        return verdicts(topic, keys)[key, answer]

    return said


def _key(item: pytest.Item) -> str | None:
    """The exercise that a test is about; None where it is about none."""
    given = item.callspec.params if hasattr(item, "callspec") else {}
    return given["answer"].exercise if "answer" in given else given.get("key")


def _misnamed(answer: Answer, said: Verdict) -> bool:
    return (said.mistake, answer.says in said.text) != (answer.mistake, True)


@pytest.mark.timeout(1300)
@pytest.mark.parametrize("answer", ANSWERS)
def test_an_answer_gets_its_verdict(answer: Answer, verdict: Callable) -> None:
    said = verdict(answer.exercise, answer.name)
    if answer.exercise == TIMED and answer.wrong and not said.passed and _misnamed(answer, said):
        [said] = run(RANKS, [(answer.exercise, answer.name)], fixed=True)
    if answer.wrong:
        assert not said.passed, "the check let this mistake pass"
        assert (said.mistake, answer.says in said.text) == (answer.mistake, True), said.text
    else:
        assert said.passed, f"the check refuses this right answer: {said.text}"


@pytest.mark.timeout(1300)
@pytest.mark.parametrize(("topic", "key"), EXERCISES)
def test_the_reference_passes(topic: str, key: str, verdict: Callable) -> None:
    said = verdict(key, REFERENCE)
    assert said.passed, said.text


@pytest.mark.parametrize(("topic", "key"), EXERCISES)
def test_every_mistake_of_a_check_has_a_wrong_answer(topic: str, key: str) -> None:
    check = getattr(importlib.import_module(f"parlab.checks.{topic}"), key)
    assert inspect.getmodule(inspect.unwrap(check)).__name__ == f"parlab.checks.{topic}.{key}"
    kept = {answer.mistake for answer in answers_to(key)}
    assert set(check.mistakes.texts) <= kept


@pytest.mark.parametrize(("topic", "key"), EXERCISES)
def test_an_exercise_has_enough_answers(topic: str, key: str) -> None:
    kept = answers_to(key)
    wrong = [answer.name for answer in kept if answer.wrong]
    assert len(wrong) >= FEWEST_WRONG
    assert len(kept) - len(wrong) >= FEWEST_RIGHT


def test_every_mistake_of_the_base_has_a_wrong_answer() -> None:
    kept = {answer.mistake for _, key in KEPT for answer in answers_to(key)}
    assert set(COMMON.texts) <= kept
