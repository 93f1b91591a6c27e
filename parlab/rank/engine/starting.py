"""Starts the engine of one rank: ipyparallel's engine, with these additions.

- Its stack can be read from outside at any time (`stacks`, or faulthandler on SIGUSR1).
- It can be freed from outside (`freeing`).
- Its errors show the learner's lines instead of the library's (`tracebacks`).
- Its number is its MPI rank.
- It can start before the controller.
- It does not import modules that ranks seldom use (`lazy_imports`), or a debugger.
"""

import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
import traceback
from pathlib import Path


def prepare() -> None:
    stacks = int(os.environ.pop("PARLAB_STACKS_FD"))
    requests = int(os.environ.pop("PARLAB_REQUESTS_FD"))
    # Import MPI first, because it installs signal handlers, and faulthandler's must replace them.
    from parlab.rank.engine import freeing, lazy_imports

    lazy_imports.install()
    # Cells run in the main thread, so only its stack is needed. It also receives the signal.
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False, chain=False)
    # Write all threads, because Gloo aborts in a thread that runs no Python and so has no stack.
    faulthandler.enable(file=stacks, all_threads=True)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see `sigint_blocked`
    freeing.prepare()
    freeing.start(requests, stacks)


def connection(file: Path) -> str:
    """Wait until the controller has written `file`, and return its text.

    There is no deadline, because the kernel ends this rank if its controller does not start.
    """
    while True:
        try:
            text = file.read_text(encoding="utf-8")
            json.loads(text)
            return text
        except (FileNotFoundError, ValueError):  # not written yet, or only in part
            time.sleep(0.01)


def main() -> None:
    prepare()
    sys.modules["debugpy"] = None  # makes its import fail; ipykernel works without it
    import ipykernel.debugger  # noqa: F401

    del sys.modules["debugpy"]
    from ipyparallel.engine.app import IPEngine
    from ipyparallel.serialize import canning

    del canning.can_map["ipyparallel.dependent"]  # looking for it would import the client

    from parlab.rank import world

    if file := os.environ.pop("PARLAB_CONNECTION_FILE", ""):
        os.environ["IPP_CONNECTION_INFO"] = connection(Path(file))
    try:
        # Without this option, engines would be numbered in the order in which they register.
        IPEngine.launch_instance([*sys.argv[1:], f"--IPEngine.id={world.comm.rank}"])
        _end(0)
    except SystemExit as end:
        _end(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        _end(1)


def _end(status: int) -> None:
    """End this process, after `quit()` in a cell, without finalizing MPI.

    MPI_Finalize would wait for the other ranks, which continue to run. The supervisor reports the
    end to the kernel, which decides what happens to the other ranks.
    """
    for file in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):
            file.flush()
    os._exit(status)
