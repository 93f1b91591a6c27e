"""The labs' communicator, which is renewed in place after a deadlock.

When a communicator is revoked, every call on it fails at once, on every rank, and it never works
again. After a mistake, labs would lose `comm` and every object that uses it. parlab therefore
renews its communicators in place: the Python object stays the same, but gets the MPI handle of a
new duplicate. This includes `MPI.COMM_WORLD` and `MPI.COMM_SELF`, which tutorials use. Copies of
their original handles are kept, and all duplicates are made from them.
"""

import ctypes
from collections.abc import Sequence

from mpi4py import MPI

import parlab.rank.requests  # noqa: F401, replaces MPI.Request

_pristine = MPI.Comm.fromhandle(MPI.COMM_WORLD.handle)
assert isinstance(_pristine, MPI.Intracomm)
pristine_self = MPI.Comm.fromhandle(MPI.COMM_SELF.handle)
assert isinstance(pristine_self, MPI.Intracomm)

# Every communicator that parlab renews. Each includes all ranks.
_communicators: list[MPI.Intracomm] = []

# Handles that the lab freed. MPI functions must not be called on them, and mpi4py leaves such a
# handle in COMM_WORLD. When MPI frees a communicator, it deletes the attributes, which calls
# delete_fn.
_freed: list[int] = []
_freed_key = MPI.Comm.Create_keyval(delete_fn=lambda comm, keyval, value: _freed.append(value))


def _new_handle(pristine: MPI.Intracomm) -> int:
    """Return the handle of a duplicate, and record if the lab frees it. Collective."""
    duplicate = pristine.Dup()
    duplicate.Set_attr(_freed_key, duplicate.handle)
    return duplicate.handle


def original_handles() -> tuple[int, int]:
    """Return the original handles of `MPI.COMM_WORLD` and `MPI.COMM_SELF`."""
    return _pristine.handle, pristine_self.handle


def set_handle(comm: MPI.Intracomm, handle: int) -> None:
    """Put another MPI handle into the Python object `comm`."""
    # mpi4py provides the address of the handle inside the object for interoperation like this.
    ctypes.c_void_p.from_address(MPI._addressof(comm)).value = handle


def new_communicator() -> MPI.Intracomm:
    """Return a duplicate of the world that is revoked and renewed with `comm`. Collective."""
    # Wait for all ranks in a call on `comm`, which a revocation can end. It cannot end calls on
    # `_pristine`.
    comm.Barrier()
    duplicate = MPI.Comm.fromhandle(_new_handle(_pristine))
    assert isinstance(duplicate, MPI.Intracomm)
    _communicators.append(duplicate)
    return duplicate


def is_freed(comm: MPI.Comm) -> bool:
    """Return True if the lab freed the communicator, so that MPI calls on it are invalid."""
    return comm.handle in _freed


def communicators() -> list[MPI.Intracomm]:
    """Return the communicators that `renew` renews, except for those that the lab freed."""
    return [comm for comm in _communicators if comm != MPI.COMM_NULL and not is_freed(comm)]


def is_damaged() -> bool:
    """Return True if the lab freed or revoked one of parlab's communicators or COMM_SELF."""
    return bool(_freed) or any(comm.Is_revoked() for comm in [*communicators(), MPI.COMM_SELF])


def renew(kept: Sequence[MPI.Comm] = ()) -> None:
    """Put new handles into all communicators of parlab except `kept`. Collective."""
    for comm in _communicators:
        if not any(comm is one for one in kept):
            set_handle(comm, _new_handle(_pristine))
    _freed.clear()
    set_handle(MPI.COMM_SELF, _new_handle(pristine_self))


comm = MPI.COMM_WORLD
set_handle(comm, _new_handle(_pristine))
_communicators.append(comm)
set_handle(MPI.COMM_SELF, _new_handle(pristine_self))
