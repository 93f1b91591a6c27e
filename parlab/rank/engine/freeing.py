"""Runs a thread that frees this rank's main thread when it is stuck, or reports where it is.

A call that is blocked in MPI runs C code, which an interrupt cannot end. But it has released
Python's lock, so another thread can revoke the communicator. Then the blocked call fails at once,
on every rank.
"""

import contextlib
import sys
import threading
from collections import deque
from collections.abc import Iterator
from itertools import chain, islice
from types import FrameType, ModuleType

from mpi4py import MPI

from parlab.rank import world
from parlab.rank.engine import stacks
from parlab.rank.engine.interrupts import interrupt
from parlab.rank.engine.tracebacks import is_cell

WAKERS = 6  # at least the number of revocations that the kernel may request
# Limits of the search for communicators in lists, dicts, and objects: its depth, the parts of each
# object, and all parts of a variable, which may hold a data set or a model.
DEPTH, WIDTH, PARTS = 5, 100, 1000
# Search only the `comm` of groups in these packages. They renew their other communicators.
_GROUPS = ("parlab.network.", "parlab.runtime.")

# Communicators of this rank alone. `_wake` revokes one at a time.
_wakers: list[MPI.Comm] = []
# How often this rank was freed and restored. Requests with a smaller number are too late: on a busy
# machine, the next cell may already be running.
_generation = 0
_lock = threading.Lock()


def start(requests: int, output: int) -> None:
    """Start a thread that answers requests.

    Args:
        requests: file descriptor from which it reads lines, each with a request and a generation.
        output: file descriptor to which it writes stacks.
    """
    arguments = (requests, output)
    threading.Thread(target=_serve, args=arguments, name="parlab-freeing", daemon=True).start()


def _serve(requests: int, output: int) -> None:
    answers = {"revoke": revoke, "close_torch": _close_torch, "interrupt": interrupt}
    with open(requests, encoding="utf-8") as lines:
        for line in lines:
            what, generation = line.split()
            if what == "stacks":
                stacks.write(output)
                continue
            with _lock, contextlib.suppress(Exception):  # the kernel replaces a rank that is stuck
                if int(generation) == _generation:
                    answers[what]()


def set_generation(generation: int) -> None:
    """Ignore requests of earlier generations from now on."""
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
    # Ours come first, before the search in the frames, which takes long after a deep recursion.
    for comm in chain(ours, others, _communicators_in_use(frame)):
        # These never include MPI's original communicators, because parlab does not expose them.
        if comm != MPI.COMM_NULL and not world.is_freed(comm) and not comm.Is_revoked():
            comm.Revoke()
    _wake()
    _progress()


def _progress() -> None:
    """Let MPI process incoming messages.

    MPI does this only during calls. Without it, a small send on another rank may wait forever for
    this rank, even after the communicator is revoked. There are only a few calls, because each can
    wait 5 ms for Python's lock if the main thread computes.
    """
    for _ in range(5):
        world.pristine_self.Iprobe()


def _wake() -> None:
    """Wake this rank's calls that wait in MPI, so that each checks its communicator again.

    On Open MPI 5.0.11, about one in twenty revocations of a lab's own communicator did not end a
    waiting call, so the ranks had to be replaced. The likely cause is that each revocation wakes
    all waiting calls, and calls on other communicators then wait again. A call that is about to
    wait again can miss the revocation of its own communicator. Revoking one more communicator,
    which nobody uses, wakes it once more. With this, the failure did not occur in 250 deadlocks.
    """
    if _wakers:
        _wakers.pop().Revoke()


def prepare() -> None:
    """Make the communicators for `_wake`. The main thread calls this, outside of any MPI call."""
    _wakers.extend(world.pristine_self.Dup() for _ in range(WAKERS - len(_wakers)))


def _communicators_in_use(frame: FrameType | None) -> Iterator[MPI.Comm]:
    shared = None  # the variables of the notebook, which all cells' frames share
    while frame is not None:
        if is_cell(frame.f_code.co_filename):
            searched, shared = shared, frame.f_globals
            found = (
                part
                for variables in (frame.f_locals, shared)
                if variables is not searched
                for value in list(variables.values())
                for part in within(value)
            )
        else:
            # In a library's frame, search less: deeper objects may belong to the library and must
            # still work after this cell.
            values = list(frame.f_locals.values())
            found = (part for value in values for part in within(value, 1, ("comm",)))
        yield from (part for part in found if issubclass(type(part), MPI.Comm))
        frame = frame.f_back


def within(
    value: object, depth: int = DEPTH, attributes: tuple[str, ...] | None = None
) -> Iterator[object]:
    """Yield `value` and its parts, outer ones first. With `attributes`, search only in these."""
    # Use the type and no methods that a class may override, so that the search does not run the
    # learner's code.
    waiting, seen = deque([(value, depth)]), set()
    while waiting and len(seen) < PARTS:
        part, deeper = waiting.popleft()
        if id(part) in seen or issubclass(type(part), (type, ModuleType)):
            continue
        seen.add(id(part))
        yield part
        if deeper and not issubclass(type(part), MPI.Comm):
            ours = str(type(part).__module__).startswith(_GROUPS)
            shown = ("comm",) if ours else attributes
            waiting.extend((one, deeper - 1) for one in _parts(part, shown))


def _parts(value: object, attributes: tuple[str, ...] | None) -> list[object]:
    """Return the first parts of a container or an object, or only the named attributes."""
    kind = type(value)
    with contextlib.suppress(Exception):  # the main thread changed it, or it has no attributes
        if attributes is None and issubclass(kind, dict):
            return list(islice(dict.values(value), WIDTH))
        if attributes is None and issubclass(kind, (list, tuple, set)):
            sequence = next(t for t in (list, tuple, set) if issubclass(kind, t))
            return list(islice(sequence.__iter__(value), WIDTH))
        held = object.__getattribute__(value, "__dict__")
        return [held[name] for name in attributes or islice(held, WIDTH) if name in held]
    return []
