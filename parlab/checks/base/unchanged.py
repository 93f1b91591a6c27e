"""Finds changes that a function must not make: to its arguments, or to global generators."""

import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from parlab.checks.base.compare import same
from parlab.checks.base.mistakes import COMMON, Finding


def unchanged(name: str, now: Any, before: Any) -> Finding | None:
    """Return None if an argument (numbers, array, tensor, or a list of these) did not change."""
    return None if _alike(now, before) else COMMON.argument_changed(name=name)


def _alike(now: Any, before: Any) -> bool:
    if isinstance(before, list | tuple):
        return len(now) == len(before) and all(map(_alike, now, before))
    return same(now, before)


class Generators:
    """The states of all libraries' global random generators before and after a call."""

    def __init__(self) -> None:
        self._before = _states()
        self._after = self._before

    def moved(self) -> Finding | None:
        """Return a finding for the first library whose generator was used or seeded, or None."""
        for library, state in self._before.items():
            if self._after[library] != state:
                return COMMON.global_generator(library=library)
        return None


@contextmanager
def generators() -> Iterator[Generators]:
    """Watch the global generators while the block runs, and then restore their states."""
    states = random.getstate(), np.random.get_state()
    torch_state = _torch().get_rng_state() if _torch() else None
    _advance()
    watched = Generators()
    try:
        yield watched
    finally:
        watched._after = _states()
        random.setstate(states[0])
        np.random.set_state(states[1])
        if torch_state is not None:
            _torch().set_rng_state(torch_state)


def _advance() -> None:
    """Advance the global generators, so that seeding them again with the same value is noticed."""
    random.random()
    np.random.random()
    if _torch():
        _torch().rand(1)


def _torch() -> Any:
    return sys.modules.get("torch")


def _states() -> dict[str, Any]:
    # As bytes, because `==` on arrays and tensors returns no bool.
    kind, keys, *rest = np.random.get_state()
    found: dict[str, Any] = {"Python": random.getstate(), "NumPy": (kind, keys.tobytes(), *rest)}
    if _torch():
        found["torch"] = _torch().get_rng_state().numpy().tobytes()
    return found
