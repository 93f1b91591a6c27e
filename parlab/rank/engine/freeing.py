"""Frees this rank when it is stuck, or says where it is, from a thread beside the one that is.

A rank blocked in MPI is in C, deaf to interrupts, but it let go of Python's lock: another
thread can revoke the communicator, and the blocked call fails at once, on every rank.
"""

import contextlib
import sys
import threading
from collections.abc import Iterator
from itertools import islice
from types import FrameType, ModuleType

from mpi4py import MPI

from parlab.rank import world
from parlab.rank.engine import stacks
from parlab.rank.engine.interrupts import interrupt, interrupt_taken
from parlab.rank.engine.tracebacks import is_cell

WAKERS = 6  # as often as the kernel asks for a revocation, at least
# How far into lists, dicts and objects a communicator is looked for, and among how many of their
# parts: a variable may hold a data set.
DEPTH, WIDTH = 2, 100

# Communicators of this rank alone, to be revoked one at a time: see `_wake`.
_wakers: list[MPI.Comm] = []
# How often this rank was freed and made usable again. A request from before the last time comes too
# late: on a busy machine the next cell may be running already.
_generation = 0
_lock = threading.Lock()


def start(requests: int, output: int) -> None:
    """Answer the requests that come through this file descriptor, a line each: what, generation.

    Stacks are written into `told`.
    """
    arguments = (requests, output)
    threading.Thread(target=_serve, args=arguments, name="parlab-freeing", daemon=True).start()


def _serve(requests: int, output: int) -> None:
    answers = {
        "revoke": revoke,
        "close_torch": _close_torch,
        "interrupt": interrupt,
        "interrupt_taken": interrupt_taken,
    }
    with open(requests, encoding="utf-8") as lines:
        for line in lines:
            what, generation = line.split()
            if what == "stacks":
                stacks.write(output)
                continue
            with _lock, contextlib.suppress(Exception):  # a rank that is not freed is restarted
                if int(generation) == _generation:
                    answers[what]()


def begin(generation: int) -> None:
    """From here on, requests of earlier generations are not answered."""
    global _generation
    with _lock:
        _generation = generation


def _close_torch() -> None:
    if groups := sys.modules.get("parlab.rank.torch_groups"):
        groups.close()


def revoke() -> None:
    """Revoke parlab's communicators and those that the main thread is using."""
    frame = sys._current_frames().get(threading.main_thread().ident or 0)
    emulated = sys.modules.get("parlab.network.registry")
    others = emulated.revocable() if emulated else []
    ours = [MPI.COMM_SELF, *world.communicators()]
    for comm in [*ours, *others, *_communicators_in_use(frame)]:
        # MPI's own pristine communicators are never among them: nothing hands them out.
        if comm != MPI.COMM_NULL and not world.is_freed(comm) and not comm.Is_revoked():
            comm.Revoke()
    _wake()
    _progress()


def _progress() -> None:
    """Let MPI look after what has come in. A rank that is in no call of MPI does not, and a small
    send of another rank may wait in vain for this one to take it, also once it is revoked.

    Few calls: in a rank that computes in Python, each waits some 5 ms to get Python's lock back.
    """
    for _ in range(5):
        world.pristine_self.Iprobe()


def _wake() -> None:
    """Wake the calls of this rank that wait in MPI, so that each looks at its communicator.

    Seen on Open MPI 5.0.11: about one revocation in twenty did not reach a call on a communicator
    of the lab's own, and the ranks had to be started again. Likely because any revocation wakes all
    calls that wait, those that are not concerned wait on, and one that is just going back to wait
    does not hear that its own is revoked next. Revoking one more, which nobody uses, wakes it: then
    it was seen no more, in 250 deadlocks.
    """
    if _wakers:
        _wakers.pop().Revoke()


def prepare() -> None:
    """Make what the next freeing needs. Called by the main thread, outside of any MPI call."""
    _wakers.extend(world.pristine_self.Dup() for _ in range(WAKERS - len(_wakers)))


def _communicators_in_use(frame: FrameType | None) -> Iterator[MPI.Comm]:
    while frame is not None:
        if is_cell(frame.f_code.co_filename):
            for variables in (frame.f_locals, frame.f_globals):
                yield from (comm for _, comm in communicators_of(variables))
        else:
            # A library's frame: what it holds deeper may be its own, and outlive this cell.
            for value in list(frame.f_locals.values()):
                yield from _communicators_in(value, set(), depth=1, attributes=("comm",))
        frame = frame.f_back


def communicators_of(namespace: dict[str, object]) -> Iterator[tuple[str, MPI.Comm]]:
    """The communicators among these variables, also in containers and attributes, by name."""
    for name, value in list(namespace.items()):
        yield from ((name, comm) for comm in _communicators_in(value, set()))


def _communicators_in(
    value: object, visited: set[int], depth: int = DEPTH, attributes: tuple[str, ...] | None = None
) -> Iterator[MPI.Comm]:
    # By type, and past what a class may define: a look must not run code of the objects looked at.
    kind = type(value)
    if issubclass(kind, MPI.Comm):
        yield value
        return
    if depth == 0 or issubclass(kind, (type, ModuleType)) or id(value) in visited:
        return
    visited.add(id(value))
    for part in _parts(value, attributes):
        yield from _communicators_in(part, visited, depth - 1, attributes)


def _parts(value: object, attributes: tuple[str, ...] | None) -> list[object]:
    """What a container or an object holds, or these of its attributes."""
    kind = type(value)
    with contextlib.suppress(Exception):  # changed by the rank meanwhile, or without attributes
        if attributes is None and issubclass(kind, dict):
            return list(islice(dict.values(value), WIDTH))
        if attributes is None and issubclass(kind, (list, tuple, set)):
            sequence = next(t for t in (list, tuple, set) if issubclass(kind, t))
            return list(islice(sequence.__iter__(value), WIDTH))
        held = object.__getattribute__(value, "__dict__")
        return [held[name] for name in attributes or islice(held, WIDTH) if name in held]
    return []
