"""Keeps MPI.COMM_WORLD and COMM_SELF in Open MPI's table of communicators.

`Dup`, `Split`, and similar calls use nonblocking collectives to agree on a number for the new
communicator. If other ranks call `Ibarrier` at that place, for example, the calls match, and the
ranks may agree on 0, the number of COMM_WORLD. When the call then fails, because its communicator
is revoked, Open MPI 5.0.11 removes this number from the table. This rank then receives no more
messages on COMM_WORLD, so the ranks could not be made usable again.
"""

import ctypes
from typing import Any

from parlab.rank import world
from parlab.rank.engine.leftovers import open_mpi


def install(shell: Any) -> None:
    """Restore the table after each cell, before this rank reports that the cell has ended.

    After the report, other ranks may already send messages, which would be lost.
    """
    library = open_mpi()
    try:
        table = ctypes.addressof(ctypes.c_char.in_dll(library, "ompi_mpi_communicators"))
        set_item = library.opal_pointer_array_set_item
    except (AttributeError, TypeError, ValueError):  # another MPI, or another version
        return
    set_item.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]

    def restore(_: object) -> None:
        for number, handle in enumerate(world.original_handles()):
            set_item(table, number, handle)

    shell.events.register("post_run_cell", restore)
