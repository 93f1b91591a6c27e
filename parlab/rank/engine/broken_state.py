"""What a cell broke that the labs need: told to the kernel when the cell has ended."""

import sys
from typing import Any

from ipyparallel.engine.datapub import publish_data
from mpi4py import MPI

from parlab.rank import world
from parlab.rank.engine import DAMAGE
from parlab.rank.engine.cell_magics import after_cell


def install(shell: Any) -> None:
    """After each cell of `shell`, publish what it broke, as `DAMAGE`; nothing where all is well."""
    after_cell(shell, lambda: _report(shell))


def _report(shell: Any) -> None:
    if found := _found(shell):
        publish_data({DAMAGE: found})


def _found(shell: Any) -> str:
    """What is gone: the process soon ("exit"), MPI itself ("mpi"), a communicator of parlab's
    ("comm"), torch's groups ("torch").
    """
    if shell.exit_now:
        return "exit"
    if MPI.Is_finalized():
        return "mpi"
    if world.is_damaged():
        return "comm"
    groups = sys.modules.get("parlab.rank.torch_groups")
    return "torch" if groups and groups.is_gone() else ""
