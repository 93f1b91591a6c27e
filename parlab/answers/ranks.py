"""Runs checks on answers, on real ranks outside a notebook.

verdicts = run(4, [("ring_shift", "no_wait"), …])          # from any process
python -m parlab.mpirun -n 4 -m parlab.answers.ranks FILE  # what that starts
"""

import contextlib
import importlib
import io
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from parlab import mpirun

RUN_SECONDS = 600
REFERENCE = "reference"


@dataclass(frozen=True)
class Verdict:
    """What a check said of an answer: `text` is its message, or the line of a pass."""

    exercise: str
    answer: str
    passed: bool
    mistake: str | None
    text: str
    seconds: float


def run(
    world_size: int,
    wanted: Sequence[tuple[str, str]],
    *,
    fixed: bool = False,
    seconds: float = RUN_SECONDS,
) -> list[Verdict]:
    """Give answers to their checks, one after the other, on one set of ranks.

    Args:
        wanted: (exercise, answer): "reference", the name of an answer that is kept, or the path
            of a file.
        fixed: whether the checks draw the same inputs at every run.
        seconds: for all of them.

    Raises:
        RuntimeError: the run ended before all had their verdict; with what the ranks printed.
    """
    with tempfile.TemporaryDirectory() as folder:
        plan, report = Path(folder) / "plan.json", Path(folder) / "verdicts.jsonl"
        plan.write_text(json.dumps(list(wanted)))
        # Every rank reads the seed when it imports the checks.
        environment = {"PARLAB_CHECK_SEED": "1"} if fixed else {}
        ran = mpirun.run(
            world_size,
            *("-m", "parlab.answers.ranks", str(plan), str(report)),
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        lines = report.read_text().splitlines() if report.exists() else []
    verdicts = [Verdict(**json.loads(line)) for line in lines]
    if len(verdicts) < len(wanted):
        exercise, answer = wanted[len(verdicts)]
        raise RuntimeError(
            f"the ranks ended at {exercise}/{answer} (exit code {ran.returncode}):\n"
            f"{ran.stdout[-2000:]}{ran.stderr[-4000:]}"
        )
    return verdicts


def verdict(exercise: str, answer: str, function: Callable) -> Verdict:
    """What the check of `exercise` says of `function`. Collective over all ranks."""
    from parlab.answers.references import topic_of
    from parlab.checks import CheckFailed

    check = getattr(importlib.import_module(f"parlab.checks.{topic_of(exercise)}"), exercise)
    printed, start = io.StringIO(), time.perf_counter()
    mistake, passed = None, True
    try:
        with contextlib.redirect_stdout(printed):
            check(function)
        text = printed.getvalue().strip().splitlines()[-1]
    except CheckFailed as failed:
        passed, text, mistake = False, str(failed), failed.finding.mistake
    return Verdict(exercise, answer, passed, mistake, text, time.perf_counter() - start)


def main(plan: str, report: str) -> None:
    from parlab.answers.collected import answer_in, answers_to, reference_answer
    from parlab.rank import rank

    with open(report, "w") if rank == 0 else contextlib.nullcontext() as file:
        for exercise, name in json.loads(Path(plan).read_text()):
            if name == REFERENCE:
                answer = reference_answer(exercise)
            elif name.endswith(".py"):
                answer = answer_in(Path(name), exercise)
            else:
                answer = next(a for a in answers_to(exercise) if a.name == name)
            said = verdict(exercise, name, answer.make())
            if file is not None:
                print(json.dumps(asdict(said)), file=file, flush=True)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except BaseException:
        # The other ranks would wait for this one for ever; mpiexec ends them. (Where all ranks call
        # MPI's own Abort at once, none of them may come to its end.)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
