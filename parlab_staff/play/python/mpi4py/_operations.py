"""Sends, receives, and collectives that are under way.

A receive copies its message when the program waits for it or tests it, and also in each other call
of MPI, because MPI makes progress in all of its calls.
"""

import pickle
import sys
from collections.abc import Callable
from typing import Any

import _hub
import numpy as np
from mpi4py._values import ERR_TRUNCATE, Deadlock, Exception

PROGRAM = "/program.py"  # the file name of the reader's program
_DEADLOCK, _INTERRUPTED, _NO_SLOT, _NO_MEMORY = -1, -2, -3, -4
_under_way: list["Operation"] = []


def programs_line() -> int:
    """Return the innermost line of the reader's program that is running, or 0."""
    frame = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != PROGRAM:
        frame = frame.f_back
    return frame.f_lineno if frame else 0


class Operation:
    """A call that is under way, with the slots in the hub that it waits for.

    Attributes:
        completed: True once it has ended. `error` is then the error to raise, `value` the received
            object, and `found` the source, the tag, and the number of bytes of a received message.
    """

    def __init__(self, api: str, kind: str, peer: int, tag: int, bytes_: int) -> None:
        self.api, self.kind, self.peer, self.tag, self.bytes = api, kind, peer, tag, bytes_
        self.slots: list[int] = []
        self.start, self.line, self.order = _hub.now(), programs_line(), -1
        self.completed, self.cancelled = False, False
        self.error: BaseException | None = None
        self.value: Any = None
        self.found: tuple[int, int, int] | None = None
        _under_way.append(self)

    def add(self, slot: int) -> int:
        """Add a slot for which this call waits. Return it, or raise an error if it is none."""
        if slot == _INTERRUPTED:  # while a large message waited for memory
            check_answer(slot, self)
        if slot == _NO_SLOT:
            raise RuntimeError(
                "this rank has more than 256 messages under way, which is the limit in a page: "
                "wait for some of them first"
            )
        if slot == _NO_MEMORY:
            raise RuntimeError(
                "this rank sends more than 64 MB at the same time, which is the limit in a page: "
                "send smaller messages"
            )
        self.slots.append(slot)
        return slot

    def next_slot(self) -> int | None:
        """Return a slot that is not matched yet, or None."""
        for slot in self.slots:  # not a generator: Python ignores an interrupt while one is closed
            if not _hub.ready(slot):
                return slot
        return None

    def complete(self) -> None:
        """Complete the call: take what has arrived. All slots must be matched."""
        self.completed = True
        _under_way.remove(self)
        try:
            self._take()
        except KeyboardInterrupt:  # raise it at once, not in the wait for the completed call
            raise
        except BaseException as error:  # the wait for this call raises it
            self.error = error
        self.note()

    def _take(self) -> None:
        raise NotImplementedError

    def note(self) -> None:
        """Add this call to the page's picture if the reader's program made it, and not a check."""
        if self.line:
            peer, size = self.peer, self.bytes
            _hub.event(self.api, self.kind, peer, size, self.tag, self.start, self.line, self.order)

    def cancel(self) -> None:
        if not self.completed and all([_hub.cancel(slot) for slot in self.slots]):
            self.completed = self.cancelled = True
            _under_way.remove(self)


class Send(Operation):
    """A message to a rank of the page."""

    def __init__(
        self, api: str, context: int, peer: int, tag: int, data: np.ndarray, detached: bool = False
    ) -> None:
        super().__init__(api, "send", peer, tag, data.size)
        self.add(_hub.post_send(context, peer, tag, _address(data), data.size, detached))
        if detached:
            self.slots, self.order = [], 0
            self.complete()

    def _take(self) -> None:
        for slot in self.slots:
            self.order = _hub.end_send(slot)


class Receive(Operation):
    """A message from one rank of the page, or from any rank.

    Args:
        into: where to put the bytes; None if the message is a Python object.
        slot: a slot that is already paired with a message.
    """

    def __init__(
        self,
        api: str,
        context: int,
        peer: int,
        tag: int,
        into: np.ndarray | None,
        slot: int | None = None,
    ) -> None:
        super().__init__(api, "recv", peer, tag, 0 if into is None else into.size)
        self.into = into
        self.add(_hub.post_receive(context, peer, tag, self.bytes) if slot is None else slot)

    def _take(self) -> None:
        [slot] = self.slots
        self.peer, self.tag, self.bytes, self.order = _hub.received(slot)
        self.found = self.peer, self.tag, self.bytes
        data = arrived(slot, self.into)
        if self.into is None:
            self.value = pickle.loads(data)


