"""The engine of one rank, as its supervisor starts it: ipyparallel's, with three additions.

Its stack can be read from outside at any time (faulthandler, on SIGUSR1), it can be freed from
outside (`parlab.rank.release`), and its errors show the learner's lines, not the library's.
"""

import faulthandler
import os
import signal
import sys


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


def main() -> None:
    prepare()
    from ipyparallel.engine.app import IPEngine

    IPEngine.launch_instance(sys.argv[1:])


if __name__ == "__main__":
    main()
