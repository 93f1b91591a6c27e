"""Frees this rank when it is stuck, from a thread beside the one that is.

A rank blocked in MPI is in C, deaf to interrupts, but it let go of Python's lock: another
thread can revoke the communicator, and the blocked call fails at once, on every rank.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from mpi4py import MPI

from parlab.rank.errors import is_cell

REVOKE, CLOSE_TORCH = b"r", b"t"
BELLS = 6  # as often as the kernel asks, at most, before it gives up and restarts the ranks

# Communicators of this rank alone, to be revoked one at a time: see `_ring`.
_bells: list[MPI.Comm] = []


def start(requests: int) -> None:
    """Answer the requests that come through this file descriptor, one byte each."""
    threading.Thread(target=_serve, args=(requests,), name="parlab-release", daemon=True).start()


def _serve(requests: int) -> None:
    while request := os.read(requests, 1):
        with contextlib.suppress(Exception):  # a rank that cannot be freed is restarted
            if request == REVOKE:
                revoke()
            elif "parlab.rank.torch_groups" in sys.modules:
                sys.modules["parlab.rank.torch_groups"].close()


def revoke() -> None:
    """Revoke parlab's communicators and those that the main thread is using."""
    from parlab.rank import world

    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    for comm in [*world.communicators(), *_communicators_in_use(frame)]:
        # MPI's own pristine world is never among them: nothing hands it out.
        if comm != MPI.COMM_NULL and comm.size > 1 and not comm.Is_revoked():
            comm.Revoke()
    _ring()


def _ring() -> None:
    """Wake the calls of this rank that wait in MPI, so that each looks at its communicator.

    Seen on Open MPI 5.0.11: about one release in twenty did not reach a call on a communicator of
    the lab's own, and the ranks had to be started again. Likely because any revocation wakes all
    calls that wait, those that are not concerned wait on, and one that is just going back to wait
    does not hear that its own is revoked next. Revoking one more, which nobody uses, wakes it: then
    it was seen no more, in 250 releases.
    """
    if _bells:
        _bells.pop().Revoke()


def prepare() -> None:
    """Make what the next release needs. Called by the main thread, outside of any MPI call."""
    _bells.extend(MPI.COMM_SELF.Dup() for _ in range(BELLS - len(_bells)))


def _communicators_in_use(frame: FrameType | None) -> Iterator[MPI.Comm]:
    while frame is not None:
        yield from communicators_of(frame.f_locals).values()
        if is_cell(frame.f_code.co_filename):
            yield from communicators_of(frame.f_globals).values()
        frame = frame.f_back


def communicators_of(namespace: dict[str, object]) -> dict[str, MPI.Comm]:
    """The communicators among these variables, and those that these objects hold as `.comm`."""
    found = {}
    for name, value in list(namespace.items()):
        # By type, and without `getattr`: a look must not run code of the objects looked at.
        candidate = value
        if not issubclass(type(value), MPI.Comm):
            with contextlib.suppress(Exception):
                candidate = object.__getattribute__(value, "__dict__").get("comm")
        if issubclass(type(candidate), MPI.Comm):
            found[name] = candidate
    return found
