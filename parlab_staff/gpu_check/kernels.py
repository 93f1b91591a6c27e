"""Runs the benchmarks that need a GPU. Each kernel has its own process, which may crash."""

import importlib.util
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any

from parlab_staff.gpu_check.gone import details
from parlab_staff.gpu_check.outcome import Outcome
from parlab_staff.ranks import RankPool, RanksGone

PREFIX = "benchmark_"
COPY = "_copy"  # the suffix of benchmarks that compare a kernel with a copy


def _harness(module: str) -> ModuleType | None:
    """Return a module of `benchmarks`; None if this copy of the course has none."""
    if importlib.util.find_spec("benchmarks") is None:
        return None
    return importlib.import_module(f"benchmarks.{module}")


def benchmarks() -> dict[str, list[Any]]:
    """Return the benchmarks for GPUs, by item: `benchmark_adam` has all called `adam_…`."""
    found: dict[str, list[Any]] = {}
    if harness := _harness("harness"):
        for bench in harness.of_topic("triton"):
            kernel = bench.name.partition("_")[0]
            found.setdefault(PREFIX + kernel, []).append(bench)
    return found


def run(item: str, device: str, seconds: float, put: Callable[[dict[str, Any]], None]) -> Outcome:
    """Measure the benchmarks of an item, or rehearse them on the CPU. Pass each row to `put`."""
    benches = benchmarks()[item]
    deadline = time.monotonic() + seconds
    rows: list[dict[str, Any]] = []
    environment = {"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {}
    function = "benchmarks.worker:" + ("rehearse" if device == "cpu" else "measured")
    with RankPool(1, mpi=False, environment=environment, start_seconds=seconds) as process:
        for bench in benches:
            try:
                if process.starts == 0:
                    process.start()
                left = max(0.001, deadline - time.monotonic())
                [samples] = process.call(function, "triton", bench.name, seconds=left)
            except RanksGone as gone:
                count = f"{len(rows)} of {len(benches)} measured"
                return Outcome(gone.kind, f"{count}; at {bench.name}, {gone.kind}{details(gone)}")
            if samples is not None:
                rows.append(row(bench, samples))
                put(rows[-1])
    if device == "cpu":
        return Outcome("passed", f"{len(benches)} rehearsed on the CPU, none measured")
    slow = [f"{r['name']} {r['ratio']}, target {r['target']}" for r in rows if missed(r)]
    if slow:
        return Outcome("failed", f"{len(slow)} of {len(rows)} miss: {'; '.join(slow)}")
    return Outcome("passed", f"{len(rows)} measured")


def missed(row: dict[str, Any]) -> bool:
    """Return True if a row has a target and misses it."""
    return row["target"] is not None and row["ratio"] > row["target"]


def row(bench: Any, samples: dict[str, list[float]]) -> dict[str, Any]:
    """Return a row as `make bench` writes it.

    If the benchmark compares with a copy, add the share of the copy rate.
    """
    harness, report = _harness("harness"), _harness("report")
    assert harness and report
    found = report.row(bench, harness.Samples(**samples))
    if bench.name.endswith(COPY):
        found["share_of_copy_rate"] = round(1 / found["ratio"], 4)
    return found
