"""The parent process of one rank: reports where the rank is and how it ends.

MPI starts this script once for each rank, and the script starts the engine as its child. It is a
separate process because a rank that is stuck in C, or that died, cannot answer requests. The parent
knows the rank's exit status and can signal the rank on any node. When the notebook's kernel ends,
for any reason, the connection to it closes, and the parent ends the rank.

It runs without site-packages and imports nothing from parlab, so that it starts in about 20 ms.

Messages are lines of JSON. It sends `hello`, `stacks`, `processor_seconds`, and `exit` to the
kernel. It receives `{"do": "stacks" | "processor_seconds" | "free", …}`.
"""

import array
import contextlib
import ctypes
import fcntl
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import termios
import time

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
# If a rank has not written its stack after this time, it runs C code and holds Python's lock. Then
# a signal makes faulthandler write the stack.
STACK_SECONDS = 0.25
STOPPED = "Stopped by a signal.\n"  # sent instead of a stack if the process is stopped
END_SECONDS, PAUSE_SECONDS = 30.0, 0.01  # limit for ending the rank and all that it started
RANK_VARIABLES = ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")


def rank_from_environment() -> int:
    """Return this process's MPI rank before MPI is initialized, or 0 if no launcher set one."""
    return int(next((os.environ[v] for v in RANK_VARIABLES if v in os.environ), "0"))


def node_name() -> str:
    """Return the name that MPI's launcher, and also Slurm, uses for this machine."""
    return os.environ.get("PMIX_HOSTNAME") or socket.gethostname()


def processor_use(pid: int) -> tuple[float, str]:
    """Return the CPU time (s) that a process has used, and the state of its main thread.

    State `R` means that it wants the CPU, `T` that a signal stopped it. Return (0, "") if unknown.
    """
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return 0.0, ""
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"), fields[0]


