"""`x` holds the mean

Divides by the number of ranks, as gradients want it, and all-reduce does not.
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


def all_gather(x, comm):
    rank, size = comm.rank, comm.size
    for step in range(size - 1):
        outgoing = x[chunk(len(x), rank - step, size)]
        incoming = x[chunk(len(x), rank - step - 1, size)]
        comm.Sendrecv(outgoing, (rank + 1) % size, recvbuf=incoming, source=(rank - 1) % size)


def ring_all_reduce(x, comm):
    flat = x.flatten()
    reduce_scatter(flat, comm)
    all_gather(flat, comm)
    x[...] = flat.reshape(x.shape) / comm.size
