"""The playground's hub under Node: its own tests, and generated programs as on MPI."""

import json
import shutil
import subprocess
from typing import Any

import pytest

from parlab.runtime.paths import ROOT
from tests.support.message_programs import Program, program, results_on_mpi
from tests.support.on_ranks import World, on_ranks

SIZE, BY_DAY, BY_NIGHT = 3, 40, 400


def node(*arguments: str, text: str = "") -> str:
    """Run Node. Return its output."""
    found = shutil.which("node") or shutil.which("nodejs")
    if found is None:
        pytest.skip("node: not installed. The playground's messages are not tested")
    ran = subprocess.run(
        [found, *arguments], input=text, capture_output=True, text=True, timeout=250, cwd=ROOT
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def test_messages_between_threads() -> None:
    assert "# fail 0" in node("--test", "--test-reporter=tap", "tests/ranks/play_hub.test.mjs")


def all_results(world: World, programs: list[Program]) -> list[dict[str, Any]]:
    return results_on_mpi(world, programs)


def compare(programs: list[Program]) -> int:
    """Compare the results of all programs. Return how many are stuck."""
    given = json.dumps({"size": SIZE, "programs": programs})
    in_page = json.loads(node("tests/support/hub_rank.mjs", "run", text=given))
    on_mpi = [list(ranks) for ranks in zip(*on_ranks(SIZE, all_results, programs), strict=True)]
    for one, page, mpi in zip(programs, in_page, on_mpi, strict=True):
        assert page == mpi, json.dumps(one)
    return sum(any(rank["at"] is not None for rank in result) for result in in_page)


def test_generated_programs_end_as_on_mpi() -> None:
    stuck = compare([program(seed, SIZE) for seed in range(BY_DAY)])
    assert BY_DAY // 5 < stuck < BY_DAY * 4 // 5, "some are stuck, and some are not"


@pytest.mark.nightly
@pytest.mark.parametrize("first", range(1000, 1000 + 5 * BY_NIGHT, BY_NIGHT))
def test_many_generated_programs_end_as_on_mpi(first: int) -> None:
    compare([program(seed, SIZE) for seed in range(first, first + BY_NIGHT)])
