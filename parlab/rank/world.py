"""The labs' communicator, and how it is renewed in place after a deadlock.

A communicator that was revoked (MPI's word for: every call on it fails, on every rank, at once)
never works again. Labs would lose `comm` with every mistake, and everything that holds it. So
the communicators that parlab hands out are renewed in place: the Python object stays, and the
MPI handle inside it becomes that of a fresh duplicate. That includes `MPI.COMM_WORLD`, since
that is what tutorials use; MPI's own world is kept aside, untouched, to duplicate from.
"""

import ctypes

from mpi4py import MPI

_pristine = MPI.Comm.fromhandle(MPI.COMM_WORLD.handle)
assert isinstance(_pristine, MPI.Intracomm)

# Every communicator that parlab renews; all of them span all ranks.
_communicators: list[MPI.Intracomm] = []


def _set_handle(comm: MPI.Intracomm, handle: int) -> None:
    # mpi4py gives the address of the handle inside its object for just such interoperation.
    ctypes.c_void_p.from_address(MPI._addressof(comm)).value = handle


def new_communicator() -> MPI.Intracomm:
    """A duplicate of the world that is revoked and renewed with `comm`. Collective."""
    # A rank that does not come is waited for here, where waiting can be ended by a revocation:
    # in the pristine world's own calls it cannot.
    comm.Barrier()
    duplicate = _pristine.Dup()
    _communicators.append(duplicate)
    return duplicate


def communicators() -> list[MPI.Intracomm]:
    """The communicators that `renew` renews."""
    return list(_communicators)


def renew() -> None:
    """Put fresh handles into every communicator of parlab. Collective over all ranks."""
    for comm in _communicators:
        _set_handle(comm, _pristine.Dup().handle)


comm = MPI.COMM_WORLD
_set_handle(comm, _pristine.Dup().handle)
_communicators.append(comm)
