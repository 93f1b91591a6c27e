"""Runs one lab's cells on ranks, one after the other, and survives hangs and crashes."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from parlab.runtime.notebook import Cell, read_cells
from parlab_staff.gpu_check.cells import DEFAULT_RANKS, named_ranks, seconds
from parlab_staff.gpu_check.compare import judge
from parlab_staff.gpu_check.gone import details
from parlab_staff.gpu_check.outcome import Outcome, worst
from parlab_staff.ranks import RankPool, RanksGone

START_SECONDS = 120.0  # for Python, torch, and CUDA to start on all ranks
# The time for the other ranks after one has failed. After that, they are probably waiting for it.
GRACE_SECONDS = 15.0
# The shortest time limit of a cell: at first use, CUDA loads and Triton compiles for seconds.
LEAST_SECONDS = 30.0
UNDER_WAY = Outcome("timed out", "ended while it was running")


@dataclass
class LabRun:
    """A run of a lab; `cells` has the outcomes so far, by cell id."""

    notebook: Path
    ranks: int
    device: str
    mpi: bool
    deadline: float  # time.monotonic()
    save: Callable[[], None] = lambda: None  # called after each cell
    cells: dict[str, dict[str, Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    grace_seconds: float = GRACE_SECONDS
    least_seconds: float = LEAST_SECONDS
    stored_ranks: int = DEFAULT_RANKS
    _pool: RankPool | None = field(default=None, init=False)
    _stopped: bool = field(default=False, init=False)

    def stop(self) -> None:
        """End the run and its ranks at once, from another thread."""
        self._stopped = True
        if self._pool is not None:
            self._pool.stop()

    def run(self) -> Outcome:
        """Run all cells. If a cell ends its ranks or hangs, start again without it."""
        cells = [cell for cell in read_cells(self.notebook) if cell.kind == "code"]
        self.stored_ranks = named_ranks(cells) or DEFAULT_RANKS
        on_ranks = [cell for cell in cells if cell.on_ranks] or cells
        wanted = []
        for cell in on_ranks:
            if why := self._why_skipped(cell):
                self.cells[cell.id] = {"status": "skipped", "why": why}
            else:
                wanted.append(cell)
        left_out: list[Cell] = []
        while not self._stopped and (bad := self._attempt(wanted, left_out)) is not None:
            left_out.append(bad)
            wanted.remove(bad)
        return self._outcome()

    def _why_skipped(self, cell: Cell) -> str:
        if "raises-exception" in cell.tags:
            return "it fails on purpose, and only a notebook can free its ranks"
        if cell.role == "check" and not self.mpi:
            return "checks need MPI"
        return ""

    def _attempt(self, cells: list[Cell], left_out: list[Cell]) -> Cell | None:
        """Run these cells on new ranks. Return the cell that ended the ranks, or None."""
        left = max(1.0, self.deadline - time.monotonic())
        # Other labs may run at the same time, and MPI would bind their ranks to the same cores.
        environment = {"MPLBACKEND": "agg", "PRTE_MCA_hwloc_default_binding_policy": "none"}
        if self.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""
        with (
            tempfile.TemporaryDirectory() as folder,
            RankPool(
                self.ranks,
                mpi=self.mpi,
                environment=environment,
                start_seconds=min(START_SECONDS, left),
            ) as pool,
        ):
            self._pool = pool
            if self._stopped or not self._start(pool, folder, left_out):
                return None
            for number, cell in enumerate(cells):
                ended_ranks = self._run_cell(pool, cell)
                if self._stopped:
                    return None
                self.save()
                if time.monotonic() >= self.deadline:
                    for later in cells[number + 1 :]:
                        skipped = {"status": "skipped", "why": "no time left"}
                        self.cells.setdefault(later.id, skipped)
                    return None
                if ended_ranks:
                    return cell
        return None

    def _start(self, pool: RankPool, folder: str, left_out: list[Cell]) -> bool:
        """Start the ranks. Return True if they started."""
        try:
            pool.start()
            left = max(1.0, self.deadline - time.monotonic())
            options = {
                "notebook": str(self.notebook.resolve()),
                "ranks": self.ranks,
                "device": self.device,
                "mpi": self.mpi,
                "seconds": left,
                "store": f"{folder}/store",
                "left_out": [cell.id for cell in left_out],
            }
            limit = min(START_SECONDS, left)
            self.notes, *_ = pool.call("parlab_staff.gpu_check.rank:start", options, seconds=limit)
        except RanksGone as gone:
            why = f"ranks did not start{details(gone)}"
            self.cells["start"] = {"status": gone.kind, "why": why}
            return False
        self.cells.pop("start", None)
        return True

    def _run_cell(self, pool: RankPool, cell: Cell) -> bool:
        """Run a cell. Return True if the ranks ended."""
        began = time.monotonic()
        limit = max(seconds(cell), self.least_seconds)
        result, ended = {}, False
        try:
            reports = pool.call(
                *("parlab_staff.gpu_check.rank:run_cell", cell.id),
                seconds=max(0.1, min(limit, self.deadline - began)),
                gave_up=_gave_up,
                grace_seconds=self.grace_seconds,
            )
            result = judge(cell, reports, self.stored_ranks)
        except RanksGone as gone:
            ended = True
            taken = time.monotonic() - began
            result = {"status": gone.kind, "why": f"{gone.kind} after {taken:.0f} s"}
            result["why"] += details(gone, f"<{cell.id}>")
            for rank, report in enumerate(gone.values):
                if _gave_up(report):
                    why = f"rank {rank}: {report['why']}; other ranks wait for it"
                    result = {"status": report["status"], "why": why}
                    break
        self.cells[cell.id] = result | {"seconds": round(time.monotonic() - began, 2)}
        return ended

    def _outcome(self) -> Outcome:
        if self._stopped:
            return UNDER_WAY
        status = worst(cell["status"] for cell in self.cells.values())
        reasons = [f"{id}: {c['why']}" for id, c in self.cells.items() if c["status"] == status]
        passed = sum(cell["status"] == "passed" for cell in self.cells.values())
        count = f"{passed} of {len(self.cells)} cells passed"
        why = count if status == "passed" else f"{count}; {status}: {reasons[0]}"
        return Outcome(status, why)


def _gave_up(report: dict[str, Any] | None) -> bool:
    """Return True if a rank left a cell early, so that other ranks may be waiting for it."""
    return report is not None and report["status"] in ("failed", "skipped")
