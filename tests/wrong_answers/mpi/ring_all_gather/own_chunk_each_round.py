"""of `x` holds chunk

Sends its own chunk again and again instead of passing on what came.
"""

from parlab.chunks import chunk


def ring_all_gather(x, comm):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank, size)]
        incoming = x[chunk(len(x), rank - step - 1, size)]
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
