"""A set of ranks that run functions for this process. Needs only the standard library.

    with RankPool(4) as pool:
        values = pool.call("package.module:function", 1, "two", seconds=60)

The function runs on every rank. Its arguments and its result are JSON values.

If a rank crashes, hangs, or raises an error, `call` raises `RanksGone`, and the next call starts
new ranks. With `frees=True`, stuck ranks free themselves instead, as in a lab, and keep their
imported modules. `call` then returns None for them. Afterward, `comm` and `group` are new.
"""

import contextlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from parlab import mpirun
from parlab.runtime.paths import MEMORY, ROOT
from parlab_staff.ranks.connection import Connection, stack_file

START_SECONDS = 300.0  # a start usually takes a few seconds, but much longer on a busy machine
SPARE_SECONDS = 12.0  # after the time limit of a call, so that ranks can end or free themselves
GRACE_SECONDS = 5.0  # for the other ranks, after one has failed
END_SECONDS, OUTPUT_SECONDS = 2.0, 10.0  # to end, and to copy the last output to the log
POLL_SECONDS = 0.2


class RanksGone(RuntimeError):
    """The ranks were ended, because one of them did not finish its call.

    Attributes:
        kind: `crashed`, `timed out`, or `failed` if one rank left and others waited for it.
        endings: how processes ended, such as `rank 1 ended by SIGSEGV`.
        output: the last lines that the ranks printed.
        values: the value that each rank returned; None if it did not return.
        stacks: the stack of each rank when its time was up, as `faulthandler` writes it, or "".
    """

    def __init__(
        self, kind: str, endings: list[str], output: str, values: list[Any], stacks: list[str]
    ) -> None:
        where = [f"rank {rank}:\n{stack}" for rank, stack in enumerate(stacks) if stack]
        super().__init__("\n".join([f"the ranks {kind}", *endings, output, *where]).strip())
        self.kind, self.endings, self.output, self.values = kind, endings, output, values
        self.stacks = stacks


