"""All wait to send, so nobody receives

Send, then Recv, on every rank.
"""

import numpy as np

from parlab.chunks import chunk


def ring_reduce_scatter(x, comm):
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        comm.Send(x[chunk(len(x), rank - 1 - step, size)], dest=(rank + 1) % size)
        sum_so_far = x[chunk(len(x), rank - 2 - step, size)]
        incoming = np.empty_like(sum_so_far)
        comm.Recv(incoming, source=(rank - 1) % size)
        sum_so_far += incoming
    return x[chunk(len(x), rank, size)]
