"""Times of functions that take turns, with a clock that the test controls."""

from collections.abc import Callable, Iterator

import pytest
from mpi4py import MPI

from parlab import timing


@pytest.fixture
def pause(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[float], None]]:
    """Let time pass without waiting."""
    now = 0.0

    def pause(seconds: float) -> None:
        nonlocal now
        now += seconds

    monkeypatch.setattr(timing.time, "perf_counter", lambda: now)
    yield pause


def test_functions_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []
    functions = {name: lambda name=name: calls.append(name) for name in "ab"}
    seconds = timing.median_seconds(functions, MPI.COMM_SELF, rounds=2, warm_up=1)
    assert "".join(calls) == "ababab"
    assert list(seconds) == ["a", "b"]
    calls.clear()
    monkeypatch.setenv("PARLAB_ROUNDS", "1")
    timing.median_seconds(functions, MPI.COMM_SELF, rounds=12)
    assert "".join(calls) == "ab"


@pytest.mark.parametrize(
    ("measure", "expected"), [(timing.median_seconds, 3.0), (timing.fastest_seconds, 2.0)]
)
def test_the_warm_up_does_not_count(
    measure: Callable, expected: float, pause: Callable[[float], None]
) -> None:
    pauses = iter([1.0, 1.0, 9.0, 2.0, 3.0])
    seconds = measure({"one": lambda: pause(next(pauses))}, MPI.COMM_SELF, rounds=3, warm_up=2)
    assert seconds == {"one": expected}


def test_ratios_are_those_to_the_library() -> None:
    ratios = timing.relative_to("library", {"ours": 3.0, "library": 2.0, "other": 1.0})
    assert ratios == {"ours": 1.5, "other": 0.5}
