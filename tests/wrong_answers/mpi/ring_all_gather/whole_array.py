"""in each round one chunk, and never more

Sends all of `x` in every round.
"""

import numpy as np

from parlab.chunks import chunk


def ring_all_gather(x, comm):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    incoming = np.empty_like(x)
    for step in range(size - 1):
        comm.Sendrecv(x, dest=right, recvbuf=incoming, source=left)
        arrived = chunk(len(x), rank - step - 1, size)
        x[arrived] = incoming[arrived]
