"""A chunk is sent on before the wait for it, so it may not have arrived."""

from mpi4py import MPI

from parlab.chunks import chunk


def ring_all_gather(x, comm):
    rank, size = comm.rank, comm.size
    requests = []
    for step in range(size - 1):
        incoming = x[chunk(len(x), rank - step - 1, size)]
        requests.append(comm.Irecv(incoming, source=(rank - 1) % size))
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank - step, size)]
        comm.Ssend(outgoing, dest=(rank + 1) % size)
    MPI.Request.Waitall(requests)
