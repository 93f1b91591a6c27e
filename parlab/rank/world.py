"""The labs' communicator, and how it is renewed in place after a deadlock.

A communicator that was revoked (MPI's word for: every call on it fails, on every rank, at once)
never works again. Labs would lose `comm` with every mistake, and everything that holds it. So
the communicators that parlab hands out are renewed in place: the Python object stays, and the
MPI handle inside it becomes that of a fresh duplicate. That includes `MPI.COMM_WORLD` and
`MPI.COMM_SELF`, since those are what tutorials use; MPI's own are kept aside, untouched, to
duplicate from.
"""

import ctypes
from collections.abc import Sequence

from mpi4py import MPI

import parlab.rank.requests  # noqa: F401, whose MPI.Request is everybody's

_pristine = MPI.Comm.fromhandle(MPI.COMM_WORLD.handle)
assert isinstance(_pristine, MPI.Intracomm)
pristine_self = MPI.Comm.fromhandle(MPI.COMM_SELF.handle)
assert isinstance(pristine_self, MPI.Intracomm)

# Every communicator that parlab renews; all of them span all ranks.
_communicators: list[MPI.Intracomm] = []

# A handle that was freed may not be looked at, and mpi4py leaves it in COMM_WORLD. But MPI deletes
# the attributes of what it frees, and tells.
_freed: list[int] = []
_told_when_freed = MPI.Comm.Create_keyval(
    delete_fn=lambda comm, keyval, value: _freed.append(value)
)


def _fresh(pristine: MPI.Intracomm) -> int:
    """The handle of a duplicate, which notes when the lab frees it. Collective over its ranks."""
    duplicate = pristine.Dup()
    duplicate.Set_attr(_told_when_freed, duplicate.handle)
    return duplicate.handle


def set_handle(comm: MPI.Intracomm, handle: int) -> None:
    """Put another MPI handle into the Python object `comm`."""
    # mpi4py gives the address of the handle inside its object for just such interoperation.
    ctypes.c_void_p.from_address(MPI._addressof(comm)).value = handle


def new_communicator() -> MPI.Intracomm:
    """A duplicate of the world that is revoked and renewed with `comm`. Collective."""
    # A rank that does not come is waited for here, where waiting can be ended by a revocation:
    # in the pristine world's own calls it cannot.
    comm.Barrier()
    duplicate = MPI.Comm.fromhandle(_fresh(_pristine))
    assert isinstance(duplicate, MPI.Intracomm)
    _communicators.append(duplicate)
    return duplicate


def is_freed(comm: MPI.Comm) -> bool:
    """Whether the lab freed it: then no MPI call may see it."""
    return comm.handle in _freed


def communicators() -> list[MPI.Intracomm]:
    """The communicators over all ranks that `renew` renews, without those that the lab freed."""
    return [comm for comm in _communicators if comm != MPI.COMM_NULL and not is_freed(comm)]


def is_damaged() -> bool:
    """Whether the lab freed or revoked one of them, or `MPI.COMM_SELF`."""
    return bool(_freed) or any(comm.Is_revoked() for comm in [*communicators(), MPI.COMM_SELF])


def renew(kept: Sequence[MPI.Comm] = ()) -> None:
    """Put fresh handles into every communicator of parlab but those `kept`. Collective."""
    for comm in _communicators:
        if not any(comm is one for one in kept):
            set_handle(comm, _fresh(_pristine))
    _freed.clear()
    set_handle(MPI.COMM_SELF, _fresh(pristine_self))


comm = MPI.COMM_WORLD
set_handle(comm, _fresh(_pristine))
_communicators.append(comm)
set_handle(MPI.COMM_SELF, _fresh(pristine_self))
