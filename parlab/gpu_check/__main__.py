"""`python -m parlab.gpu_check`: see the docstring of `parlab.gpu_check`."""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

from parlab import gpu_check
from parlab.files import ROOT, numbered
from parlab.gpu_check import kernels, machine
from parlab.gpu_check.lab import STORED_RANKS, LabRun
from parlab.gpu_check.outcome import BAD, Outcome
from parlab.gpu_check.record import Record, writable


def arguments() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m parlab.gpu_check",
        description=gpu_check.__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these labs or benchmarks")
    parser.add_argument("--list", action="store_true", help="say what there is, and stop")
    parser.add_argument("--minutes", type=float, default=9.0, help="for all together (default: 9)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--ranks", type=int, help="default: one a GPU, or 4 where there is one")
    parser.add_argument("--without-mpi", action="store_true", help="do as if MPI were not there")
    parser.add_argument("--resume", action="store_true", help="keep what passed in the output")
    parser.add_argument("--output", type=Path, default=ROOT / "_build" / "gpu-check.json")
    parser.add_argument(
        "--solutions", type=Path, default=ROOT / "solutions", help=argparse.SUPPRESS
    )
    return parser


def chosen(every: list[str], only: list[str] | None) -> list[str]:
    """The items to run, in order. ValueError for a name that is none."""
    if unknown := set(only or []) - set(every):
        raise ValueError(f"nothing is named {', '.join(sorted(unknown))}: see --list")
    return [name for name in every if not only or name in only]


class GpuCheck:
    """The check at work: its items, its time and its record."""

    def __init__(self, options: argparse.Namespace, names: list[str]) -> None:
        self.options, self.names = options, names
        self.deadline = time.monotonic() + 60 * options.minutes
        told = machine.describe()
        self.record = Record(
            options.output, told, " ".join(["python -m parlab.gpu_check", *sys.argv[1:]])
        )
        self.gpus: list[str] = told["gpus"]
        self.why_not = self._why_not(told)

    def _why_not(self, told: dict[str, Any]) -> str:
        """Why nothing can be checked here; "" where something can."""
        if "why_no_torch" in told:
            return f"torch does not start here: {told['why_no_torch']}"
        if self.options.device == "cuda" and not self.gpus:
            return "no GPU here: --device cpu checks the logic without one"
        return ""

    def run(self) -> int:
        """Run all items; the exit code."""
        done = self.record.resume() if self.options.resume else set()
        left = [name for name in self.names if name not in done]
        self.record.save()
        if self.why_not:
            for name in left:
                self.record.put(name, Outcome("skipped", self.why_not), 0.0)
            self.record.save(complete=True)
            print(f"Nothing was checked: {self.why_not}")
            return 0
        self.why_no_mpi = "--without-mpi" if self.options.without_mpi else machine.why_no_mpi()
        self.record.told["mpi"] = self.why_no_mpi or "yes"
        self.ranks = self.options.ranks or (len(self.gpus) if len(self.gpus) > 1 else STORED_RANKS)
        print(self._told(), flush=True)
        for position, name in enumerate(left):
            self._item(name, waiting=len(left) - position)
        self.record.save(complete=True)
        return self._end()

    def _told(self) -> str:
        where = ", ".join(self.gpus) if self.options.device == "cuda" else "CPU"
        mpi = f"no MPI ({self.why_no_mpi})" if self.why_no_mpi else "MPI"
        return f"{self.ranks} ranks on {where}; {mpi}; at most {self.options.minutes:g} minutes"

    def _item(self, name: str, waiting: int) -> None:
        began = time.monotonic()
        seconds = (self.deadline - began) / waiting
        more: dict[str, Any] = {}
        if seconds < 1:
            outcome = Outcome("skipped", "no time left: see --minutes and --resume")
        else:
            do = self._benchmarks if name.startswith(kernels.PREFIX) else self._lab
            outcome = do(name, began + seconds, more)
        took = time.monotonic() - began
        self.record.put(name, outcome, took, **more)
        self.record.save()
        print(f"{name:<24} {outcome.status:<9} {took:5.0f} s  {outcome.why}", flush=True)

    def _lab(self, name: str, deadline: float, more: dict[str, Any]) -> Outcome:
        notebook, mpi = self.options.solutions / f"{name}.ipynb", not self.why_no_mpi
        lab = LabRun(notebook, self.ranks, self.options.device, mpi, deadline)
        began = time.monotonic()

        def save() -> None:
            under_way = Outcome("timed out", "ended while it was under way")
            self.record.put(name, under_way, time.monotonic() - began, cells=lab.cells)
            self.record.save()

        lab.saved = save
        outcome = lab.run()
        more |= {"ranks": self.ranks, "notes": lab.notes, "cells": lab.cells}
        return outcome

    def _benchmarks(self, name: str, deadline: float, more: dict[str, Any]) -> Outcome:
        seconds = deadline - time.monotonic()
        return kernels.run(name, self.options.device, seconds, self.record.put_benchmark)

    def _end(self) -> int:
        items = [item for item in self.record.told["items"] if item["name"] in self.names]
        bad = [item["name"] for item in items if item["status"] in BAD]
        print(f"{len(items)} items, written to {self.options.output}")
        if bad:
            print(f"Not in order: {', '.join(bad)}", file=sys.stderr)
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
