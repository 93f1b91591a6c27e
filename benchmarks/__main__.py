"""`python -m benchmarks`: see the docstring of `benchmarks`."""

import argparse
import sys
from pathlib import Path

import benchmarks
from benchmarks import machine, report
from benchmarks.harness import Benchmark, Samples, select
from benchmarks.worker import measured
from parlab.runtime.paths import ROOT
from parlab_staff.ranks import RankPool


def run(bench: Benchmark) -> Samples:
    """Measure in new processes. Raises RuntimeError, with their output, if they fail."""
    with RankPool(max(bench.ranks, 1), mpi=bool(bench.ranks)) as pool:
        [samples, *_] = pool.call(measured, bench.topic, bench.name, seconds=bench.seconds)
    return Samples(**samples)


def _quiet(force: bool) -> bool:
    found = [] if force else machine.disturbances()
    if found:
        print("This machine is busy, so nothing was measured:", file=sys.stderr)
        for disturbance in found:
            print(f"  {disturbance}", file=sys.stderr)
        print("End them and try again, or measure anyway with --force.", file=sys.stderr)
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
