"""Makes `comm.Abort()` fail in a rank cell, because it would end all ranks."""

import ctypes
import gc
from typing import NoReturn

from mpi4py import MPI


def install() -> None:
    """Replace `Abort` of all communicators on this rank."""
    # Python cannot set attributes of mpi4py's classes, but it can change the dict behind them.
    [attributes] = gc.get_referents(MPI.Comm.__dict__)
    attributes["Abort"] = _abort
    ctypes.pythonapi.PyType_Modified(ctypes.py_object(MPI.Comm))


def _abort(comm: MPI.Comm, errorcode: int = 0) -> NoReturn:
    raise RuntimeError(
        f"Abort({errorcode}) would end all ranks, and their variables would be lost. In a rank "
        "cell, raise an error instead. In a script, Abort works."
    )
