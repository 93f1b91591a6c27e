"""Runs random cells for some minutes, and checks the notebook after each of them."""

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import uuid4

from parlab.cluster.freeing import PATIENCE_SECONDS
from tests.soak.cell import FOREVER, IMPORTS, Cell
from tests.soak.cells import random_cell
from tests.soak.watch import MARK, Watch
from tests.support.kernel import Notebook, Ran

SLACK_SECONDS = 2.0  # a cell must end within this time after its deadline
CHECK_SECONDS = 120.0  # between two searches for what cells have left behind
SETTLE_SECONDS = 60.0  # for processes that have been replaced to end
KNOWN_ERRORS = {
    *("", "RankFailed", "DeadlineExceeded", "RankDied", "RankInterrupted", "KeyboardInterrupt"),
}
LOST = re.compile(r"variables are lost:.*`held`")
NOISE = re.compile(r"Exception (ignored )?in|Traceback \(most recent call last\)|Fatal Python")
PROBE = """%%px --timeout 60
print(comm.allreduce(1), globals().get('held'))
if 'group' in globals():
    ones = torch.ones(2)
    dist.all_reduce(ones[:1]), dist.all_reduce(ones[1:], group=group)
    print(ones.tolist())
held = {}
"""


@dataclass
class Violation:
    """Something that must not happen after a cell."""

    number: int
    cell: Cell
    what: str
    ran: Ran | None = None

    def text(self, seed: int) -> str:
        """Return the violation, how to repeat it, the cell, and what the cell showed."""
        lines = [
            f"VIOLATION {self.what}",
            f"  repeat: python -m tests.soak 1 --seed {seed} --first {self.number}",
            f"  {replace(self.cell, code='')}",
            *(f"  {line}" for line in self.cell.code.splitlines()),
            f"  load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores",
        ]
        if self.ran:
            lines += [f"  {self.ran.seconds:.1f} s, {self.ran.error or 'no error'}"]
            lines += [f"  | {line[:300]}" for line in self.ran.text[-2000:].splitlines()]
            lines += [f"  > {line[:300]}" for line in self.ran.message[-4000:].splitlines()]
        return "\n".join(lines)


