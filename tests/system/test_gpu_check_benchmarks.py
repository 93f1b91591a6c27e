"""`make gpu-check` runs benchmarks of kernels, and reports errors and missed targets."""

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.harness import Benchmark
from parlab_staff.gpu_check import kernels
from tests.support.nightly import cases


@pytest.mark.parametrize(
    "item", cases(kernels.benchmarks(), {"benchmark_matmul", "benchmark_softmax"})
)
def test_benchmarks_of_kernels_do_the_work_of_their_peers(item: str) -> None:
    """They run with small sizes in the interpreter, and nothing is measured."""
    rows: list[dict[str, Any]] = []
    outcome = kernels.run(item, "cpu", 200.0, rows.append)
    assert outcome.status == "passed", outcome
    assert outcome.why.endswith("rehearsed on the CPU, none measured")
    assert rows == []


def test_errors_in_a_benchmark_are_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = SimpleNamespace(name="adam_of_nobody")
    monkeypatch.setattr(kernels, "benchmarks", lambda: {"benchmark_adam": [unknown]})
    outcome = kernels.run("benchmark_adam", "cpu", 100.0, print)
    assert outcome.status == "failed"
    assert outcome.why.endswith("KeyError: 'adam_of_nobody'")
    assert kernels.run("benchmark_adam", "cpu", 0.001, print).status == "timed out"


def test_a_missed_target_is_reported_and_a_copy_gives_the_share() -> None:
    def row(name: str, ours: float, target: float | None) -> dict[str, Any]:
        words = {"topic": "triton", "peer": "a peer", "work": "work", "gpu": True}
        numbers = {"ranks": 0, "rounds": 3, "calls": 1, "warm_up": 0, "seconds": 9.0}
        bench = Benchmark(name=name, set_up=lambda: None, target=target, **words, **numbers)
        return kernels.row(bench, {"reference": [ours] * 3, "peer": [1.0] * 3})

    slow, good, free = row("x_copy", 1.25, 1.1), row("x_copy", 1.05, 1.1), row("x_fused", 9.0, None)
    assert (slow["ratio"], slow["share_of_copy_rate"]) == (1.25, 0.8)
    assert kernels.missed(slow) and not kernels.missed(good)
    assert not kernels.missed(free) and "share_of_copy_rate" not in free
