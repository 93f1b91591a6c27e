"""Runs tests on ranks. Import MPI inside functions, because it must not start in pytest's process.

Many cases share one set of ranks. A file of cases registers them:

    cases = Cases()

    @cases.add(dtype=[torch.float32, torch.int64])  # once for each value
    def sums(world: World, dtype: torch.dtype) -> None:
        assert ...

and a test file runs them, in one test for each number of ranks, which names the failed cases:

    test_on_ranks = cases_test("cases_group_use", world_sizes=[2, 3])

A case runs on all ranks. It fails if any rank raises an exception. Cases must leave the ranks
usable. If a test cannot do this, or needs new ranks, `on_ranks` starts a set of ranks that runs
only one function of the test file. It returns the values of all ranks, which must be JSON values:

    def half(world: World, of: int) -> float:
        return world.rank / of

    def test_half() -> None:
        assert on_ranks(3, half, 2) == [0, 0.5, 1]

Each run starts Python and MPI (and torch, if it uses `world.group`), so use cases if possible. To
test what learners do in a notebook, use `tests.support.kernel`.
"""

import contextlib
import faulthandler
import functools
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parlab import mpirun
from parlab.costs.networks import Network
from parlab.network.labels import rank_environment
from parlab.runtime.paths import ROOT
from tests.support.timing import record_cases

# No case takes this long, so ranks that run longer are stuck.
CASE_SECONDS = 90.0
RUN_SECONDS = 580.0


class World:
    """The ranks, for a function that runs on one of them: `comm`, `rank`, `size`, `group`."""

    def __init__(self) -> None:
        from parlab.rank import comm

        self.comm, self.rank, self.size = comm, comm.rank, comm.size

    @property
    def group(self) -> Any:
        """parlab's process group. The default group uses Gloo. The first use is collective."""
        from parlab.rank import group

        return group


class Cases:
    """The cases of a file, by name."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[[World], None]] = {}

    def add(self, **parameters: list[Any]) -> Callable[[Callable], Callable]:
        """Register a function, once for each combination of the parameters."""

        def register(function: Callable) -> Callable:
            for values in itertools.product(*parameters.values()):
                names = "-".join(_name(value) for value in values)
                case = f"{function.__name__}[{names}]" if names else function.__name__
                assert case not in self.functions, case
                given = dict(zip(parameters, values, strict=True))
                self.functions[case] = functools.partial(function, **given)
            return function

        return register


class expecting:
    """Like `pytest.raises`, but on a rank: `with expecting(ValueError, "words of the error"):`."""

    def __init__(self, error: type[BaseException], text: str = "") -> None:
        self.error, self.text = error, text

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, traceback: Any) -> bool:
        assert kind is not None, f"no {self.error.__name__}"
        assert self.text in str(error), f"{self.text!r} is not in: {error}"
        return issubclass(kind, self.error)


def _name(value: Any) -> str:
    return getattr(value, "__name__", str(value)).removeprefix("torch.")


def cases_test(
    *modules: str,
    world_sizes: Sequence[int],
    nightly: Sequence[int] = (),
    network: Network | None = None,
    gpus: int = 0,
) -> Callable:
    """Return a test that runs the cases of these files, once for each number of ranks.

    Args:
        nightly: numbers of ranks that `make test` leaves out and `make test-all` runs.
        network: an emulated network for `world.group`.
        gpus: the number of rehearsed GPUs that the ranks have (`tests.rehearsal`).
    """
    sizes = [pytest.param(n, id=f"{n}_ranks") for n in world_sizes]
    sizes += [pytest.param(n, id=f"{n}_ranks", marks=pytest.mark.nightly) for n in nightly]

    @pytest.mark.timeout(RUN_SECONDS + 20)
    @pytest.mark.parametrize("world_size", sizes)
    def test(world_size: int, record_property: Callable) -> None:
        environment = rank_environment(network) if network else {}
        if gpus:
            from tests import rehearsal  # here, because it imports torch, also on ranks

            rehearsal.needed()
            environment |= rehearsal.environment(gpus)
        outcomes = _run(modules, world_size, environment)
        record_cases(record_property, {one.case: one.seconds for one in outcomes.values()})
        missing = _cases(modules).keys() - outcomes.keys()
        problems = [f"{one.case}\n{one.problem}" for one in outcomes.values() if one.problem]
        if missing:
            problems.append(f"not run, because the ranks ended: {', '.join(sorted(missing))}")
        if problems:
            pytest.fail("\n\n".join(problems), pytrace=False)

    return test


def _cases(modules: tuple[str, ...]) -> dict[str, Callable[[World], None]]:
    """Return the cases of these files, in order, by file and name."""
    found = {}
    for module in modules:
        functions = importlib.import_module(f"tests.ranks.{module}").cases.functions
        found |= {f"{module}::{name}": case for name, case in functions.items()}
    return found


@dataclass
class Outcome:
    """The outcome of a case; `problem` is None if it passed."""

    case: str
    problem: str | None
    seconds: float


def _run(
    modules: tuple[str, ...], world_size: int, environment: dict[str, str]
) -> dict[str, Outcome]:
    """Run the cases on one set of ranks. Return the outcomes of the cases that ended, by case."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.jsonl"
        arguments = ("cases", str(report), *modules)
        ran = _start(world_size, RUN_SECONDS, *arguments, env=environment)
        lines = report.read_text().splitlines() if report.exists() else []
    outcomes = {one.case: one for one in (Outcome(*json.loads(line)) for line in lines)}
    first = next((case for case in _cases(modules) if case not in outcomes), None)
    if first or ran.returncode:
        case = first or "the end of the ranks, after all cases"
        text = f"exit code {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
        outcomes[case] = Outcome(case, text, 0.0)
    return outcomes


