"""The ledger's records of mpi4py's messages, in buffers and as objects."""

import array
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.ranks.neighbors import ring
from tests.support.on_ranks import Cases, World, expecting

cases = Cases()


BUFFERS: dict[str, tuple[Callable[[Any], Any], int]] = {
    "array": (lambda MPI: np.zeros(6), 48),
    "matrix_of_float32": (lambda MPI: np.zeros((2, 3), np.float32), 24),
    "array_and_type": (lambda MPI: [np.zeros(6), MPI.DOUBLE], 48),
    "array_and_letter": (lambda MPI: [np.zeros(6), "d"], 48),
    "count": (lambda MPI: [np.zeros(6), 4], 32),
    "count_and_type": (lambda MPI: (np.zeros(6, np.int32), 5, MPI.INT), 20),
    "count_with_displacement": (lambda MPI: [np.zeros(6), (3, 1), MPI.DOUBLE], 24),
    "tensor": (lambda MPI: torch.zeros(5, dtype=torch.int16), 10),
    "tensor_count_and_type": (lambda MPI: [torch.zeros(5), 2, MPI.FLOAT], 8),
    "bytes": (lambda MPI: bytearray(7), 7),
    "array_module": (lambda MPI: array.array("i", [1, 2, 3]), 12),
    "empty": (lambda MPI: np.zeros(0), 0),
}


@cases.add(buffer=list(BUFFERS))
def bytes_of_a_message(world: World, buffer: str) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    make, size = BUFFERS[buffer]
    right, left = ring(world)
    ledger = Ledger()
    comm = ledger.watch(world.comm)
    request = comm.Isend(make(MPI), right, tag=3)
    comm.Recv(make(MPI), left, 3)
    request.Wait()
    sent, received = ledger.calls
    assert (sent.api, sent.op, sent.bytes_sent, sent.bytes_received) == ("Isend", "isend", size, 0)
    assert (sent.to, sent.source, sent.peer, sent.tag) == (right, None, right, 3)
    assert (received.api, received.op) == ("Recv", "recv")
    assert (received.bytes_sent, received.bytes_received, received.bytes) == (0, size, size)
    assert (received.source, received.peer, received.tag, received.to) == (left, left, 3, None)


@cases.add()
def a_receive_counts_the_bytes_that_arrive(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    right, left = ring(world)
    ledger = Ledger()
    comm = ledger.watch(world.comm)
    status, room = MPI.Status(), np.zeros(100)
    request = comm.Irecv(room)
    assert ledger.calls[0].end is None and ledger.calls[0].source is None
    comm.Send(np.full(3, 2.5), right, tag=11)
    request.Wait(status)
    call = ledger.calls[0]
    assert (call.bytes_received, call.source, call.tag) == (24, left, 11)
    assert (status.source, status.tag, status.Get_count(MPI.DOUBLE)) == (left, 11, 3)
    assert room[:4].tolist() == [2.5, 2.5, 2.5, 0]
    assert call.start < ledger.calls[1].start < ledger.calls[1].end < call.end
    comm.Sendrecv(np.zeros(2), right, 1, room, left, 1, status)
    call = ledger.calls[2]
    assert (call.op, call.bytes_sent, call.bytes_received, call.bytes) == ("sendrecv", 16, 16, 16)
    assert (call.to, call.source, status.source) == (right, left, left)
    comm.Sendrecv_replace(room, right, 0, left, 0)
    assert ledger.calls[3].bytes_received == 800
    assert len(ledger.sends()) == 3 and len(ledger.receives()) == 3


@cases.add()
def objects_count_as_their_pickle(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    def size(value: Any) -> int:
        return len(MPI.pickle.dumps(value))

    right, left = ring(world)
    ledger = Ledger()
    comm = ledger.watch(world.comm)
    own, theirs = ["x" * (10 * r + 1) for r in (world.rank, left)]
    assert comm.sendrecv(own, right, source=left) == theirs
    request = comm.irecv(source=left)
    comm.send(own, right)
    assert request.wait() == theirs
    request = comm.isend(own, right)
    assert comm.recv(source=left) == theirs
    request.wait()
    for call in ledger.receives():
        assert (call.bytes_received, call.source) == (size(theirs), left)
    for call in ledger.sends():
        assert (call.bytes_sent, call.to) == (size(own), right)
    ledger.clear()
    values = ["x" * (10 * r + 1) for r in range(world.size)]
    everything = sum(map(size, values))
    is_root = world.rank == 0
    assert comm.allgather(own) == values
    assert comm.gather(own) == (values if is_root else None)
    assert comm.scatter(values if is_root else None) == own
    assert comm.bcast(values[1] if is_root else None) == values[1]
    assert comm.allreduce(1) == world.size
    assert comm.alltoall(values) == [own] * world.size
    comm.barrier()
    assert [(c.op, c.bytes_sent, c.bytes_received) for c in ledger.calls] == [
        ("all_gather", size(own), everything),
        ("gather", size(own), everything if is_root else 0),
        ("scatter", everything if is_root else 0, size(own)),
        ("broadcast", size(values[1]) if is_root else 0, 0 if is_root else size(values[1])),
        ("all_reduce", size(1), size(world.size)),
        ("all_to_all", everything, world.size * size(own)),
        ("barrier", 0, 0),
    ]


@cases.add(name=["Mprobe", "Improbe"])
def messages_found_by_a_matched_probe(world: World, name: str) -> None:
    from parlab.ledger import Ledger

    right, left = ring(world)
    ledger = Ledger()
    comm = ledger.watch(world.comm)
    sent = comm.Isend(np.zeros(3), right, tag=4)
    while (message := getattr(comm, name)()) is None:
        pass
    message.Recv(np.empty(3))
    sent.Wait()
    came = ledger.calls[-1]
    assert (came.op, came.source, came.bytes_received, came.tag) == ("recv", left, 24, 4)
    objects = comm.isend([1, 2], right)
    assert comm.mprobe().recv() == [1, 2]
    objects.wait()
    assert ledger.calls[-1].api == "recv"


@cases.add()
def messages_to_no_rank_are_not_recorded(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    ledger = Ledger()
    comm = ledger.watch(world.comm)
    last = world.size - 1
    right = world.rank + 1 if world.rank < last else MPI.PROC_NULL
    left = world.rank - 1 if world.rank else MPI.PROC_NULL
    comm.Sendrecv(np.ones(2), right, 0, np.empty(2), left, 0)
    comm.Send(np.ones(2), MPI.PROC_NULL)
    op = "send" if world.rank == 0 else "recv" if world.rank == last else "sendrecv"
    (call,) = ledger.calls
    assert call.op == op
    assert (call.bytes_sent, call.bytes_received) == (
        16 * (world.rank < last),
        16 * (world.rank > 0),
    )


@cases.add()
def calls_that_raise_are_not_recorded(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    ledger = Ledger()
    comm = ledger.watch(world.comm)
    with expecting(MPI.Exception, "ERR_RANK"):
        comm.Send(np.ones(1), world.size)
    with expecting(TypeError):
        comm.Send()
    assert ledger.calls == []
    with expecting(ValueError, "use one of send, "):
        ledger.count("allreduce")
