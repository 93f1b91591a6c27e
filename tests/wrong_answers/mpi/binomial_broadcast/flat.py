"""rounds where

The root sends to everybody in turn.
"""


def binomial_broadcast(x, root, comm):
    if comm.rank == root:
        for dest in range(comm.size):
            if dest != root:
                comm.Send(x, dest=dest)
    else:
        comm.Recv(x, source=root)
