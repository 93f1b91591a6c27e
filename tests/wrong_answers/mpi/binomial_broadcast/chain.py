"""rounds where

Every rank passes the data on to the next one.
"""


def binomial_broadcast(x, root, comm):
    relative = (comm.rank - root) % comm.size
    if relative > 0:
        comm.Recv(x, source=(comm.rank - 1) % comm.size)
    if relative < comm.size - 1:
        comm.Send(x, dest=(comm.rank + 1) % comm.size)
