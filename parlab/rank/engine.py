"""The engine of one rank, as its supervisor starts it: ipyparallel's, with four additions.

Its stack can be read from outside at any time (faulthandler, on SIGUSR1), it can be freed from
outside (`parlab.rank.release`), its errors show the learner's lines, not the library's, and it may
start before the controller has.
"""

import faulthandler
import json
import os
import signal
import sys
import time
from pathlib import Path


def prepare() -> None:
    stacks = int(os.environ.pop("PARLAB_STACKS_FD"))
    requests = int(os.environ.pop("PARLAB_REQUESTS_FD"))
    # MPI first: it installs signal handlers of its own, and faulthandler's must come before them.
    from parlab.rank import release, world  # noqa: F401

    # The signal goes to the main thread, the one that runs cells: only its stack is wanted.
    faulthandler.register(signal.SIGUSR1, file=stacks, all_threads=False, chain=False)
    faulthandler.enable(file=stacks, all_threads=False)
    release.prepare()
    release.start(requests)


def connection(file: Path) -> str:
    """What the controller writes into `file`, once it is all there.

    There is no deadline: a kernel whose controller does not come ends this rank.
    """
    while True:
        try:
            text = file.read_text()
            json.loads(text)
            return text
        except (FileNotFoundError, ValueError):  # not there, or not all of it
            time.sleep(0.01)


def main() -> None:
    prepare()
    from ipyparallel.engine.app import IPEngine

    if file := os.environ.pop("PARLAB_CONNECTION_FILE", ""):
        os.environ["IPP_CONNECTION_INFO"] = connection(Path(file))
    IPEngine.launch_instance(sys.argv[1:])


if __name__ == "__main__":
    main()
