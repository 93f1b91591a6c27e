"""Kept answers get the verdicts that they must get, and every mistake has an answer.

`make test` runs one wrong answer for each mistake, one for each message without a named mistake,
and one right answer for each exercise. It uses one rank if the check needs no more
(`check_of(…, ranks=1)`), and two ranks otherwise. An answer that does not get its verdict there
runs on four ranks as well. `make test-all` runs all answers on four ranks, and so does
`parlab try EXERCISE --all` for one exercise. The answers to `ping_pong`, whose check measures time,
run at night only. `tests/notebook/test_labs.py` runs the references on
four ranks, and `test_references.py` on other numbers.
"""

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import pytest

from parlab.checks.base.mistakes import COMMON
from parlab_staff.answers.answers import Answer
from parlab_staff.answers.collected import FOLDER, answers_to, exercises
from parlab_staff.answers.run import REFERENCE, REMEMBERING, Verdict, run
from parlab_staff.course.references import reference, topic_of
from tests.support.timing import record_cases, record_for_others

RANKS, FEW = 4, 2
TIMED = "ping_pong"  # its check tells mistakes apart by the clock, which other tests disturb
ATTEMPTS = 3  # how often such an answer is tried again
FEWEST_WRONG, FEWEST_RIGHT = 5, 3
CANNOT_REMEMBER = {
    "memory_by_kind": "the bytes that it counts follow from the shapes",
    "predict_messages": "it predicts one experiment, so it is called once",
    "predict_no_sync": "it predicts one experiment, so it is called once",
}


# By the names of the files: to read all exercises and answers takes a process several seconds.
FILES = sorted(path for path in FOLDER.glob("*/*.py") if path.stem != "__init__")
TOPICS = sorted({path.parent.name for path in FILES})


def each_exercise(group: str, but: str = "") -> pytest.MarkDecorator:
    """Run a test for each exercise, except `but`.

    Exercises with the same `group`, after formatting, share ranks.

    To start ranks and to import torch there takes longer than the answers to an exercise.
    """

    def parameter(topic: str, key: str) -> object:
        name = "clock" if key == TIMED else group.format(topic=topic)
        return pytest.param(topic, key, id=f"{topic}-{key}", marks=pytest.mark.xdist_group(name))

    return pytest.mark.parametrize(
        ("topic", "key"),
        [parameter(path.parent.name, path.stem) for path in FILES if path.stem != but],
    )


def check_of(topic: str, key: str) -> Any:
    return getattr(importlib.import_module(f"parlab.checks.{topic}"), key)


def on_one_rank(key: str) -> bool:
    return check_of(topic_of(key), key).ranks == 1


Verdicts = dict[tuple[str, str], Verdict]


def verdicts_on(ranks: int, wanted: list[tuple[str, str]]) -> Verdicts:
    """Return the verdicts on these pairs of exercise and answer, on this number of ranks."""
    returned = run(ranks, wanted, fixed=True, seconds=1200) if wanted else []
    return {(one.exercise, one.answer): one for one in returned}


def verdicts_by_day(keys: tuple[str, ...]) -> Verdicts:
    """Return a verdict on the day's answers to these exercises, from as few ranks as will do.

    Most wrong answers are rejected on two ranks. Those that are not get their verdict on four.
    """
    alone = [key for key in keys if on_one_rank(key)]
    found = verdicts_on(1, [one for key in alone for one in by_day(key)])
    rest = [key for key in keys if key not in alone]
    on_few = verdicts_on(FEW, [one for key in rest for one in by_day(key)])
    kept = [answer for key in rest for answer in answers_of_the_day(key)]
    unclear = [a for a in kept if problem(a, on_few[a.exercise, a.name])]
    return (
        found | on_few | verdicts_on(RANKS, [(answer.exercise, answer.name) for answer in unclear])
    )


def verdicts_on_all_ranks(keys: tuple[str, ...]) -> Verdicts:
    names = {key: [REFERENCE, *(answer.name for answer in answers_to(key))] for key in keys}
    return verdicts_on(RANKS, [(key, name) for key in keys for name in names[key]])


def answers_of_the_day(key: str) -> list[Answer]:
    """Return the first wrong answer of each mistake or unnamed message, and the first right one."""
    # Of the answers with an equal key, the first one stays.
    of_kind = {a.mistake or (a.wrong, a.says): a for a in reversed(answers_to(key))}
    return list(of_kind.values())


def by_day(key: str) -> list[tuple[str, str]]:
    return [*((key, answer.name) for answer in answers_of_the_day(key)), *memories(key)]


def memories(key: str) -> list[tuple[str, str]]:
    """The reference that remembers its last result; a class keeps its state anyway."""
    remembers = not inspect.isclass(reference(key)) and key not in CANNOT_REMEMBER
    return [(key, REMEMBERING)] if remembers else []


