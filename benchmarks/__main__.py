"""`python -m benchmarks`: see the docstring of `benchmarks`."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil

import benchmarks
from benchmarks import machine, report
from benchmarks.harness import Benchmark, Samples, select
from parlab import mpirun
from parlab.files import ROOT


def run(bench: Benchmark) -> Samples:
    """Measure in fresh processes; RuntimeError, with what they said, when they fail."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder) / "samples.json"
        worker = ["-m", "benchmarks.worker", bench.topic, str(result), bench.name]
        program = [sys.executable, *worker]
        command = mpirun.command(bench.ranks, *program) if bench.ranks else program
        env = os.environ | mpirun.environment(max(bench.ranks, 1), folder=folder)
        with subprocess.Popen(
            command, cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as process:
            try:
                said, _ = process.communicate(timeout=bench.seconds)
            except subprocess.TimeoutExpired:
                _end(process.pid)
                raise RuntimeError(f"not done after {bench.seconds:.0f} s") from None
            except BaseException:  # Ctrl+C: leave no ranks behind
                _end(process.pid)
                raise
        if process.returncode or not result.exists():
            raise RuntimeError(f"exit code {process.returncode}\n{said.strip()}")
        return Samples(**json.loads(result.read_text())[bench.name])


def _end(pid: int) -> None:
    """End a process and all that it started."""
    top = psutil.Process(pid)
    for process in [top, *top.children(recursive=True)]:
        try:
            process.kill()
        except psutil.NoSuchProcess:
            continue


def _quiet(force: bool) -> bool:
    found = [] if force else machine.disturbances()
    if found:
        print("This machine is busy, so nothing was measured:", file=sys.stderr)
        for disturbance in found:
            print(f"  {disturbance}", file=sys.stderr)
        print("End them and try again, or measure all the same with --force.", file=sys.stderr)
    return not found


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=benchmarks.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="benchmarks or topics to run")
    parser.add_argument("--list", action="store_true", help="say what there is, and stop")
    parser.add_argument("--force", action="store_true", help="measure on a busy machine as well")
    parser.add_argument("--output", type=Path, default=ROOT / "_build" / "bench.json")
    args = parser.parse_args()
    try:
        chosen = select(args.names)
    except ValueError as error:
        parser.error(str(error))
    if args.list:
        for bench in chosen:
            print(f"{bench.topic}: {bench.name}: {bench.work}, against {bench.peer}")
        return 0
    if not _quiet(args.force):
        return 2
    print(machine.description())
    rows, failed = [], []
    gpu = any(bench.gpu for bench in chosen) and machine.has_gpu()
    for number, bench in enumerate(chosen, 1):
        if bench.gpu and not gpu:
            print(f"{bench.name:<32} not measured: it needs a GPU")
            continue
        print(f"[{number}/{len(chosen)}] {bench.name} …", file=sys.stderr)
        try:
            samples = run(bench)
        except RuntimeError as error:
            print(f"{bench.name:<32} failed: {error}")
            failed.append(bench.name)
            continue
        rows.append(report.row(bench, samples))
        print("\n".join(report.lines(bench, samples)), flush=True)
    report.write(rows, args.output, keep_others=bool(args.names))
    if failed:
        print(f"{len(failed)} of {len(chosen)} failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