def sleeps(pid: int) -> int:
    """Return how often the main thread of a process went to sleep. Return 0 if it is unknown."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", encoding="utf-8") as file:
        for line in file:
            if line.startswith("voluntary_ctxt_switches:"):
                return int(line.split()[1])
    return 0


def adopt_orphans() -> None:
    """Become the parent of orphaned descendants, so that they can be found (Linux only)."""
    set_option(PR_SET_CHILD_SUBREAPER, 1)


def set_option(option: int, value: int) -> None:
    with contextlib.suppress(OSError, AttributeError):  # only Linux has these options
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def begin_session() -> None:
    """Make this process, which becomes the engine, the only one of its session.

    Linux schedules the processes of a session as a group. If ranks of one session compute and
    others wait, which means that they sleep for a moment again and again, Linux 6.18 did not run
    processes of other sessions, such as the notebook's kernel, for up to 25 seconds.
    """
    os.setsid()
    set_option(PR_SET_PDEATHSIG, signal.SIGKILL)  # if mpiexec kills the supervisor and its group


def descendants(pid: int) -> list[int]:
    """Return the children of a process, their children, and so on.

    This includes the descendants of a child that has ended but still has running threads.
    """
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc") if os.path.isdir("/proc") else []:
        if entry.isdigit():
            with (
                contextlib.suppress(OSError),
                open(f"/proc/{entry}/stat", encoding="utf-8", errors="replace") as file,
            ):
                parent = int(file.read().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(int(entry))
    found, waiting = [], [pid]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


class Supervisor:
    def __init__(self, kernel: socket.socket, token: str, engine: list[str]) -> None:
        self.kernel = kernel
        self.buffer = b""
        self.signal_at: float | None = None  # when to request the stack by a signal
        self.selector = selectors.DefaultSelector()

        # SIGCHLD wakes the loop through this pair, so that an exit is noticed at once.
        woken, wake = socket.socketpair()
        woken.setblocking(False)
        wake.setblocking(False)
        self.woken, self.wake = woken, wake  # kept: a closed end would wake the loop forever
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)

        # The engine writes its stack into one pipe. The other pipe carries requests to the engine's
        # freeing thread.
        self.stacks, stacks_end = os.pipe()
        requests_end, self.requests = os.pipe()
        os.set_blocking(self.stacks, False)
        environment = os.environ | {
            "PARLAB_STACKS_FD": str(stacks_end),
            "PARLAB_REQUESTS_FD": str(requests_end),
        }
        environment.pop("PARLAB_CHANNEL", None)
        adopt_orphans()
        self.engine = subprocess.Popen(
            engine,
            env=environment,
            pass_fds=(stacks_end, requests_end),
            preexec_fn=begin_session,  # this process has no other threads
        )
        os.close(stacks_end)
        os.close(requests_end)
        # A signal to the process group is meant for the engine. This process must continue, to
        # report the result.
        signal.signal(signal.SIGINT, lambda *_: self.engine.send_signal(signal.SIGINT))
        signal.signal(signal.SIGTERM, lambda *_: self.engine.terminate())

        self.send(hello=token, rank=rank_from_environment(), pid=self.engine.pid, host=node_name())
        self.selector.register(kernel, selectors.EVENT_READ, self.on_kernel)
        self.selector.register(woken, selectors.EVENT_READ, self.on_child)
        self.selector.register(self.stacks, selectors.EVENT_READ, self.on_stacks)

    def send(self, **message: object) -> None:
        try:
            self.kernel.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            self.end()

    def run(self) -> None:
        while True:
            wait = None if self.signal_at is None else self.signal_at - time.monotonic()
            for key, _ in self.selector.select(wait):
                key.data()
            if self.signal_at is not None and time.monotonic() >= self.signal_at:
                self.signal_at = None
                if self.engine.returncode is None:
                    self.engine.send_signal(signal.SIGUSR1)

    def end(self) -> None:
        """End the rank and all its descendants, then this process.

        Called when the kernel has ended or closed the connection. Descendants whose parents end
        become children of this process, even if they have their own sessions. So when no child is
        left, all have ended.
        """
        end = time.monotonic() + END_SECONDS
        with contextlib.suppress(ChildProcessError):
            while time.monotonic() < end:
                for pid in descendants(os.getpid()):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
                time.sleep(PAUSE_SECONDS)
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
            self.handle(json.loads(line))

    def handle(self, request: dict) -> None:
        if self.engine.returncode is not None:
            return
        match request["do"]:
            case "stacks":
                if processor_use(self.engine.pid)[1] == "T":
                    self.send(stacks=STOPPED)
                    return
                os.write(self.requests, b"stacks 0\n")
                if self.signal_at is None:  # a second request must not delay the signal
                    self.signal_at = time.monotonic() + STACK_SECONDS
            case "free":
                if request["how"] == "interrupt":
                    self.before_interrupt()
                os.write(self.requests, f"{request['how']} {request['generation']}\n".encode())
            case "processor_seconds":
                pid = self.engine.pid
                seconds, state = processor_use(pid)
                self.send(processor_seconds=seconds, state=state, sleeps=sleeps(pid))

    def before_interrupt(self) -> None:
        """Continue a stopped rank, and signal a rank whose freeing thread cannot run.

        The thread cannot run while C code holds Python's lock. Some C code, such as a search with
        a regular expression, checks for signals.
        """
        if processor_use(self.engine.pid)[1] == "T":
            self.engine.send_signal(signal.SIGCONT)
        unread = array.array("i", [0])
        fcntl.ioctl(self.requests, termios.FIONREAD, unread)
        if unread[0]:
            self.engine.send_signal(signal.SIGURG)  # `SIGNAL` of `interrupts`

    def on_child(self) -> None:
        self.woken.recv(4096)
        if self.engine.returncode is None and self.engine.poll() is not None:
            self.on_stacks()
            self.send(exit=self.engine.returncode)
            # Do not exit. An exit status other than 0 would make mpiexec end the other ranks,
            # before the kernel has requested their stacks.
        if self.engine.returncode is None:
            self.reap_orphans()

    def reap_orphans(self) -> None:
        """Reap adopted processes that have ended, but leave the engine to `poll`."""
        with contextlib.suppress(ChildProcessError):
            while ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if ended.si_pid == self.engine.pid:
                    return
                os.waitpid(ended.si_pid, 0)

    def on_stacks(self) -> None:
        """Send the stacks that the engine has written. The pipe closes when the engine ends."""
        try:
            while text := os.read(self.stacks, 1 << 16):
                self.signal_at = None
                self.send(stacks=text.decode("utf-8", "replace"))
        except BlockingIOError:
            return
        with contextlib.suppress(KeyError):
            self.selector.unregister(self.stacks)


def connect(port: int, hosts: list[str]) -> socket.socket:
    """Return a connection to the first of the kernel's host names that answers."""
    errors = []
    for host in hosts:
        try:
            return socket.create_connection((host, port), timeout=10)
        except OSError as error:
            errors.append(f"{host}: {error}")
    sys.exit(f"{socket.gethostname()} cannot connect to the notebook's kernel: {'; '.join(errors)}")


def main() -> None:
    port, token, *hosts = os.environ["PARLAB_CHANNEL"].split(",")
    kernel = connect(int(port), hosts)
    kernel.settimeout(None)
    kernel.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # The kernel may be on another node, and its failure must be noticed eventually.
    kernel.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    Supervisor(kernel, token, sys.argv[1:]).run()


if __name__ == "__main__":
    main()
