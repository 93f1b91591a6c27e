"""`parlab try`: runs the check of an exercise on answers to it."""

import difflib
import sys
from pathlib import Path

from parlab.runtime.paths import ROOT
from parlab_staff.answers.collected import answers_to, exercises
from parlab_staff.answers.run import REFERENCE, Verdict, each_verdict, run
from parlab_staff.course.references import topic_of

SECONDS_A_SEED = 60  # the time limit of one run of a check


def main(exercise: str, wanted: list[str], every: bool, world_size: int, seeds: int = 0) -> int:
    """Print the verdicts. Return 0 if all are as expected, 1 if not, 2 for a bad request.

    With `seeds`, run each check once with each of the seeds 0, 1, …, seeds − 1, and print how many
    verdicts are as expected.
    """
    try:
        names = _names(exercise, wanted, every)
    except (ValueError, FileNotFoundError) as error:
        print(f"parlab try: {error}", file=sys.stderr)
        return 2
    print(f"starting {world_size} ranks …", file=sys.stderr)
    try:
        if seeds:
            return _with_seeds(exercise, names, world_size, seeds)
        return _once(exercise, names, world_size)
    except RuntimeError as error:  # an answer raised an error or ended its rank
        print(f"parlab try: {error}", file=sys.stderr)
        return 2


def _once(exercise: str, names: list[str], world_size: int) -> int:
    expected, good = _expected(exercise), True
    for verdict in each_verdict(world_size, [(exercise, name) for name in names]):
        as_expected = _is_as_expected(verdict, expected)
        good = good and as_expected
        mark = (
            ""
            if as_expected
            else f"   ← unexpected: must be {_expected_text(expected[verdict.answer])}"
        )
        print(f"{verdict.answer} ({verdict.seconds:.1f} s){mark}\n  ", end="")
        print(verdict.text.replace("\n", "\n  "))
    return 0 if good else 1


def _with_seeds(exercise: str, names: list[str], world_size: int, seeds: int) -> int:
    expected, good = _expected(exercise), True
    wanted, limit = [(exercise, name) for name in names], SECONDS_A_SEED * seeds * len(names)
    verdicts = run(world_size, wanted, seeds=range(seeds), seconds=limit)
    for place, name in enumerate(names):
        own = verdicts[place * seeds : (place + 1) * seeds]
        passed = [verdict.passed for verdict in own]
        print(f"{name}: accepted with {sum(passed)} of {seeds} seeds")
        if name in expected and set(passed) != {expected[name][0]}:
            good = False
            seed = passed.index(not expected[name][0])
            print(f"  ← unexpected, such as with seed={seed}:\n  ", end="")
            print(own[seed].text.replace("\n", "\n  "))
    return 0 if good else 1


def _names(exercise: str, wanted: list[str], every: bool) -> list[str]:
    known = [key for _, key in exercises()]
    if exercise not in known:
        close = difflib.get_close_matches(exercise, known, n=1)
        raise ValueError(
            f"no exercise {exercise!r}"
            + (f": did you mean {close[0]!r}?" if close else f"; there are: {', '.join(known)}")
        )
    checks = Path("parlab", "checks", topic_of(exercise), "__init__.py")
    if f'"{exercise}"' not in (ROOT / checks).read_text(encoding="utf-8"):
        raise ValueError(f"{checks} has no check {exercise!r}: import it there, and list it")
    if every:
        return [REFERENCE, *(answer.name for answer in answers_to(exercise))]
    return [name for given in wanted or [REFERENCE] for name in _matching(exercise, given)]


def _matching(exercise: str, given: str) -> list[str]:
    """Return the names of the answers that one argument on the command line selects."""
    if given == REFERENCE:
        return [given]
    if given.endswith(".py"):
        if not Path(given).exists():
            raise FileNotFoundError(f"there is no file {given}")
        return [str(Path(given).resolve())]
    kept = answers_to(exercise)
    names = [answer.name for answer in kept if given in (answer.name, answer.mistake)]
    if not names:
        listed = "\n".join(
            f"  {answer.name}" + (f" [{answer.mistake}]" if answer.mistake else "")
            for answer in kept
        )
        raise ValueError(f"{exercise} has no answer and no mistake {given!r}; it has:\n{listed}")
    return names


def _expected(exercise: str) -> dict[str, tuple[bool, str | None, str]]:
    """Return for each kept answer: True if it must pass, its mistake, and words of the message."""
    try:
        kept = answers_to(exercise)
    except FileNotFoundError:
        kept = []
    found: dict[str, tuple[bool, str | None, str]] = {
        answer.name: (not answer.wrong, answer.mistake, answer.says) for answer in kept
    }
    return found | {REFERENCE: (True, None, "")}


def _is_as_expected(verdict: Verdict, expected: dict[str, tuple[bool, str | None, str]]) -> bool:
    if verdict.answer not in expected:
        return True  # an answer in another file
    passed, mistake, says = expected[verdict.answer]
    return (verdict.passed, verdict.mistake) == (passed, mistake) and says in verdict.text


def _expected_text(expected: tuple[bool, str | None, str]) -> str:
    passed, mistake, says = expected
    if passed:
        return "✓"
    return (f"[{mistake}]" if mistake else "rejected") + f" with “{says}”" * bool(says)
