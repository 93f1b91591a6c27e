"""Finds the answers that are kept as tests, and an answer in any other file."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

from parlab_staff.answers.answers import Answer, Answers
from parlab_staff.course.references import definitions, exercise_of, labs, reference, topic_of

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "answers"


def exercises() -> list[tuple[str, str]]:
    """Return (topic, exercise) of every exercise in the sources, in the course's order."""
    return [(lab.topic, key) for lab in labs() for key in lab.keys]


def answers_to(exercise: str) -> list[Answer]:
    """Return the wrong and right answers kept for an exercise, in order.

    Raises:
        FileNotFoundError: there is no file with them.
        ValueError: the file defines no `answers`, or they belong to another exercise.
    """
    path = FOLDER / topic_of(exercise) / f"{exercise}.py"
    if not path.exists():
        raise FileNotFoundError(f"no answers are kept for {exercise}: write {path}")
    answers = getattr(_module(path), "answers", None)
    if not isinstance(answers, Answers) or answers.exercise != exercise:
        raise ValueError(f'{path} must define answers = Answers("{exercise}")')
    return answers.all


def reference_answer(exercise: str) -> Answer:
    """Return the reference as an answer."""
    return Answer(exercise, "reference", lambda: reference(exercise), wrong=False)


def answer_in(path: Path, exercise: str) -> Answer:
    """Return the answer that a file defines. The file can use the lab's other references.

    `make()` of the answer raises ValueError if the file does not define the exercise's function.
    """

    def make() -> Any:
        known = exercise_of(exercise)
        name = known.function_name
        others = {key: it for key, it in definitions(known.lab.name).items() if key != name}
        found = vars(_module(path, others))
        if name not in found:
            raise ValueError(f"{path} does not define {name}")
        return found[name]

    return Answer(exercise, path.stem, make)


def _module(path: Path, names: dict[str, Any] | None = None) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"answers_{path.stem}", path.resolve())
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    vars(module).update({} if names is None else {n: v for n, v in names.items() if n[:2] != "__"})
    spec.loader.exec_module(module)
    return module
