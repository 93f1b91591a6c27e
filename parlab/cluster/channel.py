"""The kernel's line to each rank's supervisor: deaths, stacks, release, signals."""

import contextlib
import json
import secrets
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from jupyter_client.localinterfaces import public_ips

# How faulthandler's text of an engine's main thread ends: at the frame that `python -m` starts
# with, or cut after 100 frames.
LAST_FRAMES = (" in _run_module_as_main\n", "  ...\n")


@dataclass
class Link:
    """One rank, as its supervisor tells of it."""

    rank: int
    pid: int
    host: str
    connection: socket.socket = field(repr=False)
    exit_status: int | None = None  # a negative number is a signal, as in subprocess
    stacks: str = ""


class Channel:
    """Listens for the supervisors of one set of ranks.

    Supervisors prove themselves by a random token. `on_death(link)` is called from a thread of
    the channel when a rank ends.
    """

    def __init__(self, on_death: Callable[[Link], None], *, everywhere: bool = False) -> None:
        self._token = secrets.token_hex(16)
        self._server = socket.create_server(("" if everywhere else "127.0.0.1", 0))
        # From another node only some names of this one lead here: a supervisor tries them all.
        hosts = [socket.gethostname(), *public_ips()] if everywhere else []
        self.address = ",".join(
            [str(self._server.getsockname()[1]), self._token, *hosts, "127.0.0.1"]
        )
        self.links: dict[int, Link] = {}
        self._news = threading.Condition()
        self._on_death = on_death
        self._closed = False
        threading.Thread(target=self._accept, name="parlab-channel", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            threading.Thread(
                target=self._listen, args=(connection,), name="parlab-link", daemon=True
            ).start()

    def _listen(self, connection: socket.socket) -> None:
        link = None
        with contextlib.suppress(OSError, ValueError, KeyError), connection.makefile("rb") as lines:
            hello = json.loads(lines.readline(4096))
            if not secrets.compare_digest(str(hello["hello"]), self._token):
                connection.close()
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(hello["rank"], hello["pid"], hello["host"], connection)
            with self._news:
                self.links[link.rank] = link
                self._news.notify_all()
            for line in lines:
                self._hear(link, json.loads(line))
        if link is not None and link.exit_status is None and not self._closed:
            # The node went away, or somebody killed the supervisor.
            self._hear(link, {"exit": -9})

    def _hear(self, link: Link, message: dict) -> None:
        with self._news:
            if "stacks" in message:
                link.stacks += message["stacks"]
            if "exit" in message:
                link.exit_status = message["exit"]
            self._news.notify_all()
        if "exit" in message and not self._closed:
            self._on_death(link)

    def send(self, ranks: list[int], **request: object) -> None:
        """Ask these ranks' supervisors; one that is gone is passed over."""
        data = json.dumps(request).encode() + b"\n"
        for rank in ranks:
            if rank in self.links:
                with contextlib.suppress(OSError):
                    self.links[rank].connection.sendall(data)

    def stacks(self, ranks: list[int], timeout: float = 1.0) -> dict[int, str]:
        """faulthandler's text for each of `ranks` that answers within `timeout` seconds."""
        asked = [rank for rank in ranks if rank in self.links and self.dead(rank) is None]
        with self._news:
            for rank in asked:
                self.links[rank].stacks = ""
        self.send(asked, do="stacks")

        def complete() -> bool:
            return all(
                self.links[rank].stacks.endswith(LAST_FRAMES) or self.dead(rank) is not None
                for rank in asked
            )

        with self._news:
            self._news.wait_for(complete, timeout)
            return {rank: self.links[rank].stacks for rank in asked}

    def dead(self, rank: int) -> int | None:
        """The exit status of a rank that ended, else None."""
        return self.links[rank].exit_status if rank in self.links else None

    def deaths(self) -> dict[int, int]:
        """Exit status of every rank that ended."""
        return {
            rank: link.exit_status
            for rank, link in sorted(self.links.items())
            if link.exit_status is not None
        }

    def close(self) -> None:
        """End every rank; their supervisors take a closed connection as the order to."""
        self._closed = True
        self._server.close()
        with self._news:
            links = list(self.links.values())
        for link in links:
            with contextlib.suppress(OSError):
                link.connection.shutdown(socket.SHUT_RDWR)
            link.connection.close()
