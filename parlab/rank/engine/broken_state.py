"""Reports to the kernel, after each cell, whether the cell broke something that the labs need."""

import sys
from typing import Any

from ipyparallel.engine.datapub import publish_data
from mpi4py import MPI

from parlab.rank import world
from parlab.rank.engine import DAMAGE
from parlab.rank.engine.cell_magics import after_cell


def install(shell: Any) -> None:
    """After each cell of `shell`, publish what it broke as `DAMAGE`, if it broke anything."""
    after_cell(shell, lambda: _report(shell))


def _report(shell: Any) -> None:
    if damage := _damage(shell):
        publish_data({DAMAGE: damage})


def _damage(shell: Any) -> str:
    """Return what the cell broke, or "".

    "exit": the process will end. "mpi": MPI was finalized. "comm": a communicator of parlab was
    freed or revoked. "torch": torch's process groups were destroyed.
    """
    if shell.exit_now:
        return "exit"
    if MPI.Is_finalized():
        return "mpi"
    if world.is_damaged():
        return "comm"
    groups = sys.modules.get("parlab.rank.torch_groups")
    return "torch" if groups and groups.is_gone() else ""
