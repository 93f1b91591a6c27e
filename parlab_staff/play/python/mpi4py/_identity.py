"""Communicators: their handles, their members, and their names."""

import ctypes
from typing import Any

from mpi4py._groups import Group, Shared, compare
from mpi4py._values import ERR_COMM, ERR_REVOKED, Exception, Info

_NO_HANDLE = 0
_FIRST_HANDLE = 0x10000
_shared: dict[int, Shared] = {}
_delete_functions: dict[int, Any] = {}


def handle_of(shared: Shared) -> int:
    """Return the handle of a new communicator."""
    handle = _FIRST_HANDLE + shared.context
    _shared[handle] = shared
    return handle


class Identity:
    """The methods of communicators that describe them, and free them."""

    def __new__(cls, comm: "Identity | None" = None, *_: Any, **__: Any) -> "Identity":
        self = super().__new__(cls)
        # As in mpi4py, the handle is in memory with an address, where the course may replace it.
        self._cell = ctypes.c_void_p(comm.handle if comm is not None else _NO_HANDLE)
        return self

    @property
    def handle(self) -> int:
        return self._cell.value or _NO_HANDLE

    @classmethod
    def fromhandle(cls, handle: int) -> Any:
        from mpi4py import MPI

        shared = _shared.get(handle)
        comm = (MPI.Cartcomm if shared and shared.topology else MPI.Intracomm)()
        comm._cell.value = handle
        return comm

    def _get(self) -> Shared:
        shared = _shared.get(self.handle)
        if shared is None:
            raise Exception(ERR_COMM)
        if shared.revoked:
            raise Exception(ERR_REVOKED)
        return shared

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Identity) and self.handle == other.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def __bool__(self) -> bool:
        return self.handle != _NO_HANDLE

    def Get_rank(self) -> int:
        return Identity._get(self).rank

    def Get_size(self) -> int:
        return len(Identity._get(self).members)

    rank, size = property(Get_rank), property(Get_size)

    def Get_group(self) -> Group:
        shared = self._get()
        return Group(shared.members, shared.own)

    group = property(Get_group)

    def Get_name(self) -> str:
        return self._get().name

    def Set_name(self, name: str) -> None:
        self._get().name = name

    name = property(Get_name, Set_name)
    is_inter, is_intra = False, True

    def Is_inter(self) -> bool:
        return False

    def Is_intra(self) -> bool:
        return True

    def Get_info(self) -> Info:
        return Info()

    def Set_info(self, info: Info) -> None:
        pass

    def Get_errhandler(self) -> None:
        return None

    def Set_errhandler(self, errhandler: Any) -> None:
        pass

    @classmethod
    def Compare(cls, comm1: "Identity", comm2: "Identity") -> int:
        return compare(comm1._get(), comm2._get())

    def Free(self) -> None:
        shared = self._get()
        for keyval, value in shared.attributes.items():
            if _delete_functions.get(keyval):
                _delete_functions[keyval](self, keyval, value)
        del _shared[self.handle]
        self._cell.value = _NO_HANDLE

    Disconnect = Free

    def Is_revoked(self) -> bool:
        return _shared[self.handle].revoked if self.handle in _shared else False

    def Revoke(self) -> None:
        self._get().revoked = True

    def Abort(self, errorcode: int = 0) -> None:
        raise SystemExit(f"MPI_Abort was called with error code {errorcode}")

    @classmethod
    def Create_keyval(
        cls, copy_fn: Any = None, delete_fn: Any = None, nopython: bool = False
    ) -> int:
        _delete_functions[len(_delete_functions) + 1] = delete_fn
        return len(_delete_functions)

    def Set_attr(self, keyval: int, attrval: Any) -> None:
        self._get().attributes[keyval] = attrval

    def Get_attr(self, keyval: int) -> Any:
        return self._get().attributes.get(keyval)

    def Delete_attr(self, keyval: int) -> None:
        self._get().attributes.pop(keyval, None)
