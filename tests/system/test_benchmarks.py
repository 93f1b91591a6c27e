"""The benchmarks' harness measures a known ratio, refuses a busy machine, and runs on ranks."""

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from benchmarks import grading, machine, report
from benchmarks.harness import Benchmark, Pair, Samples, all_benchmarks, measure, select
from parlab.runtime.paths import ROOT
from parlab.runtime.source_code import defined_names
from parlab_staff.grading.graded_lab import find_lab
from tests.conftest import wait_until


def bench(set_up: Callable[[], Pair], **settings: Any) -> Benchmark:
    defaults = {"rounds": 4, "calls": 3, "warm_up": 2, "seconds": 1.0, "ranks": 0, "target": 0.5}
    words = {"name": "sleep", "topic": "tests", "peer": "a nap", "work": "nothing"}
    return Benchmark(set_up=set_up, **{**defaults, **words, **settings})


def alone(benchmark: Benchmark) -> Samples:
    return measure(benchmark, together=lambda: None, slowest=lambda seconds: seconds)


def test_both_are_called_in_turn_after_warm_up() -> None:
    calls: list[str] = []
    samples = alone(bench(lambda: Pair(lambda: calls.append("a"), lambda: calls.append("b"))))
    assert "".join(calls) == "aaabbb" + "bbbaaa" + 2 * ("aaabbb" + "bbbaaa")
    assert len(samples.reference) == len(samples.peer) == 4


def test_functions_may_measure_themselves() -> None:
    samples = alone(bench(lambda: Pair(lambda: 2.0, lambda: 8)))
    assert samples == Samples([2.0] * 4, [8.0] * 4)
    row = report.row(bench(lambda: Pair(lambda: 2.0, lambda: 8)), samples)
    assert row == {
        "name": "sleep",
        "peer": "a nap",
        "work": "nothing",
        "ratio": 0.25,
        "spread": [0.25, 0.25],
        "target": 0.5,
    }


def test_bytes_are_printed_as_bytes() -> None:
    printed = report.lines(
        bench(lambda: Pair(lambda: 0, lambda: 0), unit="bytes"), Samples([2e6], [4e6])
    )
    assert printed[-1].endswith("nothing; 2 MB against 4 MB")


def test_submissions_to_grade_are_right_or_have_mistakes_of_the_tests() -> None:
    lab = find_lab(grading.LAB)
    solved = {cell.id: cell.source for cell in lab.cells}
    for number in range(1, 7):
        cells = {cell.id: cell.source for cell in grading.submitted(lab, number).cells}
        wrong = [e for e in lab.exercises if cells[e.cell] != solved[e.cell]]
        assert bool(wrong) == (number % 3 != 0)
        for exercise in wrong:
            assert defined_names(cells[exercise.cell]) >= exercise.names


def test_the_spread_contains_the_ratio_and_ignores_one_bad_round() -> None:
    draw = random.Random(1)
    ours = [draw.uniform(0.9, 1.1) for _ in range(40)]
    theirs = [draw.uniform(1.8, 2.2) for _ in range(40)]
    ours[7] = 500.0
    row = report.row(bench(lambda: Pair(lambda: 0, lambda: 0)), Samples(ours, theirs))
    low, high = row["spread"]
    assert 0.45 < low <= row["ratio"] <= high < 0.55


def test_results_replace_those_of_the_same_name(tmp_path: Path) -> None:
    path = tmp_path / "new" / "bench.json"
    old, new, other = {"name": "a", "ratio": 1}, {"name": "a", "ratio": 2}, {"name": "b"}
    report.write([old, other], path, keep_others=True)
    report.write([new], path, keep_others=True)
    assert json.loads(path.read_text()) == [other, new]
    report.write([old], path, keep_others=False)
    assert json.loads(path.read_text()) == [old]


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5 s"), (0.0123, "12.3 ms"), (1.5e-5, "15 µs"), (3e-8, "30 ns")]
)
def test_times_as_text(seconds: float, text: str) -> None:
    assert report.seconds(seconds) == text


def test_benchmarks_are_selected_by_name_and_topic() -> None:
    names = {b.name for b in select(["collectives"])}
    assert names == {"all_reduce_1kB", "all_reduce_16MB"}
    assert [b.name for b in select(["all_reduce_1kB"])] == ["all_reduce_1kB"]
    assert select([]) == all_benchmarks()
    with pytest.raises(ValueError, match="no benchmark named nonsense"):
        select(["nonsense", "collectives"])
    assert all(b.work and b.peer for b in all_benchmarks())
    # No GPU has measured the benchmarks for GPUs, and others only report a price.
    assert all(b.target is None or b.target > 0 for b in all_benchmarks())
    reported = {b.name for b in all_benchmarks() if b.target is None and not b.gpu}
    assert reported == {"adam_8bit_time", "plan_peak_recomputed", "offload_time"}


@pytest.fixture
def spinning() -> Iterator[int]:
    # Start a grandchild, because this process's own children do not count as a disturbance.
    starter = """if True:
        import subprocess, sys
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        print(subprocess.Popen([sys.executable, "-c", "while True: pass"], **quiet).pid)"""
    printed = subprocess.run([sys.executable, "-c", starter], capture_output=True, text=True)
    spinner = psutil.Process(int(printed.stdout))
    yield spinner.pid
    spinner.kill()


def test_a_busy_process_is_named(spinning: int) -> None:
    def named() -> bool:
        return any(f"process {spinning} " in found for found in machine.disturbances())

    # On a machine with other work, it may not get its share in the first second.
    wait_until(named, seconds=60, what=f"process {spinning} is named")


def test_a_busy_machine_is_refused(spinning: int, tmp_path: Path) -> None:
    output = tmp_path / "bench.json"

    def refused() -> bool:
        printed = run("all_reduce_1kB", "--output", str(output))
        if printed.returncode != 2:
            output.unlink()
        return (
            printed.returncode == 2
            and "of a core" in printed.stderr
            and "--force" in printed.stderr
        )

    wait_until(refused, seconds=120, what="the benchmarks refuse to run")
    assert not output.exists()


def run(*arguments: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-m", "benchmarks", *arguments], cwd=ROOT, capture_output=True, text=True
    )


def test_a_benchmark_on_real_ranks(tmp_path: Path) -> None:
    """This tests the report, not the speed, because other tests may run at the same time."""
    output = tmp_path / "bench.json"
    printed = run("all_reduce_1kB", "--force", "--output", str(output))
    assert printed.returncode == 0, printed.stderr
    (row,) = json.loads(output.read_text())
    assert list(row) == ["name", "peer", "work", "ratio", "spread", "target"]
    assert row["name"] == "all_reduce_1kB" and row["spread"][0] <= row["ratio"] <= row["spread"][1]
    assert "all_reduce_1kB" in printed.stdout and "target 0.1" in printed.stdout


def test_list_prints_the_benchmarks_and_unknown_names_are_refused() -> None:
    printed = run("--list")
    assert printed.returncode == 0
    assert "collectives: all_reduce_16MB" in printed.stdout
    assert run("nonsense").returncode == 2
