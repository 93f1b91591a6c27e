"""Runs checks on answers, on ranks: `run(4, [("ring_shift", "no_wait"), …])`."""

import contextlib
import importlib
import io
import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from parlab_staff.ranks import RankPool, RanksGone

RUN_SECONDS = 600
REFERENCE, REMEMBERING = "reference", "remembering"


@dataclass(frozen=True)
class Verdict:
    """A check's verdict on an answer; `text` is its message, or the line that it prints.

    `repeat` is the call that repeats a failed check with the same inputs and pauses.
    """

    exercise: str
    answer: str
    passed: bool
    mistake: str | None
    text: str
    seconds: float
    repeat: str = ""


def run(world_size: int, wanted: Sequence[tuple[str, str]], **options: Any) -> list[Verdict]:
    """Return the verdicts that `each_verdict` yields. It also documents the options."""
    return list(each_verdict(world_size, wanted, **options))


def each_verdict(
    world_size: int,
    wanted: Sequence[tuple[str, str]],
    *,
    fixed: bool = False,
    seeds: Sequence[int | None] = (None,),
    seconds: float = RUN_SECONDS,
) -> Iterator[Verdict]:
    """Yield the verdict on each answer as soon as it is there.

    Args:
        wanted: pairs of an exercise and an answer: "reference", "remembering" (the reference that
            remembers its last result), the name of a kept answer, or the path of a file.
        fixed: True if the checks must draw the same inputs in every run.
        seeds: run each check once with each of these seeds. None means a new seed.
        seconds: the time limit for all checks together.

    Raises:
        RuntimeError: the ranks ended, or an answer raised; the message contains their output.
    """
    # Every rank reads the seed when it imports the checks.
    environment = {"PARLAB_CHECK_SEED": "1"} if fixed else {}
    deadline = time.monotonic() + seconds
    with RankPool(world_size, environment=environment) as pool:
        for (exercise, answer), seed in itertools.product(wanted, seeds):
            left = max(1.0, deadline - time.monotonic())
            try:
                of_rank = pool.call(_verdict_of, exercise, answer, seed, seconds=left)
            except RanksGone as gone:
                raise RuntimeError(f"{exercise}/{answer}: {gone}") from None
            yield Verdict(**of_rank[0])


# On the ranks


def _verdict_of(exercise: str, name: str, seed: int | None) -> dict[str, Any]:
    from parlab_staff.answers.collected import answer_in, answers_to, reference_answer
    from parlab_staff.answers.remembering import remembering

    if name == REFERENCE:
        answer = reference_answer(exercise)
    elif name == REMEMBERING:
        function = remembering(reference_answer(exercise).make())
        return asdict(verdict(exercise, name, function, seed))
    elif name.endswith(".py"):
        answer = answer_in(Path(name), exercise)
    else:
        answer = next(one for one in answers_to(exercise) if one.name == name)
    return asdict(verdict(exercise, name, answer.make(), seed))


def verdict(exercise: str, answer: str, function: Callable, seed: int | None = None) -> Verdict:
    """Return the verdict of the exercise's check on `function`. Collective over all ranks."""
    from parlab.checks import CheckFailed
    from parlab.rank import rank  # noqa: F401 - a lab has imported it before any check runs
    from parlab_staff.course.references import topic_of

    check = getattr(importlib.import_module(f"parlab.checks.{topic_of(exercise)}"), exercise)
    if "torch" in sys.modules:  # a lab with torch also has `group`, and so a default group
        from parlab.rank import group  # noqa: F401
    printed, start = io.StringIO(), time.perf_counter()
    mistake, passed, repeat = None, True, ""
    try:
        with contextlib.redirect_stdout(printed):
            check(function, seed=seed)
        text = printed.getvalue().strip().splitlines()[-1]
    except CheckFailed as failed:
        passed, text, mistake = False, str(failed), failed.finding.mistake
        repeat = failed.repeat
    return Verdict(exercise, answer, passed, mistake, text, time.perf_counter() - start, repeat)
