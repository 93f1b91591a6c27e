"""it returns the mean

One late answer spoils a mean.
"""

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
            comm.Send(buffer, dest=1)
            comm.Recv(buffer, source=1)
        else:
            comm.Recv(buffer, source=0)
            comm.Send(buffer, dest=0)
        round_trips.append(time.perf_counter() - start)
    return sum(round_trips) / repeats / 2
