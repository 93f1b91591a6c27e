"""on the ring it sends to its right neighbour alone

Every rank sends its chunk to every other one.
"""

from parlab.chunks import chunk


def ring_all_gather(x, comm):
    rank, size = comm.rank, comm.size
    mine = x[chunk(len(x), rank, size)]
    for distance in range(1, size):
        dest, source = (rank + distance) % size, (rank - distance) % size
        incoming = x[chunk(len(x), source, size)]
        comm.Sendrecv(mine, dest=dest, recvbuf=incoming, source=source)
