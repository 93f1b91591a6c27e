"""The kernel's connection to each rank's supervisor: deaths, stacks, freeing, signals."""

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from jupyter_client.localinterfaces import public_ips

from parlab.cluster.forks import close_in_children
from parlab.rank.engine.supervisor import STOPPED

# The possible ends of a stack of an engine's main thread: the frame that `python -m` starts with,
# the mark that faulthandler writes when it leaves out frames, or the text for a stopped process.
LAST_FRAMES = (" in _run_module_as_main\n", "  ...\n", STOPPED)


@dataclass
class RankProcess:
    """One rank, as its supervisor describes it."""

    rank: int
    pid: int
    host: str
    connection: socket.socket = field(repr=False)
    exit_status: int | None = None  # a negative number is a signal, as in subprocess
    stacks: str = ""
    processor_seconds: float | None = None  # used so far; None until the supervisor answers
    state: str = ""  # of its main thread then: `R` if it wants the CPU, `T` if it was stopped
    sleeps: int = 0  # how often its main thread had gone to sleep by then

    @property
    def crash(self) -> str:
        """Return the stack that faulthandler wrote when the process crashed, or "".

        It is the stack of the thread that crashed, or of the main thread if a thread that runs no
        Python crashed, such as Gloo's.
        """
        _, crashed, after = self.stacks.rpartition("Fatal Python error")
        if not crashed:  # a request caused the stack
            return ""
        threads = [text for text in after.split("\n\n") if "hread 0x" in text]
        current = [text for text in threads if text.startswith("Current thread")]
        return (current or threads or [""])[-1]  # faulthandler writes the main thread last


class Channel:
    """Listens for the supervisors of one set of ranks.

    Each supervisor must send a random token. When a rank ends, a thread of the channel calls
    `on_death(process)`.
    """

    def __init__(
        self, on_death: Callable[[RankProcess], None], *, everywhere: bool = False
    ) -> None:
        self._token = secrets.token_hex(16)
        self._server = socket.create_server(("" if everywhere else "127.0.0.1", 0))
        # Other nodes can reach this one only by some of its names, so a supervisor tries them all.
        hosts = [socket.gethostname(), *public_ips()] if everywhere else []
        self.address = ",".join(
            [str(self._server.getsockname()[1]), self._token, *hosts, "127.0.0.1"]
        )
        self.ranks: dict[int, RankProcess] = {}
        self._connections: list[socket.socket] = []  # several for one rank if worlds are separate
        self._changed = threading.Condition()
        self._on_death = on_death
        self._closed = False
        close_in_children(self._server)
        threading.Thread(target=self._accept, name="parlab-channel", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(
                target=self._listen, args=(connection,), name="parlab-rank", daemon=True
            ).start()

    def _listen(self, connection: socket.socket) -> None:
        process = None
        with contextlib.suppress(OSError, ValueError, KeyError), connection.makefile("rb") as lines:
            hello = json.loads(lines.readline(4096))
            if not secrets.compare_digest(str(hello["hello"]), self._token):
                connection.close()
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            process = RankProcess(hello["rank"], hello["pid"], hello["host"], connection)
            with self._changed:
                self.ranks[process.rank] = process
                self._connections.append(connection)
                close_in_children(connection)
                if self._closed:
                    connection.shutdown(socket.SHUT_RDWR)
                self._changed.notify_all()
            for line in lines:
                self._receive(process, json.loads(line))
        if process is not None and process.exit_status is None and not self._closed:
            # The node failed, or the supervisor was killed.
            self._receive(process, {"exit": -9})

    def _receive(self, process: RankProcess, message: dict) -> None:
        with self._changed:
            if "stacks" in message:
                process.stacks += message["stacks"]
            if "processor_seconds" in message:
                process.processor_seconds = message["processor_seconds"]
                process.state = message["state"]
                process.sleeps = message["sleeps"]
            if "exit" in message:
                process.exit_status = message["exit"]
            self._changed.notify_all()
        if "exit" in message and not self._closed:
            self._on_death(process)

    def send(self, ranks: list[int], **request: object) -> None:
        """Send a request to these ranks' supervisors. Skip supervisors that have ended."""
        data = json.dumps(request).encode() + b"\n"
        for rank in ranks:
            if rank in self.ranks:
                with contextlib.suppress(OSError):
                    self.ranks[rank].connection.sendall(data)

    def stacks(self, ranks: list[int], timeout: float = 5.0) -> dict[int, str]:
        """Return the stack of each reachable rank, in faulthandler's format.

        Stacks that do not arrive within `timeout` seconds are empty or incomplete. Ranks answer in
        milliseconds, but on a busy machine it has taken over a second.
        """
        reachable = self._reachable(ranks)
        with self._changed:
            for rank in reachable:
                self.ranks[rank].stacks = ""
        self.send(reachable, do="stacks")

        def complete() -> bool:
            return all(
                self.ranks[rank].stacks.endswith(LAST_FRAMES)
                or self.ranks[rank].exit_status is not None
                for rank in reachable
            )

        with self._changed:
            self._changed.wait_for(complete, timeout)
            return {rank: self.ranks[rank].stacks for rank in reachable}

    def processor_seconds(self, ranks: list[int], timeout: float = 0.5) -> dict[int, float]:
        """Return the CPU time used so far by each of `ranks` that answers within `timeout`."""
        reachable = [self.ranks[rank] for rank in self._reachable(ranks)]
        with self._changed:
            for process in reachable:
                process.processor_seconds = None
        self.send([process.rank for process in reachable], do="processor_seconds")
        with self._changed:
            self._changed.wait_for(
                lambda: all(process.processor_seconds is not None for process in reachable), timeout
            )
            return {
                process.rank: process.processor_seconds
                for process in reachable
                if process.processor_seconds is not None
            }

    def _reachable(self, ranks: list[int]) -> list[int]:
        return [r for r in ranks if r in self.ranks and self.ranks[r].exit_status is None]

    def deaths(self) -> dict[int, int]:
        """Return the exit status of every rank that ended, by rank."""
        return {
            rank: process.exit_status
            for rank, process in sorted(self.ranks.items())
            if process.exit_status is not None
        }

    @property
    def is_closed(self) -> bool:
        """Return True if `close` was called."""
        return self._closed

    def close(self) -> None:
        """End every rank. A supervisor ends its rank when its connection is closed."""
        self._closed = True
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # ends the `accept` that blocks its thread
        self._server.close()
        with self._changed:
            connections = list(self._connections)
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
