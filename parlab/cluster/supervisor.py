"""The parent of one rank: reports how it ends, ends it with the notebook, shows where it is.

MPI starts this script once for each rank, and it starts the engine as its child. It stays
outside the rank on purpose. A rank that is stuck in C, or that died, cannot answer for itself;
its parent knows its exit status, can signal it on any node, and sees the notebook's kernel go
(the connection closes, however the kernel ended) and takes the rank with it.

It runs without site-packages and imports nothing of parlab, to start in some 20 ms.

To the kernel it speaks lines of JSON: `hello`, `stacks`, `exit`. From it come
`{"do": "stacks" | "release" | "signal", …}`; a closed connection is the order to end.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys

RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def my_rank() -> int:
    """This process's MPI rank, before MPI is initialised (0 where no launcher set one)."""
    return int(next((os.environ[v] for v in RANK_VARIABLES if v in os.environ), "0"))


class Supervisor:
    def __init__(self, kernel: socket.socket, token: str, engine: list[str]) -> None:
        self.kernel = kernel
        self.buffer = b""
        self.selector = selectors.DefaultSelector()

        # SIGCHLD wakes the loop through this pair, so that an exit is noticed at once.
        woken, wake = socket.socketpair()
        woken.setblocking(False)
        wake.setblocking(False)
        self.woken, self.wake = woken, wake  # kept: a closed end would wake the loop for ever
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

        # The engine's faulthandler writes its stack into one pipe; the other carries requests
        # to the engine's release thread.
        self.stacks, stacks_end = os.pipe()
        requests_end, self.requests = os.pipe()
        os.set_blocking(self.stacks, False)
        environment = os.environ | {
            "PARLAB_STACKS_FD": str(stacks_end),
            "PARLAB_REQUESTS_FD": str(requests_end),
        }
        environment.pop("PARLAB_CHANNEL", None)
        self.engine = subprocess.Popen(engine, env=environment, pass_fds=(stacks_end, requests_end))
        os.close(stacks_end)
        os.close(requests_end)
        # A signal to the whole process group is for the engine; its parent reports what it did.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda *_: self.engine.terminate())

        self.tell(hello=token, rank=my_rank(), pid=self.engine.pid, host=socket.gethostname())
        self.selector.register(kernel, selectors.EVENT_READ, self.on_kernel)
        self.selector.register(woken, selectors.EVENT_READ, self.on_child)
        self.selector.register(self.stacks, selectors.EVENT_READ, self.on_stacks)

    def tell(self, **message: object) -> None:
        try:
            self.kernel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.end()

    def run(self) -> None:
        while True:
            for key, _ in self.selector.select():
                key.data()

    def end(self) -> None:
        """The kernel is gone, or wants no more of this rank: end it, whatever it is doing."""
        self.engine.kill()
        os._exit(0)

    def on_kernel(self) -> None:
        try:
            data = self.kernel.recv(65536)
        except OSError:
            data = b""
        if not data:
            self.end()
        *lines, self.buffer = (self.buffer + data).split(b"\n")
        for line in lines:
            self.obey(json.loads(line))

    def obey(self, request: dict) -> None:
        if self.engine.returncode is not None:
            return
        match request["do"]:
            case "stacks":
                self.engine.send_signal(signal.SIGUSR1)
            case "release":
                os.write(self.requests, request["what"].encode())
            case "signal":
                self.engine.send_signal(request["signal"])

    def on_child(self) -> None:
        self.woken.recv(4096)
        if self.engine.returncode is None and self.engine.poll() is not None:
            self.on_stacks()
            self.tell(exit=self.engine.returncode)
            # Stay: an exit status other than 0 would make mpiexec end the other ranks as well,
            # before the kernel has asked them where they are.

    def on_stacks(self) -> None:
        """Pass on what faulthandler wrote; the pipe ends with the engine."""
        try:
            while text := os.read(self.stacks, 1 << 16):
                self.tell(stacks=text.decode("utf-8", "replace"))
        except BlockingIOError:
            return
        with contextlib.suppress(KeyError):
            self.selector.unregister(self.stacks)


def connect(port: int, hosts: list[str]) -> socket.socket:
    """A connection to the first of the kernel's host names that answers."""
    errors = []
    for host in hosts:
        try:
            return socket.create_connection((host, port), timeout=10)
        except OSError as error:
            errors.append(f"{host}: {error}")
    sys.exit(f"no way from {socket.gethostname()} to the notebook's kernel: {'; '.join(errors)}")


def main() -> None:
    port, token, *hosts = os.environ["PARLAB_CHANNEL"].split(",")
    kernel = connect(int(port), hosts)
    kernel.settimeout(None)
    kernel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # Sent to other nodes as well: a node that vanishes must be noticed in the end.
    kernel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    Supervisor(kernel, token, sys.argv[1:]).run()


if __name__ == "__main__":
    main()
