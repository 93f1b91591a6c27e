"""Tries mutants on sets of ranks, and reports which of an exercise's two checks accept them.

A set of ranks tries many mutants. It first runs the exercise's reference, which must pass. This
yields the right hidden values, and the time from which the mutants' time limits are computed. At
the end, it runs the reference again. If it no longer passes, a mutant has left something behind,
and no result counts.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from parlab_staff.grading.compare import share_right
from parlab_staff.mutants.generate import Mutant, mutants_of
from parlab_staff.mutants.outcome import Trials
from parlab_staff.mutants.target import Target

SETS = 2  # at the same time: one computes while the other waits for the end of a deadlock
# A mutant that takes this many times as long as its reference is stuck, with bounds in seconds.
FACTOR, MIN_SECONDS, MAX_SECONDS = 5, 1.5, 5.0
REFERENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Tried:
    """The verdicts on a mutant.

    `check` and `hidden` are True if that check accepted it. `mistake` is the key of the mistake
    that the visible check named, or None.
    """

    mutant: Mutant
    check: bool
    hidden: bool
    mistake: str | None

    @property
    def accepted_by(self) -> str:
        """`both`, `check`, or `hidden`; "" if neither accepts it."""
        names = {(True, True): "both", (True, False): "check", (False, True): "hidden"}
        return names.get((self.check, self.hidden), "")


class Broken(RuntimeError):
    """The reference itself does not pass, so its mutants cannot be tried."""


@dataclass
class _Baseline:
    """The reference's hidden values, and how long each check took."""

    values: Any
    check_seconds: float
    hidden_seconds: float

    @property
    def stuck(self) -> float:
        """The time limit of one call in the check, in seconds."""
        return min(MAX_SECONDS, max(MIN_SECONDS, FACTOR * self.check_seconds))

    @property
    def hidden_limit(self) -> float:
        """The time limit of the hidden check, in seconds."""
        return max(MIN_SECONDS, FACTOR * self.hidden_seconds)


def try_mutants(
    targets: list[Target],
    report: Callable[[Target, Tried, int], None],
    finished: Callable[[Target, list[Tried]], None],
) -> dict[str, list[Tried]]:
    """Return the verdicts on all mutants, by the exercise's key, in the order of the lines.

    Args:
        report: called after each mutant, with the number of mutants that its exercise has left.
        finished: called after all mutants of an exercise, once its reference has passed again.

    Raises:
        Broken: a reference does not pass.
    """
    portions: queue.SimpleQueue[_Portion] = queue.SimpleQueue()
    found = {target.key: _Found(target) for target in targets}
    for one in found.values():
        for mutants in one.portions:
            portions.put(_Portion(one, mutants))
    problems: list[BaseException] = []
    lock = threading.Lock()

    def work() -> None:
        try:
            with Trials() as ranks:
                while not problems:
                    portion = portions.get_nowait()
                    for tried in _tried(ranks, portion.found.target, portion.mutants):
                        if problems:  # Ctrl-C, or the other set of ranks cannot continue
                            return
                        with lock:
                            left = portion.found.add(tried)
                            report(portion.found.target, tried, left)
                    with lock:
                        if portion.found.finish_portion():
                            finished(portion.found.target, portion.found.in_order())
        except queue.Empty:
            pass
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=work) for _ in range(SETS)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt as stop:
        problems.append(stop)
        raise
    if problems:
        raise problems[0]
    return {key: one.in_order() for key, one in found.items()}


class _Found:
    """The verdicts so far on an exercise's mutants."""

    def __init__(self, target: Target) -> None:
        self.target = target
        self._tried: list[Tried] = []
        self._mutants = mutants_of(target.exercise.cell)
        dealt = [self._mutants[number::SETS] for number in range(SETS)]
        self.portions = [portion for portion in dealt if portion]
        self._portions_left = len(self.portions)

    def add(self, tried: Tried) -> int:
        """Add the verdicts on one mutant. Return how many mutants are left."""
        self._tried.append(tried)
        return len(self._mutants) - len(self._tried)

    def finish_portion(self) -> bool:
        """Count one more portion as finished. Return True if it was the last."""
        self._portions_left -= 1
        return not self._portions_left

    def in_order(self) -> list[Tried]:
        places = {mutant.identity: place for place, mutant in enumerate(self._mutants)}
        return sorted(self._tried, key=lambda one: places[one.mutant.identity])


@dataclass(frozen=True)
class _Portion:
    """Some mutants of one exercise, which one set of ranks tries."""

    found: _Found
    mutants: list[Mutant]


def _tried(ranks: Trials, target: Target, mutants: list[Mutant]) -> Iterator[Tried]:
    """Yield the verdicts on some mutants of an exercise."""
    baseline = _baseline(ranks, target)
    for mutant in mutants:
        # Leave time for the check, which itself ends stuck calls.
        limits = {"seconds": 3 * baseline.stuck, "stuck": baseline.stuck}
        check = ranks.outcome(target, mutant.code, target.check, **limits)
        limits = {"seconds": baseline.hidden_limit, "stuck": REFERENCE_SECONDS}
        hidden = ranks.outcome(target, mutant.code, target.hidden, **limits)
        right = hidden.ending == "accepted" and _same(baseline.values, hidden.values)
        accepted = check.ending == "accepted"
        yield Tried(mutant, accepted, right, check.mistake)
    _baseline(ranks, target)


def _baseline(ranks: Trials, target: Target) -> _Baseline:
    limits = {"seconds": REFERENCE_SECONDS, "stuck": REFERENCE_SECONDS}
    outcomes = [
        ranks.outcome(target, target.reference, code, **limits)
        for code in (target.check, target.hidden)
        for _ in range(2)  # the first call is slow, because it imports and connects
    ]
    for one in outcomes:
        if one.ending != "accepted":
            raise Broken(f"{target.key}: the reference is {one.ending}: {one.message}")
    _, check, _, hidden = outcomes
    return _Baseline(hidden.values, check.seconds, hidden.seconds)


def _same(expected: Any, got: Any) -> bool:
    right, total = share_right(expected, got)
    return right == total
