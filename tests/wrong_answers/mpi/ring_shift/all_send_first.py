"""All wait to send, so nobody receives

Works as long as messages are small enough to be buffered.
"""

import numpy as np


def ring_shift(x, comm):
    received = np.empty_like(x)
    comm.Send(x, dest=(comm.rank + 1) % comm.size)
    comm.Recv(received, source=(comm.rank - 1) % comm.size)
    return received
