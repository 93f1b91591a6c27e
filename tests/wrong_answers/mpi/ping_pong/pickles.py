"""it pickles a Python object

The lower-case calls pickle, and are measured as well.
"""

import statistics
import time

import numpy as np


def ping_pong(size, repeats, comm):
    if comm.rank > 1:
        return None
    buffer = np.zeros(size, dtype=np.uint8)
    round_trips = []
    for _ in range(repeats):
        start = time.perf_counter()
        if comm.rank == 0:
            comm.send(buffer, dest=1)
            comm.recv(source=1)
        else:
            comm.send(comm.recv(source=0), dest=0)
        round_trips.append(time.perf_counter() - start)
    return statistics.median(round_trips) / 2