class Exchange(Operation):
    """A collective: each rank sends its part directly to all ranks that need it.

    Args:
        root: the rank of the page that is the root, or -1.
        number: a number for this call, which is the same on all ranks and differs from other calls.
        sends: the data to send to each rank of the page.
        receives: where to put the data from each rank of the page; None to get its bytes.
        finish: called with the bytes from each rank. It returns the value of the call.
    """

    def __init__(
        self,
        api: str,
        context: int,
        root: int,
        tag: int,
        number: int,
        sends: dict[int, np.ndarray],
        receives: dict[int, np.ndarray | None],
        finish: Callable[[dict[int, np.ndarray]], Any],
        own_bytes: int,
    ) -> None:
        super().__init__(api, "collective", root, -1, own_bytes)
        self.number, self.receives, self.finish = number, receives, finish
        self.from_ = {self.add(_hub.post_receive(context, peer, tag, 0)): peer for peer in receives}
        for peer, data in sends.items():
            self.add(_hub.post_send(context, peer, tag, _address(data), data.size, False))

    def _take(self) -> None:
        came = {}
        for slot in self.slots:
            peer = self.from_.get(slot)
            if peer is None:
                _hub.end_send(slot)
            else:
                came[peer] = arrived(slot, self.receives[peer])
        self.value = self.finish(came)
        self.order = self.number


class Nothing(Operation):
    """A message to or from `MPI.PROC_NULL`, which ends at once."""

    def __init__(self, found: tuple[int, int, int]) -> None:
        self.completed, self.cancelled, self.error, self.value, self.found = (
            True,
            False,
            None,
            None,
            found,
        )


def _address(data: np.ndarray) -> int:
    return data.__array_interface__["data"][0]


def arrived(slot: int, into: np.ndarray | None) -> np.ndarray:
    """Return the bytes that a matched receive got, in `into` if it is given. Free the slot."""
    try:
        count = _hub.received(slot)[2]
        if into is not None and count > into.size:
            raise Exception(ERR_TRUNCATE)
        data = np.empty(count, np.uint8) if into is None else into[:count]
        if count:
            _hub.copy(slot, _address(data), count)
        return data
    finally:
        _hub.free_receive(slot)


def progress() -> None:
    """Complete all operations that can be completed without waiting."""
    for operation in list(_under_way):
        if operation.next_slot() is None:
            operation.complete()


def check_answer(answer: int, operation: Operation) -> int:
    """Return the hub's answer to a wait. Raise Deadlock or KeyboardInterrupt if it reports one."""
    if answer == _DEADLOCK:
        progress()
        for begun in _under_way:
            begun.note()
        peer = operation.peer
        if isinstance(operation, Exchange):
            missing = operation.next_slot()
            peer = operation.from_.get(missing, peer)
        waits = {"api": operation.api, "kind": operation.kind, "peer": peer, "tag": operation.tag}
        _under_way.clear()  # the hub has taken back what was not matched
        raise Deadlock(waits)
    if answer == _INTERRUPTED:
        _hub.interrupted(programs_line())
        raise KeyboardInterrupt
    return answer


def wait(operation: Operation) -> Operation:
    """Wait until the operation has completed. Raise its error if it has one. Return it."""
    progress()
    while not operation.completed:
        slot = operation.next_slot()
        if slot is None:
            operation.complete()
        else:
            check_answer(_hub.wait(slot), operation)
    if operation.error is not None:
        error, operation.error = operation.error, None
        raise error
    return operation


def wait_any(operations: list[Operation]) -> int:
    """Wait until one of the operations has completed. Return its index."""
    while True:
        progress()
        for place, operation in enumerate(operations):
            if operation.completed:
                wait(operation)
                return place
        slots = [operation.next_slot() for operation in operations]
        if None not in slots:
            check_answer(_hub.wait_any(*slots), operations[0])
