"""Looks for what cells leave behind: processes, files, shared memory, threads, and memory."""

import contextlib
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import NamedTuple

import psutil

from tests.soak.cell import OWN_FILES

MARK = "PARLAB_SOAK"  # an environment variable of all processes of a run
SHARED_MEMORY = Path("/dev/shm")
# The role of a process, by a part of its command. The first match counts.
ROLES = {
    "supervisor": "parlab/rank/engine/supervisor.py",
    "rank": "parlab.rank.engine",
    "controller": "ipyparallel.controller",
    "mpiexec": "mpiexec",
    "cleanup": "parlab/cluster/cleanup.py",
    "kernel": "ipykernel_launcher",
}
WARM_UP = 3  # the first cells of a kind, in which a process may load what they need
# The most that a process may gain with each cell. A notebook's history and caches grow a little
# with each cell.
LIMITS = {"KiB of memory": 60.0, "threads": 0.02, "open files": 0.02}
# Ranks gain more, because Gloo opens a connection when two ranks first send to each other.
LIMITS_OF_RANKS = {"KiB of memory": 200.0, "threads": 0.2, "open files": 0.5}


class Sample(NamedTuple):
    """The resources of one process after a cell of this kind."""

    kind: str
    values: dict[str, float]


class Gain(NamedTuple):
    """The gains of the processes of a role with each cell, by the kind of the cell."""

    role: str
    quantity: str
    limit: float
    by_kind: dict[str, list[float]]

    @property
    def mean(self) -> float:
        return statistics.fmean(chain(*self.by_kind.values()))

    @property
    def error(self) -> float:
        """Return the standard error of the mean."""
        values = list(chain(*self.by_kind.values()))
        return statistics.pstdev(values) / len(values) ** 0.5

    @property
    def is_too_much(self) -> bool:
        return self.mean > self.limit + 3 * self.error

    def __str__(self) -> str:
        largest = sorted(self.by_kind, key=lambda kind: -sum(self.by_kind[kind]))[:3]
        kinds = ", ".join(
            f"{statistics.fmean(self.by_kind[kind]):+.3g} with each of {len(self.by_kind[kind])} "
            f"{kind}"
            for kind in largest
        )
        return (
            f"{self.role}: {self.mean:+.3g} ± {self.error:.2g} {self.quantity} with each cell, "
            f"limit {self.limit:g} ({kinds})"
        )


class Watch:
    """Observes the processes of one run, which have the environment variable `MARK` = `mark`."""

    def __init__(self, mark: str, folder: Path) -> None:
        """Watch the processes with this mark, which use `folder` for temporary files."""
        self.mark = mark
        self.folder = folder
        self.segments: set[Path] = set()  # the shared memory that a process of the run has mapped
        self._known: dict[psutil.Process, str] = {}  # roles
        self._samples: dict[str, dict[psutil.Process, list[Sample]]] = defaultdict(dict)

    def processes(self) -> dict[psutil.Process, str]:
        """Return the roles of the run's processes, by process."""
        found = {}
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.status() != psutil.STATUS_ZOMBIE and (role := self._role(process)):
                    found[process] = role
        self._known = found
        return found

    def _role(self, process: psutil.Process) -> str:
        if process in self._known:
            return self._known[process]
        if process.environ().get(MARK) != self.mark:
            return ""
        command = " ".join(process.cmdline())
        return next((role for role, part in ROLES.items() if part in command), f"other: {command}")

    def count(self) -> Counter[str]:
        """Return the number of processes of each role."""
        return Counter(self.processes().values())

    def sample(self, kind: str) -> None:
        """Record the resources of kernel, controller, and ranks after a cell of this kind."""
        for process, role in self.processes().items():
            with contextlib.suppress(psutil.Error):
                if role in ("kernel", "controller", "rank"):
                    values = {
                        "KiB of memory": process.memory_full_info().uss / 1024,
                        "threads": process.num_threads(),
                        "open files": process.num_fds(),
                    }
                    samples = self._samples[role].setdefault(process, [])
                    samples.append(Sample(kind, values))
                if role == "rank":
                    self.segments |= _mapped(process)

    def now(self) -> str:
        """Return the resources of each role, as means over its running processes."""
        texts = []
        for role, by_process in self._samples.items():
            last = [samples[-1].values for one, samples in by_process.items() if one.is_running()]
            if last:
                means = {name: statistics.fmean(one[name] for one in last) for name in last[0]}
                shown = ", ".join(f"{mean:,.0f} {name}" for name, mean in means.items())
                texts.append(f"{role}: {shown}")
        return "; ".join(texts)

    def files(self) -> Counter[str]:
        """Count the temporary files and folders by name, without the random parts of names."""
        names = (path.name for path in self.folder.iterdir() if not OWN_FILES.match(path.name))
        return Counter(re.sub(r"(?<=parlab-)\w+|(?<=tmp)\w+|\d+", "…", name) for name in names)

    def abandoned_segments(self) -> set[Path]:
        """Return shared memory that still exists although no process of the run uses it."""
        used = set()
        for process in self.processes():
            with contextlib.suppress(psutil.Error, OSError):
                used |= _mapped(process)
        return {path for path in self.segments - used if path.exists()}

    def gains(self) -> Iterator[Gain]:
        """Yield the gains of the processes of each role with each cell.

        The first cells of a kind in a process do not count, because they load what they need.
        """
        for role, by_process in self._samples.items():
            limits = LIMITS_OF_RANKS if role == "rank" else LIMITS
            for quantity, limit in limits.items():
                by_kind: dict[str, list[float]] = defaultdict(list)
                for samples in by_process.values():
                    seen: Counter[str] = Counter()
                    for before, after in pairwise(samples):
                        if seen[after.kind] >= WARM_UP:
                            gained = after.values[quantity] - before.values[quantity]
                            by_kind[after.kind].append(gained)
                        seen[after.kind] += 1
                if by_kind:
                    yield Gain(role, quantity, limit, by_kind)


def _mapped(process: psutil.Process) -> set[Path]:
    maps = Path(f"/proc/{process.pid}/maps").read_text(encoding="utf-8", errors="replace")
    return {Path(line) for line in re.findall(rf"{SHARED_MEMORY}/\S+", maps)}
