"""Tests that run on ranks: many cases in one set of ranks, each reported by itself.

A file of cases registers functions:

    cases = Cases()

    @cases.add(dtype=[torch.float32, torch.int64])
    def sums(world: World, dtype: torch.dtype) -> None:
        assert ...

and a test file runs them, once for each number of ranks:

    test_on_ranks = cases_test("cases_group_use", world_sizes=[2, 3])

A case runs on all ranks; an exception on any of them fails it. MPI must not start in pytest's own
process, so files of cases import it, and all that needs it, inside functions.
"""

import contextlib
import faulthandler
import functools
import importlib
import itertools
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from parlab import mpirun

ROOT = Path(__file__).resolve().parents[1]
# No case needs long: ranks that wait for each other longer are stuck.
CASE_SECONDS = 90.0
RUN_SECONDS = 280.0


@dataclass(frozen=True)
class World:
    """What a case sees of the ranks. `group` is parlab's, the default group is Gloo."""

    comm: Any
    rank: int
    size: int
    group: Any


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
    """As `pytest.raises`, on a rank: `with expecting(ValueError, "words of it"):`."""

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


def cases_test(*modules: str, world_sizes: list[int]) -> Callable:
    """A test function that runs the cases of these files and reports each by itself."""

    @pytest.mark.parametrize("case", list(_cases(modules)))
    @pytest.mark.parametrize("world_size", world_sizes, ids=lambda n: f"{n}_ranks")
    def test(world_size: int, case: str) -> None:
        outcome = _run(modules, world_size).get(case, "not run: the ranks ended before")
        if outcome is not None:
            pytest.fail(outcome, pytrace=False)

    return test


def _cases(modules: tuple[str, ...]) -> dict[str, Callable[[World], None]]:
    """The cases of these files, in order, by file and name."""
    found = {}
    for module in modules:
        functions = importlib.import_module(f"tests.{module}").cases.functions
        found |= {f"{module}::{name}": case for name, case in functions.items()}
    return found


@functools.cache
def _run(modules: tuple[str, ...], world_size: int) -> dict[str, str | None]:
    """What became of each case: None for passed, else why not."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.jsonl"
        ran = mpirun.run(
            world_size,
            *("-m", "tests.rank_cases", str(report), *modules),
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=RUN_SECONDS,
        )
        lines = report.read_text().splitlines() if report.exists() else []
    outcomes: dict[str, str | None] = dict(map(json.loads, lines))
    missing = [case for case in _cases(modules) if case not in outcomes]
    if missing:
        outcomes[missing[0]] = f"exit code {ran.returncode}\n{ran.stdout}\n{ran.stderr}"
    return outcomes


def _on_this_rank(case: Callable[[World], None], world: World) -> str | None:
    try:
        case(world)
    except BaseException:
        return traceback.format_exc()
    return None


def main() -> None:
    from parlab.rank import comm, group, rank, world_size
    from parlab.rank.world import new_communicator

    report, *modules = sys.argv[1:]
    world = World(comm, rank, world_size, group)
    agreement = new_communicator()
    with open(report, "w") if rank == 0 else contextlib.nullcontext() as file:
        for name, case in _cases(tuple(modules)).items():
            faulthandler.dump_traceback_later(CASE_SECONDS, exit=True)
            problems = agreement.allgather(_on_this_rank(case, world))
            faulthandler.cancel_dump_traceback_later()
            told = [f"rank {r}:\n{problem}" for r, problem in enumerate(problems) if problem]
            if file is not None:
                print(json.dumps([name, "\n".join(told) or None]), file=file, flush=True)


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # another rank is gone, and MPI's own way out would wait for it
        traceback.print_exc()
        os._exit(1)
