"""What the stuck ranks wait for, no rank that has returned will do

`else` lets ranks 2 and 3 wait for a ping as well.
"""

import statistics
import time

import numpy as np


def ping_pong(size, repeats, comm):
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
    return statistics.median(round_trips) / 2