class Together:
    """Runs the answers to all selected exercises of some topics at once."""

    ran: ClassVar[dict[tuple, Verdicts | RuntimeError]] = {}

    def __init__(self, request: pytest.FixtureRequest, record_property: Callable) -> None:
        items = [item for item in request.session.items if item.path == request.path]
        given = [item.callspec.params for item in items if hasattr(item, "callspec")]
        self.selected = list(dict.fromkeys((one["topic"], one["key"]) for one in given))
        self.record = record_property

    def __call__(
        self, how: Callable[[tuple[str, ...]], Verdicts], topics: Sequence[str], key: str
    ) -> dict[str, Verdict]:
        """The verdicts on an exercise's answers by name, from `how`, a function of exercises."""
        alike = (k for t, k in self.selected if t in topics and (k == TIMED) == (key == TIMED))
        keys = tuple(filter(can_be_read, alike))
        first = (how, keys) not in self.ran
        if first:
            self.ran[how, keys] = found_or_error(how, keys)
        found = self.ran[how, keys]
        if isinstance(found, RuntimeError):
            raise found
        ours = {answer: verdict for (exercise, answer), verdict in found.items() if exercise == key}
        record_cases(self.record, {answer: verdict.seconds for answer, verdict in ours.items()})
        own = sum(verdict.seconds for verdict in ours.values())
        everyone = sum(verdict.seconds for verdict in found.values())
        record_for_others(self.record, everyone - own if first else -own)
        return ours


def can_be_read(key: str) -> bool:
    """Return whether the file of an exercise's answers works. If not, only its own tests fail."""
    try:
        return bool(answers_to(key))
    except Exception:
        return False


def found_or_error(how: Callable, keys: tuple[str, ...]) -> Verdicts | RuntimeError:
    try:
        return how(keys)
    except RuntimeError as error:  # for all tests: the ranks would end again
        return error


@pytest.fixture
def together(request: pytest.FixtureRequest, record_property: Callable) -> Together:
    return Together(request, record_property)


def problem(answer: Answer, verdict: Verdict) -> str:
    """What is wrong with a verdict; "" if nothing is."""
    if not answer.wrong:
        return "" if verdict.passed else f"the check refuses this right answer: {verdict.text}"
    if verdict.passed:
        return "the check accepts this wrong answer"
    if verdict.mistake != answer.mistake or answer.says not in verdict.text:
        return f"expected [{answer.mistake}] {answer.says}, got [{verdict.mistake}]: {verdict.text}"
    return ""


def problems(key: str, answers: Sequence[Answer], verdicts: dict[str, Verdict]) -> str:
    """What is wrong with the verdicts on these answers to an exercise, in a line for each."""
    found = []
    if REFERENCE in verdicts and not verdicts[REFERENCE].passed:
        found.append(f"{REFERENCE}: {verdicts[REFERENCE].text}")
    if REMEMBERING in verdicts and verdicts[REMEMBERING].passed:
        found.append("the check accepts a function that gives its last result again")
    for answer in answers:
        text = problem(answer, verdicts[answer.name])
        again = verdicts[answer.name]
        for _ in range(ATTEMPTS if key == TIMED else 0):
            if text and not again.passed:
                [again] = run(RANKS, [(key, answer.name)], fixed=True)
                text = problem(answer, again)
        if text:
            found.append(f"{answer.name}: {text}")
    return "\n".join(found)


@pytest.mark.timeout(1300)
@each_exercise("answers", but=TIMED)
def test_answers_of_the_day_get_their_verdicts(topic: str, key: str, together: Together) -> None:
    found = problems(key, answers_of_the_day(key), together(verdicts_by_day, TOPICS, key))
    assert not found, found


@pytest.mark.nightly
@pytest.mark.timeout(1300)
@each_exercise("answers/{topic}")
def test_all_answers_on_four_ranks(topic: str, key: str, together: Together) -> None:
    found = problems(key, answers_to(key), together(verdicts_on_all_ranks, [topic], key))
    assert not found, found


def test_every_exercise_has_its_file_of_answers() -> None:
    assert sorted(exercises()) == sorted((path.parent.name, path.stem) for path in FILES)


@each_exercise("answers")
def test_mistakes_have_wrong_answers_and_answers_are_enough(topic: str, key: str) -> None:
    check = check_of(topic, key)
    assert inspect.getmodule(inspect.unwrap(check)).__name__ == f"parlab.checks.{topic}.{key}"
    kept = answers_to(key)
    assert set(check.mistakes.texts) <= {answer.mistake for answer in kept}
    wrong = [answer.name for answer in kept if answer.wrong]
    assert len(wrong) >= FEWEST_WRONG
    assert len(kept) - len(wrong) >= FEWEST_RIGHT


def test_every_mistake_of_the_base_has_a_wrong_answer() -> None:
    kept = {answer.mistake for _, key in exercises() for answer in answers_to(key)}
    assert set(COMMON.texts) <= kept
