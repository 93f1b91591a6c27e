"""after the reduce-scatter every rank still needs the chunks of the others

Every rank has its own chunk of the sum, and no other.
"""

import numpy as np

from parlab.chunks import chunk


def reduce_scatter(x, comm):
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank - 1 - step, size)]
        sum_so_far = x[chunk(len(x), rank - 2 - step, size)]
        incoming = np.empty_like(sum_so_far)
        comm.Sendrecv(outgoing, (rank + 1) % size, recvbuf=incoming, source=(rank - 1) % size)
        sum_so_far += incoming


def ring_all_reduce(x, comm):
    reduce_scatter(x.reshape(-1), comm)
