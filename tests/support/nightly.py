"""Chooses the cases of a test that `make test` runs. `make test-all` runs all of them."""

from collections.abc import Collection, Iterable

import pytest


def cases(names: Iterable[str], always: Collection[str]) -> list:
    """Return a parameter for each name. Only `make test-all` runs names that `always` lacks."""
    names = list(names)
    unknown = set(always) - set(names)
    assert not unknown, f"no case has the name {sorted(unknown)}"
    return [
        pytest.param(name, marks=[] if name in always else [pytest.mark.nightly]) for name in names
    ]
