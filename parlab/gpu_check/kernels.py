"""Runs the benchmarks that need a GPU: those of one kernel in one process, which may die of it."""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from parlab.files import ROOT
from parlab.gpu_check.outcome import Outcome

PREFIX = "benchmark_"
COPY = "_copy"  # the end of the names of benchmarks against a copy


def _harness(module: str) -> ModuleType | None:
    """A module of `benchmarks`; None where this copy of the course comes without them."""
    if importlib.util.find_spec("benchmarks") is None:
        return None
    return importlib.import_module(f"benchmarks.{module}")


def benchmarks() -> dict[str, list[Any]]:
    """The benchmarks for GPUs, by item: `benchmark_adam` has all whose names begin with `adam_`."""
    found: dict[str, list[Any]] = {}
    if harness := _harness("harness"):
        for bench in harness.of_topic("triton"):
            kernel = bench.name.partition("_")[0]
            found.setdefault(PREFIX + kernel, []).append(bench)
    return found


def run(item: str, device: str, seconds: float, put: Callable[[dict[str, Any]], None]) -> Outcome:
    """Measure the benchmarks of an item, or rehearse them on the CPU; `put` gets their rows."""
    benches = benchmarks()[item]
    names = [bench.name for bench in benches]
    with tempfile.TemporaryDirectory() as folder:
        result, said = Path(folder) / "result.json", Path(folder) / "said"
        where = str(result) if device == "cuda" else "--rehearse"
        command = [sys.executable, "-m", "benchmarks.worker", "triton", where, *names]
        ended = _run(command, device, seconds, said)
        lines = said.read_text(errors="replace").strip().splitlines()
        measured = json.loads(result.read_text()) if result.exists() else {}
    rows = [row(bench, measured[bench.name]) for bench in benches if bench.name in measured]
    for one in rows:
        put(one)
    if ended:
        at = next((name for name in names if name not in measured), names[-1])
        last = f": {lines[-1][:500]}" if lines else ""
        where = f"at {at}, " if device == "cuda" else ""
        return Outcome(ended, f"{len(rows)} of {len(names)} measured; {where}{ended}{last}")
    if device == "cpu":
        return Outcome("passed", f"{len(names)} rehearsed on the CPU, none measured")
    slow = [f"{r['name']} {r['ratio']}, target {r['target']}" for r in rows if missed(r)]
    if slow:
        return Outcome("failed", f"{len(slow)} of {len(rows)} miss: {'; '.join(slow)}")
    return Outcome("passed", f"{len(rows)} measured")


def _run(command: list[str], device: str, seconds: float, said: Path) -> str:
    """Run to the end; "", or how it ended instead."""
    env = os.environ | ({"CUDA_VISIBLE_DEVICES": ""} if device == "cpu" else {})
    with (
        said.open("w") as log,
        subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as process,
    ):
        try:
            code = process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return "timed out"
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started, as torch.compile does
    return {0: "", 1: "failed"}.get(code, "crashed")


def missed(row: dict[str, Any]) -> bool:
    """Whether a row misses its target; one without a target does not."""
    return row["target"] is not None and row["ratio"] > row["target"]


def row(bench: Any, samples: dict[str, list[float]]) -> dict[str, Any]:
    """As `make bench` writes it; and the share of the copy rate, where a copy is the peer."""
    harness, report = _harness("harness"), _harness("report")
    assert harness and report
    found = report.row(bench, harness.Samples(**samples))
    if bench.name.endswith(COPY):
        found["share_of_copy_rate"] = round(1 / found["ratio"], 4)
    return found
