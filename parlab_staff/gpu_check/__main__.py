"""`python -m parlab_staff.gpu_check`: see the docstring of `parlab_staff.gpu_check`."""

import argparse
import os
import re
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from parlab.runtime.notebook import read_cells
from parlab.runtime.paths import ROOT, numbered
from parlab_staff import gpu_check
from parlab_staff.gpu_check import kernels, machine
from parlab_staff.gpu_check.cells import DEFAULT_RANKS, named_ranks
from parlab_staff.gpu_check.outcome import BAD, Outcome
from parlab_staff.gpu_check.rank import PICTURES
from parlab_staff.gpu_check.record import Record, writable
from parlab_staff.gpu_check.run_lab import UNDER_WAY, LabRun
from parlab_staff.gpu_check.shares import share
from parlab_staff.ranks.pool import SPARE_SECONDS

# Each rank uses half a gigabyte of its GPU even when it is idle.
MOST_JOBS = 4


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m parlab_staff.gpu_check",
        description=gpu_check.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these labs or benchmarks")
    parser.add_argument("--list", action="store_true", help="list the items, and stop")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all together (default: 9)")
    parser.add_argument(
        "--jobs",
        type=int,
        help="labs that run at the same time (default: as many as there are cores for their ranks, "
        f"up to {MOST_JOBS})",
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--ranks", type=int, help="default: the lab's own number, or one a GPU, or 4"
    )
    parser.add_argument("--without-mpi", action="store_true", help="act as if there were no MPI")
    parser.add_argument(
        "--resume", action="store_true", help="keep items of the output that passed"
    )
    parser.add_argument("--output", type=Path, default=ROOT / "_build" / "gpu-check.json")
    parser.add_argument(
        "--solutions", type=Path, default=ROOT / "solutions", help=argparse.SUPPRESS
    )
    return parser


def chosen(every: list[str], only: list[str] | None) -> list[str]:
    """Return the items to run, in order. Raises ValueError for an unknown name."""
    if unknown := set(only or []) - set(every):
        raise ValueError(f"nothing is named {', '.join(sorted(unknown))}: see --list")
    return [name for name in every if not only or name in only]


