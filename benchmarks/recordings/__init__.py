"""Measurements that pages of the book show, each recorded by one command as JSON."""

import sys
from collections.abc import Callable

from benchmarks import machine
from parlab import mpirun


def record_on_ranks(command: str, ranks: int, measure: Callable[[str], None]) -> None:
    """Run `measure` on `ranks` ranks, with the machine's description. Then end this process.

    `command` is `python -m MODULE`, as a person types it. Each rank runs the same command with the
    description as an argument, because a rank may be bound to one core and could not describe the
    machine.
    """
    if sys.argv[1:]:
        measure(sys.argv[1])
        return
    _, *program = command.split()
    sys.exit(mpirun.run(ranks, *program, machine.description()).returncode)
