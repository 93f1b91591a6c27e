"""Finds messages that a cell sent and no rank received. The next cell must not receive them.

MPI's probes do not find messages of collective calls. This module therefore reads Open MPI's
counters (MPI_T performance variables), which mpi4py does not provide.
"""

import ctypes
import functools
import sys
from collections.abc import Callable

from mpi4py import MPI

from parlab.rank import world

UNRECEIVED = b"pml_ob1_unexpected_msgq_length"
VARIABLE_CLASS = 2  # MPI_T_PVAR_CLASS_SIZE, as Open MPI registers it
POLLS = 5  # MPI processes incoming messages only during calls


def find() -> list[tuple[int, int] | None]:
    """Return the source and tag of one waiting message for each communicator that has some.

    For a message of a collective call, the entry is None. Communicators of emulated networks are
    not searched, because their messages may take longer than the cell.
    """
    for _ in range(POLLS):
        world.pristine_self.Iprobe()
    emulated = sys.modules.get("parlab.network.registry")
    slow = emulated.communicators() if emulated else []
    looked_at = [comm for comm in world.communicators() if comm not in slow]
    return [_first(comm) for comm in looked_at if _count()(comm)]


def _first(comm: MPI.Intracomm) -> tuple[int, int] | None:
    status = MPI.Status()
    found = comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG, status)
    return (status.source, status.tag) if found else None


@functools.cache
def _count() -> Callable[[MPI.Intracomm], int]:
    """Return a function that counts the waiting messages of a communicator."""
    library = open_mpi()
    session, index, level = ctypes.c_void_p(), ctypes.c_int(), ctypes.c_int()
    started = (
        library is not None
        and library.MPI_T_init_thread(MPI.THREAD_MULTIPLE, ctypes.byref(level)) == 0
        and library.MPI_T_pvar_session_create(ctypes.byref(session)) == 0
        and library.MPI_T_pvar_get_index(UNRECEIVED, VARIABLE_CLASS, ctypes.byref(index)) == 0
    )
    if not started:  # another MPI, or Open MPI uses a fabric that has no such counter
        return lambda comm: int(comm.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG))

    def count(comm: MPI.Intracomm) -> int:
        handle, size = ctypes.c_void_p(), ctypes.c_int()
        address = ctypes.c_void_p(MPI._addressof(comm))
        where = (session, index, address, ctypes.byref(handle), ctypes.byref(size))
        if library.MPI_T_pvar_handle_alloc(*where) != 0:
            return 0
        by_source = (ctypes.c_uint * size.value)()
        library.MPI_T_pvar_read(session, handle, by_source)
        library.MPI_T_pvar_handle_free(session, ctypes.byref(handle))
        return sum(by_source)

    return count


def open_mpi() -> ctypes.CDLL | None:
    """Return the MPI library that mpi4py uses, or None if it is not Open MPI or not found."""
    try:
        with open("/proc/self/maps", encoding="utf-8") as maps:
            paths = {line.split()[-1] for line in maps if "/libmpi.so" in line}
        return ctypes.CDLL(min(paths)) if MPI.Get_library_version().startswith("Open MPI") else None
    except (OSError, ValueError):
        return None
