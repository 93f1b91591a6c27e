"""Children that a rank forks end at a signal, and when their cell ends."""

import subprocess
import sys

# A process that handles signals like a rank. ipyparallel's handler would end only its loop.
LIKE_A_RANK = """
import multiprocessing, os, signal, sys, time
from types import SimpleNamespace
from parlab.rank.engine import children, interrupts

hooks = []
signal.signal(signal.SIGTERM, lambda *_: None)
interrupts.install(SimpleNamespace())
shell = SimpleNamespace(events=SimpleNamespace(register=lambda _, hook: hooks.append(hook)))
children.install(shell)
context = multiprocessing.get_context("fork")
"""
TERMINATE = """
for turn in range(50):
    process = context.Process(target=time.sleep, args=(100,))
    process.start()
    process.terminate()
    process.join(5)
    if process.exitcode != -signal.SIGTERM:
        process.kill()
        sys.exit(f"child {turn} lives on: {process.exitcode}")
print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
"""
END = """
child = os.fork()
if not child:
    hooks[0](SimpleNamespace(success=False))  # the cell has ended
    print("the next cell", flush=True)
hooks[0](SimpleNamespace(success=True))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def printed(code: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", LIKE_A_RANK + code],
        capture_output=True, encoding="utf-8", timeout=100,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_no_child_survives_terminate() -> None:
    """This holds even if the signal arrives during the fork."""
    assert printed(TERMINATE) == "set()\n", "the rank blocks no signal afterwards"


def test_a_forked_child_ends_with_its_cell() -> None:
    assert printed(END) == "1\n"
