"""Measurements that pages of the book show, each recorded by one command as JSON."""

import sys
from collections.abc import Callable

from benchmarks import machine
from parlab import mpirun


def record_on_ranks(command: str, ranks: int, measure: Callable[[str], None]) -> None:
    """Run `measure` on so many ranks, with the machine's description; then end this process.

    `command` is `python -m MODULE`: what a person types, and, with the description behind it, what
    each of the ranks runs. A rank may be bound to one of the cores, so it is not asked what the
    machine has.
    """
    if sys.argv[1:]:
        measure(sys.argv[1])
        return
    _, *program = command.split()
    sys.exit(mpirun.run(ranks, *program, machine.description()).returncode)
