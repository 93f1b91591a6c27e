"""Starts the engine of one rank: ipyparallel's, with additions.

Its stack can be read from outside at any time (`stacks`; faulthandler, on SIGUSR1), it can be freed
from outside (`freeing`), its errors show the learner's lines, not the library's (`tracebacks`), its
number is its MPI rank, and it may start before the controller has.
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
    # MPI first: it installs signal handlers of its own, and faulthandler's must come before them.
    from parlab.rank.engine import freeing

    # The signal goes to the main thread, the one that runs cells: only its stack is wanted.
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False, chain=False)
    faulthandler.enable(file=stacks, all_threads=False)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # see Processes of the cluster
    freeing.prepare()
    freeing.start(requests, stacks)


def connection(file: Path) -> str:
    """What the controller writes into `file`, once it is all there.

    There is no deadline: a kernel whose controller does not come ends this rank.
    """
    while True:
        try:
            text = file.read_text(encoding="utf-8")
            json.loads(text)
            return text
        except (FileNotFoundError, ValueError):  # not there, or not all of it
            time.sleep(0.01)


def main() -> None:
    prepare()
    from ipyparallel.engine.app import IPEngine

    from parlab.rank import world

    if file := os.environ.pop("PARLAB_CONNECTION_FILE", ""):
        os.environ["IPP_CONNECTION_INFO"] = connection(Path(file))
    try:
        # Engines that ask for no number get one as they register, in any order.
        IPEngine.launch_instance([*sys.argv[1:], f"--IPEngine.id={world.comm.rank}"])
        _end(0)
    except SystemExit as end:
        _end(end.code if isinstance(end.code, int) else int(end.code is not None))
    except BaseException:
        traceback.print_exc(file=sys.__stderr__)
        _end(1)


def _end(status: int) -> None:
    """End this process: after `quit()` in a cell, or SIGTERM.

    MPI's own end waits for all ranks, and they know nothing of it. The supervisor tells the kernel
    of this one's end, and what it means for the others.
    """
    for file in (sys.__stdout__, sys.__stderr__):
        with contextlib.suppress(Exception):
            file.flush()
    os._exit(status)
