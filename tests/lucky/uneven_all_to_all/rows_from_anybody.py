"""Rows from any rank are taken for those of the step, so the order of arrival decides."""

import numpy as np
from mpi4py import MPI


def uneven_all_to_all(x, counts, comm):
    rank, size = comm.rank, comm.size
    if counts.shape != (size,) or counts.sum() != len(x):
        raise ValueError("counts has other numbers than there are rows")
    received_counts = np.empty_like(counts)
    received_counts[rank] = counts[rank]
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        place = received_counts[source : source + 1]
        comm.Sendrecv(counts[to : to + 1], dest=to, recvbuf=place, source=source)
    received = np.empty((received_counts.sum(), *x.shape[1:]), x.dtype)
    parts = np.split(x, np.cumsum(counts)[:-1])
    places = np.split(received, np.cumsum(received_counts)[:-1])
    places[rank][...] = parts[rank]
    for step in range(1, size):
        to, source = (rank + step) % size, (rank - step) % size
        comm.Sendrecv(
            parts[to],
            dest=to if counts[to] else MPI.PROC_NULL,
            recvbuf=places[source],
            source=MPI.ANY_SOURCE if received_counts[source] else MPI.PROC_NULL,
        )
    return received, received_counts
