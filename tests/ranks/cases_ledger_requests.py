"""The ledger's records of mpi4py's requests, whichever call starts or ends them."""

import numpy as np

from tests.ranks.neighbors import ring
from tests.support.on_ranks import Cases, World

cases = Cases()


@cases.add()
def requests_whose_end_is_not_noticed(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    right, left = ring(world)
    ledger = Ledger()
    comm = ledger.watch(world.comm)
    x, y = np.full(4, float(world.rank)), np.empty(4)
    requests = [comm.Irecv(y, left), comm.Issend(x, right)]
    assert all(isinstance(r, MPI.Request) and r != MPI.REQUEST_NULL for r in requests)
    MPI.Request.Waitall(requests)
    assert all(r == MPI.REQUEST_NULL for r in requests)
    assert y[0] == left
    comm.Barrier()
    received, sent, barrier = ledger.calls
    assert received.end <= barrier.start and sent.end <= barrier.start
    requests = [comm.irecv(source=left), comm.isend({"a": world.rank}, right)]
    assert MPI.Request.waitall(requests)[0] == {"a": left}
    request = comm.Isend(x, right)
    comm.Recv(y, left)
    while not request.Test():
        pass
    assert all(call.end is not None for call in ledger.calls)


@cases.add()
def persistent_requests_count_at_each_start(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    right, left = ring(world)
    ledger = Ledger()
    comm = ledger.watch(world.comm)
    send, receive = comm.Send_init(np.zeros(3), right, 5), comm.Recv_init(np.empty(3), left)
    assert not ledger.calls
    for _ in range(2):
        for request in (send, receive):
            request.Start()
        receive.Wait()
        send.Wait()
    MPI.Prequest.Startall([send, receive])
    receive.Wait()
    send.Wait()
    calls = ledger.calls
    assert [call.op for call in calls[:4]] == ["isend", "irecv"] * 2
    assert ledger.count("isend") == ledger.count("irecv") == 3
    assert {(c.to, c.bytes_sent, c.tag) for c in calls if c.op == "isend"} == {(right, 24, 5)}
    assert {(c.source, c.bytes_received, c.tag) for c in calls if c.op == "irecv"} == {
        (left, 24, 5)
    }
    assert all(call.end is not None for call in calls)
    send.Start()
    assert ledger.calls[-1].op == "isend"
    receive.Start()
    MPI.Request.Waitall([send, receive])
    assert all(call.end is not None for call in ledger.calls)


@cases.add()
def starts_and_ends_of_several_requests_count(world: World) -> None:
    from mpi4py import MPI

    from parlab.ledger import Ledger

    right, left = ring(world)
    ledger, came = Ledger(), np.empty(3)
    comm = ledger.watch(world.comm)
    requests = [comm.Send_init(np.ones(3), right), comm.Recv_init(came, left)]
    for _ in range(2):
        MPI.Prequest.Startall(requests)
        MPI.Request.Waitall(requests)
    assert [call.op for call in ledger.calls] == ["isend", "irecv"] * 2
    assert all(call.end is not None for call in ledger.calls)
    assert came.tolist() == [1, 1, 1]
