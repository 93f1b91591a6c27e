"""Tries mutants on sets of ranks: which of an exercise's two checks accept them.

A set of ranks goes through many mutants. Each exercise begins with its reference: it must pass, its
hidden values are the right ones, and what it takes says how long a mutant may. It also comes last:
if it does not pass any more, some mutant has left something behind, and no result counts.
"""

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from parlab.grading.comparing import share_right
from parlab.mutation.lab import Exercise
from parlab.mutation.mutants import Mutant, mutants_of
from parlab.mutation.ranks import Ranks, RanksGone

SETS = 2  # beside each other: one computes while the other waits for a deadlock's end
# A mutant hangs when it takes five times as long as its whole reference; at least, and at most.
TIMES, LEAST_SECONDS, MOST_SECONDS = 5, 1.5, 5.0
REFERENCE_SECONDS = 60.0


@dataclass(frozen=True)
class Tried:
    """What the checks said of a mutant: each accepted it, or not, and its message if not.

    `mistake` is the name under which the visible check rejected it; None where it names none.
    """

    mutant: Mutant
    check: bool
    hidden: bool
    message: str
    mistake: str | None

    @property
    def accepted_by(self) -> str:
        """`both`, `check`, `hidden`, or "" where neither accepts it: it is killed."""
        names = {(True, True): "both", (True, False): "check", (False, True): "hidden"}
        return names.get((self.check, self.hidden), "")


class Broken(RuntimeError):
    """The reference itself does not pass: there is nothing to say about its mutants."""


@dataclass
class _Baseline:
    """What the reference did: its hidden values, and how long each check took."""

    values: Any
    check_seconds: float
    hidden_seconds: float

    @property
    def stuck(self) -> float:
        """Seconds that one call may take within the check."""
        return min(MOST_SECONDS, max(LEAST_SECONDS, TIMES * self.check_seconds))

    @property
    def hidden_limit(self) -> float:
        """Seconds that the hidden check may take."""
        return max(LEAST_SECONDS, TIMES * self.hidden_seconds)


def try_mutants(
    exercises: list[Exercise],
    report: Callable[[Exercise, Tried, int], None],
    finished: Callable[[Exercise, list[Tried]], None],
) -> dict[str, list[Tried]]:
    """What became of every mutant, by the exercise's key, in the order of its lines.

    Args:
        report: called after each mutant, with the number of those of its exercise to come.
        finished: called after all of an exercise, once its reference has passed again.

    Raises:
        Broken: a reference does not pass.
    """
    portions: queue.SimpleQueue[_Portion] = queue.SimpleQueue()
    found = {exercise.key: _Found(exercise) for exercise in exercises}
    for one in found.values():
        for mutants in one.portions:
            portions.put(_Portion(one, mutants))
    problems: list[BaseException] = []
    lock = threading.Lock()

    def go_on() -> None:
        try:
            with _Set() as ranks:
                while not problems:
                    portion = portions.get_nowait()
                    for tried in ranks.try_all(portion.found.exercise, portion.mutants):
                        with lock:
                            left = portion.found.add(tried)
                            report(portion.found.exercise, tried, left)
                    with lock:
                        if portion.found.portion_done():
                            finished(portion.found.exercise, portion.found.in_order())
        except queue.Empty:
            pass
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=go_on) for _ in range(SETS)]
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
    """What is known so far of an exercise's mutants."""

    def __init__(self, exercise: Exercise) -> None:
        self.exercise = exercise
        self._tried: list[Tried] = []
        self._mutants = mutants_of(exercise.cell)
        dealt = [self._mutants[number::SETS] for number in range(SETS)]
        self.portions = [portion for portion in dealt if portion]
        self._portions_left = len(self.portions)

    def add(self, tried: Tried) -> int:
        """Keep one; how many are left."""
        self._tried.append(tried)
        return len(self._mutants) - len(self._tried)

    def portion_done(self) -> bool:
        """One more portion is through; whether it was the last."""
        self._portions_left -= 1
        return not self._portions_left

    def in_order(self) -> list[Tried]:
        places = {mutant.identity: place for place, mutant in enumerate(self._mutants)}
        return sorted(self._tried, key=lambda one: places[one.mutant.identity])


@dataclass(frozen=True)
class _Portion:
    """What one set of ranks does in one go: some mutants of one exercise."""

    found: _Found
    mutants: list[Mutant]


class _Set:
    """A set of ranks that is started again where a mutant took it with it."""

    def __enter__(self) -> "_Set":
        self._ranks: Ranks | None = None
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def try_all(self, exercise: Exercise, mutants: list[Mutant]) -> Iterator[Tried]:
        baseline = self._reference(exercise)
        for mutant in mutants:
            yield self._try(exercise, mutant, baseline)
        self._reference(exercise)

    def _try(self, exercise: Exercise, mutant: Mutant, baseline: _Baseline) -> Tried:
        # A check frees its ranks by itself.
        check = self._ask(exercise, mutant.code, exercise.check, 3 * baseline.stuck, baseline.stuck)
        hidden = self._ask(exercise, mutant.code, exercise.hidden, baseline.hidden_limit)
        right = hidden["outcome"] == "accepted" and _same(baseline.values, hidden["values"])
        accepted = check["outcome"] == "accepted"
        return Tried(mutant, accepted, right, check["message"], check["mistake"])

    def _reference(self, exercise: Exercise) -> _Baseline:
        asked = [
            self._ask(exercise, exercise.reference, code, REFERENCE_SECONDS)
            for code in (exercise.check, exercise.hidden)
            for _ in range(2)  # the first call of a kind imports, and makes connections
        ]
        for one in asked:
            if one["outcome"] != "accepted":
                raise Broken(f"{exercise.key}: the reference is {one['outcome']}: {one['message']}")
        _, check, _, hidden = asked
        return _Baseline(hidden["values"], check["seconds"], hidden["seconds"])

    def _ask(
        self,
        exercise: Exercise,
        answer: str,
        code: str,
        seconds: float,
        stuck: float = REFERENCE_SECONDS,
    ) -> dict[str, Any]:
        if self._ranks is None:
            self._ranks = Ranks().__enter__()
        try:
            return self._ranks.ask(exercise.setup, answer, code, seconds=seconds, stuck=stuck)
        except RanksGone as gone:
            self._end()
            return {"outcome": "stuck", "message": str(gone), "mistake": None, "values": None}

    def _end(self) -> None:
        if self._ranks is not None:
            self._ranks.__exit__()
            self._ranks = None


def _same(expected: Any, got: Any) -> bool:
    right, total = share_right(expected, got)
    return right == total
