"""A set of ranks that tries answers, seen from the process that asks them."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

import psutil

from parlab import mpirun

RANKS = 4
START_SECONDS = 300.0  # on a busy machine; a few on another
SHARED_MEMORY = "/dev/shm"
SPARE_SECONDS = 12.0  # the ranks free themselves first


class RanksGone(RuntimeError):
    """The ranks have ended, or had to be ended: they did not answer in time."""


class Ranks:
    """Ranks of their own, started when entered, and ended with all that they left behind."""

    def __enter__(self) -> Self:
        memory = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else None
        self._folder = tempfile.TemporaryDirectory(prefix="parlab-mutants-", dir=memory)
        path = Path(self._folder.name) / "socket"
        self._said = (Path(self._folder.name) / "said").open("w+")
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path))
            listening.listen()
            listening.settimeout(1.0)
            self._process = subprocess.Popen(
                mpirun.command(RANKS, sys.executable, "-m", "parlab.mutation.worker", str(path)),
                env=os.environ | mpirun.environment(RANKS) | self._settings(),
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
            )
            try:
                self._connection = self._accepted(listening)
            except BaseException:
                self._end()
                raise
        self._lines = self._connection.makefile("rw")
        self._setups: set[str] = set()  # what they have imported
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()
        self._end()

    def ask(
        self, setup: str, answer: str, code: str, seconds: float, stuck: float
    ) -> dict[str, Any]:
        """How a check ends on an answer: the fields of `worker.Outcome`.

        Args:
            setup, answer, code: of the lab, of the exercise's cell, and of its check cells.
            seconds: how long the check may take.
            stuck: how long one call of the answer may take, before its check says that it hangs.

        Raises:
            RanksGone: no answer came; the ranks are of no use any more.
        """
        asked = {"setup": setup, "answer": answer, "code": code, "seconds": seconds, "stuck": stuck}
        spare = SPARE_SECONDS if setup in self._setups else START_SECONDS
        self._connection.settimeout(seconds + spare)
        self._setups.add(setup)
        try:
            print(json.dumps(asked), file=self._lines, flush=True)
            answer = self._lines.readline()
        except OSError as error:
            raise RanksGone(f"no answer in time ({error})") from None
        if not answer:
            raise RanksGone(f"the ranks ended:\n{self._output()}")
        return json.loads(answer)

    def _accepted(self, listening: socket.socket) -> socket.socket:
        for _ in range(int(START_SECONDS)):
            with contextlib.suppress(TimeoutError):
                return listening.accept()[0]
            if self._process.poll() is not None:
                break
        raise RuntimeError(f"the ranks did not start:\n{self._output()}")

    def _settings(self) -> dict[str, str]:
        """The same inputs for every mutant, and MPI's files where they are removed with ours."""
        folder = self._folder.name
        return {
            "PARLAB_CHECK_SEED": "1",
            "TMPDIR": folder,
            "OMPI_MCA_btl_sm_backing_directory": folder,
        }

    def _output(self) -> str:
        self._said.seek(0)
        return self._said.read()[-4000:]

    def is_one(self, process: psutil.Process) -> bool:
        """Whether a process is one of these ranks, or the one that started them.

        By what it was started with: a rank whose mpiexec has ended is no child of ours.
        """
        with contextlib.suppress(psutil.NoSuchProcess):
            return any(self._folder.name in part for part in process.cmdline())
        return False

    def _end(self) -> None:
        for process in filter(self.is_one, psutil.process_iter()):
            with contextlib.suppress(psutil.NoSuchProcess):
                for one in [*process.children(recursive=True), process]:
                    one.kill()
        self._process.wait()
        self._said.close()
        self._folder.cleanup()
