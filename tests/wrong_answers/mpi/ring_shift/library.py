"""which is what you are to build

An all-gather moves N times as much.
"""


def ring_shift(x, comm):
    return comm.allgather(x)[comm.rank - 1]
