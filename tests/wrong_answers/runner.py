"""Gives every wrong answer of a topic to its check, on all ranks of one MPI run.

    python -m parlab.mpirun -n 4 tests/wrong_answers/runner.py mpi results.json

A wrong answer is `tests/wrong_answers/<topic>/<exercise>/<mistake>.py`. The first line of its
docstring is text that the check's message must contain; it defines a function with the name of
the exercise. Deadlocks are welcome: checks free the ranks and name the lines.

Rank 0 writes `results.json` after each answer: {"<exercise>/<mistake>": message, or null where
the check let the mistake pass}.
"""

import importlib
import importlib.util
import json
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from mpi4py import MPI

FOLDER = Path(__file__).parent


def wrong_answers(topic: str) -> list[str]:
    """`<exercise>/<mistake>` for every wrong answer of the topic, in order."""
    files = sorted((FOLDER / topic).glob("*/*.py"))
    return [f"{file.parent.name}/{file.stem}" for file in files]


def load(topic: str, name: str) -> ModuleType:
    """The module of one wrong answer, freshly executed."""
    file = FOLDER / topic / f"{name}.py"
    spec = importlib.util.spec_from_file_location(name.replace("/", "."), file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fragment(module: ModuleType) -> str:
    """The text that the check's message must contain."""
    return (module.__doc__ or "").strip().splitlines()[0]


def message(check: Callable[[Callable], None], function: Callable) -> str | None:
    """What the check says; None when it passes."""
    from parlab.checks import CheckFailed

    try:
        check(function)
    except CheckFailed as failure:
        return str(failure)
    return None


def main(topic: str, results_file: str) -> None:
    os.environ["PARLAB_CHECK_SEED"] = "1"  # read when the checks are imported
    checks = importlib.import_module(f"parlab.checks.{topic}")
    results: dict[str, str | None] = {}
    for name in wrong_answers(topic):
        exercise = name.split("/")[0]
        function = getattr(load(topic, name), exercise)
        results[name] = message(getattr(checks, exercise), function)
        if MPI.COMM_WORLD.rank == 0:
            Path(results_file).write_text(json.dumps(results))


if __name__ == "__main__":
    sys.path.insert(0, str(FOLDER.parents[1]))  # wrong answers may import from `tests`
    try:
        main(*sys.argv[1:])
    except BaseException:
        # The other ranks would wait for this one for ever; mpiexec ends them. (Where all ranks call
        # MPI's own Abort at once, none of them may come to its end.)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