class RankPool:
    """Ranks, which the first call starts. `end` also ends all processes that they started."""

    def __init__(
        self,
        n: int,
        *,
        mpi: bool = True,
        frees: bool = False,
        environment: Mapping[str, str] | None = None,
        start_seconds: float = START_SECONDS,
    ) -> None:
        """
        Args:
            mpi: False to start processes without MPI, with only `RANK` and `LOCAL_RANK` set.
            frees: True if stuck ranks must free themselves, which needs MPI.
            environment: variables to add to this process's environment.
            start_seconds: the time limit of the start.
        """
        self.n, self._mpi, self._frees = n, mpi, frees
        self._start_seconds = start_seconds
        self._environment = dict(environment or {})
        self.starts = 0  # how often ranks were started
        self._stopped = False
        self._processes: list[subprocess.Popen] = []
        self._connections: dict[int, Connection] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def call(
        self,
        function: Callable | str,
        *arguments: Any,
        seconds: float,
        gave_up: Callable[[Any], bool] = lambda value: False,
        grace_seconds: float = GRACE_SECONDS,
    ) -> list[Any]:
        """Run a function on all ranks. Return the values by rank.

        Args:
            function: a function at a module's top level, or its name as `module:function`.
            seconds: the time limit. Without `frees`, ranks then write their stacks, and end.
            gave_up: returns True if a rank with this value left early, so that others may wait.
            grace_seconds: the time for the other ranks after a rank gave up or failed.

        Raises RanksGone.
        """
        if not self._processes:
            self.start()
        if not isinstance(function, str):
            function = f"{function.__module__}:{function.__qualname__}"
        # Start to count before the ranks do, so that none of them ends itself before this time.
        limit = time.monotonic() + seconds
        self._send({"function": function, "arguments": arguments, "seconds": seconds})
        values = self._answers(limit, gave_up, grace_seconds)
        if self._frees:
            # If the ranks do not recover, the values count, and the next call starts new ranks.
            with contextlib.suppress(RanksGone):
                self._send({"function": "recover"})
                self._answers(time.monotonic() + SPARE_SECONDS)
        return values

    @property
    def running(self) -> bool:
        """True if there are ranks. They end with `end`, and before `call` raises RanksGone."""
        return bool(self._processes)

    def start(self) -> None:
        """Start the ranks before the first call. Raises RanksGone if they do not start."""
        self._folder = tempfile.TemporaryDirectory(
            prefix="parlab-ranks-", dir=MEMORY, ignore_cleanup_errors=True
        )
        folder = Path(self._folder.name)
        self._log = (folder / "output").open("w+", encoding="utf-8", errors="replace")
        self.starts += 1
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(folder / "socket"))
            listening.listen(self.n)
            listening.settimeout(POLL_SECONDS)
            try:
                self._start_processes(folder)
                self._accept_all(listening)
            except BaseException:
                self.end()
                raise

    def _start_processes(self, folder: Path) -> None:
        program = [sys.executable, "-m", "parlab_staff.ranks.worker", str(folder / "socket")]
        program += ["--frees"] if self._frees else []
        base = os.environ | {"PYTHONUNBUFFERED": "1"}
        base |= mpirun.shared_memory_in(folder) | self._environment
        if self._mpi:
            environments = [base | mpirun.environment(self.n, base, folder=folder)]
            program = mpirun.command(self.n, *program)
        else:
            names = ("RANK", "LOCAL_RANK")
            environments = [base | dict.fromkeys(names, str(rank)) for rank in range(self.n)]
        for environment in environments:
            self._processes.append(
                subprocess.Popen(
                    program,
                    cwd=ROOT,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=self._log,
                    stderr=subprocess.STDOUT,
                    # No session of their own: see `begin_session` in `parlab.rank.engine`.
                    process_group=0,
                )
            )

    def _accept_all(self, listening: socket.socket) -> None:
        deadline = time.monotonic() + self._start_seconds
        while len(self._connections) < self.n:
            if any(process.poll() is not None for process in self._processes):
                raise self._gone("crashed", [None] * self.n)
            if time.monotonic() > deadline:
                raise self._gone("timed out", [None] * self.n)
            with contextlib.suppress(TimeoutError):
                connection = Connection(listening.accept()[0])
                if not connection.hello:
                    raise self._gone("crashed", [None] * self.n)
                self._connections[connection.hello["rank"]] = connection
            if self._stopped:  # after the connection was added: `stop` may not have seen it
                raise self._gone("stopped", [None] * self.n)

    def stop(self) -> None:
        """End the ranks from another thread. The call that waits for them raises RanksGone."""
        self._stopped = True
        for connection in list(self._connections.values()):
            connection.close_sending()

    def end(self) -> None:
        """End the ranks at once."""
        for connection in self._connections.values():
            connection.close_sending()  # the rank then ends itself and its children
        deadline = time.monotonic() + END_SECONDS
        for connection in self._connections.values():
            if not connection.wait_for_end(deadline):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(connection.hello["pid"], signal.SIGKILL)
            connection.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, deadline - time.monotonic()))
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if self._processes:
            self._log.close()
            self._folder.cleanup()
        self._processes, self._connections = [], {}

    # Messages

    def _send(self, message: dict[str, Any]) -> None:
        for connection in self._connections.values():
            with contextlib.suppress(OSError):  # the rank has ended and will not answer
                connection.send(message)

    def _answers(
        self,
        limit: float,
        gave_up: Callable[[Any], bool] = lambda value: False,
        grace_seconds: float = GRACE_SECONDS,
    ) -> list[Any]:
        deadline, kind = limit + SPARE_SECONDS, "timed out"
        answers: list[dict[str, Any] | None] = [None] * self.n
        ended: list[int] = []
        with selectors.DefaultSelector() as selector:
            for rank, connection in self._connections.items():
                selector.register(connection.socket, selectors.EVENT_READ, rank)
            while selector.get_map():  # until all ranks have answered or ended
                if not (ready := selector.select(max(0.0, deadline - time.monotonic()))):
                    break
                for key, _ in ready:
                    selector.unregister(key.fileobj)
                    answer = answers[key.data] = self._connections[key.data].receive()
                    if answer is None:
                        ended.append(key.data)
                        if time.monotonic() < limit:
                            kind, deadline = "crashed", 0.0
                        else:  # the other stuck ranks also write their stacks, and end
                            deadline = min(deadline, time.monotonic() + END_SECONDS)
                    elif self._frees or kind != "timed out":
                        continue
                    elif "error" in answer or gave_up(answer["value"]):
                        kind = "failed"
                        deadline = min(deadline, time.monotonic() + grace_seconds)
        values = [answer and answer.get("value") for answer in answers]
        errors = [one["error"] for one in answers if one and "error" in one]
        if None in answers:
            raise self._gone(kind, values, errors, ended)
        # A rank that frees itself causes errors on ranks that wait for it.
        if errors and not any("freed" in one for one in answers if one):
            raise self._gone("failed", values, errors)
        return values

    def _how_ended(self, rank: int) -> str:
        """Return how a rank's process ended; "" if mpiexec started it."""
        code = None if self._mpi else self._processes[rank].poll()
        if not code:
            return ""
        return f" by {signal.Signals(-code).name}" if code < 0 else f" with exit code {code}"

    def _gone(
        self, kind: str, values: list[Any], errors: Sequence[str] = (), ended: Sequence[int] = ()
    ) -> RanksGone:
        """End the ranks. Return the error that reports why. `ended` are the ranks that crashed."""
        if ended or kind == "crashed":
            # mpiexec ends when all ranks have ended and it has copied their output.
            for connection in self._connections.values():
                connection.close_sending()
            first = ended[0] if ended and not self._mpi else 0
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._processes[first].wait(OUTPUT_SECONDS)
        endings = [f"rank {rank} ended{self._how_ended(rank)}" for rank in ended]
        self._log.seek(0)
        output = "\n".join([*errors, self._log.read()[-6000:]])
        stacks = [self._stack(rank) for rank in range(self.n)]
        self.end()
        return RanksGone(kind, endings, output.strip(), values, stacks)

    def _stack(self, rank: int) -> str:
        """Return the stack of a rank when its time was up; "" if it ended in time."""
        with contextlib.suppress(FileNotFoundError):
            return stack_file(Path(self._folder.name), rank).read_text(encoding="utf-8")
        return ""
