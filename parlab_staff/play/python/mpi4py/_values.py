"""Constants, datatypes, reductions, statuses, and errors."""

from typing import Any

import numpy as np

ANY_SOURCE = ANY_TAG = -1
PROC_NULL, ROOT, UNDEFINED = -2, -4, -32766
IDENT, CONGRUENT, SIMILAR, UNEQUAL = range(4)
COMM_TYPE_SHARED = 0
THREAD_SINGLE, THREAD_FUNNELED, THREAD_SERIALIZED, THREAD_MULTIPLE = range(4)
MAX_PROCESSOR_NAME, TAG_UB = 256, 2**30
SUCCESS, ERR_BUFFER, ERR_COUNT, ERR_TYPE, ERR_TAG, ERR_COMM, ERR_RANK, ERR_REQUEST, ERR_ROOT = (
    range(9)
)
ERR_GROUP, ERR_OP, ERR_TOPOLOGY, ERR_DIMS, ERR_ARG, ERR_UNKNOWN, ERR_TRUNCATE, ERR_OTHER = range(
    9, 17
)
ERR_REVOKED = 72
_TEXTS = {
    ERR_BUFFER: "MPI_ERR_BUFFER: invalid buffer pointer",
    ERR_COUNT: "MPI_ERR_COUNT: invalid count argument",
    ERR_TAG: "MPI_ERR_TAG: invalid tag",
    ERR_COMM: "MPI_ERR_COMM: invalid communicator",
    ERR_RANK: "MPI_ERR_RANK: invalid rank",
    ERR_REQUEST: "MPI_ERR_REQUEST: invalid request",
    ERR_ROOT: "MPI_ERR_ROOT: invalid root",
    ERR_DIMS: "MPI_ERR_DIMS: invalid topology dimension",
    ERR_ARG: "MPI_ERR_ARG: invalid argument of some other kind",
    ERR_TRUNCATE: "MPI_ERR_TRUNCATE: message truncated",
    ERR_REVOKED: "MPI_ERR_REVOKED: Communication Object Revoked",
}


class Exception(RuntimeError):
    """An error of MPI, with the text of Open MPI."""

    def __init__(self, code: int = SUCCESS) -> None:
        super().__init__(_TEXTS.get(code, f"MPI error {code}"))
        self._code = code

    def Get_error_class(self) -> int:
        return self._code

    Get_error_code = Get_error_class

    def Get_error_string(self) -> str:
        return str(self)

    error_class = error_code = property(Get_error_class)
    error_string = property(Get_error_string)


class Deadlock(BaseException):
    """No rank can continue. This is not an Exception, so that `except Exception` does not hide it.

    `waits` describes what this rank waits for.
    """

    def __init__(self, waits: dict[str, Any]) -> None:
        super().__init__("no rank can continue")
        self.waits = waits


class _InPlace(int):
    """The type of constants for buffers. They are integers, as in mpi4py."""


IN_PLACE, BOTTOM = _InPlace(-1), _InPlace(0)


class Datatype:
    """A type of elements in a buffer, such as `MPI.DOUBLE`."""

    def __init__(self, code: str, name: str = "") -> None:
        self._dtype = np.dtype(code)
        self.name = name

    def Get_size(self) -> int:
        return self._dtype.itemsize

    size = extent = property(Get_size)

    def Get_extent(self) -> tuple[int, int]:
        return 0, self.Get_size()

    def Get_name(self) -> str:
        return self.name

    def Commit(self) -> "Datatype":
        return self

    def Free(self) -> None:
        pass

    def tocode(self) -> str:
        return self._dtype.char

    @property
    def typechar(self) -> str:
        return self._dtype.char

    @classmethod
    def fromcode(cls, code: str) -> "Datatype":
        return cls(code)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Datatype) and self._dtype == other._dtype

    def __hash__(self) -> int:
        return hash(self._dtype)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        raise RuntimeError(f"MPI.Datatype.{name} is not part of mpi4py in this page")


