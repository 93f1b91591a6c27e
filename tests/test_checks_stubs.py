"""A check that meets a stub says whose it is."""

from parlab.checks.base import describe
from parlab.checks.watchdog import Ended


def said(stub: str) -> str | None:
    return describe({0: Ended("unfinished", error=stub)}, key="train")


def test_a_stub_of_its_own() -> None:
    assert said("exercise train: not done yet") == said("") == "not done yet"


def test_the_stub_of_an_exercise_that_it_builds_on() -> None:
    text = said("exercise broadcast_state: not done yet")
    assert text is not None
    assert text.startswith("it calls exercise broadcast_state, which is not done yet")
    assert 'use_reference("broadcast_state")' in text
