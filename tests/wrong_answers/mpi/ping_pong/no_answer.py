"""where repeats=

Rank 1 never sends anything back: ping, no pong.
"""

import time

import numpy as np


def ping_pong(size, repeats, comm):
    if comm.rank > 1:
        return None
    buffer = np.zeros(size, dtype=np.uint8)
    start = time.perf_counter()
    for _ in range(repeats):
        if comm.rank == 0:
            comm.Send(buffer, dest=1)
        else:
            comm.Recv(buffer, source=0)
    return (time.perf_counter() - start) / repeats
