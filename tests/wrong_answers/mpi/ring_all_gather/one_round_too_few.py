"""never arrived

N − 2 rounds.
"""

from parlab.chunks import chunk


def ring_all_gather(x, comm):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    for step in range(size - 2):
        outgoing = x[chunk(len(x), rank - step, size)]
        incoming = x[chunk(len(x), rank - step - 1, size)]
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
