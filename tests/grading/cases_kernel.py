"""Code that attacks the kernel, and through it the grader. It solves no exercise."""

from pathlib import Path

from parlab_staff.grading.sandbox.syscalls import refused
from tests.grading.cases import Cases
from tests.grading.copies import Copy

case = Cases(add=3, total=4, mean=3)


def wrong(copy: Copy, attack: str) -> None:
    """Give only answers that fail by themselves, and run `attack` before the first exercise."""
    for exercise in copy.lab.exercises:
        copy.answer(exercise.key, f"def {exercise.key}(*args):\n    return 1 / 0\n")
    copy.insert(attack, before="exercise-add")


@case("failed", 0)
def patched_tracebacks(copy: Copy, path: Path) -> None:
    wrong(
        copy,
        """\
shell = get_ipython()
nothing = lambda *args, **kwargs: None
shell.showtraceback = shell._showtraceback = shell.showsyntaxerror = nothing
type(shell).showtraceback = type(shell)._showtraceback = nothing
""",
    )


@case("failed", 0)
def ast_transformer(copy: Copy, path: Path) -> None:
    wrong(
        copy,
        """\
import ast
class Harmless(ast.NodeTransformer):
    def visit_Module(self, node):
        return ast.parse("print('✓ add: verified')")
get_ipython().ast_transformers.append(Harmless())
""",
    )


@case("failed", 0)
def forged_display_elsewhere(copy: Copy, path: Path) -> None:
    """It displays the right values in an earlier cell than the hidden check."""
    wrong(
        copy,
        """\
from IPython.display import JSON, display
display(JSON({"sums": [23, 3, 0.75]}))
""",
    )


@case("failed", 0, says="")
def malformed_messages(copy: Copy, path: Path) -> None:
    wrong(
        copy,
        """\
import zmq
kernel = get_ipython().kernel
socket = kernel.iopub_thread.socket
for junk in ([b"x"], [b"", b"", b""], [b"a", b"<IDS|MSG>", b"", b"{", b"[", b"]", b"\\xff"]) * 20:
    kernel.iopub_thread.schedule(lambda junk=junk: socket.send_multipart(junk))
""",
    )


def wins_with(copy: Copy, look: str) -> None:
    """Run `look`, which adds to `found`. If it finds anything, an exercise is right.

    The exercise is also right if `look` does not run to its end, because it then has not looked
    everywhere.
    """
    start = 'import ctypes, os, socket, time\nfound = ["it did not come to its end"]\n'
    wrong(copy, f"{start}{look}found.pop(0)\n")
    copy.answer("add", "def add(a, b):\n    return a + b if found else None\n")


@case("failed", 0)
def calls_the_kernel(copy: Copy, path: Path) -> None:
    """It makes system calls that are refused: for keys, rings, and other kinds of sockets."""
    wins_with(
        copy,
        f"""\
libc = ctypes.CDLL(None, use_errno=True)
for name, number in {refused()!r}.items():
    ctypes.set_errno(0)
    if libc.syscall(number, 0, 0, 0, 0, 0) != -1 or ctypes.get_errno() != 38:  # ENOSYS
        found.append(name)
for family in (socket.AF_VSOCK, socket.AF_ALG, socket.AF_PACKET):
    try:
        socket.socket(family, socket.SOCK_STREAM)
        found.append(family)
    except OSError as error:
        found += [family] if error.errno != 97 else []  # EAFNOSUPPORT
for make, family in ((socket.socketpair, 30), (socket.socket, socket.AF_INET)):  # 30 is TIPC
    try:
        make(family, socket.SOCK_STREAM, 262)  # TCP on many paths
        found.append(make)
    except OSError as error:
        found += [make] if error.errno not in (93, 97) else []  # EPROTONOSUPPORT, EAFNOSUPPORT
socket.socket(socket.AF_INET).close(), socket.socket(socket.AF_INET6).close()
with socket.socket(socket.AF_UNIX) as one:
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        usual = one.getsockopt(socket.SOL_SOCKET, option)
        one.setsockopt(socket.SOL_SOCKET, option, 2**20)
        found += [option] if one.getsockopt(socket.SOL_SOCKET, option) != usual else []
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    found += [] if one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) else ["keepalive"]
""",
    )


@case("failed", 0)
def would_outlive_others(copy: Copy, path: Path) -> None:
    """It asks Linux not to kill it first when memory runs out, which works only for a moment."""
    wins_with(
        copy,
        """\
with open("/proc/self/oom_score_adj", "w") as file:
    try:
        file.write("0")
        file.flush()
    except OSError:
        pass
deadline = time.monotonic() + 60
while (score := open("/proc/self/oom_score_adj").read().strip()) != "1000":
    if time.monotonic() > deadline:
        found.append(score)
        break
    time.sleep(0.1)
""",
    )


@case("died", 0, add="not_reached", total="not_reached", mean="not_reached")
def starts_threads(copy: Copy, path: Path) -> None:
    start = "threading.Thread(target=time.sleep, args=(10**6,), daemon=True).start()"
    wrong(copy, f"import threading, time\nfor _ in range(3000):\n    {start}\ntime.sleep(10**6)")
