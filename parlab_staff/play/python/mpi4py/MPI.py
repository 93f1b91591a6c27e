"""The names in mpi4py's `MPI` that are available to ranks in a page."""

import pickle as _pickle
import sys as _sys
from typing import Any

import _hub
import mpi4py._values as _values
from mpi4py._groups import Group
from mpi4py._groups import Shared as _Shared
from mpi4py._identity import handle_of as _handle_of
from mpi4py._making import (  # noqa: F401 - names of the interface
    Cartcomm,
    Comm,
    Compute_dims,
    Intracomm,
    Topocomm,
)
from mpi4py._matched import MESSAGE_NO_PROC, MESSAGE_NULL, Message  # noqa: F401
from mpi4py._operations import progress as _progress  # noqa: F401 - called at the end of a run
from mpi4py._requests import REQUEST_NULL, Grequest, Prequest, Request  # noqa: F401
from mpi4py._values import *  # noqa: F403
from mpi4py._values import OPS as _OPS
from mpi4py._values import TYPES as _TYPES

globals().update(_OPS, **_TYPES)
Exception = _values.Exception
COMM_NULL, GROUP_NULL, GROUP_EMPTY, INFO_NULL = Intracomm(), None, Group(), _values.Info()
OP_NULL, DATATYPE_NULL, ERRORS_RETURN, ERRORS_ARE_FATAL = None, None, 0, 1
KEYVAL_INVALID = -1

COMM_WORLD: Intracomm
COMM_SELF: Intracomm


class pickle:
    """Converts objects to bytes and back, to send them."""

    @staticmethod
    def dumps(value: Any) -> bytes:
        return _pickle.dumps(value, _pickle.HIGHEST_PROTOCOL)

    loads = staticmethod(_pickle.loads)


def _begin(rank: int, size: int) -> None:
    """Make COMM_WORLD and COMM_SELF for a run on `size` ranks."""
    global COMM_WORLD, COMM_SELF
    world = _Shared(0, list(range(size)), rank, "MPI_COMM_WORLD")
    COMM_WORLD = Intracomm.fromhandle(_handle_of(world))
    COMM_SELF = Intracomm.fromhandle(_handle_of(_Shared(2, [rank], rank, "MPI_COMM_SELF")))


def _addressof(comm: Comm) -> int:
    import ctypes

    return ctypes.addressof(comm._cell)


def Wtime() -> float:
    """Return the time in seconds, from a clock that all ranks of the page share."""
    return _hub.now() / 1000


def Wtick() -> float:
    return 1e-4


def Get_processor_name() -> str:
    return "browser"


def Is_initialized() -> bool:
    return True


def Is_finalized() -> bool:
    return False


def Init() -> None:
    pass


def Finalize() -> None:
    pass


def Query_thread() -> int:
    return _values.THREAD_SINGLE


def Get_version() -> tuple[int, int]:
    return 4, 0


def Get_library_version() -> str:
    return f"ranks in a page, Python {_sys.version.split()[0]}"


def _absent(name: str) -> Any:
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError(f"{name} is not part of mpi4py in this page")

    call.__name__ = name
    return call


# Other names that mpi4py's communicators have. Using one raises an error that names it.
for _names in (
    "Create_graph Create_dist_graph Create_dist_graph_adjacent Create_intercomm Spawn Get_parent",
    "Alltoallw Ialltoallw Alltoallw_init Isendrecv_replace Neighbor_allgather Neighbor_allgatherv",
    "Neighbor_alltoall Neighbor_alltoallv Neighbor_alltoallw Neighbor_allgather_init",
    "Neighbor_allgatherv_init Neighbor_alltoall_init Neighbor_alltoallv_init",
    "Neighbor_alltoallw_init Psend_init Precv_init Idup Shrink Agree Get_failed Ack_failed",
    "Cart_map Graph_map Idup_with_info Create_from_group Get_topology Join",
):
    for _name in _names.split():
        if not hasattr(Topocomm, _name):
            setattr(Comm, _name, _absent(_name))


def __getattr__(name: str) -> Any:
    raise AttributeError(f"MPI.{name} is not part of mpi4py in this page")
