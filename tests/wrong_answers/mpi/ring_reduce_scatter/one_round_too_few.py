"""lacks the numbers of

N − 2 rounds.
"""

import numpy as np

from parlab.chunks import chunk


def ring_reduce_scatter(x, comm):
    rank, size = comm.rank, comm.size
    right, left = (rank + 1) % size, (rank - 1) % size
    received = np.empty(len(x) // size + 1, dtype=x.dtype)
    for step in range(size - 2):
        outgoing = x[chunk(len(x), rank - 1 - step, size)]
        sum_so_far = x[chunk(len(x), rank - 1 - step - 1, size)]
        incoming = received[: len(sum_so_far)]
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
        sum_so_far += incoming
    return x[chunk(len(x), rank, size)]