def on_ranks(
    n: int, function: Callable[..., Any], *arguments: Any, seconds: float = CASE_SECONDS
) -> list[Any]:
    """Run `function(world, *arguments)` on `n` new ranks. Return the values by rank.

    Args:
        function: a function at a module's top level.
        arguments: JSON values. The function must also return a JSON value.
        seconds: the time limit, after which the ranks print their stacks, and end.

    The test fails with all output if a rank fails or does not end in time.
    """
    with tempfile.TemporaryDirectory() as folder:
        name = f"{function.__module__}:{function.__qualname__}"
        ran = _start(n, seconds + 30, "function", folder, str(seconds), name, json.dumps(arguments))
        answers = [Path(folder) / f"{rank}.json" for rank in range(n)]
        failed = [rank for rank, answer in enumerate(answers) if not answer.exists()]
        if failed or ran.returncode:
            pytest.fail(
                f"no answer from ranks {failed}, exit code {ran.returncode}\n"
                f"{ran.stdout}\n{ran.stderr}",
                pytrace=False,
            )
        return [json.loads(answer.read_text()) for answer in answers]


def _start(n: int, seconds: float, *arguments: str, **options: Any) -> subprocess.CompletedProcess:
    program = ("-m", "tests.support.on_ranks", *arguments)
    options |= {"cwd": ROOT, "capture_output": True, "text": True, "timeout": seconds}
    return mpirun.run(n, *program, **options)


# Functions that run on the ranks


def _run_cases(report: str, *modules: str) -> None:
    from parlab.rank.world import new_communicator

    world = World()
    assert world.group  # all ranks start it, before a case uses it on only some ranks
    agreement = new_communicator()
    with (
        open(report, "w", encoding="utf-8") if world.rank == 0 else contextlib.nullcontext() as file
    ):
        for name, case in _cases(tuple(modules)).items():
            began = time.perf_counter()
            faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
            problems = agreement.allgather(_problem(case, world))
            failed = [f"rank {r}:\n{problem}" for r, problem in enumerate(problems) if problem]
            if file is not None:
                outcome = [name, "\n".join(failed) or None, time.perf_counter() - began]
                print(json.dumps(outcome), file=file, flush=True)
    faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)  # also if Python hangs at its end


def _problem(case: Callable[[World], None], world: World) -> str | None:
    try:
        case(world)
    except BaseException:
        return traceback.format_exc()
    return None


def _run_function(folder: str, seconds: str, name: str, arguments: str) -> None:
    faulthandler.dump_traceback_later(float(seconds), exit=True)
    module, _, function = name.partition(":")
    world = World()
    value = getattr(importlib.import_module(module), function)(world, *json.loads(arguments))
    (Path(folder) / f"{world.rank}.json").write_text(json.dumps(value))


if __name__ == "__main__":
    from parlab.rank.engine import lazy_imports

    lazy_imports.install()  # as on a lab's ranks
    faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)  # of the start
    try:
        {"cases": _run_cases, "function": _run_function}[sys.argv[1]](*sys.argv[2:])
    except BaseException:  # another rank may have ended, and MPI's normal exit would wait for it
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
