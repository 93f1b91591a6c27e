"""Runs a check on an answer to an exercise, on ranks that free themselves if it hangs."""

import contextlib
import functools
import io
import json
import time
import traceback
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from parlab.runtime import source_code
from parlab_staff.mutants.target import Target
from parlab_staff.ranks import RankPool, RanksGone

RANKS = 4
SETUP_SECONDS = 300.0  # for the imports of a lab, on a busy machine
# If ranks end in different ways, the last one in this list counts.
ENDINGS = ("accepted", "rejected", "failed", "stuck")


@dataclass(frozen=True)
class Outcome:
    """How a check ended; `ending` is one of `ENDINGS`.

    It is `failed` if an error other than a check's was raised, and `stuck` if ranks were freed or
    ended. A hidden check is `accepted` if it ran to its end, with any values.
    """

    ending: str
    message: str = ""
    mistake: str | None = None
    values: list[Any] | None = None
    seconds: float = 0.0


class Trials:
    """Ranks on which answers are tried, one after the other."""

    def __init__(self) -> None:
        # All answers get the same inputs.
        self.pool = RankPool(RANKS, frees=True, environment={"PARLAB_CHECK_SEED": "1"})
        self._ready: tuple[int, set[str]] = (0, set())  # the setups that these ranks have run

    def __enter__(self) -> "Trials":
        return self

    def __exit__(self, *_: object) -> None:
        self.pool.end()

    def outcome(
        self, target: Target, answer: str, code: str, *, seconds: float, stuck: float
    ) -> Outcome:
        """Run a check on an answer. Return how it ended.

        Args:
            answer: the code of the exercise's cell.
            code: the code of the check's cells.
            seconds: the time limit of the check.
            stuck: the time limit that the check itself sets for one call of the answer.

        Raises:
            RanksGone: the ranks did not start, or ended before they ran any code of the answer.
        """
        try:
            self._set_up(target.setup)
        except RanksGone:  # an earlier mutant can have harmed these ranks, but not the next ones
            self._set_up(target.setup)
        arguments = (target.setup, answer, code, stuck)
        try:
            of_rank = self.pool.call(outcome_on_rank, *arguments, seconds=seconds)
        except RanksGone as gone:
            return Outcome("stuck", str(gone))
        outcomes = [Outcome(**one) if one else Outcome("stuck", "interrupted") for one in of_rank]
        found = max(outcomes, key=lambda one: (ENDINGS.index(one.ending), bool(one.values)))
        return replace(found, seconds=max(one.seconds for one in outcomes))

    def _set_up(self, setup: str) -> None:
        """Run all imports first, because they may take longer than the time limit of an answer."""
        if not self.pool.running:
            self.pool.start()  # now, so that `starts` also counts these ranks
        if self._ready[0] != self.pool.starts or setup not in self._ready[1]:
            self.pool.call(set_up, setup, seconds=SETUP_SECONDS)
            known = self._ready[1] if self._ready[0] == self.pool.starts else set()
            self._ready = self.pool.starts, known | {setup}


# Functions that run on the ranks


def set_up(setup: str) -> None:
    from parlab.checks.base.first_use import load_torch

    _references(setup)
    load_torch()


@functools.cache
def _references(setup: str) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "lab"}
    source_code.run(setup, "/setup.py", names)  # checks treat relative paths as library code
    return names


def outcome_on_rank(setup: str, answer: str, code: str, stuck: float) -> dict[str, Any]:
    """Return this rank's `Outcome`, by its fields. Collective over all ranks."""
    import IPython.display

    from parlab.checks import CheckFailed
    from parlab.checks.base import trial

    trial.STUCK_SECONDS = stuck
    names = dict(_references(setup))
    shown: list[Any] = []
    IPython.display.display = lambda value, **_: shown.append(getattr(value, "data", None))
    start = time.monotonic()
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            source_code.run(answer, "/answer.py", names)
            source_code.run(code, "/check.py", names)
        json.dumps(shown)  # raises TypeError if the answer returned a value that JSON does not have
        outcome = Outcome("accepted", values=shown, seconds=round(time.monotonic() - start, 3))
    except CheckFailed as failed:
        outcome = Outcome("rejected", str(failed), failed.finding.mistake)
    except BaseException as error:  # from the check, or from the answer in a hidden check
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}, line {place.lineno}"
        outcome = Outcome("failed", f"{type(error).__name__}: {error} ({where})")
    return asdict(outcome)
