"""`python -m parlab_staff.gpu_check`: see the docstring of `parlab_staff.gpu_check`."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from parlab.runtime.notebook import read_cells
from parlab.runtime.paths import ROOT, numbered
from parlab_staff import gpu_check
from parlab_staff.gpu_check import kernels, machine
from parlab_staff.gpu_check.cells import DEFAULT_RANKS, named_ranks
from parlab_staff.gpu_check.outcome import BAD, Outcome
from parlab_staff.gpu_check.record import Record, writable
from parlab_staff.gpu_check.run_lab import LabRun
from parlab_staff.gpu_check.shares import share
from parlab_staff.ranks.pool import SPARE_SECONDS


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m parlab_staff.gpu_check",
        description=gpu_check.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these labs or benchmarks")
    parser.add_argument("--list", action="store_true", help="list the items, and stop")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all together (default: 9)")
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
        machine_facts = machine.describe()
        self.record = Record(
            options.output,
            machine_facts,
            " ".join(["python -m parlab_staff.gpu_check", *sys.argv[1:]]),
        )
        self.gpus: list[str] = machine_facts["gpus"]
        self.why_not = self._why_not(machine_facts)

    def _why_not(self, machine_facts: dict[str, Any]) -> str:
        """Return why nothing can be checked on this machine; "" if something can."""
        if "why_no_torch" in machine_facts:
            return f"torch does not start here: {machine_facts['why_no_torch']}"
        if self.options.device == "cuda" and not self.gpus:
            return "no GPU here: --device cpu checks the logic without one"
        return ""

    def run(self) -> int:
        """Run all items. Return the exit code."""
        passed = self.record.resume() if self.options.resume else set()
        left = [name for name in self.names if name not in passed]
        self.record.save()
        if self.why_not:
            for name in left:
                self.record.put(name, Outcome("skipped", self.why_not), 0.0)
            self.record.save(complete=True)
            print(f"Nothing was checked: {self.why_not}")
            return 0
        self.why_no_mpi = "--without-mpi" if self.options.without_mpi else machine.why_no_mpi()
        self.record.content["mpi"] = self.why_no_mpi or "yes"
        self.ranks = self.options.ranks or (len(self.gpus) if len(self.gpus) > 1 else DEFAULT_RANKS)
        print(self._summary(), flush=True)
        for position, name in enumerate(left):
            self._item(name, share(self.deadline - time.monotonic(), left[position:]))
        self.record.save(complete=True)
        return self._end()

    def _summary(self) -> str:
        where = ", ".join(self.gpus) if self.options.device == "cuda" else "CPU"
        mpi = f"no MPI ({self.why_no_mpi})" if self.why_no_mpi else "MPI"
        return f"{self.ranks} ranks on {where}; {mpi}; at most {self.options.minutes:g} minutes"

    def _item(self, name: str, seconds: float) -> None:
        began = time.monotonic()
        more: dict[str, Any] = {}
        if seconds < 1:
            outcome = Outcome("skipped", "no time left: see --minutes and --resume")
        else:
            measure = self._benchmarks if name.startswith(kernels.PREFIX) else self._lab
            outcome = measure(name, began + seconds, more)
        took = time.monotonic() - began
        self.record.put(name, outcome, took, **more)
        self.record.save()
        print(f"{name:<24} {outcome.status:<9} {took:5.0f} s  {outcome.why}", flush=True)

    def _lab(self, name: str, deadline: float, more: dict[str, Any]) -> Outcome:
        notebook, mpi = self.options.solutions / f"{name}.ipynb", not self.why_no_mpi
        ranks = self.options.ranks or named_ranks(read_cells(notebook)) or self.ranks
        lab = LabRun(notebook, ranks, self.options.device, mpi, deadline)
        began = time.monotonic()

        def save() -> None:
            under_way = Outcome("timed out", "ended while it was running")
            self.record.put(name, under_way, time.monotonic() - began, cells=lab.cells)
            self.record.save()

        lab.save = save
        outcome = lab.run()
        more |= {"ranks": ranks, "notes": lab.notes, "cells": lab.cells}
        return outcome

    def _benchmarks(self, name: str, deadline: float, more: dict[str, Any]) -> Outcome:
        seconds = deadline - time.monotonic()
        return kernels.run(name, self.options.device, seconds, self.record.put_benchmark)

    def _end(self) -> int:
        items = [item for item in self.record.content["items"] if item["name"] in self.names]
        bad = [item["name"] for item in items if item["status"] in BAD]
        print(f"{len(items)} items, written to {self.options.output}")
        if bad:
            print(f"Failed: {', '.join(bad)}", file=sys.stderr)
        return 1 if bad else 0


def main() -> int:
    parser = arguments()
    options = parser.parse_args()
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


if __name__ == "__main__":
    sys.exit(main())