class Soak:
    """One run of cells from a seed, in a notebook with four ranks."""

    def __init__(self, seed: int, first: int = 0) -> None:
        self.seed = seed
        self.number = first
        self.counts: Counter[tuple[str, str]] = Counter()  # cells by kind and error
        self.lost: Counter[str] = Counter()  # cells after which the variables were lost, by kind
        self.late: list[float] = []  # seconds of cells that ended more than `SLACK_SECONDS` late
        self.violations: list[Violation] = []
        self._folder = tempfile.TemporaryDirectory(prefix="soak-")
        self._idle_seconds = 0.0  # the time of the last probe cell
        self._start()

    def _start(self) -> None:
        mark, folder = uuid4().hex, Path(self._folder.name)
        self.watch = Watch(mark, folder)
        self.notebook = Notebook({MARK: mark, "TMPDIR": str(folder), "IPYTHONDIR": str(folder)})
        for code in ("from parlab import cluster\ncluster.start(4)", IMPORTS, PROBE.format(0)):
            ran = self.notebook.run(code)
            if ran.status != "ok":
                raise RuntimeError(f"{code}\n{ran.text}\n{ran.message}")
        self._held = 0
        self._processes, self._files = self.watch.count(), self.watch.files()

    def run(self, seconds: float) -> None:
        """Run cells for about this long. Then end the notebook."""
        end, check = time.monotonic() + seconds, time.monotonic() + CHECK_SECONDS
        cell = Cell("")
        while time.monotonic() < end:
            cell = random_cell(self.seed, self.number)
            try:
                self.step(cell)
            except TimeoutError as error:
                self._report(cell, f"the notebook hangs: {error}")
                self.notebook.kill()
                self._start()
            if time.monotonic() > check:
                self.check_leftovers(cell)
                check = time.monotonic() + CHECK_SECONDS
            self.number += 1
        self.check_leftovers(cell)
        self._end(cell)

    def step(self, cell: Cell) -> None:
        """Run a cell. Check it, the next cell, and the variables."""
        for code in cell.before:
            if (ran := self.notebook.run(code, FOREVER)).status != "ok":
                self._report(cell, f"this failed before it: {code}", ran)
        with _busy_machine(cell.busy):
            ran = self._ran(cell)
        limit = self._limit(cell)
        self.counts[cell.kind, ran.error or "no error"] += 1
        if (late := ran.seconds - cell.ends_within) > SLACK_SECONDS:
            self.late.append(late)
            busy = ", busy machine" if cell.busy else ""
            self._say(f"cell {self.number} ({cell.kind}{busy}) ended {late:.1f} s late")
        if ran.seconds > limit:
            self._report(cell, f"it ended after {ran.seconds:.1f} s, not {limit:.1f}", ran)
        if ran.error not in KNOWN_ERRORS:
            self._report(cell, f"it raised {ran.error}", ran)
        if NOISE.search(ran.text):
            self._report(cell, "it shows an error of Python's", ran)
        if cell.shows not in ran.text + ran.message:
            self._report(cell, f"it does not show {cell.shows!r}", ran)
        for code in cell.after:
            self.notebook.run(code, FOREVER)
        self._probe(cell, ran)
        self.watch.sample(cell.kind)

    def _ran(self, cell: Cell) -> Ran:
        """Run the cell, and press the stop button at the times in `cell.presses`."""
        presses = [
            threading.Timer(seconds, os.killpg, (self.notebook.pid, signal.SIGINT))
            for seconds in cell.presses
        ]
        sent = self.notebook.send(cell.code)
        self.notebook.wait_until_begun(sent, FOREVER)
        for press in presses:
            press.start()
        ran = self.notebook.wait(sent, cell.ends_within + FOREVER)
        for press in presses:
            press.join()
        return ran

    def _limit(self, cell: Cell) -> float:
        """Return the seconds within which the cell must end, at the machine's present load."""
        processes = os.getloadavg()[0] + (2 * (os.cpu_count() or 1) if cell.busy else 0)
        share = max(1.0, processes / (os.cpu_count() or 1))
        patience = PATIENCE_SECONDS if share > 1 else 0
        return cell.ends_within + patience + SLACK_SECONDS * share + 20 * self._idle_seconds

    def _probe(self, cell: Cell, ran: Ran) -> None:
        """Check that the next cell works, and that variables are kept or their loss is reported."""
        start = time.monotonic()
        probe = self.notebook.run(PROBE.format(self.number + 1), FOREVER)
        self._idle_seconds = time.monotonic() - start
        expected = f"4 {self._held}\n"
        kept = expected in probe.text
        if probe.status != "ok" or not (kept or "4 None\n" in probe.text):
            self._report(cell, f"{ran.error}: {ran.message}\nthe next cell does not work", probe)
        if "group" in probe.text and "[4.0, 4.0]" not in probe.text:
            self._report(cell, "torch.distributed does not work in the next cell", probe)
        shown = ran.text + ran.message + probe.text
        explained = LOST.search(shown)
        if kept and explained:
            self._report(cell, "it says that variables are lost, but they are not", ran)
        if not kept:
            self.lost[cell.kind] += 1
            if cell.keeps is not None and not explained:
                self._report(cell, "it does not say why variables are lost", ran)
            elif cell.keeps and not re.search("[Rr]anks? .* died: ", shown):
                self._report(cell, "variables are lost, though no rank died", ran)
        self._held = self.number + 1

    def check_leftovers(self, cell: Cell) -> None:
        """Report leftovers, after waiting for the end of processes that were replaced."""
        deadline = time.monotonic() + SETTLE_SECONDS
        while time.monotonic() < deadline and self._extra():
            time.sleep(0.5)
        if extra := self._extra():
            self._report(cell, f"left behind: {extra}")
        late = f"{len(self.late)} over {SLACK_SECONDS:g} s late"
        if self.late:
            late += f" (at most {max(self.late):.1f} s)"
        self._say(
            f"{sum(self.counts.values())} cells, {sum(self.lost.values())} lost the variables, "
            f"{late}, {len(self.violations)} violations; {self.watch.now()}"
        )

    def _extra(self) -> str:
        """Return the processes, files, and shared memory that did not exist at the start."""
        extra = (self.watch.count() - self._processes) + (self.watch.files() - self._files)
        segments = sorted(map(str, self.watch.abandoned_segments()))
        return ", ".join([*(f"{number} × {name}" for name, number in extra.items()), *segments])

    def _end(self, cell: Cell) -> None:
        self.close()
        self._processes, self._files = Counter(), Counter({"profile_default": 1})  # IPython's
        self.check_leftovers(cell)
        for gain in self.watch.gains():
            if gain.is_too_much:
                self._report(cell, str(gain))
            else:
                self._say(str(gain))

    def close(self) -> None:
        """End the notebook."""
        self.notebook.shutdown()

    def _report(self, cell: Cell, what: str, ran: Ran | None = None) -> None:
        self.violations.append(Violation(self.number, cell, what, ran))
        self._say(self.violations[-1].text(self.seed))

    def _say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def summary(self) -> str:
        """Return the number of cells of each kind, by their errors."""
        kinds = sorted({kind for kind, _ in self.counts})
        rows = []
        for kind in kinds:
            ends = {error: n for (of, error), n in self.counts.items() if of == kind}
            shown = ", ".join(f"{n} {error}" for error, n in sorted(ends.items()))
            rows.append(f"{sum(ends.values()):6} {kind:20} {shown}; {self.lost[kind]} lost")
        rows.append(f"{sum(self.counts.values()):6} cells, {len(self.violations)} violations")
        return "\n".join(rows)


@contextmanager
def _busy_machine(busy: bool) -> Iterator[None]:
    """Keep all cores busy, if `busy`."""
    command = [sys.executable, "-c", "while True: pass"]
    others = [subprocess.Popen(command) for _ in range(2 * (os.cpu_count() or 1) if busy else 0)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()
