"""Kept answers as programs for ranks in a page."""

from dataclasses import dataclass

from parlab_staff.answers import answers
from parlab_staff.answers.answers import Answer
from parlab_staff.answers.collected import FOLDER, answers_to
from parlab_staff.course.references import lab_of
from parlab_staff.play import pages

# A replacement for what the files of answers import. The references are already defined there.
ANSWERS = """
import os, sys, types
os.environ["PARLAB_CHECK_SEED"] = "1"
class Answers:
    def __init__(self, exercise):
        self.exercise, self.named = exercise, {}
    def wrong(self, mistake, says=""):
        return self.right
    def right(self, function):
        self.named[function.__name__] = function
        return function
    def edit(self, *arguments, **options):
        pass
    right_edit = edit
    def reference(self, exercise=None):
        return _references[exercise or self.exercise]
sys.modules["parlab_staff"] = types.ModuleType("parlab_staff")
sys.modules["parlab_staff.answers"] = types.ModuleType("parlab_staff.answers")
sys.modules["parlab_staff.answers"].Answers = Answers
"""


@dataclass(frozen=True)
class Program:
    """An answer, in the form that `Ranks.run` takes in a page."""

    answer: Answer
    setup: str
    code: str
    check: str


def setup_of(key: str) -> str:
    """Return the imports and the references of an exercise's lab, and the class `Answers`."""
    lab = lab_of(key)
    exercises = pages.played(lab)
    check = f"from parlab.checks import {lab.topic} as check"
    code = "\n".join([pages.imports(lab), check, *(one.cell.code for one in exercises)])
    names = ", ".join(f"{one.key!r}: {one.function_name}" for one in exercises)
    return f"{ANSWERS}\n{code}\n_references = {{{names}}}\n"


def programs(key: str) -> list[Program]:
    """Return the reference of an exercise and all kept answers to it as programs."""
    setup = setup_of(key)
    exercise = lab_of(key).exercise(key)
    assert exercise is not None
    name = exercise.function_name
    reference = Answer(key, "reference", lambda: None, wrong=False)
    made = [Program(reference, setup, exercise.cell.code, f"check.{key}({name})")]
    file = (FOLDER / lab_of(key).topic / f"{key}.py").read_text(encoding="utf-8")
    file = file.replace("\nimport torch\n", "\n")  # pages have no torch
    for answer in answers_to(key):
        source = _edited_source(answer)
        check = f"check.{key}({name})" if source else f"check.{key}(answers.named[{answer.name!r}])"
        made.append(Program(answer, setup, source or file, check))
    return made


def _edited_source(answer: Answer) -> str:
    """Return the source of an edit of the reference; "" for an answer that is a function."""
    defined_by = answers.defined_by
    answers.defined_by = lambda exercise, source, title: source
    try:
        made = answer.make()
    finally:
        answers.defined_by = defined_by
    return made if isinstance(made, str) else ""
