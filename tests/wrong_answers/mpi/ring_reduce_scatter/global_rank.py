"""reads the global `rank`

The rank in the lab's communicator, not in `comm`.
"""

import numpy as np

from parlab.chunks import chunk
from parlab.rank import rank, world_size


def ring_reduce_scatter(x, comm):
    right, left = (rank + 1) % world_size, (rank - 1) % world_size
    for step in range(world_size - 1):
        outgoing = x[chunk(len(x), rank - 1 - step, world_size)]
        sum_so_far = x[chunk(len(x), rank - 2 - step, world_size)]
        incoming = np.empty_like(sum_so_far)
        comm.Sendrecv(outgoing, dest=right, recvbuf=incoming, source=left)
        sum_so_far += incoming
    return x[chunk(len(x), rank, world_size)]
