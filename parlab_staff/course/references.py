"""The reference solutions: by the exercise's key, or all of a lab.

ring = definitions("01_mpi")["ring_all_reduce"]
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from parlab.runtime.paths import ROOT, numbered
from parlab_staff.course.definitions import definitions_in
from parlab_staff.course.lab import Exercise, Lab
from parlab_staff.course.percent_source import read_lab

SOLUTIONS = ROOT / "solutions"


def labs() -> list[Lab]:
    """Return every lab that has a source, in order."""
    return [_lab(path) for path in _sources()]


@functools.cache  # errors are not cached
def lab_of(key: str) -> Lab:
    """Return the lab of an exercise. Raises KeyError, with all keys, if there is none."""
    for path in _sources():
        # Search the text first: a rank needs more time to read all labs than for most checks.
        if f'exercise="{key}"' in path.read_text(encoding="utf-8") and key in _lab(path).keys:
            return _lab(path)
    known = ", ".join(key for lab in labs() for key in lab.keys)
    raise KeyError(f"no exercise {key!r}; there are: {known}")


@functools.cache
def _sources() -> list[Path]:
    return numbered(SOLUTIONS, ".py")


@functools.cache
def _lab(path: Path) -> Lab:
    return read_lab(path)


def exercise_of(key: str) -> Exercise:
    """Return the exercise with this key. Raises KeyError, with all keys, if there is none."""
    found = lab_of(key).exercise(key)
    assert found is not None
    return found


def topic_of(key: str) -> str:
    """Return the topic of an exercise, which is in names of modules and folders, such as `mpi`."""
    return lab_of(key).topic


@functools.cache
def definitions(lab: str) -> dict[str, Any]:
    """Return the definitions in the exercise cells of `solutions/<lab>.py` (`definitions_in`)."""
    return definitions_in(_lab(SOLUTIONS / f"{lab}.py"))


def reference(key: str) -> Callable[..., Any]:
    """Return the reference solution of an exercise: a function or class."""
    return definitions(lab_of(key).name)[exercise_of(key).function_name]