class GpuCheck:
    """A run of the check: its items, its time, and its record."""

    def __init__(self, options: argparse.Namespace, names: list[str]) -> None:
        self.options, self.names = options, names
        # Ending stuck ranks takes some seconds after an item's time limit.
        self.deadline = time.monotonic() + 60 * options.minutes - SPARE_SECONDS
        machine_facts = machine.describe(options.device)
        self.record = Record(
            options.output,
            machine_facts,
            " ".join(["python -m parlab_staff.gpu_check", *sys.argv[1:]]),
        )
        self.gpus: list[str] = machine_facts["gpus"] if options.device == "cuda" else []
        self.ranks = options.ranks or (len(self.gpus) if len(self.gpus) > 1 else DEFAULT_RANKS)
        default_jobs = min(MOST_JOBS, machine_facts["cores"] // self.ranks)
        self.jobs = options.jobs or max(1, default_jobs)
        self.unusable = self._unusable(machine_facts)

    def _unusable(self, machine_facts: dict[str, Any]) -> Outcome | None:
        """Return the outcome of all items if nothing can be checked here; None if something can."""
        if why := machine_facts.get("why_no_torch"):
            return Outcome("skipped", f"torch does not start here: {why}")
        if self.options.device == "cuda" and not self.gpus:
            return Outcome("skipped", "no GPU here: --device cpu checks the logic without one")
        if why := machine_facts.get("why_not_computing"):
            return Outcome("failed", f"torch does not compute here: {why}")
        return None

    def run(self) -> int:
        """Run all items. Return the exit code."""
        passed = self.record.resume() if self.options.resume else set()
        left = [name for name in self.names if name not in passed]
        self.record.save()
        if self.unusable:
            for name in left:
                self.record.put(name, self.unusable, 0.0)
            self.record.save(complete=True)
            print(f"Nothing was checked: {self.unusable.why}")
            return 1 if self.unusable.status in BAD else 0
        self.why_no_mpi = "--without-mpi" if self.options.without_mpi else machine.why_no_mpi()
        self.record.content["mpi"] = self.why_no_mpi or "yes"
        print(self._summary(), flush=True)
        benchmarks = [name for name in left if name.startswith(kernels.PREFIX)]
        self._labs_side_by_side(left[: len(left) - len(benchmarks)], benchmarks)
        for position in range(len(benchmarks)):
            print(self._item(benchmarks[position:]), flush=True)
        self.record.save(complete=True)
        return self._end()

    def _summary(self) -> str:
        where = ", ".join(self.gpus) if self.options.device == "cuda" else "CPU"
        mpi = f"no MPI ({self.why_no_mpi})" if self.why_no_mpi else "MPI"
        return (
            f"{self.ranks} ranks on {where}; {mpi}; labs at a time: {self.jobs}; "
            f"at most {self.options.minutes:g} minutes"
        )

    def _labs_side_by_side(self, labs: list[str], benchmarks: list[str]) -> None:
        """Run the labs. If this is interrupted, end all ranks at once."""
        self.runs = {name: self._lab_run(name) for name in labs}
        with ThreadPoolExecutor(self.jobs) as threads:
            try:
                items = [
                    threads.submit(self._item, [*labs[position:], *benchmarks])
                    for position in range(len(labs))
                ]
                for item in as_completed(items):
                    print(item.result(), flush=True)
            except BaseException:
                threads.shutdown(wait=False, cancel_futures=True)
                for run in self.runs.values():
                    run.stop()
                raise

    def _lab_run(self, name: str) -> LabRun:
        notebook, mpi = self.options.solutions / f"{name}.ipynb", not self.why_no_mpi
        ranks = self.options.ranks or named_ranks(read_cells(notebook)) or self.ranks
        return LabRun(notebook, ranks, self.options.device, mpi, self.deadline)

    def _item(self, names: list[str]) -> str:
        """Run and record the first of these items, which all must run. Return a line about it."""
        name, began = names[0], time.monotonic()
        seconds = share(self.deadline - began, names, self.jobs)
        more: dict[str, Any] = {}
        if seconds < 1:
            outcome = Outcome("skipped", "no time left: see --minutes and --resume")
        elif name.startswith(kernels.PREFIX):
            put = self.record.put_benchmark
            outcome = kernels.run(name, self.options.device, seconds, put)
        else:
            outcome = self._lab(name, began, began + seconds, more)
        took = time.monotonic() - began
        self.record.put(name, outcome, took, **more)
        return f"{name:<24} {outcome.status:<9} {took:5.0f} s  {outcome.why}"

    def _lab(self, name: str, began: float, deadline: float, more: dict[str, Any]) -> Outcome:
        lab = self.runs[name]
        lab.deadline = deadline

        def save() -> None:
            self.record.put(name, UNDER_WAY, time.monotonic() - began, cells=dict(lab.cells))

        lab.save = save
        outcome = lab.run()
        more |= {"ranks": lab.ranks, "notes": lab.notes, "cells": lab.cells}
        return outcome

    def _end(self) -> int:
        items = [item for item in self.record.content["items"] if item["name"] in self.names]
        bad = [item["name"] for item in items if item["status"] in BAD]
        for reason, count in _skipped(items).most_common():
            print(f"skipped cells: {count}, because {reason}")
        print(f"{len(items)} items, written to {self.options.output}")
        if bad:
            print(f"Failed: {', '.join(bad)}", file=sys.stderr)
        return 1 if bad else 0


def _skipped(items: list[dict[str, Any]]) -> Counter[str]:
    """Count the skipped cells of these items by reason, without cells that draw pictures."""
    cells = [cell for item in items for cell in item.get("cells", {}).values()]
    whys = [cell["why"] for cell in cells if cell["status"] == "skipped"]
    reasons = [re.sub(r"^rank \d+: ", "", why) for why in whys]
    return Counter(reason for reason in reasons if not reason.startswith(PICTURES))


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
    # Otherwise, each rank compiles the course's modules and torch's again.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    try:
        labs = [path.stem for path in numbered(options.solutions, ".ipynb")]
        names = chosen([*labs, *kernels.benchmarks()], options.only)
        if options.list:
            print("\n".join(names))
            return 0
        writable(options.output)
        return GpuCheck(options, names).run()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"Interrupted. Finished items are in {options.output}", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