# The names of the types of each code. A `LONG` has 64 bits, as on Linux.
_TYPES = {
    "B": "BYTE UNSIGNED_CHAR",
    "b": "CHAR SIGNED_CHAR",
    "?": "BOOL C_BOOL CXX_BOOL",
    "h": "SHORT",
    "H": "UNSIGNED_SHORT",
    "i": "INT",
    "I": "UNSIGNED UNSIGNED_INT",
    "q": "LONG LONG_LONG AINT COUNT",
    "Q": "UNSIGNED_LONG UNSIGNED_LONG_LONG",
    "i1": "INT8_T",
    "i2": "INT16_T",
    "i4": "INT32_T INTEGER",
    "i8": "INT64_T",
    "u1": "UINT8_T",
    "u2": "UINT16_T",
    "u4": "UINT32_T",
    "u8": "UINT64_T",
    "f": "FLOAT REAL",
    "d": "DOUBLE DOUBLE_PRECISION",
    "F": "COMPLEX C_FLOAT_COMPLEX",
    "D": "DOUBLE_COMPLEX C_DOUBLE_COMPLEX",
}
TYPES = {
    name: Datatype(code, f"MPI_{name}") for code, names in _TYPES.items() for name in names.split()
}


class Op:
    """A reduction. Calling it combines two values."""

    def __init__(self, name: str, arrays: Any, objects: Any) -> None:
        self.name, self._arrays, self._objects = name, arrays, objects

    def __call__(self, one: Any, other: Any) -> Any:
        return self._objects(one, other)

    def combine(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """Return the elements of two arrays of the same dtype, combined."""
        return np.asarray(self._arrays(one, other)).astype(one.dtype, copy=False)

    @classmethod
    def Create(cls, function: Any, commute: bool = False) -> "Op":
        def arrays(one: np.ndarray, other: np.ndarray) -> np.ndarray:
            result = other.copy()
            function(memoryview(one), memoryview(result), TYPES["BYTE"])
            return result

        return cls("", arrays, lambda one, other: function(one, other, None))

    def Free(self) -> None:
        pass


OPS = {
    "SUM": Op("MPI_SUM", np.add, lambda a, b: a + b),
    "PROD": Op("MPI_PROD", np.multiply, lambda a, b: a * b),
    "MAX": Op("MPI_MAX", np.maximum, lambda a, b: b if b > a else a),
    "MIN": Op("MPI_MIN", np.minimum, lambda a, b: b if b < a else a),
    "LAND": Op("MPI_LAND", np.logical_and, lambda a, b: bool(a) & bool(b)),
    "LOR": Op("MPI_LOR", np.logical_or, lambda a, b: bool(a) | bool(b)),
    "LXOR": Op("MPI_LXOR", np.logical_xor, lambda a, b: bool(a) ^ bool(b)),
    "BAND": Op("MPI_BAND", np.bitwise_and, lambda a, b: a & b),
    "BOR": Op("MPI_BOR", np.bitwise_or, lambda a, b: a | b),
    "BXOR": Op("MPI_BXOR", np.bitwise_xor, lambda a, b: a ^ b),
    "MAXLOC": Op("MPI_MAXLOC", None, lambda a, b: a if (a[0], -a[1]) >= (b[0], -b[1]) else b),
    "MINLOC": Op("MPI_MINLOC", None, lambda a, b: a if (a[0], a[1]) <= (b[0], b[1]) else b),
}


class Status:
    """The source, tag, and size of a message that a receive or a probe found."""

    def __init__(self, status: "Status | None" = None) -> None:
        self.source, self.tag, self.error, self.count = ANY_SOURCE, ANY_TAG, SUCCESS, 0
        if status is not None:
            self.fill(status.source, status.tag, status.count)

    def fill(self, source: int, tag: int, count: int) -> None:
        self.source, self.tag, self.count = source, tag, count

    def Get_source(self) -> int:
        return self.source

    def Get_tag(self) -> int:
        return self.tag

    def Get_error(self) -> int:
        return self.error

    def Get_count(self, datatype: Datatype = TYPES["BYTE"]) -> int:
        size = datatype.Get_size()
        return UNDEFINED if self.count % size else self.count // size

    Get_elements = Get_count

    def Is_cancelled(self) -> bool:
        return getattr(self, "cancelled_", False)

    cancelled = property(Is_cancelled)


class Info(dict):
    """Hints, which the page ignores."""

    @classmethod
    def Create(cls, items: Any = ()) -> "Info":
        return cls(items)

    def Set(self, key: str, value: str) -> None:
        self[key] = value

    def Get(self, key: str) -> str | None:
        return self.get(key)

    def Free(self) -> None:
        self.clear()
