"""Runs one lab's cells on ranks of its own, cell by cell, and outlives whatever they do."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from parlab import mpirun
from parlab.files import ROOT
from parlab.gpu_check.cells import Cell, read
from parlab.gpu_check.outcome import STATUSES, Outcome, worst

STORED_RANKS = 4  # of the runs whose outputs the executed notebooks hold
START_SECONDS = 120.0  # for Python, torch and CUDA to start on all ranks
# After one rank has failed: the others are done by then, or wait for it.
GRACE_SECONDS = 15.0
# A cell has so long at least: what CUDA loads, and Triton compiles, at a first use takes seconds.
LEAST_SECONDS = 30.0
POLL_SECONDS = 0.01
_NUMBER = re.compile(r"\d[\d,.]*(e[-+]?\d+)?")


@dataclass(frozen=True)
class Job:
    """What ranks are told. `cells` are ids of those to run, `left_out` of those that must not."""

    lab: str
    notebook: str
    ranks: int
    device: str
    mpi: bool
    seconds: float
    cells: list[str]
    left_out: list[str]


@dataclass
class LabRun:
    """A lab at work: `cells` has how each ended so far."""

    notebook: Path
    ranks: int
    device: str
    mpi: bool
    deadline: float  # time.monotonic()
    saved: Callable[[], None] = lambda: None
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    grace_seconds: float = GRACE_SECONDS
    least_seconds: float = LEAST_SECONDS

    def run(self) -> Outcome:
        """Run all cells; again from the start without a cell that hung, or ended its ranks."""
        cells = read(self.notebook)
        on_ranks = [cell for cell in cells if cell.on_ranks] or cells
        wanted = []
        for cell in on_ranks:
            if why := self._left_out(cell):
                self.cells[cell.id] = {"status": "skipped", "why": why}
            else:
                wanted.append(cell)
        left_out: list[Cell] = []
        while True:
            bad = self._attempt([cell for cell in wanted if cell not in left_out], left_out)
            if bad is None:
                return self._outcome()
            left_out.append(bad)

    def _left_out(self, cell: Cell) -> str:
        if cell.raises:
            return "there to fail: only a lab can free its ranks"
        if cell.role == "check" and not self.mpi:
            return "checks need MPI"
        return ""

    def _attempt(self, cells: list[Cell], left_out: list[Cell]) -> Cell | None:
        """Run these cells on fresh ranks; the cell at which that ended, None at the end."""
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            job = Job(
                lab=self.notebook.stem,
                notebook=str(self.notebook.resolve()),
                ranks=self.ranks,
                device=self.device,
                mpi=self.mpi,
                seconds=max(1.0, self.deadline - time.monotonic()),
                cells=[cell.id for cell in cells],
                left_out=[cell.id for cell in left_out],
            )
            (folder / "job.json").write_text(json.dumps(asdict(job)))
            ranks = Ranks(job, folder, self.grace_seconds)
            try:
                return self._lead(ranks, cells)
            finally:
                ranks.end()

    def _lead(self, ranks: "Ranks", cells: list[Cell]) -> Cell | None:
        ended = ranks.wait(0, min(self.deadline, time.monotonic() + START_SECONDS))
        if ended:
            self.cells["start"] = {"status": ended, "why": f"ranks did not start{ranks.said()}"}
            return None
        self.cells.pop("start", None)
        self.notes = ranks.reports[0][0]["notes"]
        for number, cell in enumerate(cells):
            ranks.go(number)
            began = time.monotonic()
            seconds = max(cell.seconds, self.least_seconds)
            ended = ranks.wait(number + 1, min(self.deadline, began + seconds))
            seconds = round(time.monotonic() - began, 2)
            if not ended:
                reports = [of_rank[number + 1] for of_rank in ranks.reports]
                self.cells[cell.id] = judge(cell, reports) | {"seconds": seconds}
                self.saved()
                continue
            status, why = ranks.left(number + 1)
            self.cells[cell.id] = {
                "status": status or ended,
                "why": why or f"{ended} after {seconds:.0f} s{ranks.said()}",
                "seconds": seconds,
            }
            self.saved()
            if time.monotonic() >= self.deadline:
                for later in cells[number + 1 :]:
                    self.cells.setdefault(later.id, {"status": "skipped", "why": "no time left"})
                return None
            return cell
        return None

    def _outcome(self) -> Outcome:
        status = worst(cell["status"] for cell in self.cells.values())
        told = [f"{id}: {c['why']}" for id, c in self.cells.items() if c["status"] == status]
        passed = sum(cell["status"] == "passed" for cell in self.cells.values())
        count = f"{passed} of {len(self.cells)} cells passed"
        why = count if status == "passed" else f"{count}; {status}: {told[0]}"
        return Outcome(status, why)


def judge(cell: Cell, reports: list[dict[str, Any]]) -> dict[str, Any]:
    """How a cell went that has ended on all ranks."""
    ran = [(rank, one) for rank, one in enumerate(reports) if one["status"] != "idle"]
    statuses = {one["status"] for _, one in ran}
    # A cell of which a rank left out a part is not one that passed.
    status = "skipped" if statuses == {"passed", "skipped"} else worst(statuses)
    if status != "passed":
        rank, first = next((r, one) for r, one in ran if one["status"] == status)
        return {"status": status, "why": f"rank {rank}: {first['why']}"}
    if len(reports) != STORED_RANKS:
        return {
            "status": "passed",
            "why": f"outputs not compared: stored ones are of {STORED_RANKS} ranks",
        }
    if found := differing_values(cell, reports):
        return {"status": "failed", "why": found}
    status, found = differing_text(cell, reports)
    return {"status": status, "why": found}


def differing_values(cell: Cell, reports: list[dict[str, Any]]) -> str:
    """Where what a hidden check showed is not what is stored; "" where it is, or none is stored."""
    if cell.values is None:
        return ""
    [got] = reports[0]["values"] or [None]
    if got == cell.values:
        return ""
    if not isinstance(got, dict) or got.keys() != cell.values.keys():
        return f"shows {_short(got)}, stored is {_short(cell.values)}"
    name = next(name for name, value in cell.values.items() if got[name] != value)
    for rank, (one, right) in enumerate(zip(got[name], cell.values[name], strict=True)):
        if one != right:
            return f"{name} of rank {rank} is {_short(one)}, stored is {_short(right)}"
    return f"{name} is {_short(got[name])}"


def differing_text(cell: Cell, reports: list[dict[str, Any]]) -> tuple[str, str]:
    """How what the ranks printed compares with what is stored: a status, and the worst line."""
    found = [("passed", "")]
    if cell.text is not None and cell.role != "check":
        for rank, report in enumerate(reports):
            right = cell.text.get(rank, cell.text.get(-1, []))
            status, why = compared(report.get("text", []), right)
            found.append((status, why and f"rank {rank} {why}"))
    return max(found, key=lambda one: STATUSES.index(one[0]))


def compared(got: list[str], right: list[str]) -> tuple[str, str]:
    """`differs` where lines are left out, or have other numbers; `failed` for other words."""
    if got == right:
        return "passed", ""
    rest = iter(right)
    if all(line in rest for line in got):
        lacking = [line for line in right if line not in got]
        return "differs", f"does not print {lacking[0] if lacking else right[-1]!r}"
    pairs = zip_longest(got, right)
    one, other = next((one, other) for one, other in pairs if one != other)
    why = f"prints {_line(one)}, stored is {_line(other)}"
    words = [[_NUMBER.sub("0", line) for line in lines] for lines in (got, right)]
    return "differs" if words[0] == words[1] else "failed", why


def _line(line: str | None) -> str:
    return "nothing more" if line is None else repr(line)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) < 200 else text[:200] + " …"


class Ranks:
    """The processes of one attempt, and what they have reported."""

    def __init__(self, job: Job, folder: Path, grace_seconds: float) -> None:
        self.folder, self.grace_seconds = folder, grace_seconds
        self.reports: list[list[dict[str, Any]]] = [[] for _ in range(job.ranks)]
        self._log = (folder / "said").open("w+")
        program = [sys.executable, "-m", "parlab.gpu_check.rank", str(folder)]
        base = os.environ | {"MPLBACKEND": "agg", "PYTHONUNBUFFERED": "1"}
        if job.device == "cpu":
            base["CUDA_VISIBLE_DEVICES"] = ""
        if job.mpi:
            env = base | mpirun.environment(job.ranks, folder=folder)
            self._processes = [self._start(mpirun.command(job.ranks, *program), env)]
            return
        self._processes = [
            self._start(program, base | {"RANK": str(rank), "LOCAL_RANK": str(rank)})
            for rank in range(job.ranks)
        ]

    def _start(self, command: list[str], env: dict[str, str]) -> subprocess.Popen:
        return subprocess.Popen(
            command,
            cwd=ROOT,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def go(self, number: int) -> None:
        """Let the ranks run the cell of this number."""
        part = self.folder / "go.part"
        part.write_text(str(number))
        part.replace(self.folder / "go")

    def wait(self, number: int, deadline: float) -> str:
        """Wait for every rank's report of this number; "", or how it ended instead.

        `crashed` if a process has ended without it, `failed` if one rank left the cell and others
        hang in it, `timed out` at the deadline.
        """
        left_at = None
        while True:
            self._read()
            if all(len(reports) > number for reports in self.reports):
                return ""
            if any(process.poll() is not None for process in self._processes):
                self._read()
                done = all(len(reports) > number for reports in self.reports)
                return "" if done else "crashed"
            now = time.monotonic()
            if left_at is None and self.left(number)[0]:
                left_at = now
            if left_at is not None and now > left_at + self.grace_seconds:
                return "failed"
            if now > deadline:
                return "timed out"
            time.sleep(POLL_SECONDS)

    def left(self, number: int) -> tuple[str, str]:
        """How a rank ended that did not come through, while others have not reported; or "", ""."""
        for rank, reports in enumerate(self.reports):
            report = reports[number] if len(reports) > number else {}
            if report.get("status") in ("failed", "skipped"):
                why = f"rank {rank}: {report['why']}; other ranks wait for it"
                return report["status"], why
        return "", ""

    def _read(self) -> None:
        for rank, reports in enumerate(self.reports):
            with contextlib.suppress(FileNotFoundError):
                text = (self.folder / f"rank{rank}.jsonl").read_text()
                whole = text[: text.rfind("\n") + 1].splitlines()
                reports += [json.loads(line) for line in whole[len(reports) :]]

    def said(self) -> str:
        """The last lines that the processes wrote themselves, and how those that ended did."""
        codes = [process.poll() for process in self._processes]
        ended = [_ending(code) for code in codes if code not in (None, 0)]
        lines = (self.folder / "said").read_text(errors="replace").strip().splitlines()[-5:]
        return "".join(f"; {text}" for text in [*ended[:1], " | ".join(lines)] if text)

    def end(self) -> None:
        """End all processes, whatever they do."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(process.pid, number)
            until = time.monotonic() + 3
            while any(p.poll() is None for p in self._processes) and time.monotonic() < until:
                time.sleep(POLL_SECONDS)
        self._log.close()


def _ending(code: int) -> str:
    return f"ended by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
